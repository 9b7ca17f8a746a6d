"""The output of mqadmin for the official servers, and the commands that print something else for ours."""

import json
import tomllib
from pathlib import Path
from typing import Any, Final

RECORDING: Final = Path(__file__).with_name("official_output.json")
DEVIATIONS: Final = Path(__file__).with_name("deviations.toml")

Output = dict[str, list[str]]
"""Printed lines by the id of the command."""


def read_recording() -> Output:
    """Return the recorded output."""
    output: Output = json.loads(RECORDING.read_text())
    return output


def write_recording(output: Output) -> None:
    RECORDING.write_text(json.dumps(output, indent=1) + "\n")


def read_deviations() -> dict[str, str]:
    """Return the reasons of the commands whose output differs for our server, by the id of the command."""
    return {command: group["reason"] for group in _read_groups() for command in group["commands"]}


def read_unserved_commands() -> set[str]:
    """Return the ids of the commands that do not work with our server, whatever its settings."""
    return {
        command
        for group in _read_groups()
        if not group.get("is_served", True)
        for command in group["commands"]
    }


def _read_groups() -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = tomllib.loads(DEVIATIONS.read_text())["deviation"]
    return groups
