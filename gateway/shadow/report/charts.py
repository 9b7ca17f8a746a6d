"""The plots of the report, with the panels and lines of each. `toolkit.plots` draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gateway.shadow.report.traffic_series import ALL_TOPICS, OTHER_TOPICS
from toolkit.plots import HUES, Panel, Plot, PlotLine, Values

MAX_TOPIC_LINES: Final = 7
"""Topics with a line of their own; the table lists all of them."""
MAX_MARKS: Final = 20
MOVE_PREFIX: Final = "move of "
"""Beginning of the events that are steps of moves."""
BLUE, AMBER, GREEN, RED, VIOLET, CYAN, PINK, GREY = range(len(HUES))
Numbers = Mapping[str, Values]


def traffic_chart(series: Mapping[str, Any], marks: Mapping[int, float]) -> Plot:
    """Return the plot of client requests."""
    everything = _topic_columns(series, ALL_TOPICS)
    return Plot(
        "rates",
        "Client requests over time",
        "Sends and reads of clients per second, and requests per second that the primary refused.",
        series["times_ms"],
        [
            Panel(
                "Client requests",
                "per second",
                [
                    PlotLine("sends", everything.get("sends_per_s", []), BLUE),
                    PlotLine("reads", everything.get("pulls_per_s", []), GREEN),
                ],
            ),
            Panel(
                "Refused by the primary",
                "per second",
                [
                    PlotLine("refused", everything.get("refused_per_s", []), RED),
                ],
            ),
        ],
        marks=marks,
    )


def mirror_chart(series: Mapping[str, Any], marks: Mapping[int, float]) -> Plot:
    """Return the plot of mirrored requests and of the backlog for the target."""
    everything = _topic_columns(series, ALL_TOPICS)
    panels = [
        Panel(
            "Mirrored requests",
            "per second",
            [
                PlotLine("mirrored", everything.get("mirrored_per_s", []), GREEN),
                PlotLine("refused by the target", everything.get("mirror_refused_per_s", []), AMBER),
                PlotLine("dropped", everything.get("mirror_dropped_per_s", []), RED),
            ],
        )
    ]
    waiting = [name for name in BACKLOG_METRICS if name in series["metrics"]]
    if waiting:
        lines = [
            PlotLine(BACKLOG_METRICS[name], series["metrics"][name], hue, True)
            for hue, name in enumerate(waiting)
        ]
        panels.append(Panel("Backlog for the target", "waiting", lines))
    about = "Outcomes of mirrored requests per second, and how many waited for the target."
    return Plot(
        "mirror",
        "Mirror over time",
        about,
        series["times_ms"],
        panels,
        marks=marks,
        spans=find_outages(series),
    )


BACKLOG_METRICS: Final = {
    "mirror_queued": "requests",
    "mirror_spilled": "of them on disk",
    "replication_behind_messages": "messages not yet copied",
}
"""Gauges of the mirror that are plotted, with their labels."""
BREAKER_METRIC: Final = "mirror_breaker_open"


def find_outages(series: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return the times in ms during which the circuit breaker of any stream was open."""
    times = series["times_ms"]
    outages: list[tuple[float, float]] = []
    for index, is_open in enumerate(series["metrics"].get(BREAKER_METRIC, [])):
        if not is_open:
            continue
        # The breaker opened at some time since the point before.
        start, end = times[max(0, index - 1)], times[index]
        if outages and outages[-1][1] >= start:
            outages[-1] = (outages[-1][0], end)
        else:
            outages.append((start, end))
    return outages


def comparison_chart(series: Mapping[str, Any], marks: Mapping[int, float]) -> Plot:
    """Return the plot of the share of comparisons that differ."""
    everything = _topic_columns(series, ALL_TOPICS)
    compared, differing = everything.get("compared_per_s", []), everything.get("differing_per_s", [])
    shares = [
        100 * (some or 0) / count if count else None for some, count in zip(differing, compared, strict=True)
    ]
    return Plot(
        "differences",
        "Differences over time",
        "The share of comparisons that found a difference, in per cent, and how many there were per second.",
        series["times_ms"],
        [
            Panel("Comparisons that differ", "%", [PlotLine("differing", shares, RED, True)]),
            Panel("Comparisons", "per second", [PlotLine("compared", compared, BLUE)]),
        ],
        marks=marks,
        spans=find_outages(series),
    )


def latency_chart(series: Mapping[str, Any], marks: Mapping[int, float]) -> Plot:
    """Return the plot of send latencies: the primary's, the target's, and the gateway overhead."""
    everything = _topic_columns(series, ALL_TOPICS)
    sides = {"primary": "Primary", "target": "Target", "share": "Gateway overhead"}
    hues = {50: BLUE, 90: AMBER, 99: RED}
    panels = [
        Panel(
            title,
            "ms",
            [
                PlotLine(f"p{percent}", everything.get(f"{side}_p{percent}_ms", []), hue, True)
                for percent, hue in hues.items()
            ],
            logarithmic=True,
        )
        for side, title in sides.items()
    ]
    about = (
        "Quantiles of send latency on one logarithmic scale: at the primary, at the target, and in the gateway before "
        "the request was forwarded."
    )
    return Plot("latencies", "Send latency over time", about, series["times_ms"], panels, True, True, marks)


def topic_chart(series: Mapping[str, Any], marks: Mapping[int, float]) -> Plot:
    """Return the plot of the busiest topics: sends, p99 latency, differences."""
    names = busiest_topics(series)
    columns = {name: _topic_columns(series, name) for name in names}
    lines = {
        "sends": [
            PlotLine(name, columns[name].get("sends_per_s", []), hue) for hue, name in enumerate(names)
        ],
        "p99": [
            PlotLine(name, columns[name].get("primary_p99_ms", []), hue, True)
            for hue, name in enumerate(names)
        ],
        "differing": [
            PlotLine(name, columns[name].get("differing_per_s", []), hue) for hue, name in enumerate(names)
        ],
    }
    about = f"The {len(names)} busiest topics: sends per second, p99 of sends at the primary, differences per second."
    panels = [
        Panel("Sends by topic", "per second", lines["sends"], stacked=True),
        Panel("p99 of sends at the primary", "ms", lines["p99"], logarithmic=True, legend=False),
        Panel("Differences by topic", "per second", lines["differing"], legend=False),
    ]
    return Plot("topics", "Topics over time", about, series["times_ms"], panels, wide=True, marks=marks)


def busiest_topics(series: Mapping[str, Any]) -> list[str]:
    """Return the topics with most requests that have points, busiest first."""
    totals = {
        name: counts["sends"] + counts["pulls"]
        for name, counts in series["totals"].items()
        if name != ALL_TOPICS
        and name in series["topics"]
        and (counts["sends"] or counts["pulls"] or counts["compared"])
    }
    ranked = sorted((name for name in totals if name != OTHER_TOPICS), key=lambda name: (-totals[name], name))
    return ranked[:MAX_TOPIC_LINES] + ([OTHER_TOPICS] if totals.get(OTHER_TOPICS) else [])


def summarize_plot(plot: Plot) -> list[list[Any]]:
    """Return a table row for each line of a plot: label, unit, mean, highest and last value."""
    labels = [line.label for panel in plot.panels for line in panel.lines]
    unique = len(set(labels)) == len(labels)
    return [
        [
            line.label if unique else f"{panel.title}: {line.label}",
            panel.unit,
            *_mean_highest_last(line.values),
        ]
        for panel in plot.panels
        for line in panel.lines
    ]


def drop_empty_panels(plot: Plot) -> Plot:
    """Return the plot without panels that have no value, or only zeros."""
    panels = [panel for panel in plot.panels if any(any(line.values) for line in panel.lines)]
    return replace(plot, panels=panels)


def event_marks(events: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Return the times of events by number, from 1: at most `MAX_MARKS`.

    Steps of moves come first, because a plot is read around them; then the latest of the others. Of more steps than
    marks, the first and the last are drawn.
    """
    steps = [number for number, event in enumerate(events, 1) if event["text"].startswith(MOVE_PREFIX)]
    if len(steps) > MAX_MARKS:
        steps = [*steps[: MAX_MARKS // 2], *steps[-(MAX_MARKS // 2) :]]
    others = [number for number in range(1, len(events) + 1) if number not in steps]
    latest = others[len(others) - min(len(others), MAX_MARKS - len(steps)) :]
    return {number: events[number - 1]["at_ms"] for number in sorted([*steps, *latest])}


def _mean_highest_last(values: Values) -> tuple[float | None, float | None, float | None]:
    present = [value for value in values if value is not None]
    if not present:
        return None, None, None
    return sum(present) / len(present), max(present), present[-1]


def _topic_columns(series: Mapping[str, Any], topic: str) -> Numbers:
    columns: Numbers = series["topics"].get(topic, {})
    return columns
