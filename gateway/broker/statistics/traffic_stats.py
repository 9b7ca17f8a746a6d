"""Counters of the messages and bytes that pass through one broker. `traffic_rates.py` turns them into rates.

Stored messages are counted in `stored_counts.py`, by type and size as well.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import floor
from typing import Final, Generic, Protocol, TypeVar

from gateway.broker.statistics.stored_counts import StoredCount
from gateway.runtime.metrics import FixedHistogram
from storage.clock import Clock

BOUNDS_MS: Final = (10, 100, 1_000, 3_000, 5_000)
"""Source: BrokerMetricsManager.registerMetricsView, 5.4.0."""
SUCCESS, FAILURE = "success", "failure"
"""Values of the label `invocation_status`. Source: InvocationStatus, 5.4.0."""


class ExecutionTimes:
    """The time in ms that requests took, by outcome and by whether they concern a system topic or group."""

    def __init__(self) -> None:
        self.histograms: dict[tuple[str, bool], FixedHistogram] = {}

    @contextmanager
    def measure(self, clock: Clock, is_system: bool = False) -> Iterator[None]:
        """Record the time that the block takes, whether it succeeds or raises."""
        began_s, outcome = clock.monotonic(), FAILURE
        try:
            yield
            outcome = SUCCESS
        finally:
            histogram = self.histograms.setdefault((outcome, is_system), FixedHistogram(BOUNDS_MS))
            histogram.record(floor((clock.monotonic() - began_s) * 1000))


K = TypeVar("K", bound=Hashable)


class Traffic(Protocol):
    """A number of messages, their size in bytes, and the requests that brought or took them."""

    @property
    def messages(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def requests(self) -> int: ...


C = TypeVar("C")

MAX_COUNTERS: Final = 50_000
"""Largest number of topics, or of groups with their topics, that are counted apart; the others are counted together."""


COMMIT_LATENCY_BOUNDS_S: Final = (5, 60, 600, 3600, 43200, 86400)
"""Source: BrokerMetricsManager.registerMetricsView, 5.4.0."""
TIMER_DELAY_BOUNDS_S: Final = (60, 600, 3600, 43200, 86400, 259200)
"""Source: DefaultStoreMetricsManager.getMetricsView, 5.4.0."""
PUT: Final = "BROKER_PUT"
GET: Final = "BROKER_GET"
ACK: Final = "BROKER_ACK"


@dataclass(slots=True)
class TrafficCount:
    """A number of messages, their size in bytes, and the requests that brought or took them."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0

    def count_messages(self, messages: int, size_bytes: int) -> None:
        self.requests += 1
        self.messages += messages
        self.bytes += size_bytes


class CountTable(dict[K, C], Generic[K, C]):
    """Counters by key, created on first use. Beyond MAX_COUNTERS all new keys share the counter of ``other``."""

    def __init__(self, other: K, new_count: Callable[[], C]) -> None:
        super().__init__()
        self._other = other
        self._new_count = new_count

    def __missing__(self, key: K) -> C:
        return self.setdefault(key if len(self) < MAX_COUNTERS else self._other, self._new_count())


def _by_topic() -> CountTable[str, TrafficCount]:
    return CountTable("", TrafficCount)


def _by_group_and_topic() -> CountTable[tuple[str, str], TrafficCount]:
    return CountTable(("", ""), TrafficCount)


@dataclass(slots=True)
class BrokerStats:
    """Messages stored by topic, and delivered or sent back by (group, topic), since the broker started.

    ``acked`` counts acks, ``missed_pulls`` pulls that were answered without messages, ``dead_letters`` the messages
    that a group gave up on, and ``revived`` those that pops did not acknowledge, by the topic they were sent to.
    ``committed`` and ``rolled_back`` count transactions, ``commit_latencies_s`` has the time from the birth of a half
    message to its commit, ``timer_delays_s`` the time from the birth of a timer message to its slot; these and the
    counts of timer messages go by the real topic.
    """

    stored: CountTable[str, StoredCount] = field(default_factory=lambda: CountTable("", StoredCount))
    delivered: CountTable[tuple[str, str], TrafficCount] = field(default_factory=_by_group_and_topic)
    sent_back: CountTable[tuple[str, str], TrafficCount] = field(default_factory=_by_group_and_topic)
    dead_letters: CountTable[tuple[str, str], TrafficCount] = field(default_factory=_by_group_and_topic)
    revived: CountTable[tuple[str, str], TrafficCount] = field(default_factory=_by_group_and_topic)
    committed: CountTable[str, TrafficCount] = field(default_factory=_by_topic)
    rolled_back: CountTable[str, TrafficCount] = field(default_factory=_by_topic)
    commit_latencies_s: CountTable[str, FixedHistogram] = field(
        default_factory=lambda: CountTable("", lambda: FixedHistogram(COMMIT_LATENCY_BOUNDS_S))
    )
    timers_scheduled: CountTable[str, TrafficCount] = field(default_factory=_by_topic)
    timers_delivered: CountTable[str, TrafficCount] = field(default_factory=_by_topic)
    timer_delays_s: CountTable[str, FixedHistogram] = field(
        default_factory=lambda: CountTable("", lambda: FixedHistogram(TIMER_DELAY_BOUNDS_S))
    )
    topic_changes: ExecutionTimes = field(default_factory=ExecutionTimes)
    group_changes: ExecutionTimes = field(default_factory=ExecutionTimes)
    acked: TrafficCount = field(default_factory=TrafficCount)
    missed_pulls: int = 0

    def totals(self) -> dict[str, TrafficCount]:
        """Return the sums of all topics and groups by the statistic that shows them."""
        return {PUT: _sum(self.stored), GET: _sum(self.delivered), ACK: self.acked}

    @property
    def _by_group_and_topic(self) -> tuple[CountTable[tuple[str, str], TrafficCount], ...]:
        return self.delivered, self.sent_back, self.dead_letters, self.revived

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a topic that is deleted."""
        for by_topic in (
            self.stored, self.committed, self.rolled_back, self.commit_latencies_s, self.timers_scheduled,
            self.timers_delivered, self.timer_delays_s,
        ):  # fmt: skip
            by_topic.pop(topic, None)
        for counts in self._by_group_and_topic:
            for key in [key for key in counts if key[1] == topic]:
                del counts[key]

    def forget_group(self, group: str) -> None:
        """Drop the counters of a group that is deleted."""
        for counts in self._by_group_and_topic:
            for key in [key for key in counts if key[0] == group]:
                del counts[key]


def _sum(counts: Mapping[K, Traffic]) -> TrafficCount:
    values = counts.values()
    return TrafficCount(
        sum(count.messages for count in values),
        sum(count.bytes for count in values),
        sum(count.requests for count in values),
    )
