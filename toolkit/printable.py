"""Text that strangers chose, made safe to print.

Names, properties and bodies may hold characters that control a terminal: ESC, BEL, NUL, the C1 controls and the marks
that reverse text can hide lines, rename the window or forge output. Logs use `printable` and `printable_json` always.
Commands print through `echo`, which escapes only on a terminal: a script that reads a pipe gets the bytes as they are.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

LINES_AND_TABS: Final = "\n\t"
"""Characters that lay out a text and do no harm on a terminal."""


def printable(text: str, allowed: str = "") -> str:
    """Return a text with every character escaped that is not printable, except those of ``allowed``."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in allowed
        else character.encode("unicode_escape").decode()
        for character in text
    )


def printable_bytes(data: bytes) -> bytes:
    """Return a body for a terminal: lines and tabs stay, other controls and what is not UTF-8 are escaped."""
    return printable(data.decode("utf-8", "backslashreplace"), LINES_AND_TABS).encode()


def printable_json(document: str) -> str:
    r"""Return a JSON document that means the same, with ``\u`` for each character that is not printable."""
    if document.isprintable():
        return document
    # JSON encoders escape C0, but neither DEL, C1 nor lone surrogates. A line end can only stand between values here.
    return "".join(
        character if character.isprintable() or character in LINES_AND_TABS else _json_escape(character)
        for character in document
    )


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def printable_value(value: Any) -> Any:
    """Return a JSON value in which every text, also each key, is printable."""
    if isinstance(value, str):
        return printable(value, LINES_AND_TABS)
    if isinstance(value, Mapping):
        return {printable_value(name): printable_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_value(item) for item in value]
    return value


def echo(
    text: object = "",
    *,
    err: bool = False,
    nl: bool = True,
    fg: str | None = None,
    bold: bool | None = None,
) -> None:
    """Print a line as `click.secho` does; on a terminal, controls in the text are escaped."""
    import click  # A server that only logs has no use for it.

    line = str(text)
    if (sys.stderr if err else sys.stdout).isatty():
        line = printable(line, LINES_AND_TABS)
    click.echo(click.style(line, fg=fg, bold=bold) if fg or bold else line, err=err, nl=nl)


def echo_json(document: bytes) -> None:
    """Print a JSON document and a line end; on a terminal, with escapes that mean the same."""
    import click

    click.echo(printable_json(document.decode()) if sys.stdout.isatty() else document)
