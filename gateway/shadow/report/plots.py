"""Draws plots as inline SVG with matplotlib.

A plot uses no external resources, takes its colours from the page (light or dark), and has a title and description for
screen readers. `charts.py` decides what is plotted.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from gateway.shadow.console.optional_packages import import_optional
from rocketmq_pages import FAINT, HUES, PLOT_STYLE, ROUND_S, inline, short, svg_of, time_format

Values = Sequence[float | None]
MAX_POINTS: Final = 240
"""Largest number of points of a line; more are combined: the mean of rates, the highest of quantiles and backlogs."""
WIDE_IN, NARROW_IN = 10.6, 7.2
"""Widths in inches that make text equally large on the page, for a plot above its table and beside it."""
MIN_MARK_DISTANCE: Final = 0.02
"""Share of the time axis; marks closer than this share one label."""
LEGEND_CHARS_PER_INCH: Final = 12
"""Characters of a legend that fit an inch."""
MAX_LABEL_CHARS: Final = 30
"""Longer labels are truncated in legends; tables show them in full."""
_STYLE: Final = {
    **PLOT_STYLE,
    "svg.hashsalt": "report",
    "ytick.minor.size": 0,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One metric over time. `hue` is an index into `HUES`; `highest`: combine points by their highest value, not the
    mean."""

    label: str
    values: Values
    hue: int
    highest: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. `logarithmic` is for latencies; `stacked` draws areas on top of each other."""

    title: str
    unit: str
    lines: Sequence[PlotLine]
    logarithmic: bool = False
    stacked: bool = False
    legend: bool = True


@dataclass(frozen=True, slots=True)
class Plot:
    """Panels with a common time axis: side by side (`beside`, then also `wide`), or one below the other.

    `marks` are moments (ms) by number, `spans` are shaded times (ms); `wide` plots have their table below.
    """

    name: str
    title: str
    description: str
    times_ms: Sequence[float]
    panels: Sequence[Panel]
    beside: bool = False
    wide: bool = False
    marks: Mapping[int, float] = field(default_factory=dict)
    spans: Sequence[tuple[float, float]] = ()


def draw_svg(plot: Plot) -> str:
    """Return an `<svg>` element whose ids begin with the plot's name. Raises ClickException without matplotlib."""
    matplotlib = import_optional("matplotlib")
    figures = import_optional("matplotlib.figure")
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE}):
        count = len(plot.panels)
        rows, columns = (1, count) if plot.beside else (count, 1)
        figure = figures.Figure(figsize=_size_in(plot), layout="constrained")
        figure.get_layout_engine().set(wspace=0.03, hspace=0.04)
        axes = figure.subplots(rows, columns, sharex=True, sharey=plot.beside, squeeze=False)
        group = points_per_group(plot)
        times = [_to_datetime(at) for at in plot.times_ms[group - 1 :: group]]
        letters = int(LEGEND_CHARS_PER_INCH * figure.get_size_inches()[0] / columns)
        drawn = [
            _draw_panel(one, panel, times, group, letters)
            for panel, one in zip(plot.panels, axes.flat, strict=True)
        ]
        for panel, one, values in zip(plot.panels, axes.flat, drawn, strict=True):
            _value_axis(one, panel, [value for each in drawn for value in each] if plot.beside else values)
            _draw_marks(one, plot, times)
        _time_axis(axes.flat[-1], plot, 4 if plot.beside else 7)
        svg = svg_of(figure)
    return _embed_svg(svg, plot)


def points_per_group(plot: Plot) -> int:
    """Return the number of points that are combined into one drawn point."""
    return max(1, -(-len(plot.times_ms) // MAX_POINTS))


def thin_values(values: Values, group: int, *, highest: bool) -> list[float]:
    """Combine ``group`` values at a time into one; NaN where none of them is a number."""
    put_together: Callable[[list[float]], float] = max if highest else lambda some: sum(some) / len(some)
    groups = (values[start : start + group] for start in range(0, len(values) - len(values) % group, group))
    there = ([each for each in some if each is not None] for some in groups)
    return [put_together(some) if some else float("nan") for some in there]


def _draw_panel(axes: Any, panel: Panel, times: list[datetime], group: int, letters: int) -> list[float]:
    """Draw a panel and return all its values."""
    series = [thin_values(line.values, group, highest=line.highest) for line in panel.lines]
    # An incomplete last group is left out.
    series = [each[: len(times)] for each in series]
    if panel.stacked:
        known = [[0.0 if value != value else value for value in each] for each in series]
        labels, hues = [line.label for line in panel.lines], [HUES[line.hue] for line in panel.lines]
        axes.stackplot(times, known, labels=labels, colors=hues, alpha=0.85, linewidth=0)
    else:
        for line, values in zip(panel.lines, series, strict=True):
            _draw_line(axes, line, values, times)
    rows = _add_legend(axes, panel, letters) if panel.legend else 0
    axes.set_title(f"{panel.title}, {panel.unit}" if panel.unit else panel.title, pad=6 + 13 * rows)
    if panel.stacked:
        return [sum(value for value in column if value == value) for column in zip(*series, strict=True)]
    return [value for each in series for value in each if value == value]


def _add_legend(axes: Any, panel: Panel, letters: int) -> int:
    """Put the legend above the axes and return its number of rows."""
    labels = [_truncate_label(line.label) for line in panel.lines]
    columns = max(1, min(len(labels), letters // (max(map(len, labels), default=0) + 6)))
    axes.legend(
        labels=labels,
        handles=axes.get_legend_handles_labels()[0],
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.97),
        ncols=columns,
        handlelength=1.2,
        columnspacing=1.2,
    )
    return -(-len(labels) // columns)


def _truncate_label(label: str) -> str:
    return label if len(label) <= MAX_LABEL_CHARS else label[: MAX_LABEL_CHARS - 1] + "…"


def _draw_line(axes: Any, line: PlotLine, values: list[float], times: list[datetime]) -> None:
    style = (0, (4, 2)) if line.dashed else "solid"
    axes.plot(times, values, color=HUES[line.hue], label=line.label, linestyle=style, clip_on=False)
    gaps = [True, *(value != value for value in values), True]
    # A value between two gaps has no line, so it gets a dot.
    alone = [at for at, value in enumerate(values) if value == value and gaps[at] and gaps[at + 2]]
    if alone:
        dots = [values[at] for at in alone]
        axes.plot(
            [times[at] for at in alone],
            dots,
            color=HUES[line.hue],
            marker=".",
            markersize=3,
            linestyle="none",
        )


def _value_axis(axes: Any, panel: Panel, values: list[float]) -> None:
    ticker = import_optional("matplotlib.ticker")
    positive = [value for value in values if value > 0]
    if panel.logarithmic and positive:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(ticker.NullLocator())
        low, high = min(positive) / 1.5, max(positive) * 1.5
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,)))
    else:
        highest = max(values, default=0)
        axes.set_ylim(0, highest * 1.08 if highest else 1)
        axes.yaxis.set_major_locator(ticker.MaxNLocator(4))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(short))


def _time_axis(axes: Any, plot: Plot, most: int) -> None:
    dates = import_optional("matplotlib.dates")
    ticks_ms = round_ticks(plot.times_ms, most)
    lasted_s = (plot.times_ms[-1] - plot.times_ms[0]) / 1000 if plot.times_ms else 0
    axes.set_xticks([_to_datetime(at_ms) for at_ms in ticks_ms])
    axes.xaxis.set_major_formatter(dates.DateFormatter(time_format(lasted_s), tz=UTC))


def round_ticks(times_ms: Sequence[float], most: int) -> list[float]:
    """Return round times (ms) within a plot, at most ``most``."""
    if not times_ms:
        return []
    first, last = times_ms[0], times_ms[-1]
    for step_s in ROUND_S:
        at_ms = math.ceil(first / step_s / 1000) * step_s * 1000
        count = int((last - at_ms) // (step_s * 1000)) + 1
        if count <= most:
            break
    return [at_ms + each * step_s * 1000 for each in range(count)]


def _to_datetime(at_ms: float) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _size_in(plot: Plot) -> tuple[float, float]:
    width = WIDE_IN if plot.wide else NARROW_IN
    return width, 2.6 if plot.beside else 0.3 + 1.8 * len(plot.panels)


def _draw_marks(axes: Any, plot: Plot, times: list[datetime]) -> None:
    if len(times) > 1:
        axes.set_xlim(times[0], times[-1])
    for start_ms, end_ms in plot.spans:
        axes.axvspan(_to_datetime(start_ms), _to_datetime(end_ms), color=FAINT, alpha=0.13, linewidth=0)
    for at_ms, label in _group_marks(plot).items():
        at = _to_datetime(at_ms)
        if times and times[0] <= at <= times[-1]:
            axes.axvline(at, color=FAINT, linewidth=0.7, linestyle=(0, (1, 2)))
            place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            axes.annotate(label, (at, 1), (2, -1), **place, color=FAINT, va="top", fontsize=7)


def _group_marks(plot: Plot) -> dict[float, str]:
    """Return the label of each mark by time; marks too close to read apart share the first one's place."""
    span_ms = plot.times_ms[-1] - plot.times_ms[0] if plot.times_ms else 0
    found: dict[float, list[int]] = {}
    last_ms = -math.inf
    for number, at_ms in plot.marks.items():
        if at_ms - last_ms > span_ms * MIN_MARK_DISTANCE:
            last_ms = at_ms
        found.setdefault(last_ms, []).append(number)
    return {
        at_ms: str(some[0]) if len(some) == 1 else f"{some[0]}\u2013{some[-1]}"
        for at_ms, some in found.items()
    }


def _embed_svg(svg: str, plot: Plot) -> str:
    names = f"{plot.name}-title {plot.name}-about"
    said = (
        f'<title id="{plot.name}-title">{escape(plot.title)}</title>'
        f'<desc id="{plot.name}-about">{escape(plot.description)}</desc>'
    )
    return inline(svg, plot.name, f'aria-labelledby="{names}"', said)
