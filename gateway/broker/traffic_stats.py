"""Counts what passes through one broker. Not responsible for showing it."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class TrafficCount:
    """Messages and bytes."""

    messages: int = 0
    bytes: int = 0

    def count_messages(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.bytes += size_bytes


@dataclass(slots=True)
class BrokerStats:
    """Messages put by topic, and got by (group, topic), since start."""

    put: dict[str, TrafficCount] = field(default_factory=lambda: defaultdict(TrafficCount))
    got: dict[tuple[str, str], TrafficCount] = field(default_factory=lambda: defaultdict(TrafficCount))
