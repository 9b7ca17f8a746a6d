"""Finds messages that producers send to the primary past the gateway, after their topic was switched to the target.

Theory of operation. When producers are switched, the move records where each of the primary's queues ended. From then
on the primary stores nothing more of the topic, except what it delivers later (transactions, delays), which is marked.
Any other message beyond those ends was sent by a client that still dials the primary itself: consumers that were
switched never get it. The watch reads these messages, counts them by the address they were born at, and asks the
primary which producers have connections from there. It remembers how far it read, so each message is read once.

A roll-back sends copies of the target's messages to the primary itself. The topic is not read while it copies
(`pause_while_copying`). When a roll-back has failed, and after a restart of the gateway, its copies are found by
comparing with the target's messages, once. An address would not do: the primary may see another one than the gateway,
and each connection has its own.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import trio

from codec import properties as names
from codec.message import Message
from codec.sysflag import TRANSACTION_COMMIT
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.clusters.cluster_pair import LOOKUP_ERRORS, ClusterPair, QueueRange, queue_name
from gateway.shadow.cutover.checks import MoveCheck
from gateway.shadow.cutover.copy_back import OffsetRanges, match_copies
from gateway.shadow.cutover.moves import Move, QueueEnds
from gateway.shadow.traffic.exchange import Side
from remoting.requests.client import GetAllProducerInfo

WATCH_INTERVAL_S: Final = 5.0
MAX_READ_PER_QUEUE: Final = 256
"""Maximum number of messages read of a queue at a time; the earlier ones of a longer part are only counted."""
MAX_COMPARED_PER_QUEUE: Final = 100_000
"""Messages of a queue among which copies are looked for; in a longer part only those are known that were answered."""
MAX_NAMED_CONNECTIONS: Final = 5
MAX_COUNTED_CONNECTIONS: Final = 100
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
"""Source: MixAll.CLIENT_INNER_PRODUCER_GROUP, 5.4.0."""
MAX_PRODUCER_LOOKUPS: Final = 12
"""Attempts to find the producer of a connection. The primary knows a producer after its next heartbeat, which stock
clients send every 30 s."""


Copies = Mapping[str, OffsetRanges]
"""Offsets of copies at the primary, by queue name."""


@dataclass(slots=True)
class BypassedTopic:
    """The messages of one topic that came past the gateway since its producers were switched."""

    ends: dict[str, QueueEnds]
    next_offsets: dict[str, int] = field(default_factory=dict)
    message_count: int = 0
    connections: dict[str, int] = field(default_factory=dict)
    """Messages by the "host:port" that they were born at."""
    producers: dict[str, str] = field(default_factory=dict)
    """Producer group and client id by "host:port", as far as the primary knows them."""
    producer_lookups: int = 0
    """Attempts to find producers since the last new message."""
    copies: dict[str, OffsetRanges] = field(default_factory=dict)
    """Offsets of the gateway's own messages, by queue name."""
    is_read_only: bool = False
    """True once the write permission at the primary was taken."""

    def describe(self, topic: str) -> str:
        """Return the finding and what to do as a sentence; "" if there is nothing."""
        if not self.message_count:
            return ""
        named = [
            f"{address} ({self.producers[address]})" if address in self.producers else address
            for address in sorted(self.connections, key=lambda name: -self.connections[name])
        ]
        some = ", ".join(named[:MAX_NAMED_CONNECTIONS]) + (" …" if len(named) > MAX_NAMED_CONNECTIONS else "")
        refusal = (
            "They get errors since the topic is read-only at the primary"
            if self.is_read_only
            else f"`rmq-gateway shadow read-only {topic}` makes their sends fail until then"
        )
        return (
            f"{self.message_count} messages of {topic} were sent to the primary past the gateway since its producers "
            f"were switched, by {some}: consumers at the target do not get them. Give these producers the gateway's "
            f"address; once they use it, continue with --allow bypass. {refusal}"
        )


class BypassWatch:
    """Watches all topics whose producers were switched; ``moves`` returns the moves."""

    def __init__(self, clusters: ClusterPair, moves: Callable[[], Iterable[Move]]) -> None:
        self.tasks = TaskSupervisor("moves")
        self._clusters = clusters
        self._moves = moves
        self._topics: dict[str, BypassedTopic] = {}
        self._paused: set[str] = set()
        self._copies: dict[str, Copies] = {}
        self._reading = trio.Lock()

    async def run(self) -> None:
        """Check all switched topics at intervals until cancelled. A cluster that does not answer is asked again."""
        await self.tasks.repeat("watch switched topics", WATCH_INTERVAL_S, self.check_switched_topics)

    async def check_switched_topics(self) -> None:
        """Read the new messages of every switched topic once."""
        switched = [move for move in self._moves() if move.producer_side is Side.TARGET]
        for topic in self._topics.keys() - {move.topic for move in switched}:
            del self._topics[topic]
            self._copies.pop(topic, None)
        for move in switched:
            if move.topic in self._paused:
                continue
            try:
                await self.read_new_messages(move)
            except LOOKUP_ERRORS:
                continue  # reported by the parts that need the primary

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each topic with such messages."""
        for topic, bypassed in self._topics.items():
            if sentence := bypassed.describe(topic):
                yield sentence

    async def check(self, move: Move) -> MoveCheck:
        """Return the check called bypass. Raises CLUSTER_ERRORS, LookupError."""
        bypassed = await self.read_new_messages(move)
        measured = f"{bypassed.message_count} messages past the gateway"
        return MoveCheck("bypass", not bypassed.message_count, measured, bypassed.describe(move.topic))

    @contextlib.asynccontextmanager
    async def pause_while_copying(self, topic: str, copies: Callable[[], Copies]) -> AsyncIterator[None]:
        """Do not read a topic while the block sends copies to the primary; ``copies`` returns their offsets then."""
        async with self._reading:  # a look that is under way would count them
            self._paused.add(topic)
        try:
            yield
        finally:
            self._paused.discard(topic)
            # Read again from the ends of the switch: a copy whose answer was lost is found by its content only.
            self._topics.pop(topic, None)
            # Those of earlier attempts stay: in a long part of a queue copies are not found by content.
            earlier_copies = self._copies.get(topic, {})
            self._copies[topic] = {
                **earlier_copies,
                **{
                    name: offsets | earlier_copies.get(name, OffsetRanges())
                    for name, offsets in copies().items()
                },
            }

    async def read_new_messages(self, move: Move) -> BypassedTopic:
        """Read the new messages in the primary's queues of a switched topic. Raises CLUSTER_ERRORS, LookupError."""
        async with self._reading:
            return await self._read_topic(move)

    async def _read_topic(self, move: Move) -> BypassedTopic:
        topic = move.topic
        bypassed = self._topics.get(topic)
        # Other ends belong to a later switch of the same topic, for which counting starts again.
        if bypassed is None or bypassed.ends != dict(move.ends):
            bypassed = BypassedTopic(dict(move.ends), copies=await self._find_copies(move))
            self._topics[topic] = bypassed
        bypassed.is_read_only = move.is_read_only
        before = bypassed.message_count
        brokers = await self._clusters.brokers_of(topic)
        for broker in brokers:
            for queue_id, queue_range in (
                await self._clusters.queue_ranges(Side.PRIMARY, broker, topic)
            ).items():
                name = queue_name(broker, queue_id)
                end = move.ends.get(name)
                start = bypassed.next_offsets.get(
                    name, queue_range.low if end is None else max(end.primary, queue_range.low)
                )
                if queue_range.high > start:
                    await self._read_queue(bypassed, broker, topic, queue_id, start, queue_range.high)
                bypassed.next_offsets[name] = max(start, queue_range.high)
        if bypassed.message_count > before:
            bypassed.producer_lookups = 0
        if (
            bypassed.connections.keys() - bypassed.producers.keys()
            and bypassed.producer_lookups < MAX_PRODUCER_LOOKUPS
        ):
            bypassed.producer_lookups += 1
            for broker in brokers:
                await self._learn_producers(bypassed, broker)
        return bypassed

    async def _find_copies(self, move: Move) -> dict[str, OffsetRanges]:
        """Return the offsets of copies that an earlier roll-back has left at the primary."""
        copies = dict(self._copies.get(move.topic, {}))
        for broker in await self._clusters.brokers_of(move.topic):
            primary_ranges = await self._clusters.queue_ranges(Side.PRIMARY, broker, move.topic)
            for queue_id, primary_range in primary_ranges.items():
                name = queue_name(broker, queue_id)
                end = move.ends.get(name, QueueEnds(0, 0))
                returned = QueueRange(max(end.primary, primary_range.low), primary_range.high)
                if 0 < returned.high - returned.low <= MAX_COMPARED_PER_QUEUE:
                    target_ranges = await self._clusters.queue_ranges(Side.TARGET, broker, move.topic)
                    target_range = target_ranges.get(queue_id, QueueRange(0, 0))
                    new = QueueRange(max(end.target, target_range.low), target_range.high)
                    copies[name], _ = await match_copies(
                        self._clusters, broker, move.topic, queue_id, returned, new
                    )
        return copies

    async def _read_queue(
        self, bypassed: BypassedTopic, broker: str, topic: str, queue_id: int, start: int, stop: int
    ) -> None:
        # The latest messages show who still sends; the earlier ones of a long part are only counted.
        copies = bypassed.copies.get(queue_name(broker, queue_id), OffsetRanges())
        unread = max(0, stop - start - MAX_READ_PER_QUEUE)
        bypassed.message_count += unread - copies.count_within(start, start + unread)
        read = self._clusters.read_messages(Side.PRIMARY, broker, topic, queue_id, start + unread, stop)
        async with aclosing(read) as messages:
            async for message in messages:
                if not _is_delivered_later(message) and message.queue_offset not in copies:
                    bypassed.message_count += 1
                    address = "{}:{}".format(*message.born_host)
                    if address in bypassed.connections or len(bypassed.connections) < MAX_COUNTED_CONNECTIONS:
                        bypassed.connections[address] = bypassed.connections.get(address, 0) + 1

    async def _learn_producers(self, bypassed: BypassedTopic, broker: str) -> None:
        """Ask a broker of the primary which producers have the connections; a broker may not know or not tell."""
        try:
            groups = (await self._clusters.primary.ask_broker(broker, GetAllProducerInfo())).data.data
        except LOOKUP_ERRORS:
            return
        # Every stock Java client has the inner group; it says nothing where there is another one.
        for group in sorted(groups, key=lambda name: (name != INNER_PRODUCER_GROUP, name)):
            for client in groups[group]:
                address = (client.remote_ip or "").rpartition("/")[2]
                if address in bypassed.connections:
                    bypassed.producers[address] = f"group {group}, client {client.client_id}"
                await trio.lowlevel.checkpoint()


def _is_delivered_later(message: Message) -> bool:
    """Tell whether the primary delivered a message that it had before: a transaction, or a delayed message."""
    marks = (names.REAL_TOPIC, names.TRANSACTION_PREPARED)
    return bool(message.sys_flag & TRANSACTION_COMMIT) or any(mark in message.properties for mark in marks)
