"""Metrics of this server as the data classes that exporters of OpenTelemetry's SDK take.

The SDK's own instruments are not used: our counters exist already, and are read once for each push, as for a scrape.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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

from gateway.runtime.metrics import Distribution, Metric, prefixed_name, separate_buckets

_Series = tuple[str, frozenset[tuple[str, str]]]
_Accepted = tuple[Sequence[float], int]


class SampleGrowth:
    """Growth of counters and histograms from push to push, for receivers that want deltas (`metricsInDelta`).

    A receiver adds up what it gets, so growth may be neither lost nor sent twice. The numbers that a receiver has
    accepted are remembered for each series, with the time (ns) of their push. A push that fails changes nothing: the
    next one sends the growth of both.
    """

    def __init__(self) -> None:
        self._accepted: dict[_Series, _Accepted] = {}
        self._offered: dict[_Series, Sequence[float]] = {}
        self._current: set[_Series] = set()

    def begin_push(self) -> None:
        """Forget what was offered by a push that failed."""
        self._offered, self._current = {}, set()

    def since_last(
        self, sample: Metric | Distribution, numbers: Sequence[float], first_ns: int
    ) -> tuple[list[float], int]:
        """Return how much the numbers of a series grew, and since when: ``first_ns`` if it is new.

        A series that shrank was begun anew, as when a topic is deleted and created again.
        """
        series = (sample.name, frozenset(sample.labels.items()))
        self._offered[series] = numbers
        self._current.add(series)
        before, since_ns = self._accepted.get(series, ((0,) * len(numbers), first_ns))
        if any(now < then for now, then in zip(numbers, before, strict=True)):
            return list(numbers), since_ns
        return [now - then for now, then in zip(numbers, before, strict=True)], since_ns

    def accept(self, now_ns: int) -> None:
        """Note that the receiver has accepted everything that was offered since the last call."""
        self._accepted.update({series: (numbers, now_ns) for series, numbers in self._offered.items()})
        self._offered = {}

    def end_push(self) -> None:
        """Forget the series that do not exist any more. Every series must have been offered in this push."""
        self._accepted = {
            series: accepted for series, accepted in self._accepted.items() if series in self._current
        }


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

    def __init__(
        self,
        prefix: str,
        labels: Mapping[str, str],
        resource: Mapping[str, str],
        growth: SampleGrowth | None = None,
    ) -> None:
        """With ``growth``, counters and histograms are shaped as what they grew by."""
        self._prefix = prefix
        self._labels = labels
        self._resource = Resource(resource)
        self._scope = InstrumentationScope(SCOPE)
        self._growth = growth
        self._temporality = (
            AggregationTemporality.CUMULATIVE if growth is None else AggregationTemporality.DELTA
        )

    def batches(
        self, samples: Iterable[Sample], times: SampleTimes, batch_size: int
    ) -> Iterator[MetricsData]:
        """Yield the samples in batches of at most ``batch_size`` data points; those of one name lie together.

        Taking the next batch means that the receiver has the one before: growth then begins anew.
        """
        if self._growth is not None:
            self._growth.begin_push()
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
                    yield from self._send(batch, times)
                    batch, room = [], batch_size
        if batch:
            yield from self._send(batch, times)
        if self._growth is not None:
            self._growth.end_push()

    def _send(self, metrics: Sequence[OtlpMetric], times: SampleTimes) -> Iterator[MetricsData]:
        scope = ScopeMetrics(self._scope, metrics, "")
        yield MetricsData([ResourceMetrics(self._resource, [scope], "")])
        if self._growth is not None:
            self._growth.accept(times.now_ns)

    def _shape(self, name: str, family: Sequence[Sample], times: SampleTimes) -> OtlpMetric:
        """Return one metric. The first sample of a family decides its kind."""
        numbers = [self._number(sample, times) for sample in family if isinstance(sample, Metric)]
        histograms = [self._histogram(sample, times) for sample in family if isinstance(sample, Distribution)]
        data: Sum | Gauge | Histogram
        if isinstance(family[0], Distribution):
            data = Histogram(histograms, self._temporality)
        elif family[0].kind == "counter":
            data = Sum(numbers, self._temporality, is_monotonic=True)
        else:
            data = Gauge(numbers)
        return OtlpMetric(name, family[0].meaning, family[0].unit, data)

    def _number(self, sample: Metric, times: SampleTimes) -> NumberDataPoint:
        value, start_ns = sample.value, times.start_ns
        if self._growth is not None and sample.kind == "counter":
            (value,), start_ns = self._growth.since_last(sample, (value,), start_ns)
        return NumberDataPoint({**self._labels, **sample.labels}, start_ns, times.now_ns, value)

    def _histogram(self, sample: Distribution, times: SampleTimes) -> HistogramDataPoint:
        bounds, in_buckets = separate_buckets(sample.histogram)
        numbers: list[Any] = [sample.histogram.total, *in_buckets]
        start_ns = times.start_ns
        if self._growth is not None:
            numbers, start_ns = self._growth.since_last(sample, numbers, start_ns)
        total, *counts = numbers
        return HistogramDataPoint(
            {**self._labels, **sample.labels},
            start_ns,
            times.now_ns,
            count=sum(counts),
            sum=total,
            bucket_counts=counts,
            explicit_bounds=bounds,
            min=None,  # type: ignore[arg-type]  # optional in OTLP; the SDK's own type is too narrow
            max=None,  # type: ignore[arg-type]
        )
