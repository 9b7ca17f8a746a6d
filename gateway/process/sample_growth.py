"""Growth of counters and histograms from push to push, for receivers that want deltas (`metricsInDelta`).

A receiver adds up what it gets, so growth may neither be lost nor told twice. The numbers that a receiver has accepted
are remembered for each series. A push that fails changes nothing: the next one tells the growth of both.
"""

from collections.abc import Sequence

from gateway.runtime.metrics import Distribution, Metric

_Series = tuple[str, frozenset[tuple[str, str]]]
_Accepted = tuple[Sequence[float], int]


class SampleGrowth:
    """The numbers of each series that the receiver has accepted, with the times at which they were pushed, in ns."""

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
