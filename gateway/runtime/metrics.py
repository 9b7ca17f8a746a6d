"""Metric primitives (counter, gauge, histograms), sampled when scraped, exported or shown."""

import math
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, Literal, Protocol

import trio

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MetricKind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample of a counter or gauge.

    `name` is snake case with its unit last (`_total` for counters), without the common prefix. A metric of the official
    server has its whole name, which begins with `rocketmq_`, and its unit, if any, in `unit`.
    """

    name: str
    value: float
    meaning: str
    kind: MetricKind = "counter"
    labels: Mapping[str, str] = field(default_factory=dict)
    unit: str = ""


def counter_metrics(
    counts: "DataclassInstance", prefix: str, meanings: Mapping[str, str], labels: Mapping[str, str]
) -> Iterator[Metric]:
    """Yield every field of a dataclass of counts as `<prefix>_<field>_total`."""
    for counter in fields(counts):
        name = f"{prefix}_{counter.name}_total"
        yield Metric(name, getattr(counts, counter.name), meanings[counter.name], labels=labels)


# 20 us to 100 s, a quarter of an octave each: a quantile is right to within 10 %.
_BOUNDS_S: Final = tuple(20e-6 * 2 ** (step / 4) for step in range(90))
SHOWN_BUCKET_STEP: Final = 4


class Histogram(Protocol):
    """The number of values in each bucket, as scrapers see it."""

    count: int

    @property
    def total(self) -> float:
        """The sum of all values."""

    def shown_buckets(self) -> Iterator[tuple[float, int]]:
        """Yield upper bounds with cumulative counts; the last bound is infinite."""


def separate_buckets(histogram: Histogram) -> tuple[tuple[float, ...], list[int]]:
    """Return the finite upper bounds, and the number of values in each bucket; the last one has no bound."""
    bounds, cumulative = zip(*histogram.shown_buckets(), strict=True)
    return bounds[:-1], [count - before for before, count in pairwise((0, *cumulative))]


class FixedHistogram:
    """A histogram whose upper bounds are given in ascending order, for values in any unit."""

    __slots__ = ("_bounds", "_counts", "count", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0

    def record(self, value: float) -> None:
        """Count one value. A value equal to a bound belongs to the bucket below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.count += 1
        self.total += value

    def copy(self) -> "FixedHistogram":
        """Return a copy that later recordings do not change."""
        same = FixedHistogram(self._bounds)
        same.merge(self)
        return same

    def merge(self, other: "FixedHistogram") -> None:
        """Add the counts of another histogram, which must have the same bounds."""
        self._counts = [own + added for own, added in zip(self._counts, other._counts, strict=True)]
        self.count += other.count
        self.total += other.total

    def shown_buckets(self) -> Iterator[tuple[float, int]]:
        """Yield upper bounds with cumulative counts; the last bound is infinite."""
        return zip((*self._bounds, math.inf), accumulate(self._counts), strict=True)


class CountedBuckets:
    """A histogram of values that were counted elsewhere: their number in each bucket, and their sum."""

    __slots__ = ("_bounds", "_counts", "count", "total")

    def __init__(self, bounds: tuple[float, ...], counts: Sequence[int], total: float) -> None:
        self._bounds = bounds
        self._counts = tuple(counts)
        self.count = sum(counts)
        self.total = total

    def shown_buckets(self) -> Iterator[tuple[float, int]]:
        """Yield upper bounds with cumulative counts; the last bound is infinite."""
        return zip((*self._bounds, math.inf), accumulate(self._counts), strict=True)


class LatencyHistogram:
    """A histogram of durations in seconds with logarithmic buckets: bounded memory, 1 us to record."""

    __slots__ = ("count", "counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_S) + 1)
        self.count = 0
        self.total_s = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self.count += 1
        self.total_s += seconds

    def quantile(self, share: float) -> float:
        """Return the quantile ``share`` (0 to 1) in seconds; NaN when nothing was recorded."""
        rank, cumulative = share * self.count, 0
        for bucket, count in enumerate(self.counts):
            cumulative += count
            if count and cumulative >= rank:
                return _BOUNDS_S[min(bucket, len(_BOUNDS_S) - 1)]
        return math.nan

    def since(self, earlier: "LatencyHistogram") -> "LatencyHistogram":
        """Return the durations recorded since ``earlier``, a `copy` of this histogram."""
        later = LatencyHistogram()
        later.counts = [now - then for now, then in zip(self.counts, earlier.counts, strict=True)]
        later.count = self.count - earlier.count
        later.total_s = self.total_s - earlier.total_s
        return later

    def merge(self, other: "LatencyHistogram") -> None:
        """Add the counts of another histogram."""
        self.counts = [own + added for own, added in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.total_s += other.total_s

    def copy(self) -> "LatencyHistogram":
        """Return a copy that later recordings do not change."""
        same = LatencyHistogram()
        same.counts, same.count, same.total_s = self.counts.copy(), self.count, self.total_s
        return same

    @property
    def total(self) -> float:
        """The sum of all durations, in seconds."""
        return self.total_s

    def shown_buckets(self) -> Iterator[tuple[float, int]]:
        """Yield every fourth bucket and the last one: 20 us, 40 us, ... are enough for a scrape."""
        for index, (bound_s, count) in enumerate(self.buckets()):
            if index % SHOWN_BUCKET_STEP == 0 or math.isinf(bound_s):
                yield bound_s, count

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Yield upper bounds in seconds with cumulative counts; the last bound is infinite."""
        cumulative = 0
        for bound, count in zip((*_BOUNDS_S, math.inf), self.counts, strict=True):
            cumulative += count
            yield bound, cumulative


@dataclass(frozen=True, slots=True)
class Distribution:
    """A named and labelled histogram; `name` ends with the unit, as `_seconds`, unless it is an official one."""

    name: str
    histogram: Histogram
    meaning: str
    labels: Mapping[str, str] = field(default_factory=dict)
    unit: str = ""


OFFICIAL_PREFIX: Final = "rocketmq_"


def prefixed_name(name: str, prefix: str) -> str:
    """Return the whole name of a metric: official names have their prefix already."""
    return name if name.startswith(OFFICIAL_PREFIX) else prefix + name


MetricSource = Callable[[], Iterable[Metric | Distribution | None]]
"""Yields metrics, and None at points where other tasks may run."""
RemoteMetricSource = Callable[[], Awaitable[Iterable[Metric | Distribution]]]
"""Asks other processes for their metrics. It has to bound its waiting itself."""


class MetricRegistry:
    """All sources of metrics of the process."""

    def __init__(self) -> None:
        self._sources: list[MetricSource] = []
        self._remote_sources: list[RemoteMetricSource] = []

    def register(self, source: MetricSource) -> None:
        """Add a function that returns metrics; it is called at each scrape."""
        self._sources.append(source)

    def register_remote(self, source: RemoteMetricSource) -> None:
        """Add a function that asks other processes; only `collect_all` calls it."""
        self._remote_sources.append(source)

    def collect(self) -> Iterator[Metric | Distribution]:
        """Yield the metrics of all local sources, without letting other tasks run."""
        for source in self._sources:
            yield from (metric for metric in source() if metric is not None)

    async def collect_in_slices(self, leave_out: MetricSource | None = None) -> list[Metric | Distribution]:
        """Return the metrics of all local sources except ``leave_out``.

        Other tasks run after each source, and wherever a source allows it.
        """
        metrics: list[Metric | Distribution] = []
        for source in self._sources:
            if source == leave_out:
                continue
            for metric in source():
                if metric is None:
                    await trio.lowlevel.checkpoint()
                else:
                    metrics.append(metric)
            await trio.lowlevel.checkpoint()
        return metrics

    async def collect_all(self) -> list[Metric | Distribution]:
        """Return the metrics of all sources, including those of other processes."""
        metrics = await self.collect_in_slices()
        for source in self._remote_sources:
            metrics += await source()
        return metrics
