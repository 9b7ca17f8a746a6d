import math
from itertools import pairwise

import orjson
import pytest
import trio
from trio.testing import MockClock

from gateway.runtime.metrics import Distribution, Metric, MetricRegistry
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.report.traffic_series import (
    ALL_TOPICS,
    COLUMNS,
    OTHER_TOPICS,
    SPARE_POINTS,
    TrafficSeries,
)
from gateway.shadow.tests.exchanges import make_exchange, make_pull_exchange, make_send_exchange
from gateway.shadow.traffic.exchange import Side
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind
from remoting.tests.virtual import virtual


async def shown(series):
    return orjson.loads(orjson.dumps(await series.to_report()))


@virtual
async def test_rates_and_quantiles_by_topic_and_second():
    series = TrafficSeries(MetricRegistry(), wall_ms=lambda: 1000 * trio.current_time())
    async with trio.open_nursery() as nursery:
        await nursery.start(series.run)
        for _ in range(10):
            series.observe(make_send_exchange("A", primary_s=0.002, share_s=0.00005))
        series.observe(make_send_exchange("A", code=14, primary_s=0.1))
        series.observe(make_send_exchange("B"))
        series.observe(make_pull_exchange("A", code=19, primary_s=15))
        await trio.sleep(1.5)
        series.observe(make_send_exchange("B"))
        await trio.sleep(1)
        report = await shown(series)
        nursery.cancel_scope.cancel()
    assert report["step_s"] == 1
    assert len(report["times_ms"]) == 2
    a, b, everything = (report["topics"][name] for name in ("A", "B", ALL_TOPICS))
    assert a["sends_per_s"] == [11, 0]
    assert a["pulls_per_s"] == [1, 0]
    assert a["refused_per_s"] == [1, 0]
    assert b["sends_per_s"] == [1, 1]
    assert everything["sends_per_s"] == [12, 1]
    assert a["primary_p50_ms"][0] == pytest.approx(2, rel=0.2)
    assert a["primary_p99_ms"][0] == pytest.approx(100, rel=0.2)
    assert a["primary_p99_ms"][1] is None
    assert a["share_p50_ms"][0] == pytest.approx(0.05, rel=0.2)
    assert report["totals"][ALL_TOPICS]["sends"] == 13
    assert report["totals"]["B"]["primary_p50_ms"] == pytest.approx(1, rel=0.2)
    assert OTHER_TOPICS not in report["totals"]


@virtual
async def test_outcomes_comparisons_and_figures_of_other_parts():
    metrics = MetricRegistry()
    waiting = [Metric("mirror_waiting_messages", 3, "", "gauge", {"stream": "a"})]
    waiting.append(Metric("mirror_waiting_messages", 4, "", "gauge", {"stream": "b"}))
    waiting.append(Metric("spilled_total", 50, ""))
    metrics.register(lambda: waiting)
    series = TrafficSeries(metrics)
    async with trio.open_nursery() as nursery:
        await nursery.start(series.run)
        for fate in (
            OutcomeKind.MIRRORED,
            OutcomeKind.MIRRORED,
            OutcomeKind.DROPPED,
            OutcomeKind.REFUSED,
            OutcomeKind.SKIPPED,
        ):
            series.observe_outcome(Outcome(make_send_exchange("A"), fate, latency_s=0.004))
        series.record_comparison("A", False)
        series.record_comparison("A", True)
        series.record_comparison("", True)
        await trio.sleep(1.5)
        newest = series.newest_point()
        nursery.cancel_scope.cancel()
    a = newest["topics"]["A"]
    assert (a["mirrored_per_s"], a["mirror_dropped_per_s"], a["mirror_refused_per_s"]) == (2, 1, 1)
    assert (a["compared_per_s"], a["differing_per_s"]) == (2, 1)
    assert a["target_p50_ms"] == pytest.approx(4, rel=0.2)
    assert newest["topics"][ALL_TOPICS]["differing_per_s"] == 2
    assert newest["metrics"] == {"mirror_waiting_messages": 7, "spilled_total": 50}


def test_latency_counts_for_the_side_that_answered():
    series = TrafficSeries(MetricRegistry())
    series.observe(make_send_exchange("A", side=Side.TARGET, primary_s=0.5))
    series.observe_outcome(
        Outcome(make_send_exchange("A", side=Side.TARGET), OutcomeKind.MIRRORED, latency_s=0.002)
    )
    total = series.total_tally()
    assert total.target.total_s == pytest.approx(0.5)
    assert total.primary.total_s == 0.002


@virtual
async def test_topics_and_points_are_bounded():
    series = TrafficSeries(MetricRegistry(), topics=2)
    for number in range(1000):
        series.observe(make_send_exchange(f"T{number}"))
    series.observe(make_send_exchange("x" * 300))
    series.observe(make_exchange(34, b"\x00\x00\x00\x06\x00\x00\x00\x02{}", None))
    series.observe(make_send_exchange("T0", reverse=True))
    async with trio.open_nursery() as nursery:
        await nursery.start(series.run)
        await trio.sleep(1.5)
        assert set(series.newest_point()["topics"]) == {"T0", "T1", OTHER_TOPICS, ALL_TOPICS}
        nursery.cancel_scope.cancel()
    assert (await series.to_report())["totals"][OTHER_TOPICS]["sends"] == 999


@virtual
async def test_long_runs_are_shown_by_coarser_points(monkeypatch):
    monkeypatch.setattr("gateway.shadow.report.traffic_series.RESOLUTIONS", ((1, 100), (10, 120), (60, 100)))
    series = TrafficSeries(MetricRegistry())
    async with trio.open_nursery() as nursery:
        await nursery.start(series.run)
        series.observe(make_send_exchange("A"))
        await trio.sleep(102)
        report = await shown(series)
        assert (report["step_s"], len(report["times_ms"])) == (10, 10)
        assert report["topics"]["A"]["sends_per_s"][0] == 0.1
        series.observe(make_send_exchange("B"))
        await trio.sleep(1200)
        report = await shown(series)
        assert report["step_s"] == 60
        assert sum(report["topics"]["B"]["sends_per_s"][1:3]) == pytest.approx(1 / 60, abs=0.001)
        assert report["topics"]["B"]["sends_per_s"][0] is None
        nursery.cancel_scope.cancel()


@virtual
async def test_a_ring_that_is_full_is_shown_in_order(monkeypatch):
    monkeypatch.setattr("gateway.shadow.report.traffic_series.RESOLUTIONS", ((1, 20), (5, 30)))
    series = TrafficSeries(MetricRegistry(), wall_ms=lambda: 1000 * round(trio.current_time()))
    async with trio.open_nursery() as nursery:
        await nursery.start(series.run)
        await trio.sleep(200)
        times = (await shown(series))["times_ms"]
        assert len(times) == 30 - SPARE_POINTS
        assert {later - earlier for earlier, later in pairwise(times)} == {5000}
        nursery.cancel_scope.cancel()


@virtual
async def test_a_late_second_is_no_faster_one():
    series = TrafficSeries(MetricRegistry())
    async with trio.open_nursery() as nursery:
        await nursery.start(series.run)
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        clock.jump(3.9)
        for _ in range(40):
            series.observe(make_send_exchange("A"))
        await trio.sleep(0.05)
        assert series.newest_point()["topics"]["A"]["sends_per_s"] == pytest.approx(40 / 3.9, rel=0.05)
        await trio.sleep(0.1)
        assert series.newest_point()["topics"]["A"]["sends_per_s"] == 0
        nursery.cancel_scope.cancel()


def test_before_the_first_second_there_is_nothing():
    series = TrafficSeries(MetricRegistry())
    assert series.newest_point() == {"topics": {}, "metrics": {}}
    assert trio.run(series.to_report)["times_ms"] == []


def test_metrics_agree_with_the_traffic():
    metrics = MetricRegistry()
    series = TrafficSeries(metrics)
    metrics.register(series.collect_metrics)
    series.observe(make_send_exchange("A", primary_s=0.5))
    series.observe(make_pull_exchange("A"))
    found = list(metrics.collect())
    counts = {(e.name, e.labels["topic"]): e.value for e in found if isinstance(e, Metric)}
    assert counts["traffic_sends_total", "A"] == counts["traffic_pulls_total", "A"] == 1
    sends = [
        each for each in found if isinstance(each, Distribution) and each.labels.get("side") == "primary"
    ]
    assert math.isclose(sends[0].histogram.total, 0.5)
    assert len(COLUMNS) == len(set(COLUMNS))


@virtual
async def test_a_restart_after_a_defect_keeps_the_points():
    metrics, tasks = MetricRegistry(), TaskSupervisor("report")
    series = TrafficSeries(metrics, wall_ms=lambda: 1000 * trio.current_time())
    fails = False

    def fail_sometimes():
        return [Metric("x", 1 / (not fails), "x")]

    metrics.register(fail_sometimes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tasks.keep_running, "series", series.run)
        await trio.sleep(3.5)
        fails = True
        await trio.sleep(5)
        fails = False
        await trio.sleep(10)
        report = await shown(series)
        nursery.cancel_scope.cancel()
    assert len(report["times_ms"]) > 8
    assert tasks.status()[0]["failures"] > 0
