"""Prints aligned columns as plain text; `gateway/admin/output.py` has tables with colours."""

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a heading and rows as aligned text; numbers, with thousands separators, to the right.

    The text is empty if there are no rows.
    """
    if not rows:
        return ""
    cells = [list(header)] + [[_cell_text(value) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    numeric = [all(isinstance(row[column], int) for row in rows) for column in range(len(header))]
    lines = []
    for row in cells:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _cell_text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
