"""The report of a run as one self-contained HTML page: chapters of plots, each with a table of its numbers, and tables.

The input is the JSON of the console's `/report`. Plots are drawn by `toolkit.plots`, tables by `tables.py`.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from gateway.shadow.report import charts, tables
from gateway.shadow.report.optional_packages import import_optional
from gateway.shadow.report.snapshot import named_metrics
from gateway.shadow.report.traffic_series import ALL_TOPICS, COUNT_NAMES, QUANTILE_PERCENTS, SIDES
from gateway.shadow.report.verdict import describe_clusters, judge_run, render_verdict
from toolkit.html_tables import format_number, render_cell, render_table
from toolkit.pages import Mood, format_time, render_cards, render_document
from toolkit.plots import Plot, draw_plot, points_per_group

Report = Mapping[str, Any]
Drawer = Callable[[Mapping[str, Any], Mapping[int, float]], Plot]


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter of the page: the plots of `drawers`, then the sections with these names."""

    name: str
    title: str
    about: str
    drawers: tuple[Drawer, ...] = ()
    sections: tuple[str, ...] = ()


MAX_OPEN_ROWS: Final = 12
"""Rows of a table that are shown without opening it."""
CHAPTERS: Final = (
    Chapter(
        "traffic",
        "Traffic",
        "Requests of clients to the primary, through this gateway.",
        (charts.traffic_chart,),
        ("forward",),
    ),
    Chapter(
        "latency",
        "Latency",
        "Latency of single sends. The gateway overhead is the time from a request's arrival until it was forwarded.",
        (charts.latency_chart,),
    ),
    Chapter(
        "mirroring",
        "Mirror",
        "Outcome of mirrored requests at the target. Dropped and refused ones mark their queue as diverged.",
        (charts.mirror_chart,),
        ("mirror", "replication"),
    ),
    Chapter(
        "comparison",
        "Comparison",
        "Answers of primary and target to the same requests, field by field; expected differences are left out.",
        (charts.comparison_chart,),
        ("compare", "samples"),
    ),
    Chapter("by-topic", "Topics", "The busiest topics over time, and totals of all.", (charts.topic_chart,)),
    Chapter(
        "parity", "Parity", "Whether both clusters hold the same messages, queue by queue.", (), ("parity",)
    ),
    Chapter("cut-over", "Cut-over", "How far topics and groups have moved to the target.", (), ("cutover",)),
)


def render_report(report: Report) -> str:
    """Return the page. Raises ClickException without matplotlib."""
    import_optional("matplotlib")
    chapter_sections = {"problems", *(name for chapter in CHAPTERS for name in chapter.sections)}
    other_sections = [name for name in report["sections"] if name not in chapter_sections]
    body = [
        _page_header(report),
        render_verdict(judge_run(report)),
        _navigation(other_sections),
        _summary_cards(report),
    ]
    body += [_render_chapter(report, chapter) for chapter in CHAPTERS]
    body += [
        _wrap_section(
            f"part-{name}", tables.label_of(name).capitalize(), tables.render_value(report["sections"][name])
        )
        for name in other_sections
    ]
    body += [_event_table(report), _metric_table(report), _configuration_tables(report)]
    return render_document(report["title"], body, "Made by rocketmq-gateway. Times are UTC.")


def _page_header(report: Report) -> str:
    lasted_s = (report["made_ms"] - report["started_ms"]) / 1000
    when = f"{format_time(report['started_ms'])} to {format_time(report['made_ms'])}, {_format_duration(lasted_s)}"
    sides = " \u2192 ".join(describe_clusters(report["configuration"]))
    return f'<header><h1>{escape(report["title"])}</h1><p>{escape(sides)}</p><p class="about">{when}</p></header>'


def _navigation(other_sections: list[str]) -> str:
    places = [(chapter.name, chapter.title) for chapter in CHAPTERS]
    places += [(f"part-{name}", tables.label_of(name).capitalize()) for name in other_sections]
    places += [("events", "Events"), ("metrics", "All metrics"), ("configuration", "Configuration")]
    links = "".join(f'<a href="#{escape(name)}">{escape(title)}</a>' for name, title in places)
    return f'<nav aria-label="Contents">{links}</nav>'


def _summary_cards(report: Report) -> str:
    metrics = named_metrics(report)
    moods: dict[bool | None, Mood] = {True: "good", False: "bad", None: ""}
    return render_cards(
        (number, meaning, moods[is_good]) for number, meaning, is_good in _key_numbers(metrics)
    )


def _key_numbers(metrics: Mapping[str, float]) -> Iterator[tuple[str, str, bool | None]]:
    """Yield the numbers at the top of the page: text, meaning, and whether it is good (None: neither)."""
    get = metrics.get
    yield _format_whole(get("sends")), "sends", None
    yield _format_whole(get("pulls")), "reads", None
    refused = get("refused", 0)
    yield _format_whole(refused), "requests refused by the primary", None
    if get("mirrored") or get("mirror_dropped") or get("mirror_refused"):
        yield _format_whole(get("mirrored")), "mirrored requests", None
        lost = get("mirror_dropped", 0) + get("mirror_refused", 0)
        yield _format_whole(lost), "dropped or refused on the way to the target", not lost
    if get("compared"):
        rate = get("diff_rate", math.nan)
        yield (
            f"{format_number(100 * rate)} %",
            f"of {_format_whole(get('compared'))} comparisons differ",
            not rate,
        )
    if "parity.holds" in metrics:
        yield ("yes" if metrics["parity.holds"] else "no"), "parity holds", bool(metrics["parity.holds"])
    if get("sends"):
        yield _format_ms(get("primary_p99_ms")), "p99 of sends at the primary", None
        yield _format_ms(get("p99_added_ms")), "p99 of the gateway overhead", None


def _render_chapter(report: Report, chapter: Chapter) -> str:
    parts = [f'<p class="about">{escape(chapter.about)}</p>']
    series = report.get("series")
    if chapter.drawers and not (series and series["times_ms"]):
        parts.append('<p class="none">No time series was recorded.</p>')
    elif series:
        marks = charts.event_marks(report["events"])
        parts += [_plot_with_table(drawer(series, marks), series["step_s"]) for drawer in chapter.drawers]
    if chapter.name == "by-topic" and series:
        parts.append(_topic_table(series["totals"]))
    present = [name for name in chapter.sections if name in report["sections"]]
    parts += [SECTION_RENDERERS.get(name, tables.render_value)(report["sections"][name]) for name in present]
    if chapter.sections and not present and not chapter.drawers:
        parts.append('<p class="none">Not used in this run.</p>')
    return _wrap_section(chapter.name, chapter.title, "".join(parts))


def _plot_with_table(full_plot: Plot, step_s: int) -> str:
    plot = charts.drop_empty_panels(full_plot)
    if not plot.panels:
        return f'<p class="none">{escape(plot.title)}: no data in this period.</p>'
    rows = charts.summarize_plot(plot)
    summary = render_table(["", "unit", "mean", "highest", "last"], rows)
    if len(rows) > MAX_OPEN_ROWS:
        summary = f"<details><summary>Numbers of {len(rows)} lines</summary>{summary}</details>"
    wide = " wide" if plot.wide else ""
    seconds = points_per_group(plot) * step_s
    about = f"One point per {seconds} seconds: mean rates, highest quantiles, backlogs and shares."
    if seconds == 1:
        about = "One point per second."
    if plot.spans:
        about += " Shaded: the circuit breaker was open, nothing was sent to the target."
    return (
        f'<figure class="with-table{wide}"><div class="picture">{draw_plot(plot)}</div>'
        f'<div class="numbers">{summary}</div>'
        f"<figcaption>{about}</figcaption></figure>"
    )


def _topic_table(totals: Mapping[str, Mapping[str, float | None]]) -> str:
    quantiles = [f"{side}_p{percent}_ms" for side in SIDES for percent in QUANTILE_PERCENTS if percent != 90]
    names = [*COUNT_NAMES, *quantiles]
    ranked = sorted(totals, key=lambda topic: (topic != ALL_TOPICS, -(totals[topic]["sends"] or 0), topic))
    rows = [[topic, *(totals[topic][name] for name in names)] for topic in ranked]
    headings = ["topic", *map(tables.label_of, names)]
    return "<h3>All topics</h3>" + render_table(headings, rows, caption="Totals since the start.")


def _event_table(report: Report) -> str:
    rows = [
        [number, format_time(event["at_ms"]), event["text"]]
        for number, event in enumerate(report["events"], 1)
    ]
    about = '<p class="about">Changes of state; plots mark steps of moves and the latest others by their numbers.</p>'
    shown = render_table(["number", "time", "event"], rows) if rows else '<p class="none">No events.</p>'
    return _wrap_section("events", "Events", about + shown)


def _metric_table(report: Report) -> str:
    rows = [
        [
            metric["name"],
            ", ".join(f"{name}={value}" for name, value in metric["labels"].items()),
            metric["value"],
            metric["meaning"],
        ]
        for metric in report["metrics"]
    ]
    shown = render_table(["metric", "labels", "value", "meaning"], rows)
    about = '<p class="about">The values of <code>/metrics</code> at the end.</p>'
    return _wrap_section(
        "metrics", "All metrics", f"{about}<details><summary>{len(rows)} metrics</summary>{shown}</details>"
    )


def _configuration_tables(report: Report) -> str:
    parts = [
        f"<h4>{escape(name)}</h4>{tables.render_value(value)}"
        if isinstance(value, Mapping | list)
        else f"<p>{escape(name)}: {render_cell(value)}</p>"
        for name, value in report["configuration"].items()
    ]
    about = '<p class="about">The configuration in use; secrets are not shown.</p>'
    return _wrap_section(
        "configuration",
        "Configuration",
        f"{about}<details><summary>All tables</summary>{''.join(parts)}</details>",
    )


def _comparison_section(section: Mapping[str, Any]) -> str:
    """Return differences by request and field, latencies of each side, and fields learned to be noise."""
    requests = section.get("requests", [])
    rows = [
        {"request": row["request"], "field": field, "differences": count}
        for row in requests
        for field, count in row.get("fields", {}).items()
    ]
    counts = [{name: row.get(name) for name in ("request", "compared", "differing")} for row in requests]
    latency_rows = [
        {
            **row,
            **{
                f"{side} {quantile}, ms": value
                for side, quantiles in request["latency_ms"].items()
                for quantile, value in quantiles.items()
            },
        }
        for row, request in zip(counts, requests, strict=True)
    ]
    rest = {name: value for name, value in section.items() if name != "requests"}
    differing = tables.render_value(sorted(rows, key=lambda row: -row["differences"]))
    by_field = f"<h3>Differences by request and field</h3>{differing}"
    return f"{tables.render_value(rest)}{by_field}<h3>Requests</h3>{tables.render_value(latency_rows)}"


def _sample_table(samples: list[Mapping[str, Any]]) -> str:
    return f"<h3>Examples of differences</h3>{tables.render_value(samples)}"


def _copied_queues(queues: list[Mapping[str, Any]]) -> str:
    rows = [{name: _format_range(value) for name, value in queue.items()} for queue in queues]
    return f"<h3>Queues copied at the primary's offsets</h3>{_folded_table(rows, 'queues')}"


def _folded_table(rows: list[Any], noun: str) -> str:
    """Return a table; a long one is folded, with only its bad rows outside of the fold."""
    if len(rows) <= MAX_OPEN_ROWS:
        return tables.render_value(rows)
    bad = [row for row in rows if tables.is_bad_row(row)]
    rest = [row for row in rows if not tables.is_bad_row(row)]
    shown = tables.rows_table(bad) if bad else ""
    more = "more " if bad else ""
    return f"{shown}<details><summary>{len(rest)} {more}{noun}</summary>{tables.render_value(rest)}</details>"


def _format_range(value: Any) -> Any:
    """Format a pair of first and next offset as one text."""
    return f"{value[0]} to {value[1]}" if isinstance(value, list) and len(value) == 2 else value


def _format_differences(differences: list[Mapping[str, Any]]) -> str:
    """Format the fields that differ as one text, the primary's value first."""
    return "; ".join(
        f"{difference['name']}: {difference['primary']} / {difference['target']}"
        for difference in differences
    )


def _parity_section(section: Mapping[str, Any]) -> str:
    if not section:
        return (
            '<p class="none">Parity was not checked. Run <code>shadow parity --json &gt; parity.json</code> and add it '
            "with <code>--parity parity.json</code>.</p>"
        )
    queues = section.get("queues", [])
    names = dict.fromkeys(name for queue in queues for name in queue if name != "findings")
    rows = [{name: queue.get(name) for name in names} for queue in queues]
    finding_rows = [
        {
            "topic": queue.get("topic"),
            "broker": queue.get("broker"),
            "queue_id": queue.get("queue_id"),
            **finding,
            "differences": _format_differences(finding.get("differences", [])),
        }
        for queue in queues
        for finding in queue.get("findings", [])
    ]
    rest = {name: value for name, value in section.items() if name != "queues"}
    findings = f"<h3>Findings</h3>{tables.render_value(finding_rows)}"
    return f"{tables.render_value(rest)}<h3>Queues</h3>{_folded_table(rows, 'queues')}{findings}"


SECTION_RENDERERS: Final[dict[str, Callable[[Any], str]]] = {
    "compare": _comparison_section,
    "replication": _copied_queues,
    "samples": _sample_table,
    "parity": _parity_section,
}
"""Renderers of sections that need more than a plain table."""


def _wrap_section(name: str, title: str, inner: str) -> str:
    return f'<section id="{escape(name)}"><h2>{escape(title)}</h2>{inner}</section>'


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else (f"{minutes} min {rest} s" if minutes else f"{rest} s")


def _format_whole(value: float | None) -> str:
    return format_number(None if value is None or math.isnan(value) else round(value))


def _format_ms(value: float | None) -> str:
    return f"{format_number(value)} ms"
