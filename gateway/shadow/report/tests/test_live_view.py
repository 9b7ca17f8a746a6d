import io

import pytest
from rich.console import Console

from gateway.shadow.console.client import ConsoleUnreachable
from gateway.shadow.report import live_view
from gateway.shadow.tests.sample_report import STARTED_MS, sample_report


def looked(**more):
    report = sample_report()
    topics = {
        name: {column: values[-1] for column, values in columns.items()}
        for name, columns in report["series"]["topics"].items()
    }
    shown = {
        "title": report["title"],
        "started_ms": STARTED_MS,
        "at_ms": report["made_ms"],
        "sections": report["sections"],
    }
    return {**shown, "topics": topics, **more}


def drawn(live_json, width):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False)
    console.print(live_view.render_page(live_json, width))
    return out.getvalue()


@pytest.mark.parametrize("width", [30, 60, 90, 200])
def test_the_live_view_fits_terminals_of_any_width(width):
    text = drawn(looked(), width)
    assert max(map(len, text.splitlines())) <= width
    assert "Orders" in text
    assert "sends/s" in text
    assert ("p50 ms" in text) == (width == 200)


def test_markup_in_names_is_text():
    assert "[red]x" in drawn(looked(topics={"[red]x": {}}), 100)


def test_many_topics_are_cut():
    topics = {f"T{number:03}": {"sends_per_s": float(number)} for number in range(100)}
    text = drawn(looked(topics=topics), 100)
    assert "T099" in text
    assert "T001" not in text
    assert "more" in text


def test_a_look_as_a_line():
    text = live_view.format_line(looked())
    assert text.startswith("22:14:20 sends_per_s=")
    assert "\n" not in text
    assert "streams=1" in text
    assert "sends_per_s=\u2013" in live_view.format_line({"title": "", "started_ms": 0})


def test_numbers_are_short():
    assert [live_view.format_number(each) for each in (None, 0.0, 0.1234, 12.0, 9999.0, 12345.0, 2e6)] == [
        "\u2013", "0", "0.123", "12", "9999", "12.35k", "2M",
    ]  # fmt: skip


class Gateway:
    """A console that gives prepared answers, one per poll."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def get(self, path):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_lines_where_there_is_no_terminal(capsys):
    live_view.watch_gateway(Gateway(looked(), ConsoleUnreachable("gone"), looked()), 0.0, 3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("gone")


def test_a_gateway_that_was_never_there():
    with pytest.raises(ConsoleUnreachable):
        live_view.watch_gateway(Gateway(ConsoleUnreachable("gone")), 0.0, 3)


def test_a_terminal_is_drawn_over(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(
        "rich.console.Console",
        lambda: Console(file=out, width=80, height=40, force_terminal=True),
        raising=True,
    )
    live_view.watch_gateway(Gateway(looked(), looked()), 0.0, 2)
    assert "Orders" in out.getvalue()


def test_internal_topics_do_not_hide_those_of_users():
    """Internal queues filled the rows."""
    internal = {f"%RETRY%G{number:02}": {"sends_per_s": 9.0} for number in range(20)}
    queues = [{"topic": f"%DLQ%G{number:02}", "queue": 0, "phase": "live"} for number in range(20)]
    queues.append({"topic": "Orders", "queue": 0, "phase": "live"})
    live = looked(topics={**internal, "rmq_sys_X": {}, "Bills": {}}, sections={"replication": queues})
    text = drawn(live, 100)
    assert "Bills" in text
    assert "Orders" in text


def test_reasons_are_whole_in_a_narrow_terminal():
    """At 80 columns the reason of a failure disappeared."""
    reason = "mirrorTarget is not set at the target's broker: it stores nothing at the primary's offsets"
    queue = {"broker": "broker-a", "topic": "Orders", "queue": 3, "phase": "failing", "primary": [0, 12_345]}
    rows = [{**queue, "topic": "Bills", "problem": ""}, {**queue, "problem": reason}]
    text = drawn(looked(topics={}, sections={"replication": rows}), 80)
    assert f"Orders broker-a 3: {reason}" in " ".join(text.split())
    assert text.index("Orders") < text.index("Bills"), "what fails comes first"
    assert max(map(len, text.splitlines())) <= 80


def test_problems_come_first_and_are_whole():
    problem = "the primary does not answer at 10.0.0.1:9876,10.0.0.2:9876: connection refused " * 3
    live = looked(sections={"mirror": {"streams": []}, "problems": [{"part": "primary", "problem": problem}]})
    text = drawn(live, 60)
    assert " ".join(text.split()).index(problem.strip()) < text.index("mirror")
    assert live_view.format_line(live).split(" ", 1)[1].startswith("PROBLEM: the primary does not answer")
