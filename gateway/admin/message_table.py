"""Prints messages as a table, one row each, with the beginning of the value."""

from typing import Any, Final

from gateway.admin.output import TableColumn, print_rows
from toolkit.times import format_time

MAX_VALUE_CHARS: Final = 40
"""Longer values are cut in a table, and end with "…"; the formats wide and json show all of them."""


def print_messages(
    rows: list[dict[str, Any]], output: str, *, empty: str, extra_columns: tuple[TableColumn, ...] = ()
) -> None:
    """Print the rows that `formats.to_json_value` returned. ``extra_columns`` stand behind the place of a message."""
    if output != "json":
        for row in rows:
            text = row.get("value", "(binary)")
            row |= {
                "stored": format_time(row["storedMs"]),
                "text": _shorten(text) if output == "table" else text,
            }
    columns = [
        TableColumn("stored", "stored", whole=True),
        TableColumn("broker", "broker"),
        TableColumn("queue", "queue"),
        TableColumn("offset", "offset"),
        *extra_columns,
        TableColumn("uniqueKey", "id", whole=True),
        TableColumn("keys", "keys"),
        TableColumn("tag", "tag"),
        TableColumn("properties", "properties", wide=True),
        TableColumn("text", "value"),
    ]
    print_rows(rows, columns, output, empty=empty)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"
