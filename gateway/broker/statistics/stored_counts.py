"""Counts of the messages stored in one topic: messages, bytes, and sizes in buckets, also apart for each type.

The send handler counts every message, so a message of the normal type costs three increments. What is shown is computed
when somebody asks. Source: BrokerMetricsManager and SendMessageProcessor.handlePutMessageResult, 5.4.0.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from codec import properties as keys
from gateway.runtime.metrics import CountedBuckets, Histogram

SIZE_BOUNDS_BYTES: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""Upper bounds of the buckets of `rocketmq_message_size`."""
_DELAYS: Final = (
    "__STARTDELIVERTIME", keys.DELAY_TIME_LEVEL, keys.TIMER_DELIVER_MS, keys.TIMER_DELAY_SEC, keys.TIMER_DELAY_MS,
)  # fmt: skip


class MessageType(StrEnum):
    """The value of the label `message_type`. Source: TopicMessageType.getMetricsValue, 5.4.0."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"


def message_type_of(properties: Mapping[str, str]) -> MessageType:
    """Return the type of a message by the properties it is sent with.

    Source: BrokerMetricsManager.getMessageType, 5.4.0.
    """
    if properties.get(keys.TRANSACTION_PREPARED, "").lower() == "true":
        return MessageType.TRANSACTION
    if keys.SHARDING_KEY in properties:
        return MessageType.FIFO
    return MessageType.DELAY if any(name in properties for name in _DELAYS) else MessageType.NORMAL


_TYPES: Final = tuple(MessageType)
_BUCKETS: Final = len(SIZE_BOUNDS_BYTES) + 1
_FIFO: Final = _TYPES.index(MessageType.FIFO)
_FIRST_FIFO_BUCKET: Final = _FIFO * _BUCKETS


@dataclass(frozen=True, slots=True)
class TypeCount:
    """The messages of one type: their number, their bytes together, and the histogram of their sizes in bytes."""

    messages: int
    bytes: int
    sizes: Histogram


class StoredCount:
    """Messages stored in one topic.

    ``_sizes`` has the buckets of one type after those of another. ``_bytes_of`` has the bytes of each type but the
    normal one, which are the rest. ``_beyond`` has the messages and bytes of batches that the histogram of
    their type does not show.
    """

    __slots__ = ("_beyond", "_bytes_of", "_sizes", "bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self._sizes = [0] * (_BUCKETS * len(_TYPES))
        self._bytes_of = [0] * len(_TYPES)
        self._beyond: dict[MessageType, tuple[int, int]] = {}

    def count_message(self, size_bytes: int) -> None:
        """Count one message of the normal type."""
        self.messages += 1
        self.bytes += size_bytes
        self._sizes[bisect_left(SIZE_BOUNDS_BYTES, size_bytes)] += 1

    def count_fifo(self, size_bytes: int) -> None:
        """Count one message of the type FIFO."""
        self.messages += 1
        self.bytes += size_bytes
        self._bytes_of[_FIFO] += size_bytes
        self._sizes[_FIRST_FIFO_BUCKET + bisect_left(SIZE_BOUNDS_BYTES, size_bytes)] += 1

    def count_request(self, kind: MessageType, size_bytes: int, messages: int = 1) -> None:
        """Count the messages of one request, which take ``size_bytes`` together.

        As in the official broker, a batch is one entry of the histogram of sizes: the mean of its messages.
        """
        number, mean_bytes = _TYPES.index(kind), size_bytes // messages
        self.messages += messages
        self.bytes += size_bytes
        self._bytes_of[number] += 0 if kind is MessageType.NORMAL else size_bytes
        self._sizes[number * _BUCKETS + bisect_left(SIZE_BOUNDS_BYTES, mean_bytes)] += 1
        if messages > 1:
            more, more_bytes = self._beyond.get(kind, (0, 0))
            self._beyond[kind] = (more + messages - 1, more_bytes + size_bytes - mean_bytes)

    @property
    def requests(self) -> int:
        """The number of requests that brought the messages."""
        return sum(self._sizes)

    def add(self, other: "StoredCount") -> None:
        """Add the counts of another topic."""
        self.messages += other.messages
        self.bytes += other.bytes
        self._sizes = [mine + its for mine, its in zip(self._sizes, other._sizes, strict=True)]
        self._bytes_of = [mine + its for mine, its in zip(self._bytes_of, other._bytes_of, strict=True)]
        for kind, (messages, size_bytes) in other._beyond.items():
            more, more_bytes = self._beyond.get(kind, (0, 0))
            self._beyond[kind] = (more + messages, more_bytes + size_bytes)

    def by_type(self) -> Iterator[tuple[MessageType, TypeCount]]:
        """Yield what was stored of each type that occurred. Together the counts are this count."""
        for number, kind in enumerate(_TYPES):
            sizes = self._sizes[number * _BUCKETS : (number + 1) * _BUCKETS]
            requests = sum(sizes)
            if not requests:
                continue
            is_normal = kind is MessageType.NORMAL
            size_bytes = self.bytes - sum(self._bytes_of) if is_normal else self._bytes_of[number]
            more, more_bytes = self._beyond.get(kind, (0, 0))
            shown = CountedBuckets(SIZE_BOUNDS_BYTES, sizes, size_bytes - more_bytes)
            yield kind, TypeCount(requests + more, size_bytes, shown)
