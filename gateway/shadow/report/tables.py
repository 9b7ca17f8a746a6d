"""Formats values as HTML: numbers, name-value lists, tables, and whatever JSON a section holds.

Everything is escaped here.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

NO_VALUE: Final = "\u2013"
"""Stands for no value: an en dash."""
MIN_LONG_CHARS: Final = 48
"""Longer text may break anywhere in its cell."""
MIN_EPOCH_MS: Final = 1e12
"""A larger number of ms is a time since 1970 (2001 or later), not a duration (32 years)."""
MAX_ROWS: Final = 500
MAX_CELL_CHARS: Final = 600
"""Longer text (values of differing fields) is truncated."""


LABELS: Final = {
    "kept": "copied queues",
    "held": "waiting answers",
    "aside": "set aside",
    "ends": "end offsets",
    "shown": "status",
    "waited": "delivered later",
    "share_p50_ms": "gateway overhead p50 ms",
    "share_p99_ms": "gateway overhead p99 ms",
}
"""Labels of JSON keys that do not explain themselves to an operator."""


def format_number(value: float | None) -> str:
    """Format a number with three to four digits and grouped thousands; a dash for no value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NO_VALUE
    if isinstance(value, int) or (abs(value) >= 1000 and value == round(value)):
        return f"{round(value):,}".replace(",", "\u202f")
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.4g}" if abs(value) >= 0.001 or value == 0 else f"{value:.2g}"


def label_of(name: str) -> str:
    """Return a JSON key or metric name as words for people: `waiting_bytes` as "waiting bytes"; see `LABELS`."""
    return LABELS.get(name, name.replace("_", " "))


def render_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str = "") -> str:
    """Return a table whose first column heads its rows. Cells are plain values; see `render_cell`."""
    all_rows = list(rows)
    shown = all_rows[:MAX_ROWS]
    # The first column names the rows, even if it holds numbers.
    numeric = [at > 0 and _is_numeric(row[at] for row in shown) for at in range(len(headings))]
    head = "".join(
        _open_tag("th", right, ' scope="col"') + f"{escape(name)}</th>"
        for name, right in zip(headings, numeric, strict=True)
    )
    body = "".join(_render_row(row, numeric) for row in shown)
    more = (
        f'<p class="more">{len(all_rows) - len(shown)} more rows are left out.</p>'
        if len(all_rows) > len(shown)
        else ""
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def render_cell(value: Any) -> str:
    """Return one value as escaped text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, int | float):
        return format_number(value)
    if isinstance(value, list | tuple) and all(isinstance(each, str | int | float) for each in value):
        return escape(_truncate(", ".join(map(str, value)))) or NO_VALUE
    if isinstance(value, dict | list | tuple) and value:
        return f"<code>{escape(_truncate(json.dumps(value, ensure_ascii=False, default=str)))}</code>"
    return escape(_truncate("" if value in ({}, []) else str(value))) or NO_VALUE


def display_value(name: str, given: Any) -> Any:
    """Return a value as tables show it: times (`…_ms` since 1970) as dates in UTC, codes without grouping."""
    if name.endswith("_ms") and isinstance(given, int | float) and given >= MIN_EPOCH_MS:
        return datetime.fromtimestamp(given / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return str(given) if name == "code" else given


def render_value(given: Any) -> str:
    """Return any JSON value as HTML: mappings as name-value lists, lists of mappings as tables, the rest as text.

    Nested mappings get headings of their own.
    """
    if isinstance(given, Mapping):
        return _render_mapping(given)
    if isinstance(given, list) and given and all(isinstance(each, Mapping) for each in given):
        return rows_table(given)
    if isinstance(given, list) and not given:
        return '<p class="none">None.</p>'
    return f"<p>{render_cell(given)}</p>"


def rows_table(rows: Sequence[Mapping[str, Any]], caption: str = "") -> str:
    """Return a table of mappings; its columns are all their keys in order of first appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    headings = [label_of(name.removesuffix("_ms") if _is_time(rows, name) else name) for name in names]
    cells = ([display_value(name, row.get(name)) for name in names] for row in rows)
    return render_table(headings, cells, caption=caption)


def _render_mapping(given: Mapping[str, Any]) -> str:
    if not given:
        return '<p class="none">None.</p>'
    inner = {name: each for name, each in given.items() if _needs_heading(each)}
    plain = {name: each for name, each in given.items() if name not in inner}
    parts = []
    if plain:
        items = "".join(
            f"<div><dt>{escape(label_of(str(name)))}</dt><dd>{render_cell(display_value(name, each))}</dd></div>"
            for name, each in plain.items()
        )
        parts.append(f"<dl>{items}</dl>")
    if inner and all(_is_flat(each) for each in inner.values()) and len(inner) > 1:
        parts.append(rows_table([{"": name, **each} for name, each in inner.items()]))
    else:
        parts += [
            f"<h4>{escape(label_of(str(name)))}</h4>{render_value(each)}" for name, each in inner.items()
        ]
    return "".join(parts)


def _needs_heading(given: Any) -> bool:
    """Return whether a value needs a heading of its own."""
    return (isinstance(given, Mapping) and bool(given)) or (
        isinstance(given, list) and bool(given) and isinstance(given[0], Mapping)
    )


def _is_flat(given: Any) -> bool:
    return isinstance(given, Mapping) and not any(_needs_heading(each) for each in given.values())


def _is_time(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(row.get(name) != display_value(name, row.get(name)) for row in rows) and name.endswith("_ms")


def _render_row(row: Sequence[Any], numeric: Sequence[bool]) -> str:
    first = f'<th scope="row"{_long_class(row[0])}>{render_cell(row[0])}</th>'
    rest = "".join(
        _open_tag("td", right, _long_class(each)) + f"{render_cell(each)}</td>"
        for each, right in zip(row[1:], numeric[1:], strict=True)
    )
    return f"<tr>{first}{rest}</tr>"


def _open_tag(tag: str, right: bool, more: str = "") -> str:
    return f'<{tag} class="n"{more}>' if right else f"<{tag}{more}>"


def _long_class(given: Any) -> str:
    """Return the class of long text, which may break anywhere so that it does not push other columns away."""
    return (
        ' class="long"' if isinstance(given, str | dict | list) and len(str(given)) > MIN_LONG_CHARS else ""
    )


def _is_numeric(column: Iterable[Any]) -> bool:
    there = [each for each in column if each is not None]
    return bool(there) and all(isinstance(each, int | float) and not isinstance(each, bool) for each in there)


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_CELL_CHARS else text[:MAX_CELL_CHARS] + "…"
