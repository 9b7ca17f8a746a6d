"""Values as HTML: numbers that people read, key and value tables, tables of rows, whatever a part's section holds.

Everything is escaped here. Not responsible for what is shown where (html is).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

NONE: Final = "\u2013"
"""Stands for no value: an en dash."""
LONG_LETTERS: Final = 48
EPOCH_FROM_MS: Final = 1e12
"""A time since 1970, not a duration: 2001, or 32 years."""
MOST_ROWS: Final = 500
MOST_LETTERS: Final = 600
"""Longer texts (values of differing fields) are cut."""


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


def number(value: float | None) -> str:
    """Three to four digits, thousands set apart; a dash for no value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NONE
    if isinstance(value, int) or (abs(value) >= 1000 and value == round(value)):
        return f"{round(value):,}".replace(",", "\u202f")
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.4g}" if abs(value) >= 0.001 or value == 0 else f"{value:.2g}"


def words(name: str) -> str:
    """Return a JSON key or metric name as words for people: `waiting_bytes` as "waiting bytes"; see `LABELS`."""
    return LABELS.get(name, name.replace("_", " "))


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str = "") -> str:
    """A table whose first column heads its rows. Cells are plain values; see `cell`."""
    kept = list(rows)
    shown = kept[:MOST_ROWS]
    # The first column names the rows, be it by numbers.
    numeric = [at > 0 and _is_numeric(row[at] for row in shown) for at in range(len(headings))]
    head = "".join(
        _open("th", right, ' scope="col"') + f"{escape(name)}</th>"
        for name, right in zip(headings, numeric, strict=True)
    )
    body = "".join(_row(row, numeric) for row in shown)
    more = (
        f'<p class="more">{len(kept) - len(shown)} more rows are left out.</p>'
        if len(kept) > len(shown)
        else ""
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def cell(value: Any) -> str:
    """One value as escaped text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, int | float):
        return number(value)
    if isinstance(value, list | tuple) and all(isinstance(each, str | int | float) for each in value):
        return escape(_cut(", ".join(map(str, value)))) or NONE
    if isinstance(value, dict | list | tuple) and value:
        return f"<code>{escape(_cut(json.dumps(value, ensure_ascii=False, default=str)))}</code>"
    return escape(_cut("" if value in ({}, []) else str(value))) or NONE


def shown(name: str, given: Any) -> Any:
    """A value as a table has it: times (`…_ms` that can only be since 1970) as dates in UTC, codes without gaps."""
    if name.endswith("_ms") and isinstance(given, int | float) and given >= EPOCH_FROM_MS:
        return datetime.fromtimestamp(given / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return str(given) if name == "code" else given


def value(given: Any) -> str:
    """Whatever JSON holds: mappings of plain values side by side with their names, lists of mappings as tables,
    inner mappings under headings of their own."""
    if isinstance(given, Mapping):
        return _mapping(given)
    if isinstance(given, list) and given and all(isinstance(each, Mapping) for each in given):
        return rows_table(given)
    if isinstance(given, list) and not given:
        return '<p class="none">None.</p>'
    return f"<p>{cell(given)}</p>"


def rows_table(rows: Sequence[Mapping[str, Any]], caption: str = "") -> str:
    """A table of mappings; the columns are all their keys, in the order in which they are first met."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    headings = [words(name.removesuffix("_ms") if _is_time(rows, name) else name) for name in names]
    cells = ([shown(name, row.get(name)) for name in names] for row in rows)
    return table(headings, cells, caption=caption)


def _mapping(given: Mapping[str, Any]) -> str:
    if not given:
        return '<p class="none">None.</p>'
    inner = {name: each for name, each in given.items() if _is_inner(each)}
    plain = {name: each for name, each in given.items() if name not in inner}
    parts = []
    if plain:
        items = "".join(
            f"<div><dt>{escape(words(str(name)))}</dt><dd>{cell(shown(name, each))}</dd></div>"
            for name, each in plain.items()
        )
        parts.append(f"<dl>{items}</dl>")
    if inner and all(_is_flat(each) for each in inner.values()) and len(inner) > 1:
        parts.append(rows_table([{"": name, **each} for name, each in inner.items()]))
    else:
        parts += [f"<h4>{escape(words(str(name)))}</h4>{value(each)}" for name, each in inner.items()]
    return "".join(parts)


def _is_inner(given: Any) -> bool:
    """Whether it needs a place of its own, under a heading."""
    return (isinstance(given, Mapping) and bool(given)) or (
        isinstance(given, list) and bool(given) and isinstance(given[0], Mapping)
    )


def _is_flat(given: Any) -> bool:
    return isinstance(given, Mapping) and not any(_is_inner(each) for each in given.values())


def _is_time(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(row.get(name) != shown(name, row.get(name)) for row in rows) and name.endswith("_ms")


def _row(row: Sequence[Any], numeric: Sequence[bool]) -> str:
    first = f'<th scope="row"{_long(row[0])}>{cell(row[0])}</th>'
    rest = "".join(
        _open("td", right, _long(each)) + f"{cell(each)}</td>"
        for each, right in zip(row[1:], numeric[1:], strict=True)
    )
    return f"<tr>{first}{rest}</tr>"


def _open(tag: str, right: bool, more: str = "") -> str:
    return f'<{tag} class="n"{more}>' if right else f"<{tag}{more}>"


def _long(given: Any) -> str:
    """Long texts may be broken anywhere, so that they do not push other columns away."""
    return ' class="long"' if isinstance(given, str | dict | list) and len(str(given)) > LONG_LETTERS else ""


def _is_numeric(column: Iterable[Any]) -> bool:
    there = [each for each in column if each is not None]
    return bool(there) and all(isinstance(each, int | float) and not isinstance(each, bool) for each in there)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS] + "…"
