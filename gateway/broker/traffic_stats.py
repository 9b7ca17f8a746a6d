"""Counters of the messages and bytes that pass through one broker. `traffic_rates.py` turns them into rates."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

K = TypeVar("K", bound=Hashable)

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


class TrafficCounts(dict[K, TrafficCount]):
    """Counters by key, created on first use. Beyond MAX_COUNTERS all new keys share the counter of ``other``."""

    def __init__(self, other: K) -> None:
        super().__init__()
        self._other = other

    def __missing__(self, key: K) -> TrafficCount:
        return self.setdefault(key if len(self) < MAX_COUNTERS else self._other, TrafficCount())


@dataclass(slots=True)
class BrokerStats:
    """Messages stored by topic, and delivered or sent back by (group, topic), since the broker started.

    ``acked`` counts acks, ``missed_pulls`` pulls that were answered without messages.
    """

    put: TrafficCounts[str] = field(default_factory=lambda: TrafficCounts(""))
    got: TrafficCounts[tuple[str, str]] = field(default_factory=lambda: TrafficCounts(("", "")))
    sent_back: TrafficCounts[tuple[str, str]] = field(default_factory=lambda: TrafficCounts(("", "")))
    acked: TrafficCount = field(default_factory=TrafficCount)
    missed_pulls: int = 0

    def totals(self) -> dict[str, TrafficCount]:
        """Return the sums of all topics and groups by the statistic that shows them."""
        return {PUT: _sum(self.put), GET: _sum(self.got), ACK: self.acked}

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a topic that is deleted."""
        self.put.pop(topic, None)
        for counts in (self.got, self.sent_back):
            for key in [key for key in counts if key[1] == topic]:
                del counts[key]

    def forget_group(self, group: str) -> None:
        """Drop the counters of a group that is deleted."""
        for counts in (self.got, self.sent_back):
            for key in [key for key in counts if key[0] == group]:
                del counts[key]


def _sum(counts: Mapping[K, TrafficCount]) -> TrafficCount:
    values = counts.values()
    return TrafficCount(
        sum(each.messages for each in values),
        sum(each.bytes for each in values),
        sum(each.requests for each in values),
    )
