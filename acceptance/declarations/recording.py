"""Reads the declarations of several official versions from their jars, and keeps what differs between them."""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from compat_tests.jars import compile_jar, java_command

RECORDING: Final = Path(__file__).with_name("official_declarations.json")
NEWEST_SERVER: Final = "5.4.0"
"""The version that is recorded as a whole."""
CHANGED: Final = "5.5.0"
"""A version of which additions and changes are recorded."""
DROPPED: Final = "4.9.8"
"""A version of which that is recorded which `NEWEST_SERVER` has no more."""
_PROFILES: Final = {NEWEST_SERVER: "server-5.4", CHANGED: "client-5.5", DROPPED: "client-4.9"}
_PARTS: Final = ("request_codes", "response_codes", "headers", "bodies")
_JAVA: Final = Path(__file__).with_name("java")
_TIMEOUT_S: Final = 120

Declarations = dict[str, dict[str, Any]]
"""Constants of codes, headers and bodies by name, in the parts of `_PARTS`."""
Recording = dict[str, dict[str, dict[str, Any]]]
"""The same parts, each by version."""


def describe_jars(version: str) -> Declarations:
    """Return the declarations in the jars of a version. Raises Unavailable without Java or Maven."""
    names = ["DescribeDeclarations"] if version == DROPPED else ["DescribeDeclarations", "DescribeBodies"]
    classes = compile_jar([_JAVA / f"{name}.java" for name in names], _PROFILES[version])
    with tempfile.TemporaryDirectory(prefix="declarations-") as home:
        command = java_command(_PROFILES[version], names[0], Path(home), classes=[classes], mapped=False)
        arguments = ["bodies"] if len(names) > 1 else []
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    found: Declarations = json.loads(done.stdout)
    return found


def describe_all() -> Recording:
    """Return what is to be recorded of all versions."""
    return combine({version: describe_jars(version) for version in _PROFILES})


def combine(found: Mapping[str, Declarations]) -> Recording:
    """Return one version as a whole, and the differences of the others from it."""
    whole, changed, dropped = (found[version] for version in (NEWEST_SERVER, CHANGED, DROPPED))
    combined: Recording = {}
    for part in _PARTS:
        known = whole[part]
        newer, older = changed.get(part, {}), dropped.get(part, {})
        combined[part] = {
            NEWEST_SERVER: known,
            CHANGED: {name: value for name, value in newer.items() if known.get(name) != value},
            DROPPED: {name: value for name, value in older.items() if name not in known},
        }
    return combined


def read_recording() -> Recording:
    """Return the recorded declarations."""
    recording: Recording = json.loads(RECORDING.read_text("utf-8"))
    return recording


def write_recording(recording: Recording) -> None:
    """Write declarations with a line for each name, so that changes can be reviewed."""
    parts = []
    for part, versions in recording.items():
        blocks = []
        for version, names in versions.items():
            lines = ",\n".join(f"   {json.dumps(name)}: {json.dumps(value)}" for name, value in names.items())
            blocks.append(f"  {json.dumps(version)}: {{\n{lines}\n  }}")
        parts.append(f" {json.dumps(part)}: {{\n" + ",\n".join(blocks) + "\n }")
    RECORDING.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")
