"""The live view of a running gateway in a terminal, as lines of text when the output is not a terminal.

Shows rates, latencies, mirrors, differences and moves from the console's `/live`.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from codec.topics import DLQ_PREFIX, RETRY_PREFIX
from gateway.shadow.clusters.metadata_sync import is_system_topic
from gateway.shadow.console.client import ConsoleClient, ConsoleUnreachable
from gateway.shadow.report.optional_packages import import_optional
from gateway.shadow.report.tables import display_value, label_of
from toolkit.html_tables import NO_VALUE
from toolkit.printable import echo, printable_value

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

ALL_TOPICS: Final = "(all)"
REASONS: Final = ("problem", "reason", "last_error")
"""Columns with sentences, which are shown below their table."""
SUBJECTS: Final = ("name", "part", "task", "topic", "broker", "queue")
"""Columns that name the subject of a row."""
PROBLEMS: Final = "problems"
"""The section that is shown first, and in full."""
MAX_TOPICS: Final = 12
MAX_CELL_CHARS: Final = 30
"""Longer text is truncated so that later columns still fit."""
TOPIC_WIDTH, NUMBER_WIDTH, GAP = 10, 6, 2
"""Least width of a topic column and a number column, and the gap between columns, in characters."""
COLUMN_LABELS: Final = {
    "sends_per_s": "sends/s",
    "pulls_per_s": "reads/s",
    "refused_per_s": "refused/s",
    "primary_p50_ms": "p50 ms",
    "primary_p99_ms": "p99 ms",
    "target_p99_ms": "target p99",
    "share_p99_ms": "gateway overhead p99",
    "mirrored_per_s": "mirrored/s",
    "mirror_dropped_per_s": "dropped/s",
    "differing_per_s": "differ/s",
}
COLUMNS_BY_PRIORITY: Final = (
    "sends_per_s",
    "primary_p99_ms",
    "mirrored_per_s",
    "differing_per_s",
    "mirror_dropped_per_s",
    "pulls_per_s",
    "share_p99_ms",
    "target_p99_ms",
    "refused_per_s",
    "primary_p50_ms",
)
"""The same columns, most important first: a narrow terminal shows only the first ones."""
ALARM_COLUMNS: Final = frozenset({"refused_per_s", "mirror_dropped_per_s", "differing_per_s"})
"""Columns shown in red when they are not zero."""
LiveState = Mapping[str, Any]


def watch_gateway(client: ConsoleClient, every_s: float, times: int | None) -> None:
    """Show the gateway until interrupted, or for ``times`` refreshes.

    Raises ConsoleUnreachable if the first refresh fails.
    """
    console = import_optional("rich.console").Console()
    refreshes = _poll_console(client, every_s, times)
    try:
        if console.is_terminal:
            _show_fullscreen(console, refreshes)
        else:
            for live in refreshes:
                echo(format_line(live))
    except KeyboardInterrupt:
        echo()


def format_line(live: LiveState) -> str:
    """Return one refresh as a line of names and numbers."""
    when = time.strftime("%H:%M:%S", time.gmtime(live["at_ms"] / 1000)) if "at_ms" in live else NO_VALUE
    if "problem" in live:
        return f"{when} {live['problem']}"
    problems = [f"PROBLEM: {problem['problem']}" for problem in _problems_of(live)]
    everything = live.get("topics", {}).get(ALL_TOPICS, {})
    numbers = [f"{name}={format_number(everything.get(name))}" for name in COLUMN_LABELS]
    states = [f"{name}: {text}" for name, text in _section_texts(live)]
    return " ".join([when, *problems, *numbers, *states])


def format_number(value: float | None) -> str:
    """Return a number in at most six characters."""
    if value is None or math.isnan(value):
        return NO_VALUE
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"


def render_page(live: LiveState, width: int) -> "RenderableType":
    """Return one refresh as rich shows it in a terminal of this width."""
    console = import_optional("rich.console")
    parts = [_render_heading(live), *_render_problems(live)]
    if live.get("topics"):
        parts.append(_render_topics(live["topics"], width))
    sections = {name: value for name, value in live.get("sections", {}).items() if name != PROBLEMS}
    parts += [_render_section(name, value, width) for name, value in sections.items()]
    drawn: RenderableType = console.Group(*parts)
    return drawn


def fitting_columns(width: int) -> list[str]:
    """Return the columns that fit, in display order."""
    room, fitting = width - TOPIC_WIDTH, set()
    for name in COLUMNS_BY_PRIORITY:
        room -= _column_width(name)
        if room < 0:
            break
        fitting.add(name)
    return [name for name in COLUMN_LABELS if name in fitting]


def _column_width(name: str) -> int:
    return max(len(COLUMN_LABELS[name]), NUMBER_WIDTH) + GAP


def _poll_console(client: ConsoleClient, every_s: float, times: int | None) -> Iterator[LiveState]:
    last: dict[str, Any] = {}
    done = 0
    while times is None or done < times:
        if done:
            time.sleep(every_s)
        try:
            # Topics, groups and problems hold what clients sent.
            last = printable_value(client.get("/live"))
        except ConsoleUnreachable as problem:
            # Wait for a gateway that restarts. If none ever answered, the address is probably wrong.
            if not last:
                raise
            last = {**last, "problem": str(problem)}
        done += 1
        yield last


def _show_fullscreen(console: "Console", refreshes: Iterator[LiveState]) -> None:
    live_display = import_optional("rich.live").Live(
        console=console, auto_refresh=False, screen=True, vertical_overflow="crop"
    )
    with live_display:
        for live in refreshes:
            live_display.update(render_page(live, console.width), refresh=True)


def _render_heading(live: LiveState) -> "RenderableType":
    text = import_optional("rich.text").Text(no_wrap=True, overflow="ellipsis")
    text.append(str(live.get("title", "")), style="bold")
    if "at_ms" in live:
        text.append(time.strftime("  %H:%M:%S UTC", time.gmtime(live["at_ms"] / 1000)), style="dim")
        running_s = max(0, live["at_ms"] - live["started_ms"]) / 1000
        text.append(f"  up {running_s:.0f} s", style="dim")
    if "problem" in live:
        text.append(f"\n{live['problem']}", style="bold red")
    heading: RenderableType = text
    return heading


def _problems_of(live: LiveState) -> list[Mapping[str, str]]:
    problems: list[Mapping[str, str]] = live.get("sections", {}).get(PROBLEMS, [])
    return problems


def _render_problems(live: LiveState) -> "Iterator[RenderableType]":
    """Yield the problems in red and in full length."""
    for problem in _problems_of(live):
        yield import_optional("rich.text").Text(
            f"Problem ({problem['part']}): {problem['problem']}", style="bold red"
        )


def _render_topics(topics: Mapping[str, Mapping[str, float | None]], width: int) -> "RenderableType":
    columns = fitting_columns(width)
    room = width - sum(map(_column_width, columns))
    table = import_optional("rich.table").Table(
        box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim"
    )
    table.add_column("topic", no_wrap=True, overflow="ellipsis", max_width=max(TOPIC_WIDTH, min(32, room)))
    for name in columns:
        table.add_column(
            COLUMN_LABELS[name], justify="right", no_wrap=True, min_width=len(COLUMN_LABELS[name])
        )
    busy = sorted(
        topics,
        key=lambda name: (
            name != ALL_TOPICS,
            is_internal(name),
            -(topics[name].get("sends_per_s") or 0),
            name,
        ),
    )
    for topic in busy[: MAX_TOPICS + 1]:
        row = [_render_number(topics[topic].get(name), bad=name in ALARM_COLUMNS) for name in columns]
        table.add_row(
            import_optional("rich.text").Text(topic, style="bold" if topic == ALL_TOPICS else ""), *row
        )
    if len(busy) > MAX_TOPICS + 1:
        table.add_row(f"and {len(busy) - MAX_TOPICS - 1} more", style="dim")
    drawn: RenderableType = table
    return drawn


def is_internal(topic: str) -> bool:
    """Tell whether a topic is the brokers' own, or one of retries and dead letters."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or is_system_topic(topic)


def _render_number(value: float | None, *, bad: bool) -> "RenderableType":
    drawn: RenderableType = import_optional("rich.text").Text(
        format_number(value), style="red" if bad and value else ""
    )
    return drawn


def _render_section(name: str, value: Any, width: int) -> "RenderableType":
    group, text = import_optional("rich.console").Group, import_optional("rich.text").Text
    parts = [text(f"\n{label_of(name)}", style="bold")]
    plain, rows = _split_section(value)
    if plain:
        parts.append(
            text(
                "  ".join(
                    f"{label_of(key)} {_format_cell(display_value(key, item))}" for key, item in plain.items()
                )
            )
        )
    for title, table in rows.items():
        parts.append(_render_rows(title, table, width))
    drawn: RenderableType = group(*parts)
    return drawn


def _split_section(value: Any) -> tuple[dict[str, Any], dict[str, list[Mapping[str, Any]]]]:
    """Split a section into values that fit a line and tables: lists of mappings, and mappings of mappings by name."""
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return {}, {"": value}
    if not isinstance(value, Mapping):
        return {"": value}, {}
    plain, rows = {}, {}
    for key, item in value.items():
        if isinstance(item, list) and item and isinstance(item[0], Mapping):
            rows[key] = item
        elif (
            isinstance(item, Mapping) and item and all(isinstance(inner, Mapping) for inner in item.values())
        ):
            rows[key] = [{"name": name, **inner} for name, inner in item.items()]
        else:
            plain[key] = item
    return plain, rows


def _render_rows(title: str, rows: list[Mapping[str, Any]], width: int) -> "RenderableType":
    table = import_optional("rich.table").Table(
        title=label_of(title),
        title_justify="left",
        title_style="dim",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    rows = sorted(rows, key=_row_rank)
    reasons = [text for row in rows[:MAX_TOPICS] for text in _reasons_of(row)]
    rows = [
        {name: _format_cell(display_value(name, item)) for name, item in row.items() if name not in REASONS}
        for row in rows[: MAX_TOPICS + 1]
    ]
    names = _fitting_names(rows, width)
    for name in names:
        table.add_column(label_of(name.removesuffix("_ms")), no_wrap=True, overflow="ellipsis")
    for row in rows[:MAX_TOPICS]:
        table.add_row(*(import_optional("rich.text").Text(row.get(name, "")) for name in names))
    if len(rows) > MAX_TOPICS:
        table.add_row("and more", style="dim")
    # Below the table, where they are wrapped: a column of a narrow terminal would cut them, or not be there.
    lines = [import_optional("rich.text").Text(text, style="red") for text in reasons]
    drawn: RenderableType = import_optional("rich.console").Group(table, *lines)
    return drawn


def _row_rank(row: Mapping[str, Any]) -> tuple[bool, bool]:
    """Rows with a reason come first, those of internal topics last; otherwise the order stays."""
    return not any(row.get(name) for name in REASONS), is_internal(str(row.get("topic", "")))


def _reasons_of(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each reason in a row, with the subject of the row."""
    subject = " ".join(str(row[name]) for name in SUBJECTS if row.get(name) not in (None, ""))
    for name in REASONS:
        if row.get(name):
            yield f"  {subject}: {row[name]}" if subject else f"  {row[name]}"


def _fitting_names(rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """Return the first columns of a table that fit."""
    names: list[str] = []
    for name in dict.fromkeys(name for row in rows for name in row):
        width -= GAP + min(MAX_CELL_CHARS, max(len(name), *(len(row.get(name, "")) for row in rows)))
        if names and width < 0:
            break
        names.append(name)
    return names


def _format_cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, int | float):
        return format_number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{label_of(str(key))} {_format_cell(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_format_cell, value))
    return str(value)


def _section_texts(live: LiveState) -> Iterator[tuple[str, str]]:
    """Yield the values of each section that fit a line."""
    for name, value in live.get("sections", {}).items():
        if name == PROBLEMS:
            continue
        plain, rows = _split_section(value)
        texts = [
            f"{key}={_format_cell(item)}" for key, item in plain.items() if item not in (None, "", [], {})
        ]
        texts += [f"{key}={len(table)}" for key, table in rows.items()]
        if texts:
            yield name, " ".join(texts)
