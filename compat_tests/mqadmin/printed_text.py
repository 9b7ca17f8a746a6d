"""Masks the parts of what mqadmin prints that differ from run to run."""

import re
from collections.abc import Mapping
from typing import Final

from compat_tests.mqadmin.commands import AdminCommand

_MASKS: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T#]?\d\d:\d\d:\d\d(?:[.,:]\d{1,3})?"), "TIME"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "ADDRESS"),
    (re.compile(r"\b20\d{15}\b|\b1[6-9]\d{11}\b"), "TIME"),
    (re.compile(r"\b[0-9A-F]{24,56}\b"), "ID"),
    (
        re.compile(
            r"(?<=commitLogOffset=)\d+|(?<=physicOffset=)\d+|(?<=CommitLog Offset:)\s*\d+|(?<=ID@|EY@)\d+"
        ),
        "N",
    ),
    (re.compile(r"/\S+/(?=mqadmin_static-|store/commitlog)"), "DIR/"),
    (re.compile(r"\b\d+ ?ms\b"), "N ms"),
)
_LONG = re.compile(r"\b\d{9,}\b")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:E-?\d+)?")
_STACK = re.compile(r"^\s*(at \S+\(|\.\.\. \d+ more|Suppressed:)")

_DEPENDS_ON_HISTORY = re.compile(r"scheduleMessageOffset_\d+")
"""A line of brokerStatus that is there once a delay level was used."""


def mask_output(text: str, command: AdminCommand, places: Mapping[str, str]) -> list[str]:
    """Return the lines that a command printed, without times, addresses, ids, stack traces and widths of columns.

    `places` are the values of the placeholders, which are printed as their names.
    """
    for name, value in sorted(places.items(), key=lambda item: -len(item[1])):
        text = text.replace(value, name.upper())
    lines = [_mask_line(line, command) for line in text.splitlines() if not _is_left_out(line)]
    lines = [line for line in lines if line and (not command.only or re.search(command.only, line))]
    return sorted(lines) if command.is_unordered else lines


def _is_left_out(line: str) -> bool:
    return bool(_STACK.match(line) or _DEPENDS_ON_HISTORY.match(line))


def _mask_line(line: str, command: AdminCommand) -> str:
    for pattern, word in _MASKS:
        line = pattern.sub(word, line)
    if command.names_only:
        line = line.partition(":")[0]
    if command.is_counted:
        line = _NUMBER.sub("N", line)
    line = _LONG.sub("LONG", line)
    return " ".join(line.split())
