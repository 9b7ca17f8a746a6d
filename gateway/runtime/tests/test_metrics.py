"""Quantiles of latencies are right to within their buckets, and differences of two moments are exact."""

import math

import pytest

from gateway.runtime.metrics import LatencyHistogram, Metric, MetricRegistry


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99, 1.0])
def test_quantiles_are_within_a_bucket(share):
    latencies, values = LatencyHistogram(), [0.0001 * 1.003**step for step in range(3000)]
    for value in values:
        latencies.record(value)
    exact = values[max(0, math.ceil(share * len(values)) - 1)]
    assert exact <= latencies.quantile(share) <= exact * 2**0.25 * 1.001


def test_nothing_recorded_has_no_quantile():
    assert math.isnan(LatencyHistogram().quantile(0.5))


def test_since_counts_what_came_later():
    latencies = LatencyHistogram()
    latencies.record(0.001)
    earlier = latencies.copy()
    latencies.record(1.0)
    later = latencies.since(earlier)
    assert (later.count, later.total_s, earlier.count) == (1, pytest.approx(1.0), 1)
    assert later.quantile(0.0) >= 1.0


def test_buckets_rise_to_all_of_them():
    latencies = LatencyHistogram()
    for value in (0.0, 0.5, 1e9):
        latencies.record(value)
    bounds, counts = zip(*latencies.buckets(), strict=True)
    assert list(bounds) == sorted(bounds)
    assert (bounds[-1], counts[-1]) == (math.inf, 3)


def test_parts_are_asked_whenever_somebody_looks():
    registry, number = MetricRegistry(), [1.0]
    registry.register(lambda: [Metric("some_total", number[0], "some")])
    assert [metric.value for metric in registry.collect()] == [1.0]
    number[0] = 2.0
    assert [metric.value for metric in registry.collect()] == [2.0]
