"""Prints rows and facts: as tables for people, or as JSON for programs.

On a terminal, long cells are folded; a table that would have to fold an id is printed with one line for each cell
instead. Elsewhere, a row is always one line.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from toolkit.printable import echo, echo_json, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Row = Mapping[str, Any]
MAX_WIDTH_CHARS: Final = 1_000_000
"""Width of a line when the output is not a terminal."""
MIN_FOLDED_CHARS: Final = 16
"""Minimum width of a folded column: a narrower one is hard to read."""
COLUMN_GAP_CHARS: Final = 2


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a table: the key of the rows, a title, and a function that returns a style for a row."""

    key: str
    title: str
    wide: bool = False
    """Shown with -o wide only."""
    style: Callable[[Row], str] | None = None
    whole: bool = False
    """Never folded, because it is copied from the screen: an id, for example."""


def problem_column(rows: Iterable[Row]) -> TableColumn:
    """Return the column of the rows' problems; while there are none it is shown with -o wide only."""
    has_problems = any(row["problem"] for row in rows)
    return TableColumn("problem", "problem", wide=not has_problems, style=lambda row: "red")


def print_rows(rows: Iterable[Row], columns: Sequence[TableColumn], output: str, *, empty: str = "") -> None:
    """Print rows in a format: table, wide, json (all keys of the rows) or name (only the first column).

    ``empty`` is printed instead of a table without rows, on standard error.
    """
    listed = list(rows)
    if output == "json":
        print_json(listed)
    elif output == "name":
        for row in listed:
            echo(row[columns[0].key])
    elif not listed:
        echo(empty, err=True)
    else:
        print_table(listed, [column for column in columns if output == "wide" or not column.wide])


def print_json(value: Any) -> None:
    """Print one JSON document."""
    echo_json(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))


def print_json_line(value: Any) -> None:
    """Print one JSON object on one line."""
    echo_json(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))


def print_table(rows: Sequence[Row], columns: Sequence[TableColumn]) -> None:
    """Print rows as aligned columns; numbers stand to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        values = [row.get(column.key) for row in rows]
        is_numeric = any(isinstance(value, int | float) for value in values) and all(
            isinstance(value, int | float | None) for value in values
        )
        justify: Literal["left", "right"] = "right" if is_numeric else "left"
        title = Text(column.title.upper())
        table.add_column(title, justify=justify, overflow="fold", no_wrap=column.whole)
    for row in rows:
        table.add_row(*(_cell(row, column) for column in columns))
    console = open_console()
    if console.is_terminal:
        if any(column.whole for column in columns) and _needed_width(rows, columns) > console.width:
            _print_as_facts(rows, columns)
        else:
            console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():  # rich fills the last column up
        echo(line.rstrip())


def _needed_width(rows: Sequence[Row], columns: Sequence[TableColumn]) -> int:
    """Return the width of a table whose columns are folded, except those that must stay whole."""
    from rich.cells import cell_len

    needed = COLUMN_GAP_CHARS * (len(columns) - 1)
    for column in columns:
        texts = [column.title, *(format_value(row.get(column.key)) for row in rows)]
        longest = max(map(cell_len, texts))
        needed += longest if column.whole else min(longest, MIN_FOLDED_CHARS)
    return needed


def _print_as_facts(rows: Sequence[Row], columns: Sequence[TableColumn]) -> None:
    """Print each row as lines of title and value, with an empty line between rows."""
    for number, row in enumerate(rows):
        if number:
            echo()
        print_facts((column.title, row.get(column.key)) for column in columns)


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Print labels and values, one pair a line; pairs without a value are left out."""
    from rich.text import Text

    shown = [(printable(label), value) for label, value in facts if value not in (None, "", [], {})]
    width = max((len(label) for label, _ in shown), default=0)
    console = open_console()
    for label, value in shown:
        line = Text(f"{label}:".ljust(width + 2), style="bold")
        line.append(value if isinstance(value, Text) else Text(format_value(value), style="not bold"))
        console.print(line)


def print_warning(text: str) -> None:
    """Print a line in red on standard output: it is part of the result."""
    from rich.text import Text

    open_console().print(Text(printable(text), style="bold red"))


def open_console() -> "Console":
    """Return a console for standard output as it is now."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else MAX_WIDTH_CHARS
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def _cell(row: Row, column: TableColumn) -> "Text":
    from rich.text import Text

    style = column.style(row) if column.style is not None else ""
    return Text(format_value(row.get(column.key)), style=style)


def format_value(value: Any) -> str:
    """Return a value as a cell: thousands separated, lists with commas, "-" for None."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{printable(str(key))}={format_value(item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple | set):
        return ", ".join(map(format_value, value)) or "-"
    return printable(str(value))
