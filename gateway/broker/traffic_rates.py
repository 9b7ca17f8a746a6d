"""Message rates, and counts per time window, computed from the counters of `traffic_stats.py`.
A task calls `take_sample` every ten seconds.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from gateway.broker.traffic_stats import BrokerStats, TrafficCount
from storage.clock import Clock

Key = TypeVar("Key")

SAMPLE_INTERVAL_S: Final = 10
WINDOWS_S: Final = (10, 60, 600)
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


class TrafficSample(NamedTuple):
    """Totals at one moment."""

    time_s: float
    put: int
    got: int


class WindowCount(NamedTuple):
    """Messages of one window and their rate per second."""

    messages: int
    bytes: int
    per_second: float


class WindowStart:
    """The counters of every topic when a window began."""

    __slots__ = ("got", "put", "time_s")

    def __init__(self, at: float, stats: BrokerStats) -> None:
        self.time_s = at
        self.put = _snapshot_counts(stats.put)
        self.got = _snapshot_counts(stats.got)


def _snapshot_counts(tallies: Mapping[Key, TrafficCount]) -> dict[Key, tuple[int, int]]:
    return {key: (tally.messages, tally.bytes) for key, tally in tallies.items()}


class TrafficRates:
    """Rates of the whole broker over sliding windows, and counts per minute, hour and day of each topic and group."""

    def __init__(self, stats: BrokerStats, clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        self.started_ms = clock.now_ms()
        now = clock.monotonic()
        self._samples = deque([TrafficSample(now, 0, 0)], maxlen=WINDOWS_S[-1] // SAMPLE_INTERVAL_S + 1)
        self._window_starts = {window_s: WindowStart(now, stats) for window_s in (MINUTE_S, HOUR_S, DAY_S)}
        self._previous_starts = dict(self._window_starts)
        self._today = self.started_ms // 86_400_000
        self.yesterday = self.this_morning = (0, 0)

    def take_sample(self) -> None:
        """Record the current counters."""
        now = self._clock.monotonic()
        put, got = self.totals()
        self._samples.append(TrafficSample(now, put, got))
        for window_s, mark in self._window_starts.items():
            if now - mark.time_s >= window_s:
                self._previous_starts[window_s], self._window_starts[window_s] = (
                    mark,
                    WindowStart(now, self._stats),
                )
        today = self._clock.now_ms() // 86_400_000
        if today != self._today:
            self._today, self.yesterday, self.this_morning = today, self.this_morning, (put, got)

    def totals(self) -> tuple[int, int]:
        """Return the messages stored and delivered since the start."""
        put = sum(tally.messages for tally in self._stats.put.values())
        return put, sum(tally.messages for tally in self._stats.got.values())

    def put_text(self) -> str:
        """Return the messages stored per second over ten seconds, a minute and ten minutes."""
        return self._format_rates(1)

    def got_text(self) -> str:
        """Return the messages delivered per second over ten seconds, a minute and ten minutes."""
        return self._format_rates(2)

    def _format_rates(self, column: int) -> str:
        latest = self._samples[-1]
        rates = []
        for window_s in WINDOWS_S:
            old = next(
                (each for each in self._samples if latest.time_s - each.time_s <= window_s + 1), latest
            )
            passed = latest.time_s - old.time_s
            rates.append((latest[column] - old[column]) / passed if passed else 0.0)
        return " ".join(f"{rate:.4f}" for rate in rates)

    def put_count(self, topic: str, window_s: int = MINUTE_S) -> WindowCount:
        """Return the count of messages stored in a topic since the previous window began."""
        mark = self._previous_starts[window_s]
        return self._count(self._stats.put.get(topic), mark.put.get(topic, (0, 0)), mark.time_s)

    def got_count(self, group: str, topic: str, window_s: int = MINUTE_S) -> WindowCount:
        """Return the count of messages delivered from a topic to a group since the previous window began."""
        mark = self._previous_starts[window_s]
        key = (group, topic)
        return self._count(self._stats.got.get(key), mark.got.get(key, (0, 0)), mark.time_s)

    def _count(self, tally: TrafficCount | None, before: tuple[int, int], since: float) -> WindowCount:
        if tally is None:
            return WindowCount(0, 0, 0.0)
        messages, size = tally.messages - before[0], tally.bytes - before[1]
        passed = self._clock.monotonic() - since
        return WindowCount(messages, size, messages / passed if passed > 0 else 0.0)
