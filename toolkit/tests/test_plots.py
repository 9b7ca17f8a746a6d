"""Plots: merged points, ticks, odd values, marks, bars."""

import itertools
import math

import pytest

from toolkit.plots import (
    MAX_POINTS,
    Bars,
    Panel,
    Plot,
    PlotLine,
    draw_bars,
    draw_plot,
    mark_labels,
    round_ticks,
    short_number,
    thin_values,
)

STARTED_MS = 1_700_000_000_000


def plot(values, **more):
    times = [STARTED_MS + 1000 * second for second in range(len(values))]
    return Plot(
        "p", "A title", "What it is", times, [Panel("Panel", "ms", [PlotLine("line", values, 0)], **more)]
    )


def test_points_are_put_together():
    values = [1, 3, None, 5, None, None, 7]
    assert thin_values(values, 1, highest=False)[:2] == [1, 3]
    means, highest = thin_values(values, 2, highest=False), thin_values(values, 2, highest=True)
    assert means[:2] == [2, 5]
    assert highest[:2] == [3, 5]
    assert math.isnan(means[2])
    assert len(means) == 3


def test_numbers_of_axes_are_short():
    assert [short_number(value) for value in (0, 0.05, 12, 3500, 2e6, 1.25e9)] == [
        "0",
        "0.05",
        "12",
        "3.5k",
        "2M",
        "1.25G",
    ]


def test_ticks_are_round_and_few():
    assert round_ticks([], 5) == []
    assert round_ticks([1_000_500], 5) == []
    assert round_ticks([1_003_000, 1_120_000], 5) == [1_020_000, 1_050_000, 1_080_000, 1_110_000]
    assert round_ticks([1_003_000, 1_120_000], 3) == [1_020_000, 1_080_000]
    assert len(round_ticks([0, 86_400_000], 7)) <= 7


def test_marks_too_close_to_be_read_share_a_label():
    times = [STARTED_MS + 1000 * second for second in range(100)]
    marks = {1: times[10], 2: times[50], 3: times[50] + 5, 4: times[51], 5: times[90]}
    drawn = draw_plot(
        Plot("p", "", "", times, [Panel("Panel", "", [PlotLine("line", [1.0] * 100, 0)])], marks=marks)
    )
    assert [label in drawn for label in (">1<", ">2\u20134<", ">5<", ">3<")] == [True, True, True, False]


def test_long_runs_are_drawn_with_few_points():
    svg = draw_plot(plot([float(at % 7) for at in range(20 * MAX_POINTS)]))
    assert len(svg) < 60_000
    assert svg.startswith("<svg")


def test_odd_values_are_drawn():
    odd = ([None] * 3, [5.0, None, None], [None, 3.0, None], [0.0] * 3, [1e-9, 1.0, 1e9])
    kinds = ({}, {"logarithmic": True}, {"stacked": True})
    lines = [PlotLine("line", values, 0) for values in odd]
    panels = [
        Panel("Panel", "ms", [line], **kinds[at % 3]) for at, line in enumerate([*lines, lines[3], lines[0]])
    ]
    assert "A title" in draw_plot(
        Plot("p", "A title", "", [STARTED_MS, STARTED_MS + 1, STARTED_MS + 2], panels)
    )
    assert "A title" in draw_plot(plot([]))


def test_a_drawing_is_the_same_each_time():
    assert draw_plot(plot([1.0, 2.0, 3.0])) == draw_plot(plot([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("lasted_s", [0, 1, 59, 3600, 5400, 86_400, 40 * 86_400])
def test_ticks_of_any_duration(lasted_s):
    ticks = round_ticks([STARTED_MS, STARTED_MS + 1000 * lasted_s], 4)
    assert len(ticks) <= 4
    assert ticks == sorted(ticks)
    assert len(ticks) >= 2 or lasted_s == 0


def test_a_single_point_of_stacked_lines_is_a_column():
    panel = Panel("Rates", "per second", [PlotLine("a", [1.0], 0), PlotLine("b", [None], 1)], stacked=True)
    assert draw_plot(Plot("p", "Rates", "", [STARTED_MS], [panel])).startswith("<svg")


def test_bars_name_their_values():
    values = {"Orders": 1500.0, "x" * 40: 2.0}
    drawn = draw_bars(Bars("b", "Busiest <keys>", "%", values, reference=1.0))
    assert 'aria-label="Busiest &lt;keys&gt;"' in drawn
    assert ">1.5k<" in drawn
    assert "x" * 29 + "\u2026" in drawn
    assert draw_bars(Bars("h", "Sizes", "", {str(at): at for at in range(20)}, upright=True)).startswith(
        "<svg"
    )
    assert draw_bars(Bars("e", "Nothing", "", {})).startswith("<svg")


def marked(*times_ms: float) -> Plot:
    return Plot("x", "X", "", [0.0, 1000.0], [], marks=dict(enumerate(times_ms, 1)))


def test_labels_of_events_do_not_overlap() -> None:
    """Ranges of numbers ran into the next label."""
    assert mark_labels(marked(0, 500), 100) == {0: "1", 500: "2"}
    assert mark_labels(marked(0, 10), 100) == {0: "1\u20132"}
    # A range is longer than a number, so it reaches a mark that the number alone would not have reached.
    assert mark_labels(marked(0, 10, 35), 100) == {0: "1\u20133"}
    assert mark_labels(marked(0, 10, 45), 100) == {0: "1\u20132", 45: "3"}
    for chars in (10, 40, 200):
        labels = sorted(mark_labels(marked(*(number**2 for number in range(32))), chars).items())
        for (at_ms, label), (next_ms, _) in itertools.pairwise(labels):
            assert at_ms + (len(label) + 1) * 1000 / chars <= next_ms
