"""Plots as inline SVG by matplotlib, in the colours of the page they stand in (light or dark), readable aloud.

Not responsible for what is plotted.
"""

import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from matplotlib import RcParams, rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from rocketmq_pages import FAINT, HUES, PLOT_STYLE, ROUND_S, inline, short, svg_of, time_format

Values = Sequence[float | None]
WIDTH_IN, HEIGHT_IN = 10.4, 2.5
_DAY_S: Final = 86_400
MAX_NAME_CHARS: Final = 34
"""Longer names are cut in plots; tables have them whole."""
_STYLE: Final = {**PLOT_STYLE, "svg.hashsalt": "profile"}


def plot_areas(name: str, title: str, unit: str, times_ms: Sequence[int], lines: Mapping[str, Values]) -> str:
    """Areas on top of each other over time."""
    with rc_context(_rc_params()):
        figure, axes = _new_figure(1)
        known = [[value or 0.0 for value in values] for values in lines.values()]
        moments = _matplotlib_days(times_ms)
        if len(moments) == 1:
            _plot_single_point(axes[0], lines)
        else:
            colours = [_line_colour(number) for number in range(len(lines))]
            axes[0].stackplot(
                moments, known, labels=_shorten_names(lines), colors=colours, linewidth=0, alpha=0.85
            )
            _time_axis(axes[0], moments)
        _finish_axes(axes[0], f"{title}, {unit}", len(lines))
        axes[0].set_ylim(bottom=0)
        return _to_svg(figure, name, title)


def plot_latencies(
    name: str, title: str, times_ms: Sequence[int], panels: Mapping[str, Mapping[str, Values]]
) -> str:
    """Quantiles over time, ms, one panel beside the other with the same logarithmic axis."""
    with rc_context(_rc_params()):
        figure, axes = _new_figure(len(panels))
        moments = _matplotlib_days(times_ms)
        seen: list[float] = []
        for one, (panel, lines) in zip(axes, panels.items(), strict=True):
            for number, (label, values) in enumerate(lines.items()):
                known = [float("nan") if value is None or value <= 0 else value for value in values]
                seen += [value for value in known if value == value]
                one.plot(
                    moments,
                    known,
                    color=_line_colour(number),
                    label=label,
                    marker=_marker_style(known),
                    markersize=3,
                )
            _finish_axes(one, panel, len(lines))
            _time_axis(one, moments, 3)
        _set_log_scale(axes, seen)
        return _to_svg(figure, name, title)


def plot_bars(
    name: str, title: str, unit: str, values: Mapping[str, float], *, line: float | None = None
) -> str:
    """Horizontal bars with their numbers, the first at the top; `line` marks a value they are held against."""
    with rc_context(_rc_params() | {"axes.grid.axis": "x"}):
        figure = Figure(figsize=(WIDTH_IN / 2, 0.75 + 0.24 * max(len(values), 2)), layout="constrained")
        axes = figure.subplots()
        places = range(len(values))
        axes.barh(places, list(values.values()), color=_line_colour(0), height=0.62)
        axes.set_yticks(places, _shorten_names(values))
        axes.invert_yaxis()
        highest = max(values.values(), default=0) or 1
        for place, value in zip(places, values.values(), strict=True):
            axes.annotate(
                short(value), (value, place), (3, 0), textcoords="offset points", va="center", fontsize=8
            )
        axes.set_xlim(0, highest * 1.16)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(short))
        if line is not None:
            axes.axvline(line, color=FAINT, linewidth=0.9, linestyle=(0, (3, 2)))
        axes.set_title(f"{title}, {unit}" if unit else title)
        return _to_svg(figure, name, title)


def plot_histogram(name: str, title: str, unit: str, values: Mapping[str, float]) -> str:
    """Upright bars in the order given."""
    with rc_context(_rc_params()):
        figure = Figure(figsize=(WIDTH_IN / 2, HEIGHT_IN), layout="constrained")
        axes = figure.subplots()
        places = range(len(values))
        axes.bar(places, list(values.values()), color=_line_colour(2), width=0.8)
        every = -(-len(values) // 8)
        axes.set_xticks(list(places)[::every], list(values)[::every])
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_formatter(FuncFormatter(short))
        axes.set_title(f"{title}, {unit}")
        return _to_svg(figure, name, title)


def _rc_params() -> RcParams:
    return RcParams({**rcParamsDefault, **_STYLE})


def _new_figure(columns: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    return figure, list(figure.subplots(1, columns, sharey=True, squeeze=False).flat)


def _line_colour(number: int) -> str:
    return HUES[number % len(HUES)]


def _shorten_names(names: Mapping[str, Any]) -> list[str]:
    return [name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 1] + "\u2026" for name in names]


def _marker_style(values: Sequence[float]) -> str | None:
    """Points between gaps have no line to be seen by."""
    there = sum(value == value for value in values)
    return "." if there < 20 else None


def _plot_single_point(axes: Axes, lines: Mapping[str, Values]) -> None:
    """A single point in time is a column."""
    bottom = 0.0
    for number, (label, values) in enumerate(zip(_shorten_names(lines), lines.values(), strict=True)):
        height = values[0] or 0.0
        axes.bar([0], [height], bottom=bottom, width=0.3, color=_line_colour(number), label=label)
        bottom += height
    axes.set_xticks([])
    axes.set_xlim(-1, 1)


def _finish_axes(axes: Axes, title: str, lines: int) -> None:
    rows = 0
    if lines > 1:
        columns = min(lines, 4)
        rows = -(-lines // columns)
        axes.legend(
            loc="lower left", bbox_to_anchor=(-0.01, 0.97), ncols=columns, handlelength=1.2, columnspacing=1.2
        )
    axes.set_title(title, pad=6 + 13 * rows)
    axes.yaxis.set_major_formatter(FuncFormatter(short))
    axes.yaxis.set_major_locator(MaxNLocator(4))


def _set_log_scale(axes: Sequence[Axes], seen: Sequence[float]) -> None:
    if not seen:
        return
    low, high = min(seen) / 1.5, max(seen) * 1.5
    for one in axes:
        one.set_yscale("log")
        one.set_ylim(low, high)
        one.yaxis.set_minor_locator(NullLocator())
        one.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,)))
        one.yaxis.set_major_formatter(FuncFormatter(short))


def _matplotlib_days(times_ms: Sequence[int]) -> list[float]:
    """Days since 1970, which is what matplotlib counts."""
    return [at_ms / 1000 / _DAY_S for at_ms in times_ms]


def _time_axis(axes: Axes, moments: Sequence[float], most: int = 7) -> None:
    lasted_s = (moments[-1] - moments[0]) * _DAY_S
    shown = time_format(lasted_s)
    axes.set_xticks(round_ticks(moments[0] * _DAY_S, moments[-1] * _DAY_S, most))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda at, _: time.strftime(shown, time.gmtime(at * _DAY_S)))
    )
    if len(moments) > 1:
        axes.set_xlim(moments[0], moments[-1])


def round_ticks(first_s: float, last_s: float, most: int) -> list[float]:
    """Round times within, at most so many; in days."""
    lasted_s = last_s - first_s
    step_s = next(
        (each for each in ROUND_S if lasted_s / each < most), -(-lasted_s // most // _DAY_S) * _DAY_S
    )
    at_s = -(-first_s // step_s) * step_s
    found: list[float] = []
    while at_s <= last_s and len(found) < most:
        found.append(at_s / _DAY_S)
        at_s += step_s
    return found


def _to_svg(figure: Figure, name: str, title: str) -> str:
    return inline(svg_of(figure), name, f'aria-label="{escape(title)}"')
