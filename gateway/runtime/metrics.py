"""Counters, gauges and latencies that parts of the gateway show; plain numbers, read when somebody looks.

Not responsible for showing them (report is).
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. `name` is snake case with its unit last (`_total` for counters), without the common prefix."""

    name: str
    value: float
    meaning: str
    kind: Kind = "counter"
    labels: Mapping[str, str] = field(default_factory=dict)


def counters(
    counts: "DataclassInstance", prefix: str, meanings: Mapping[str, str], labels: Mapping[str, str]
) -> Iterator[Figure]:
    """Every field of a dataclass of counts, as `<prefix>_<field>_total`."""
    for each in fields(counts):
        name = f"{prefix}_{each.name}_total"
        yield Figure(name, getattr(counts, each.name), meanings[each.name], labels=labels)


# 20 us to 100 s, a quarter of an octave each: a quantile is right to within 10 %.
_BOUNDS_S: Final = tuple(20e-6 * 2 ** (step / 4) for step in range(90))


class Latencies:
    """How long something took, in seconds, as counts by logarithmic buckets: bounded, 1 us to record."""

    __slots__ = ("count", "counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_S) + 1)
        self.count = 0
        self.total_s = 0.0

    def record(self, seconds: float) -> None:
        """Counts one."""
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self.count += 1
        self.total_s += seconds

    def quantile(self, share: float) -> float:
        """Seconds that ``share`` (0 to 1) of what was recorded did not exceed; NaN when nothing was."""
        wanted, seen = share * self.count, 0
        for bucket, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return _BOUNDS_S[min(bucket, len(_BOUNDS_S) - 1)]
        return math.nan

    def since(self, earlier: "Latencies") -> "Latencies":
        """What was recorded after a `copy` was taken."""
        later = Latencies()
        later.counts = [now - then for now, then in zip(self.counts, earlier.counts, strict=True)]
        later.count = self.count - earlier.count
        later.total_s = self.total_s - earlier.total_s
        return later

    def add(self, other: "Latencies") -> None:
        """Counts what another one recorded as well."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.total_s += other.total_s

    def copy(self) -> "Latencies":
        """As it is now."""
        same = Latencies()
        same.counts, same.count, same.total_s = self.counts.copy(), self.count, self.total_s
        return same

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Upper bound in seconds and how many were recorded up to it, rising; the last bound is infinite."""
        seen = 0
        for bound, count in zip((*_BOUNDS_S, math.inf), self.counts, strict=True):
            seen += count
            yield bound, seen


@dataclass(frozen=True, slots=True)
class Distribution:
    """Latencies with a name and labels, as parts show them; `name` ends with `_seconds`."""

    name: str
    latencies: Latencies
    meaning: str
    labels: Mapping[str, str] = field(default_factory=dict)


Source = Callable[[], Iterable[Figure | Distribution]]


class Figures:
    """All parts that have something to show."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """Adds a function that is called whenever somebody looks."""
        self._sources.append(source)

    @property
    def sources(self) -> tuple[Source, ...]:
        """For whoever wants to let others have a turn between two of them."""
        return tuple(self._sources)

    def collect(self) -> Iterator[Figure | Distribution]:
        """Everything as it is now."""
        for source in self._sources:
            yield from source()
