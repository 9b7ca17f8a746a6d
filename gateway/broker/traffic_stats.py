"""Counters of the messages and bytes that pass through one broker. `traffic_rates.py` turns them into rates."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class TrafficCount:
    """A number of messages and their size in bytes."""

    messages: int = 0
    bytes: int = 0

    def count_messages(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.bytes += size_bytes


@dataclass(slots=True)
class BrokerStats:
    """Messages stored by topic, and delivered by (group, topic), since the broker started."""

    put: dict[str, TrafficCount] = field(default_factory=lambda: defaultdict(TrafficCount))
    got: dict[tuple[str, str], TrafficCount] = field(default_factory=lambda: defaultdict(TrafficCount))
