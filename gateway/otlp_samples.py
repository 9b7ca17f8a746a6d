"""Metrics of this server as the data classes that exporters of OpenTelemetry's SDK take.

The SDK's own instruments are not used: our counters exist already, and are read once for each push, as for a scrape.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gateway.runtime.metrics import Distribution, Metric, prefixed_name

SCOPE: Final = "broker-meter"
"""The name of the official meter. Source: BrokerMetricsConstant.OPEN_TELEMETRY_METER_NAME, 5.4.0."""
Sample = Metric | Distribution


@dataclass(frozen=True, slots=True)
class SampleTimes:
    """The times of all data points of one push, in ns since 1970: counters began at ``start_ns``."""

    start_ns: int
    now_ns: int


class OtlpSamples:
    """Shapes samples: ``prefix`` is put before our own names, ``labels`` are added where a sample lacks them."""

    def __init__(self, prefix: str, labels: Mapping[str, str], resource: Mapping[str, str]) -> None:
        self._prefix = prefix
        self._labels = labels
        self._resource = Resource(resource)
        self._scope = InstrumentationScope(SCOPE)

    def batches(
        self, samples: Iterable[Sample], times: SampleTimes, batch_size: int
    ) -> Iterator[MetricsData]:
        """Yield the samples in batches of at most ``batch_size`` data points; those of one name lie together."""
        by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            by_name.setdefault(prefixed_name(sample.name, self._prefix), []).append(sample)
        batch: list[OtlpMetric] = []
        room = batch_size
        for name, family in by_name.items():
            while family:
                batch.append(self._shape(name, family[:room], times))
                room, family = room - len(family[:room]), family[room:]
                if room == 0:
                    yield self._wrap(batch)
                    batch, room = [], batch_size
        if batch:
            yield self._wrap(batch)

    def _wrap(self, metrics: Sequence[OtlpMetric]) -> MetricsData:
        scope = ScopeMetrics(self._scope, metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    def _shape(self, name: str, family: Sequence[Sample], times: SampleTimes) -> OtlpMetric:
        """Return one metric. The first sample of a family decides its kind."""
        numbers = [self._number(each, times) for each in family if isinstance(each, Metric)]
        histograms = [self._histogram(each, times) for each in family if isinstance(each, Distribution)]
        data: Sum | Gauge | Histogram
        if isinstance(family[0], Distribution):
            data = Histogram(histograms, AggregationTemporality.CUMULATIVE)
        elif family[0].kind == "counter":
            data = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        else:
            data = Gauge(numbers)
        return OtlpMetric(name, family[0].meaning, family[0].unit, data)

    def _number(self, sample: Metric, times: SampleTimes) -> NumberDataPoint:
        return NumberDataPoint({**self._labels, **sample.labels}, times.start_ns, times.now_ns, sample.value)

    def _histogram(self, sample: Distribution, times: SampleTimes) -> HistogramDataPoint:
        bounds, counts, seen = [], [], 0
        for bound, cumulative in sample.histogram.shown_buckets():
            counts.append(cumulative - seen)
            seen = cumulative
            if not math.isinf(bound):
                bounds.append(bound)
        return HistogramDataPoint(
            {**self._labels, **sample.labels},
            times.start_ns,
            times.now_ns,
            count=sample.histogram.count,
            sum=sample.histogram.total,
            bucket_counts=counts,
            explicit_bounds=bounds,
            min=None,  # type: ignore[arg-type]  # optional in OTLP; the SDK's own type is too narrow
            max=None,  # type: ignore[arg-type]
        )
