"""Messages that only the target has, sent to the primary in the order of their queues, when producers go back.

What an earlier attempt has brought over is found by comparing the two queues, so that a copy which was interrupted goes
on where it was and sends nothing twice. Not responsible for keeping producers off meanwhile (mover).
"""

from collections.abc import Mapping
from contextlib import aclosing
from typing import Final

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
"""Not the bits of transactions and of address families, which the broker sets itself. Source: MessageSysFlag, 5.4.0."""
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
"""Properties that would make the primary hold back what has waited already."""


class CopyBack:
    """One topic's way back. `begin`, then `copy` as often as wanted. Both raise ASKING_FAILED and KeyError."""

    def __init__(self, sides: ClusterPair, topic: str, ends: Mapping[str, QueueEnds]) -> None:
        self._clusters = sides
        self._topic = topic
        self._ends = ends
        self._next_offsets: dict[str, int] = {}
        self._stored_ends: dict[str, int] = {}
        self.copied_messages = 0

    async def begin(self) -> None:
        """Finds where each queue goes on."""
        for broker in await self._clusters.brokers_of(self._topic):
            ours = await self._clusters.queue_ranges(Side.PRIMARY, broker, self._topic)
            for queue, theirs in (
                await self._clusters.queue_ranges(Side.TARGET, broker, self._topic)
            ).items():
                name = queue_name(broker, queue)
                ends = self._ends.get(name, QueueEnds(0, 0))
                there = QueueRange(ends.primary, ours.get(queue, QueueRange(0, 0)).high)
                self._next_offsets[name] = await self._first_missing(
                    broker, queue, there, QueueRange(ends.target, theirs.high)
                )

    async def _first_missing(self, broker: str, queue: int, ours: QueueRange, theirs: QueueRange) -> int:
        """The target's first message that is not among the primary's, both in their order."""
        if ours.low >= ours.high:
            return theirs.low
        read = self._clusters.read_messages
        async with (
            aclosing(read(Side.TARGET, broker, self._topic, queue, theirs.low, theirs.high)) as there,
            aclosing(read(Side.PRIMARY, broker, self._topic, queue, ours.low, ours.high)) as here,
        ):
            wanted = await anext(there, None)
            async for message in here:
                if wanted is not None and _message_identity(message) == _message_identity(wanted):
                    wanted = await anext(there, None)
        return theirs.high if wanted is None else wanted.queue_offset

    async def copy_new(self) -> int:
        """Sends what the target has by now; how many messages that were."""
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
                    self._stored_ends[name] = reply.queue_offset + 1
                    self._next_offsets[name] = message.queue_offset + 1
                    self.copied_messages += 1
        except LOOKUP_ERRORS as problem:
            problems.append(problem)

    def stored_end(self, queue: str) -> int:
        """Behind the last message that the primary said to have stored."""
        return self._stored_ends.get(queue, 0)

    async def count_missing(self) -> int:
        """Messages that the target has and that were not sent yet."""
        left = 0
        for broker in await self._clusters.brokers_of(self._topic):
            for queue, each in (await self._clusters.queue_ranges(Side.TARGET, broker, self._topic)).items():
                left += max(0, each.high - self._next_offsets.get(queue_name(broker, queue), each.low))
        return left


def resend_request(message: Message, queue_id: int) -> SendMessageV2:
    """The request that sends a stored message once more: body, properties, keys and time as they were."""
    kept = {name: value for name, value in message.properties.items() if name not in DROPPED_PROPERTIES}
    request = SendMessageV2(
        producer_group=PRODUCER_GROUP,
        topic=message.topic,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=message.sys_flag & PRESERVED_FLAGS,
        born_timestamp=message.born_timestamp,
        flag=message.flag,
        properties=properties_text(kept),
        reconsume_times=message.reconsume_times,
    )
    request.body = bytes(message.body)
    return request


def _message_identity(message: Message) -> str | bytes:
    return message.unique_key or bytes(message.body)
