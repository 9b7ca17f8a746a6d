"""Medians, ratios, bars."""

import pytest

from tools.bench.bottleneck import LIMITS
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
    assert rows == [("catch-up, messages/s", "300 (100 to 900)", "150", "2.00", "≥ 1.3x", "yes", "- / -")]


def test_only_what_was_measured_is_shown() -> None:
    found = report(("latency", 0, {"p50_ms": 0.5}), ("latency", 1, {"p50_ms": 0.6}))
    assert [row[0] for row in found.rows()] == ["end to end at 100/s, p50 ms"]
    assert "**no**" in found.markdown()


def test_every_send_load_shows_deferred_work() -> None:
    figures = {"rate": 1.0, "cpu_us": 1.0, "deferred_us": 2.5}
    titles = [row[0] for row in report(("send-64t-128B", 0, figures)).rows()]
    assert titles[-1] == "send-64t-128B, deferred work µs/message"


def test_a_rate_says_what_limited_it_in_most_rounds() -> None:
    client, thread = (float(LIMITS.index(name)) for name in ("client thread", "server thread"))
    ours = [
        ("send-1t-128B", 0, {"rate": 1.0, "cpu_us": 1.0, "limit": limit})
        for limit in (client, thread, client)
    ]
    found = report(*ours, ("send-1t-128B", 1, {"rate": 1.0, "cpu_us": 1.0, "limit": thread, "unsteady": 1.0}))
    assert [row[-1] for row in found.rows()] == ["client thread / server thread", ""]
    assert "Limited by: " in found.markdown()
    assert "In 1 runs the rate was not steady" in found.markdown()


def test_the_machine_and_moves_between_its_processors_are_told() -> None:
    found = report(("send-1t-128B", 1, {"migrations_per_s": 12.0}))
    found.machine = {"date": "2026-11-26", "processor": "EPYC"}
    assert "date: 2026-11-26, processor: EPYC." in found.markdown()
    assert "Threads of theirs moved between processors 12 times a second" in found.markdown()


def test_failures_and_client_errors_are_not_hidden() -> None:
    found = report(("latency", 0, {"client_errors": 3.0}))
    found.problems.append("latency: broke")
    assert "FAILED: latency: broke" in found.markdown()
    assert "3 errors" in found.markdown()
