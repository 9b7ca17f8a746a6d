"""Medians, ratios, bars."""

import pytest

from tools.bench.report import Bar, ComparisonReport, LoadSample

FASTER = Bar(2.0, at_least=True)


def report(*samples: tuple[str, int, dict[str, float]]) -> ComparisonReport:
    found = ComparisonReport(("ours", "theirs"))
    for load, side, figures in samples:
        found.samples.append(LoadSample(load, side, 0, figures))
    return found


@pytest.mark.parametrize(
    ("bar", "ours", "official", "met"),
    [
        (FASTER, 200.0, 100.0, True),
        (FASTER, 199.0, 100.0, False),
        (FASTER, 200.0, None, None),
        (Bar(1 / 3), 33.0, 100.0, True),
        (Bar(1 / 3), 34.0, 100.0, False),
        (Bar(500, absolute=True), 499.0, None, True),
        (Bar(500, absolute=True), 501.0, 5000.0, False),
    ],
)
def test_bars(bar: Bar, ours: float, official: float | None, met: bool | None) -> None:
    assert bar.is_met(ours, official) is met


def test_rows_hold_medians_ratio_and_verdict() -> None:
    rates = [("catch-up", 0, {"rate": rate}) for rate in (100.0, 300.0, 900.0)]
    rows = report(*rates, ("catch-up", 1, {"rate": 150.0})).rows()
    assert rows == [("catch-up, messages/s", "300", "150", "2.00", "≥ 1.3x", "yes")]


def test_only_what_was_measured_is_shown() -> None:
    found = report(("latency", 0, {"p50_ms": 0.5}), ("latency", 1, {"p50_ms": 0.6}))
    assert [row[0] for row in found.rows()] == ["end to end at 100/s, p50 ms"]
    assert "**no**" in found.markdown()


def test_every_send_load_shows_deferred_work() -> None:
    figures = {"rate": 1.0, "cpu_us": 1.0, "deferred_us": 2.5}
    titles = [row[0] for row in report(("send-64t-128B", 0, figures)).rows()]
    assert titles[-1] == "send-64t-128B, deferred work µs/message"


def test_failures_and_client_errors_are_not_hidden() -> None:
    found = report(("latency", 0, {"client_errors": 3.0}))
    found.problems.append("latency: broke")
    assert "FAILED: latency: broke" in found.markdown()
    assert "3 errors" in found.markdown()
