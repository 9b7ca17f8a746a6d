"""How fast messages pass: rates and counts per window, computed from counters that only grow.

Not responsible for counting (stats does) nor for when `sample` is called (a task does, every ten seconds).
"""

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from gateway.broker.traffic_stats import BrokerStats, Tally
from storage.clock import Clock

Key = TypeVar("Key")

SAMPLE_S: Final = 10
WINDOWS_S: Final = (10, 60, 600)
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


class Sample(NamedTuple):
    """Totals at one moment."""

    at: float
    put: int
    got: int


class Count(NamedTuple):
    """Messages of one window and their rate per second."""

    messages: int
    bytes: int
    per_second: float


class Mark:
    """The counters of every topic when a window began."""

    __slots__ = ("at", "got", "put")

    def __init__(self, at: float, stats: BrokerStats) -> None:
        self.at = at
        self.put = _copy(stats.put)
        self.got = _copy(stats.got)


def _copy(tallies: Mapping[Key, Tally]) -> dict[Key, tuple[int, int]]:
    return {key: (tally.messages, tally.bytes) for key, tally in tallies.items()}


class Rates:
    """Rates over sliding windows of the whole broker, and counts per minute, hour and day of each topic
    and group."""

    def __init__(self, stats: BrokerStats, clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        self.started_ms = clock.now_ms()
        now = clock.monotonic()
        self._samples = deque([Sample(now, 0, 0)], maxlen=WINDOWS_S[-1] // SAMPLE_S + 1)
        self._marks = {window_s: Mark(now, stats) for window_s in (MINUTE_S, HOUR_S, DAY_S)}
        self._before = dict(self._marks)
        self._today = self.started_ms // 86_400_000
        self.yesterday = self.this_morning = (0, 0)

    def sample(self) -> None:
        """Notes where the counters stand."""
        now = self._clock.monotonic()
        put, got = self.totals()
        self._samples.append(Sample(now, put, got))
        for window_s, mark in self._marks.items():
            if now - mark.at >= window_s:
                self._before[window_s], self._marks[window_s] = mark, Mark(now, self._stats)
        today = self._clock.now_ms() // 86_400_000
        if today != self._today:
            self._today, self.yesterday, self.this_morning = today, self.this_morning, (put, got)

    def totals(self) -> tuple[int, int]:
        """Messages put and got since start."""
        put = sum(tally.messages for tally in self._stats.put.values())
        return put, sum(tally.messages for tally in self._stats.got.values())

    def put_text(self) -> str:
        """Messages put per second over ten seconds, a minute and ten minutes."""
        return self._text(1)

    def got_text(self) -> str:
        """Messages got per second over ten seconds, a minute and ten minutes."""
        return self._text(2)

    def _text(self, column: int) -> str:
        latest = self._samples[-1]
        rates = []
        for window_s in WINDOWS_S:
            old = next((each for each in self._samples if latest.at - each.at <= window_s + 1), latest)
            passed = latest.at - old.at
            rates.append((latest[column] - old[column]) / passed if passed else 0.0)
        return " ".join(f"{rate:.4f}" for rate in rates)

    def put_count(self, topic: str, window_s: int = MINUTE_S) -> Count:
        """What was put to a topic since the window before the present one began."""
        mark = self._before[window_s]
        return self._count(self._stats.put.get(topic), mark.put.get(topic, (0, 0)), mark.at)

    def got_count(self, group: str, topic: str, window_s: int = MINUTE_S) -> Count:
        """What a group got from a topic since the window before the present one began."""
        mark = self._before[window_s]
        key = (group, topic)
        return self._count(self._stats.got.get(key), mark.got.get(key, (0, 0)), mark.at)

    def _count(self, tally: Tally | None, before: tuple[int, int], since: float) -> Count:
        if tally is None:
            return Count(0, 0, 0.0)
        messages, size = tally.messages - before[0], tally.bytes - before[1]
        passed = self._clock.monotonic() - since
        return Count(messages, size, messages / passed if passed > 0 else 0.0)
