"""JSON values of the report as HTML: name-value lists, tables of mappings, inner mappings under headings."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from gateway.shadow.mirror.circuit_breaker import BreakerState
from toolkit.html_tables import render_cell, render_table

MIN_EPOCH_MS: Final = 1e12
"""A larger number of ms is a time since 1970 (2001 or later), not a duration (32 years)."""
LABELS: Final = {
    "replication": "copied queues",
    "held": "waiting answers",
    "ends": "end offsets",
    "waited": "delivered later",
    "share_p50_ms": "gateway overhead p50 ms",
    "share_p99_ms": "gateway overhead p99 ms",
}
"""Labels of JSON keys that do not explain themselves to an operator."""
REASON_NAMES: Final = ("problem",)
LOSS_NAMES: Final = (
    "missing",
    "extra",
    "duplicated",
    "order_broken",
    "changed",
    "dropped",
    "refused",
    "lost",
    "differing",
)
"""Counts of a row that are 0 while all is well."""
BAD_PHASES: Final = ("failing", "stuck")
BAD_BREAKERS: Final = (BreakerState.OPEN.value, BreakerState.HALF_OPEN.value)


def label_of(name: str) -> str:
    """Return a JSON key or metric name as words for people: `waiting_bytes` as "waiting bytes"; see `LABELS`."""
    return LABELS.get(name, name.replace("_", " "))


def display_value(name: str, value: Any) -> Any:
    """Return a value as tables show it: times (`…_ms` since 1970) as dates in UTC, codes without grouping."""
    if name.endswith("_ms") and isinstance(value, int | float) and value >= MIN_EPOCH_MS:
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return str(value) if name == "code" else value


def render_value(value: Any) -> str:
    """Return any JSON value as HTML: mappings as name-value lists, lists of mappings as tables, the rest as text.

    Nested mappings get headings of their own.
    """
    if isinstance(value, Mapping):
        return _render_mapping(value)
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        return rows_table(value)
    if isinstance(value, list) and not value:
        return '<p class="none">None.</p>'
    return f"<p>{render_cell(value)}</p>"


def rows_table(rows: Sequence[Mapping[str, Any]], caption: str = "") -> str:
    """Return a table of mappings; its columns are all their keys in order of first appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    headings = [label_of(name.removesuffix("_ms") if _is_time(rows, name) else name) for name in names]
    cells = ([display_value(name, row.get(name)) for name in names] for row in rows)
    return render_table(headings, cells, caption=caption, bad_rows=[is_bad_row(row) for row in rows])


def is_bad_row(row: Mapping[str, Any]) -> bool:
    """Tell whether a row of a part's state is about something that fails or is lost."""
    if any(row.get(name) for name in REASON_NAMES) or any(row.get(name) for name in LOSS_NAMES):
        return True
    return row.get("failing") is True or row.get("phase") in BAD_PHASES or row.get("breaker") in BAD_BREAKERS


def _render_mapping(value: Mapping[str, Any]) -> str:
    if not value:
        return '<p class="none">None.</p>'
    inner = {name: item for name, item in value.items() if _needs_heading(item)}
    plain = {name: item for name, item in value.items() if name not in inner}
    parts = []
    if plain:
        items = "".join(
            f"<div><dt>{escape(label_of(str(name)))}</dt><dd>{render_cell(display_value(name, item))}</dd></div>"
            for name, item in plain.items()
        )
        parts.append(f"<dl>{items}</dl>")
    if inner and all(_is_flat(item) for item in inner.values()) and len(inner) > 1:
        parts.append(rows_table([{"": name, **item} for name, item in inner.items()]))
    else:
        parts += [
            f"<h4>{escape(label_of(str(name)))}</h4>{render_value(item)}" for name, item in inner.items()
        ]
    return "".join(parts)


def _needs_heading(value: Any) -> bool:
    """Return whether a value needs a heading of its own."""
    return (isinstance(value, Mapping) and bool(value)) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
    )


def _is_flat(value: Any) -> bool:
    return isinstance(value, Mapping) and not any(_needs_heading(item) for item in value.values())


def _is_time(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(row.get(name) != display_value(name, row.get(name)) for row in rows) and name.endswith("_ms")
