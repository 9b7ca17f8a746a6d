"""Tables as HTML. All texts are escaped here."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

NO_VALUE: Final = "\u2013"
"""Stands for no value: an en dash."""
MIN_LONG_CHARS: Final = 48
"""Number of characters above which text may break anywhere in its cell."""
MAX_ROWS: Final = 500
MAX_CELL_CHARS: Final = 600
"""Longer text (values of differing fields) is truncated."""
MANY_COLUMNS: Final = 9
"""Number of columns above which a table has a smaller font, so that it fits the page."""


def format_number(value: float | None) -> str:
    """Format a number with three to four digits and grouped thousands; a dash for no value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NO_VALUE
    if isinstance(value, int) or (abs(value) >= 1000 and value == round(value)):
        return f"{round(value):,}".replace(",", "\u202f")
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.4g}" if abs(value) >= 0.001 or value == 0 else f"{value:.2g}"


def render_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    caption: str = "",
    max_rows: int | None = MAX_ROWS,
    is_numeric: Callable[[Any], bool] | None = None,
    bad_rows: Sequence[bool] = (),
) -> str:
    """Return a table whose first column heads its rows. Cells are plain values, as `render_cell` takes them.

    A column is aligned to the right if all its cells are numeric; `is_numeric` replaces the test of a cell. `bad_rows`
    marks the rows to be shown in red. On a narrow screen each row becomes a list of its cells with their headings.
    """
    test = is_numeric or _is_number
    all_rows = list(rows)
    visible_rows = all_rows[:max_rows]
    # The first column names the rows, even if it holds numbers.
    numeric = [
        at > 0 and _is_numeric_column((row[at] for row in visible_rows), test) for at in range(len(headings))
    ]
    head = "".join(
        _open_tag("th", right, ' scope="col"') + f"{escape(name)}</th>"
        for name, right in zip(headings, numeric, strict=True)
    )
    bad = [*bad_rows, *[False] * len(visible_rows)]
    body = "".join(
        _render_row(row, numeric, headings, is_bad) for row, is_bad in zip(visible_rows, bad, strict=False)
    )
    note = (
        f'<p class="more">{len(all_rows) - len(visible_rows)} more rows are left out.</p>'
        if len(all_rows) > len(visible_rows)
        else ""
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    many = ' class="many"' if len(headings) > MANY_COLUMNS else ""
    table = f"<table{many}>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>{note}'


def render_cell(value: Any) -> str:
    """Return one value as escaped text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, int | float):
        return format_number(value)
    if isinstance(value, list | tuple) and all(isinstance(element, str | int | float) for element in value):
        return escape(_truncate(", ".join(map(str, value)))) or NO_VALUE
    if isinstance(value, Mapping | list | tuple) and value:
        return escape(_truncate(_in_words(value)))
    return escape(_truncate("" if value in ({}, []) else str(value))) or NO_VALUE


def _in_words(value: Any) -> str:
    """Return a nested value as text for people: `name value, name value; …`."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{str(name).replace('_', ' ')} {_in_words(element)}" for name, element in value.items()
        )
    if isinstance(value, list | tuple):
        return "; ".join(map(_in_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_number(value) if value is None or isinstance(value, int | float) else str(value)


def _render_row(row: Sequence[Any], numeric: Sequence[bool], headings: Sequence[str], is_bad: bool) -> str:
    first = f'<th scope="row"{_long_class(row[0])}>{render_cell(row[0])}</th>'
    cells = "".join(
        _open_tag("td", right, _long_class(cell), heading) + f"{render_cell(cell)}</td>"
        for cell, right, heading in zip(row[1:], numeric[1:], headings[1:], strict=True)
    )
    return f'<tr class="bad">{first}{cells}</tr>' if is_bad else f"<tr>{first}{cells}</tr>"


def _open_tag(tag: str, right: bool, attributes: str = "", heading: str = "") -> str:
    label = f' data-label="{escape(heading)}"' if heading else ""
    return f'<{tag} class="n"{attributes}{label}>' if right else f"<{tag}{attributes}{label}>"


def _long_class(value: Any) -> str:
    """Return the class of long text, which may break anywhere so that it does not push other columns away."""
    return (
        ' class="long"' if isinstance(value, str | dict | list) and len(str(value)) > MIN_LONG_CHARS else ""
    )


def _is_numeric_column(column: Iterable[Any], is_numeric: Callable[[Any], bool]) -> bool:
    cells = [cell for cell in column if cell is not None]
    return bool(cells) and all(map(is_numeric, cells))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_CELL_CHARS else text[:MAX_CELL_CHARS] + "…"
