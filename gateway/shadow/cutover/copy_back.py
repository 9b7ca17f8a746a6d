"""Copies the messages that only the target has to the primary, queue by queue in order, when producers go back.

Theory of operation. Queue offsets differ between the clusters after producers were switched, so progress cannot be kept
as an offset. `start` compares both queues after the ends of the switch and finds the first message of the target that
the primary lacks; an earlier attempt that was interrupted is continued there, and no message is sent twice. `mover`
keeps producers away during the last round.
"""

from bisect import bisect_right
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final, Self

import trio

from codec import properties as names
from codec.message import Message
from codec.properties import properties_text
from codec.topics import DEFAULT_TOPIC
from gateway.shadow.clusters.cluster_pair import LOOKUP_ERRORS, ClusterPair, QueueRange, queue_name
from gateway.shadow.cutover.moves import QueueEnds
from gateway.shadow.traffic.exchange import Side
from remoting.requests.send import SendMessageV2

PRODUCER_GROUP: Final = "rmq-gateway-copy-back"
PRESERVED_FLAGS: Final = ~0x3C
"""All system flags but those of transactions and address families, which the broker sets.

Source: MessageSysFlag, 5.4.0.
"""
DROPPED_PROPERTIES: Final = frozenset(
    {
        names.DELAY_TIME_LEVEL,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELIVER_MS,
        "TIMER_DELAY_MS",
        names.TRANSACTION_PREPARED,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
    }
)
"""Properties that would make the primary delay or hold back a message that was delivered already."""


class OffsetRanges:
    """Queue offsets, mostly consecutive ones, that are added in rising order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, offset: int) -> None:
        """Add an offset after all others."""
        if self._ends and self._ends[-1] == offset:
            self._ends[-1] = offset + 1
        else:
            self._starts.append(offset)
            self._ends.append(offset + 1)

    def __or__(self, other: "OffsetRanges") -> "OffsetRanges":
        union = OffsetRanges()
        ranges = zip([*self._starts, *other._starts], [*self._ends, *other._ends], strict=True)
        for start, end in sorted(ranges):
            if union._ends and start <= union._ends[-1]:
                union._ends[-1] = max(union._ends[-1], end)
            else:
                union._starts.append(start)
                union._ends.append(end)
        return union

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._ends[index]

    def count_within(self, start: int, stop: int) -> int:
        """Return the number of offsets in [start, stop)."""
        return sum(
            max(0, min(end, stop) - max(begin, start))
            for begin, end in zip(self._starts, self._ends, strict=True)
        )


class CopyBack:
    """Copies one topic back. Create it with `start`, then call `copy_new` as often as needed."""

    def __init__(self, clusters: ClusterPair, topic: str, next_offsets: dict[str, int]) -> None:
        self._clusters = clusters
        self._topic = topic
        self._next_offsets = next_offsets
        self._stored_ends: dict[str, int] = {}
        self.stored_offsets: dict[str, OffsetRanges] = {}
        """Offsets of the copies at the primary, by queue name."""
        self.copied_messages = 0

    @classmethod
    async def start(cls, clusters: ClusterPair, topic: str, ends: Mapping[str, QueueEnds]) -> Self:
        """Find the offset of the target at which each queue continues. Raises CLUSTER_ERRORS, KeyError.

        ``ends`` are the ends of the queues when producers were switched.
        """
        next_offsets = {}
        for broker in await clusters.brokers_of(topic):
            primary_ranges = await clusters.queue_ranges(Side.PRIMARY, broker, topic)
            for queue_id, target_range in (await clusters.queue_ranges(Side.TARGET, broker, topic)).items():
                queue = queue_name(broker, queue_id)
                end = ends.get(queue, QueueEnds(0, 0))
                # After the ends of the switch the primary has only copies of an earlier attempt, and messages sent
                # past the gateway.
                returned = QueueRange(end.primary, primary_ranges.get(queue_id, QueueRange(0, 0)).high)
                new = QueueRange(end.target, target_range.high)
                next_offsets[queue] = await _first_missing(clusters, broker, topic, queue_id, returned, new)
        return cls(clusters, topic, next_offsets)

    async def copy_new(self) -> int:
        """Send all messages that the target has by now; return their number. Raises CLUSTER_ERRORS, KeyError."""
        before = self.copied_messages
        problems: list[Exception] = []
        async with trio.open_nursery() as nursery:
            for name in self._next_offsets:
                nursery.start_soon(self._copy_queue, name, problems)
        if problems:
            raise problems[0]
        return self.copied_messages - before

    async def _copy_queue(self, name: str, problems: list[Exception]) -> None:
        broker, _, queue_text = name.rpartition("/")
        queue = int(queue_text)
        try:
            ranges = await self._clusters.queue_ranges(Side.TARGET, broker, self._topic)
            stop = ranges[queue].high
            read = self._clusters.read_messages(
                Side.TARGET, broker, self._topic, queue, self._next_offsets[name], stop
            )
            async with aclosing(read) as messages:
                async for message in messages:
                    reply = await self._clusters.primary.ask_broker(broker, resend_request(message, queue))
                    # Noted after each answer: an interruption repeats at most the message that is under way.
                    self._stored_ends[name] = reply.queue_offset + 1
                    self.stored_offsets.setdefault(name, OffsetRanges()).add(reply.queue_offset)
                    self._next_offsets[name] = message.queue_offset + 1
                    self.copied_messages += 1
        except LOOKUP_ERRORS as problem:
            problems.append(problem)

    def stored_end(self, queue: str) -> int:
        """Return the offset after the last copied message that the primary acknowledged."""
        return self._stored_ends.get(queue, 0)

    async def count_missing(self) -> int:
        """Return the number of messages of the target that were not sent yet."""
        missing_messages = 0
        for broker in await self._clusters.brokers_of(self._topic):
            for queue, queue_range in (
                await self._clusters.queue_ranges(Side.TARGET, broker, self._topic)
            ).items():
                missing_messages += max(
                    0, queue_range.high - self._next_offsets.get(queue_name(broker, queue), queue_range.low)
                )
        return missing_messages


def resend_request(message: Message, queue_id: int) -> SendMessageV2:
    """Return a request that sends a stored message again, with its body, properties, keys and born time."""
    properties = {name: value for name, value in message.properties.items() if name not in DROPPED_PROPERTIES}
    request = SendMessageV2(
        producer_group=PRODUCER_GROUP,
        topic=message.topic,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=message.sys_flag & PRESERVED_FLAGS,
        born_timestamp=message.born_timestamp,
        flag=message.flag,
        properties=properties_text(properties),
        reconsume_times=message.reconsume_times,
    )
    request.body = bytes(message.body)
    return request


async def _first_missing(
    clusters: ClusterPair,
    broker: str,
    topic: str,
    queue_id: int,
    primary_range: QueueRange,
    target_range: QueueRange,
) -> int:
    """Return the offset of the target's first message that is not among the primary's, both read in order."""
    return (await match_copies(clusters, broker, topic, queue_id, primary_range, target_range))[1]


async def match_copies(
    clusters: ClusterPair,
    broker: str,
    topic: str,
    queue_id: int,
    primary_range: QueueRange,
    target_range: QueueRange,
) -> tuple[OffsetRanges, int]:
    """Return the primary's offsets of copies, and the offset of the target's first message without a copy.

    Copies are in the target's order, with other messages between them perhaps. Raises CLUSTER_ERRORS, KeyError.
    """
    copies = OffsetRanges()
    if primary_range.low >= primary_range.high:
        return copies, target_range.low
    read = clusters.read_messages
    async with (
        aclosing(
            read(Side.TARGET, broker, topic, queue_id, target_range.low, target_range.high)
        ) as at_target,
        aclosing(
            read(Side.PRIMARY, broker, topic, queue_id, primary_range.low, primary_range.high)
        ) as at_primary,
    ):
        expected = await anext(at_target, None)
        async for message in at_primary:
            if expected is not None and _message_identity(message) == _message_identity(expected):
                copies.add(message.queue_offset)
                expected = await anext(at_target, None)
    return copies, target_range.high if expected is None else expected.queue_offset


def _message_identity(message: Message) -> str | bytes:
    return message.unique_key or bytes(message.body)
