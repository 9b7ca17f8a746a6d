"""Message rates, and counts per time window, computed from the counters of `traffic_stats.py`.
A task calls `take_sample` every ten seconds.
"""

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Any, Final, NamedTuple

from gateway.broker.statistics.traffic_stats import BrokerStats, Traffic
from storage.clock import Clock

SAMPLE_INTERVAL_S: Final = 10
TOPIC_PUT: Final = "TOPIC_PUT"
GROUP_GET: Final = "GROUP_GET"
SEND_BACK: Final = "SNDBCK_PUT"
BROKER: Final = "BROKER"
KINDS: Final = (TOPIC_PUT, GROUP_GET, SEND_BACK, BROKER)
_TABLES: Final = {TOPIC_PUT: "stored", GROUP_GET: "delivered", SEND_BACK: "sent_back"}
WINDOWS_S: Final = (10, 60, 600)
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


class TrafficSample(NamedTuple):
    """Totals at one moment."""

    time_s: float
    stored: int
    delivered: int
    missed: int


class WindowCount(NamedTuple):
    """Messages of one window and their rate per second."""

    messages: int
    bytes: int
    per_second: float
    per_request: float


class WindowStart:
    """The counters of every topic, of every group and of the broker when a window began."""

    __slots__ = ("counts", "time_s")

    def __init__(self, at: float, stats: BrokerStats) -> None:
        self.time_s = at
        self.counts = {kind: _snapshot_counts(_counts_of(stats, kind)) for kind in KINDS}


def _counts_of(stats: BrokerStats, kind: str) -> Mapping[Any, Traffic]:
    return stats.totals() if kind == BROKER else getattr(stats, _TABLES[kind])


def _snapshot_counts(counts: Mapping[Any, Traffic]) -> dict[Hashable, tuple[int, int, int]]:
    """Return messages, bytes and requests by key: tuples, because 100,000 keys are copied in one turn of the loop."""
    return {key: (count.messages, count.bytes, count.requests) for key, count in counts.items()}


class TrafficRates:
    """Rates of the whole broker over sliding windows, and counts per minute, hour and day of each topic and group."""

    def __init__(self, stats: BrokerStats, clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        self.started_ms = clock.now_ms()
        now = clock.monotonic()
        self._samples = deque([TrafficSample(now, 0, 0, 0)], maxlen=WINDOWS_S[-1] // SAMPLE_INTERVAL_S + 1)
        self._window_starts = {window_s: WindowStart(now, stats) for window_s in (MINUTE_S, HOUR_S, DAY_S)}
        self._previous_starts = dict(self._window_starts)
        self._today = self.started_ms // 86_400_000
        self.yesterday = self.this_morning = (0, 0)

    def take_sample(self) -> None:
        """Record the current counters."""
        now = self._clock.monotonic()
        stored, delivered = self.totals()
        self._samples.append(TrafficSample(now, stored, delivered, self._stats.missed_pulls))
        for window_s, mark in self._window_starts.items():
            if now - mark.time_s >= window_s:
                self._previous_starts[window_s], self._window_starts[window_s] = (
                    mark,
                    WindowStart(now, self._stats),
                )
        today = self._clock.now_ms() // 86_400_000
        if today != self._today:
            self._today, self.yesterday, self.this_morning = today, self.this_morning, (stored, delivered)

    def totals(self) -> tuple[int, int]:
        """Return the messages stored and delivered since the start."""
        stored = sum(tally.messages for tally in self._stats.stored.values())
        return stored, sum(tally.messages for tally in self._stats.delivered.values())

    def stored_text(self) -> str:
        """Return the messages stored per second over ten seconds, a minute and ten minutes."""
        return self._format_rates(1)

    def delivered_text(self) -> str:
        """Return the messages delivered per second over ten seconds, a minute and ten minutes."""
        return self._format_rates(2)

    def missed_text(self) -> str:
        """Return the pulls without messages per second over ten seconds, a minute and ten minutes."""
        return self._format_rates(3)

    def delivered_and_missed_text(self) -> str:
        """Return the messages delivered and the pulls without messages, per second, over the same times."""
        return self._format_rates(2, 3)

    def _format_rates(self, *columns: int) -> str:
        latest = self._samples[-1]
        rates = []
        for window_s in WINDOWS_S:
            old = next(
                (sample for sample in self._samples if latest.time_s - sample.time_s <= window_s + 1), latest
            )
            passed = latest.time_s - old.time_s
            rates.append(sum(latest[column] - old[column] for column in columns) / passed if passed else 0.0)
        return " ".join(f"{rate:.4f}" for rate in rates)

    def has(self, kind: str, key: Hashable) -> bool:
        """Tell whether anything was counted under a key of a kind."""
        count = _counts_of(self._stats, kind).get(key)
        return count is not None and count.requests > 0

    def count(self, kind: str, key: Hashable, window_s: int = MINUTE_S) -> WindowCount:
        """Return the count of messages since the previous window began."""
        mark = self._previous_starts[window_s]
        tally = _counts_of(self._stats, kind).get(key)
        if tally is None:
            return WindowCount(0, 0, 0.0, 0.0)
        messages_before, bytes_before, requests_before = mark.counts[kind].get(key, (0, 0, 0))
        messages, requests = tally.messages - messages_before, tally.requests - requests_before
        passed = self._clock.monotonic() - mark.time_s
        return WindowCount(
            messages,
            tally.bytes - bytes_before,
            messages / passed if passed > 0 else 0.0,
            messages / requests if requests else 0.0,
        )
