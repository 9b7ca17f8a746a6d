"""Plots as inline SVG, drawn by matplotlib in the colours of the page they stand in (light or dark).

Each plot has a title and a description for screen readers. The same numbers always give the same SVG. matplotlib is
imported when a plot is drawn; if it is missing, drawing raises ImportError.
"""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from importlib import import_module
from typing import Any, Final

Values = Sequence[float | None]
MAX_POINTS: Final = 240
"""Maximum number of points of a line. More points are merged: rates to their mean, quantiles and backlogs to their
maximum.
"""
WIDE_IN, NARROW_IN, HALF_IN = 10.6, 7.2, 5.2
"""Widths that make text equally large below a table, beside one, and beside another plot, in inches."""
MARK_CHAR_IN: Final = 0.06
"""Width of a character of a mark's label (7 pt), in inches."""
AXIS_MARGIN_IN: Final = 0.6
"""Width of a panel that its time axis does not cover, in inches."""
LEGEND_CHARS_PER_IN: Final = 12
MAX_LABEL_CHARS: Final = 30
"""Longer names are truncated in plots; tables show the whole names."""
DAY_S: Final = 86_400
ROUND_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Steps in seconds that are easily read: between two ticks of an axis, or the width of a point."""
HUES: Final = tuple(f"#01010{index}" for index in range(8))
"""Placeholder colours given to matplotlib; `_inline` replaces them by the page's `--hue-0`, …."""
INK, FAINT, GRID, PAPER = "#020201", "#020202", "#020203", "#020204"
"""Placeholders for `--ink`, `--faint`, `--grid` and `--paper`."""
_PAGE_COLOURS: Final = {
    **{hue: f"var(--hue-{index})" for index, hue in enumerate(HUES)},
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    GRID: "var(--grid)",
    PAPER: "var(--paper)",
}
PLOT_STYLE: Final[Mapping[str, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": FAINT,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": GRID,
    "xtick.labelcolor": FAINT,
    "ytick.color": GRID,
    "ytick.labelcolor": FAINT,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "ytick.minor.size": 0,
    "svg.hashsalt": "page",
}
"""Settings of matplotlib. `svg.hashsalt` makes the ids within a plot the same each time."""


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One metric over time. `hue` is an index into `HUES`; `highest` merges points by their maximum, not their mean."""

    label: str
    values: Values
    hue: int
    highest: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. `logarithmic` for latencies; `stacked` draws areas on top of each other."""

    title: str
    unit: str
    lines: Sequence[PlotLine]
    logarithmic: bool = False
    stacked: bool = False
    legend: bool = True


@dataclass(frozen=True, slots=True)
class Plot:
    """Panels that share their time axis: side by side (then also `wide`), or one below the other.

    `marks` are numbered times (ms), `spans` are shaded intervals (ms). A `wide` plot has its table below.
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


@dataclass(frozen=True, slots=True)
class Bars:
    """Values by name: horizontal bars with their numbers, the first at the top, or upright ones as a histogram.

    `reference` marks a value that horizontal bars are compared with.
    """

    name: str
    title: str
    unit: str
    values: Mapping[str, float]
    upright: bool = False
    reference: float | None = None


def draw_bars(bars: Bars) -> str:
    """Return bars as an `<svg>` element whose ids begin with their name. Raises ImportError without matplotlib."""
    matplotlib = import_module("matplotlib")
    figures = import_module("matplotlib.figure")
    grid_axis = "y" if bars.upright else "x"
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **PLOT_STYLE, "axes.grid.axis": grid_axis}):
        height_in = 2.5 if bars.upright else 0.75 + 0.24 * max(len(bars.values), 2)
        figure = figures.Figure(figsize=(HALF_IN, height_in), layout="constrained")
        axes = figure.subplots()
        if bars.upright:
            _draw_upright(axes, bars)
        else:
            _draw_horizontal(axes, bars)
        axes.set_title(f"{bars.title}, {bars.unit}" if bars.unit else bars.title)
        svg = _svg_of(figure)
    return _inline(svg, bars.name, f'aria-label="{escape(bars.title)}"')


def _draw_horizontal(axes: Any, bars: Bars) -> None:
    ticker = import_module("matplotlib.ticker")
    positions, values = range(len(bars.values)), list(bars.values.values())
    axes.barh(positions, values, color=HUES[0], height=0.62)
    axes.set_yticks(positions, [_truncate(name) for name in bars.values])
    axes.invert_yaxis()
    for position, value in zip(positions, values, strict=True):
        offset = {"textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(short_number(value), (value, position), (3, 0), **offset)
    axes.set_xlim(0, (max(values, default=0) or 1) * 1.16)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(short_number))
    if bars.reference is not None:
        axes.axvline(bars.reference, color=FAINT, linewidth=0.9, linestyle=(0, (3, 2)))


def _draw_upright(axes: Any, bars: Bars) -> None:
    ticker = import_module("matplotlib.ticker")
    positions = list(range(len(bars.values)))
    axes.bar(positions, list(bars.values.values()), color=HUES[2], width=0.8)
    label_every = -(-len(positions) // 8)
    axes.set_xticks(positions[::label_every], list(bars.values)[::label_every])
    axes.yaxis.set_major_locator(ticker.MaxNLocator(4))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(short_number))


def draw_plot(plot: Plot) -> str:
    """Return a plot as an `<svg>` element whose ids begin with its name. Raises ImportError without matplotlib."""
    matplotlib = import_module("matplotlib")
    figures = import_module("matplotlib.figure")
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **PLOT_STYLE}):
        count = len(plot.panels)
        rows, columns = (1, count) if plot.beside else (count, 1)
        figure = figures.Figure(figsize=_size_in(plot), layout="constrained")
        figure.get_layout_engine().set(wspace=0.03, hspace=0.04)
        axes = figure.subplots(rows, columns, sharex=True, sharey=plot.beside, squeeze=False)
        group = points_per_group(plot)
        times = [_moment(at) for at in plot.times_ms[group - 1 :: group]]
        letters = int(LEGEND_CHARS_PER_IN * figure.get_size_inches()[0] / columns)
        heights_by_panel = [
            _draw_panel(panel_axes, panel, times, group, letters)
            for panel, panel_axes in zip(plot.panels, axes.flat, strict=True)
        ]
        for panel, panel_axes, values in zip(plot.panels, axes.flat, heights_by_panel, strict=True):
            _value_axis(
                panel_axes,
                panel,
                [value for heights in heights_by_panel for value in heights] if plot.beside else values,
            )
            _mark(panel_axes, plot, times)
        _time_axis(axes.flat[-1], plot, 4 if plot.beside else 7)
        svg = _svg_of(figure)
    return _for_page(svg, plot)


def points_per_group(plot: Plot) -> int:
    """Return the number of points that are merged into one that is drawn."""
    return max(1, -(-len(plot.times_ms) // MAX_POINTS))


def thin_values(values: Values, group: int, *, highest: bool) -> list[float]:
    """Merge each ``group`` values into one; NaN where none of them is a number."""
    merge: Callable[[list[float]], float] = max if highest else lambda numbers: sum(numbers) / len(numbers)
    groups = (values[start : start + group] for start in range(0, len(values) - len(values) % group, group))
    numbers_by_group = ([value for value in values if value is not None] for values in groups)
    return [merge(numbers) if numbers else float("nan") for numbers in numbers_by_group]


def _draw_panel(axes: Any, panel: Panel, times: list[datetime], group: int, letters: int) -> list[float]:
    """Draw a panel and return all heights in it."""
    series = [thin_values(line.values, group, highest=line.highest) for line in panel.lines]
    # An incomplete last group is left out.
    series = [values[: len(times)] for values in series]
    if panel.stacked and len(times) == 1:
        _draw_column(axes, panel, series)
    elif panel.stacked:
        heights = [[0.0 if value != value else value for value in values] for values in series]
        labels, hues = [line.label for line in panel.lines], [HUES[line.hue] for line in panel.lines]
        axes.stackplot(times, heights, labels=labels, colors=hues, alpha=0.85, linewidth=0)
    else:
        for line, values in zip(panel.lines, series, strict=True):
            _draw_line(axes, line, values, times)
    rows = _add_legend(axes, panel, letters) if panel.legend else 0
    axes.set_title(f"{panel.title}, {panel.unit}" if panel.unit else panel.title, pad=6 + 13 * rows)
    if panel.stacked:
        return [sum(value for value in column if value == value) for column in zip(*series, strict=True)]
    return [value for values in series for value in values if value == value]


def _draw_column(axes: Any, panel: Panel, series: Sequence[Sequence[float]]) -> None:
    """Draw a single point in time as a column, since an area would have no width."""
    bottom = 0.0
    for line, values in zip(panel.lines, series, strict=True):
        height = values[0] if values and values[0] == values[0] else 0.0
        axes.bar([0], [height], bottom=bottom, width=0.3, color=HUES[line.hue], label=line.label)
        bottom += height
    axes.set_xticks([])
    axes.set_xlim(-1, 1)


def _add_legend(axes: Any, panel: Panel, letters: int) -> int:
    """Put the names of the lines above the axes and return the number of rows they take."""
    labels = [_truncate(line.label) for line in panel.lines]
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


def _truncate(label: str) -> str:
    return label if len(label) <= MAX_LABEL_CHARS else label[: MAX_LABEL_CHARS - 1] + "…"


def _draw_line(axes: Any, line: PlotLine, values: list[float], times: list[datetime]) -> None:
    style = (0, (4, 2)) if line.dashed else "solid"
    axes.plot(times, values, color=HUES[line.hue], label=line.label, linestyle=style, clip_on=False)
    gaps = [True, *(value != value for value in values), True]
    # A value between two gaps has no line, so it is drawn as a dot.
    isolated = [at for at, value in enumerate(values) if value == value and gaps[at] and gaps[at + 2]]
    if isolated:
        dots = [values[at] for at in isolated]
        axes.plot(
            [times[at] for at in isolated],
            dots,
            color=HUES[line.hue],
            marker=".",
            markersize=3,
            linestyle="none",
        )


def _value_axis(axes: Any, panel: Panel, values: list[float]) -> None:
    ticker = import_module("matplotlib.ticker")
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
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(short_number))


def _time_axis(axes: Any, plot: Plot, max_ticks: int) -> None:
    dates = import_module("matplotlib.dates")
    if len(plot.times_ms) == 1 and any(panel.stacked for panel in plot.panels):
        return
    ticks_ms = round_ticks(plot.times_ms, max_ticks)
    lasted_s = (plot.times_ms[-1] - plot.times_ms[0]) / 1000 if plot.times_ms else 0
    axes.set_xticks([_moment(at_ms) for at_ms in ticks_ms])
    axes.xaxis.set_major_formatter(dates.DateFormatter(_time_format(lasted_s), tz=UTC))


def round_ticks(times_ms: Sequence[float], max_ticks: int) -> list[float]:
    """Return round times (ms) within a time axis, at most `max_ticks`."""
    if not times_ms:
        return []
    first_ms, last_ms = times_ms[0], times_ms[-1]
    days = math.ceil((last_ms - first_ms) / 1000 / DAY_S / max_ticks)
    for step_s in (*ROUND_S, days * DAY_S):
        at_ms = math.ceil(first_ms / step_s / 1000) * step_s * 1000
        count = int((last_ms - at_ms) // (step_s * 1000)) + 1
        if count <= max_ticks:
            break
    return [at_ms + tick * step_s * 1000 for tick in range(min(count, max_ticks))]


def _moment(at_ms: float) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _size_in(plot: Plot) -> tuple[float, float]:
    width = WIDE_IN if plot.wide else NARROW_IN
    return width, 2.6 if plot.beside else 0.3 + 1.8 * len(plot.panels)


def _mark(axes: Any, plot: Plot, times: list[datetime]) -> None:
    if len(times) > 1:
        axes.set_xlim(times[0], times[-1])
    for start_ms, end_ms in plot.spans:
        axes.axvspan(_moment(start_ms), _moment(end_ms), color=FAINT, alpha=0.13, linewidth=0)
    for at_ms in plot.marks.values():
        if times and times[0] <= _moment(at_ms) <= times[-1]:
            axes.axvline(_moment(at_ms), color=FAINT, linewidth=0.7, linestyle=(0, (1, 2)))
    span_ms = plot.times_ms[-1] - plot.times_ms[0] if plot.times_ms else 0
    for at_ms, label in mark_labels(plot, _label_chars(plot)).items():
        at = _moment(at_ms)
        if times and times[0] <= at <= times[-1]:
            anchor = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            # A label at the end would leave the plot.
            room = (plot.times_ms[-1] - at_ms) / span_ms * _label_chars(plot) if span_ms else len(label)
            side, offset = ("left", 2) if room >= len(label) else ("right", -2)
            axes.annotate(label, (at, 1), (offset, -1), **anchor, color=FAINT, va="top", ha=side, fontsize=7)


def _label_chars(plot: Plot) -> int:
    """Return how many characters of a mark's label fit the time axis of one panel."""
    width_in = _size_in(plot)[0] / (len(plot.panels) if plot.beside else 1) - AXIS_MARGIN_IN
    return max(1, int(width_in / MARK_CHAR_IN))


def mark_labels(plot: Plot, chars: int) -> dict[float, str]:
    """Return labels of marks by position so that none overlaps the next; ``chars`` characters fit the whole axis.

    Marks that are too close to each other share the position of the first one, as a range of numbers.
    """
    span_ms = plot.times_ms[-1] - plot.times_ms[0] if plot.times_ms else 0
    char_ms = span_ms / chars
    groups: list[tuple[float, list[int]]] = []
    for number, at_ms in sorted(plot.marks.items(), key=lambda mark: mark[1]):
        groups.append((at_ms, [number]))
        # A range has a longer label, which may reach the next group; so check the last two groups again.
        while (
            len(groups) > 1
            and groups[-2][0] + (len(_range_label(groups[-2][1])) + 1) * char_ms > groups[-1][0]
        ):
            _, numbers = groups.pop()
            groups[-1][1].extend(numbers)
    return {at_ms: _range_label(numbers) for at_ms, numbers in groups}


def _range_label(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{min(numbers)}\u2013{max(numbers)}"


def _for_page(svg: str, plot: Plot) -> str:
    names = f"{plot.name}-title {plot.name}-about"
    description = (
        f'<title id="{plot.name}-title">{escape(plot.title)}</title>'
        f'<desc id="{plot.name}-about">{escape(plot.description)}</desc>'
    )
    return _inline(svg, plot.name, f'aria-labelledby="{names}"', description)


def short_number(value: float, _position: Any = None) -> str:
    """Return a number as axes show it: 0.05, 12, 3.5k, 2M. matplotlib also passes the position of the tick."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _time_format(lasted_s: float) -> str:
    """Return the `strftime` format for the ticks of a time axis of this length."""
    return "%H:%M:%S" if lasted_s < 20 * 60 else ("%H:%M" if lasted_s < 20 * 3600 else "%d %b %H:%M")


def _svg_of(figure: Any) -> str:
    """Return a figure as an SVG document without dates or versions."""
    out = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return out.getvalue()


def _inline(svg: str, name: str, attributes: str, content: str = "") -> str:
    """Return an SVG document as an element of a page, in its colours, whose ids begin with `name`.

    `attributes` and `content` of the element carry the title and the description for screen readers.
    """
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.S)
    for placeholder, variable in _PAGE_COLOURS.items():
        svg = svg.replace(placeholder, variable)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    head = f'<svg {box[0] if box else ""} role="img" {attributes}>{content}'
    return head + svg[svg.index(">") + 1 :].replace("xlink:href", "href").strip()
