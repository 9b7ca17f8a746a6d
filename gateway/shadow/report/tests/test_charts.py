"""Which plots a report has: tables of their numbers, empty panels, outages, marks."""

from gateway.shadow.report.charts import (
    busiest_topics,
    drop_empty_panels,
    event_marks,
    find_outages,
    summarize_plot,
)
from gateway.shadow.tests.sample_report import sample_report
from toolkit.plots import Panel, Plot, PlotLine


def test_tables_and_what_is_left_out():
    both = Plot(
        "p",
        "",
        "",
        [1.0, 2.0],
        [Panel("A", "", [PlotLine("a", [0, None], 0)]), Panel("B", "", [PlotLine("b", [1, 4], 1)])],
    )
    assert summarize_plot(both) == [["a", "", 0, 0, 0], ["b", "", 2.5, 4, 4]]
    assert [panel.title for panel in drop_empty_panels(both).panels] == ["B"]


def test_outages_marks_and_the_busiest():
    series = sample_report()["series"]
    times = series["times_ms"]
    assert find_outages(series) == [(times[19], times[29])]
    assert busiest_topics(series) == ["Orders", "<b>Clicks", "(others)"]
    assert event_marks([{"at_ms": at, "text": "x"} for at in range(30)]) == {
        at + 1: at for at in range(10, 30)
    }


def test_the_steps_of_the_first_cut_over_are_marked_whatever_came_later():
    move, other = {"text": "move of A: switched"}, {"text": "mirror a: circuit breaker open"}
    events = [{"at_ms": at, **(move if at < 3 else other)} for at in range(600)]
    assert list(event_marks(events)) == [1, 2, 3, *range(584, 601)]
    events = [{"at_ms": at, **move} for at in range(50)]
    assert list(event_marks(events)) == [*range(1, 11), *range(41, 51)]
