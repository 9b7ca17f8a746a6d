"""The progress of a run: lines where there is no terminal, and what they count."""

import json

import pytest

from compat_tests.report.progress import LINE_EVERY_S, ProgressView, RunState
from compat_tests.report.tests.test_comparison import results


@pytest.fixture
def lines(tmp_path):
    """The results file of a run, and a function that appends lines to it."""
    path = tmp_path / "results.jsonl"

    def append(*added):
        with path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in added)

    append({"endpoint": "ours", "cases": 4})
    return path, append


def test_deviations_from_the_reference_are_counted(lines):
    path, append = lines
    state = RunState([path], results(a="passed", b="failed", c="passed"))
    append(*results(a="failed", b="failed", new="failed").values())
    state.update()
    append(*results(c="not served").values())
    state.update()
    assert (state.total, state.done, state.deviations) == (4, 4, 2)


def test_without_a_reference_failures_are_counted(lines):
    path, append = lines
    state = RunState([path])
    append(*results(a="failed", b="passed").values())
    state.update()
    assert state.deviations == 1


def test_the_parts_of_a_run_are_added_up(lines, tmp_path):
    path, _ = lines
    other = tmp_path / "other.jsonl"
    state = RunState([path, other])
    state.update()
    assert state.total is None
    other.write_text(json.dumps({"endpoint": "ours", "cases": 3}) + "\n")
    state.update()
    assert state.total == 7


def test_half_a_line_is_left_for_the_next_time(lines):
    path, _ = lines
    state = RunState([path])
    text = json.dumps(results(a="passed")["a"]) + "\n"
    for part in (text[:20], text[20:]):
        with path.open("a") as file:
            file.write(part)
        state.update()
    assert state.done == 1


def test_a_line_now_and_then_says_area_cases_deviations_and_time_left(lines, capsys):
    path, append = lines
    now = [0.0]
    append(*results(a="failed").values())
    with ProgressView("ours", RunState([path]), lambda: now[0]) as view:
        for now[0] in (0.1, LINE_EVERY_S + 1, LINE_EVERY_S + 2):
            view.update()
    assert capsys.readouterr().err.splitlines() == [
        "ours: 1 of 4 cases, 1 failed, about 48 s left, Pulling",
    ]


def test_before_the_cases_are_collected_their_number_is_unknown(tmp_path, capsys):
    now = [0.0]
    with ProgressView("ours", RunState([tmp_path / "none"]), lambda: now[0]) as view:
        now[0] = LINE_EVERY_S + 1
        view.update()
    assert capsys.readouterr().err == "ours: 0 of ? cases, starting\n"
