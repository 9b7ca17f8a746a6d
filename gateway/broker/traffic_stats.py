"""Counters of the messages and bytes that pass through one broker. `traffic_rates.py` turns them into rates."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, TypeVar

K = TypeVar("K", bound=Hashable)

MAX_COUNTERS: Final = 50_000
"""Largest number of topics, or of groups with their topics, that are counted apart; the others are counted together."""


@dataclass(slots=True)
class TrafficCount:
    """A number of messages and their size in bytes."""

    messages: int = 0
    bytes: int = 0

    def count_messages(self, messages: int, size_bytes: int) -> None:
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
    """Messages stored by topic, and delivered by (group, topic), since the broker started."""

    put: TrafficCounts[str] = field(default_factory=lambda: TrafficCounts(""))
    got: TrafficCounts[tuple[str, str]] = field(default_factory=lambda: TrafficCounts(("", "")))

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a topic that is deleted."""
        self.put.pop(topic, None)
        for key in [key for key in self.got if key[1] == topic]:
            del self.got[key]

    def forget_group(self, group: str) -> None:
        """Drop the counters of a group that is deleted."""
        for key in [key for key in self.got if key[0] == group]:
            del self.got[key]
