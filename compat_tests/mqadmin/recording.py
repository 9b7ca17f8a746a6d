"""The output of mqadmin for the official servers, and the commands that print something else for ours."""

import json
import tomllib
from pathlib import Path
from typing import Final

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
    groups = tomllib.loads(DEVIATIONS.read_text())["deviation"]
    return {command: group["reason"] for group in groups for command in group["commands"]}
