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
from gateway.shadow.clusters.cluster_pair import CANNOT_LOOK, Range, Sides, queue_name
from gateway.shadow.cutover.machine import Ends
from gateway.shadow.traffic.exchange import Side
from remoting.requests.send import SendMessageV2

PRODUCER: Final = "rmq-gateway-copy-back"
KEPT_FLAGS: Final = ~0x3C
"""Not the bits of transactions and of address families, which the broker sets itself. Source: MessageSysFlag, 5.4.0."""
LEFT_OUT: Final = frozenset(
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

    def __init__(self, sides: Sides, topic: str, ends: Mapping[str, Ends]) -> None:
        self._sides = sides
        self._topic = topic
        self._ends = ends
        self._next: dict[str, int] = {}
        self._behind: dict[str, int] = {}
        self.copied = 0

    async def begin(self) -> None:
        """Finds where each queue goes on."""
        for broker in await self._sides.brokers_of(self._topic):
            ours = await self._sides.ranges(Side.PRIMARY, broker, self._topic)
            for queue, theirs in (await self._sides.ranges(Side.TARGET, broker, self._topic)).items():
                name = queue_name(broker, queue)
                ends = self._ends.get(name, Ends(0, 0))
                there = Range(ends.primary, ours.get(queue, Range(0, 0)).high)
                self._next[name] = await self._first_lacking(
                    broker, queue, there, Range(ends.target, theirs.high)
                )

    async def _first_lacking(self, broker: str, queue: int, ours: Range, theirs: Range) -> int:
        """The target's first message that is not among the primary's, both in their order."""
        if ours.low >= ours.high:
            return theirs.low
        read = self._sides.messages
        async with (
            aclosing(read(Side.TARGET, broker, self._topic, queue, theirs.low, theirs.high)) as there,
            aclosing(read(Side.PRIMARY, broker, self._topic, queue, ours.low, ours.high)) as here,
        ):
            wanted = await anext(there, None)
            async for message in here:
                if wanted is not None and _identity(message) == _identity(wanted):
                    wanted = await anext(there, None)
        return theirs.high if wanted is None else wanted.queue_offset

    async def copy(self) -> int:
        """Sends what the target has by now; how many messages that were."""
        before = self.copied
        problems: list[Exception] = []
        async with trio.open_nursery() as nursery:
            for name in self._next:
                nursery.start_soon(self._queue, name, problems)
        if problems:
            raise problems[0]
        return self.copied - before

    async def _queue(self, name: str, problems: list[Exception]) -> None:
        broker, _, queue_text = name.rpartition("/")
        queue = int(queue_text)
        try:
            ranges = await self._sides.ranges(Side.TARGET, broker, self._topic)
            stop = ranges[queue].high
            read = self._sides.messages(Side.TARGET, broker, self._topic, queue, self._next[name], stop)
            async with aclosing(read) as messages:
                async for message in messages:
                    reply = await self._sides.primary.ask(broker, again(message, queue))
                    self._behind[name] = reply.queue_offset + 1
                    self._next[name] = message.queue_offset + 1
                    self.copied += 1
        except CANNOT_LOOK as problem:
            problems.append(problem)

    def end_of(self, queue: str) -> int:
        """Behind the last message that the primary said to have stored."""
        return self._behind.get(queue, 0)

    async def lacking(self) -> int:
        """Messages that the target has and that were not sent yet."""
        left = 0
        for broker in await self._sides.brokers_of(self._topic):
            for queue, each in (await self._sides.ranges(Side.TARGET, broker, self._topic)).items():
                left += max(0, each.high - self._next.get(queue_name(broker, queue), each.low))
        return left


def again(message: Message, queue_id: int) -> SendMessageV2:
    """The request that sends a stored message once more: body, properties, keys and time as they were."""
    kept = {name: value for name, value in message.properties.items() if name not in LEFT_OUT}
    request = SendMessageV2(
        producer_group=PRODUCER,
        topic=message.topic,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=message.sys_flag & KEPT_FLAGS,
        born_timestamp=message.born_timestamp,
        flag=message.flag,
        properties=properties_text(kept),
        reconsume_times=message.reconsume_times,
    )
    request.body = bytes(message.body)
    return request


def _identity(message: Message) -> str | bytes:
    return message.unique_key or bytes(message.body)
