"""Counters of the messages and bytes that pass through one broker. `traffic_rates.py` turns them into rates.

Stored messages are counted in `stored_counts.py`, by type and size as well.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from gateway.broker.stored_counts import StoredCount

K = TypeVar("K", bound=Hashable)


class Traffic(Protocol):
    """A number of messages, their size in bytes, and the requests that brought or took them."""

    @property
    def messages(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def requests(self) -> int: ...


C = TypeVar("C", bound=Traffic)

MAX_COUNTERS: Final = 50_000
"""Largest number of topics, or of groups with their topics, that are counted apart; the others are counted together."""


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


def _by_group_and_topic() -> CountTable[tuple[str, str], TrafficCount]:
    return CountTable(("", ""), TrafficCount)


@dataclass(slots=True)
class BrokerStats:
    """Messages stored by topic, and delivered or sent back by (group, topic), since the broker started.

    ``acked`` counts acks, ``missed_pulls`` pulls that were answered without messages, ``dead_letters`` the messages
    that a group gave up on, by the topic they were sent to.
    """

    put: CountTable[str, StoredCount] = field(default_factory=lambda: CountTable("", StoredCount))
    got: CountTable[tuple[str, str], TrafficCount] = field(default_factory=_by_group_and_topic)
    sent_back: CountTable[tuple[str, str], TrafficCount] = field(default_factory=_by_group_and_topic)
    dead_letters: CountTable[tuple[str, str], TrafficCount] = field(default_factory=_by_group_and_topic)
    acked: TrafficCount = field(default_factory=TrafficCount)
    missed_pulls: int = 0

    def totals(self) -> dict[str, TrafficCount]:
        """Return the sums of all topics and groups by the statistic that shows them."""
        return {PUT: _sum(self.put), GET: _sum(self.got), ACK: self.acked}

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a topic that is deleted."""
        self.put.pop(topic, None)
        for counts in (self.got, self.sent_back, self.dead_letters):
            for key in [key for key in counts if key[1] == topic]:
                del counts[key]

    def forget_group(self, group: str) -> None:
        """Drop the counters of a group that is deleted."""
        for counts in (self.got, self.sent_back, self.dead_letters):
            for key in [key for key in counts if key[0] == group]:
                del counts[key]


def _sum(counts: Mapping[K, Traffic]) -> TrafficCount:
    values = counts.values()
    return TrafficCount(
        sum(each.messages for each in values),
        sum(each.bytes for each in values),
        sum(each.requests for each in values),
    )
