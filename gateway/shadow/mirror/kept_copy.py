"""Copies one queue of the primary to the target, at the same offsets: one read, one put.

Not responsible for when (kept_feed and the backfill are), nor for topics being there.
"""

from struct import Struct
from typing import Final, NamedTuple

from codec.constants import ResponseCode
from gateway.shadow.cluster import Cluster
from remoting.reading import READING_GROUP, reading_pull
from remoting.requests.mirroring import EXPECTED_OTHER, PutKeptMessages
from remoting.requests.offsets import GetMaxOffset, GetMinOffset
from remoting.requests.pull import PullMessage, PullMessageReply

MARGIN_S: Final = 3.0
_HEAD: Final = Struct(">I16xq")
"""Size and queue offset of a stored message."""


class Place(NamedTuple):
    """One queue, and the broker of the target that has it as well."""

    broker: str
    target_broker: str
    topic: str
    queue_id: int


class Stuck(Exception):
    """Going on would lose messages or mix them up; the text says why."""


class Reader(NamedTuple):
    """How the primary is read. The request brings its filter along, and no offset: nothing is left there.

    Source: PullMessageProcessor.processRequest, 5.4.0: only a group's existence is asked for; memory of the broker
    keeps, until it ends, how far the group read.
    """

    group: str = READING_GROUP
    batch_messages: int = 32

    def request(self, place: Place, offset: int, wait_ms: int) -> PullMessage:
        """A pull from an offset on, which waits for a message for at most so long."""
        count = self.batch_messages
        return reading_pull(place.topic, place.queue_id, offset, count, wait_ms=wait_ms, group=self.group)


class QueueCopy:
    """How far one queue is. The only state is the target's own: the offset it expects next, `end`.

    ``begin`` (as in KeptSettings) counts while the target has nothing. `low` and `high` are the primary's first offset
    and its end as far as is known.
    """

    def __init__(
        self, primary: Cluster, target: Cluster, place: Place, reader: Reader, begin: str = "history"
    ) -> None:
        self._primary = primary
        self._target = target
        self._reader = reader
        self._begin = begin
        self._fresh: int | None = None
        self.place = place
        self.low = 0
        self.high = 0
        self.end = 0
        self.position = 0
        """Where reading goes on: at or before `end`, or behind messages that the primary dropped meanwhile."""
        self.messages = 0
        self.bytes = 0

    @property
    def behind(self) -> int:
        """Messages the primary has and the target does not."""
        return max(0, self.high - self.position)

    async def look(self) -> None:
        """Asks both sides where they are.

        Raises ASKING_FAILED of `cluster`, KeyError for an unknown broker, Stuck when the target is ahead.
        """
        place = self.place
        self.end = await _end(self._target, place.target_broker, place)
        self.low = await _begin(self._primary, place.broker, place)
        self.high = await _end(self._primary, place.broker, place)
        if self.end > self.high:
            ahead = self.end - self.high
            self.position = self.end
            raise Stuck(f"the target's queue is {ahead} messages ahead of the primary's")
        if self._fresh is None:  # later ones must not be passed over because something failed meanwhile
            self._fresh = self.high if self._begin == "now" else self.low
        # From the last message that is there on: the target finds out whether it is the same one.
        self.position = max(self.end - 1 if self.end else self._fresh, self.low)

    async def step(self, wait_ms: int) -> int:
        """Reads once and puts what came; the number of messages new at the target. Raises as `look` does."""
        place = self.place
        request = self._reader.request(place, self.position, wait_ms)
        reply = await self._primary.ask(place.broker, request, wait_ms / 1000 + MARGIN_S)
        self.low, self.high = reply.min_offset, reply.max_offset
        if reply.code == ResponseCode.PULL_NOT_FOUND:
            if await _end(self._target, place.target_broker, place) != self.end:
                await self.look()
            return 0
        if reply.code == ResponseCode.SUCCESS and reply.body:
            return await self._put_run(reply)
        await self._explain()
        return 0

    async def _put_run(self, reply: PullMessageReply) -> int:
        first, end, count = first_run(reply.body)
        if first != self.position:
            await self._explain()
            return 0
        return await self._put(first, reply.body[:end], count)

    async def _put(self, first: int, body: bytes, count: int) -> int:
        """Puts messages without a gap among them; what the target lost meanwhile is read again."""
        place = self.place
        request = PutKeptMessages(
            topic=place.topic, queue_id=place.queue_id, first_offset=first, reset=first > self.end
        )
        request.body = body
        reply = await self._target.ask(place.target_broker, request)
        if reply.code == EXPECTED_OTHER:
            await self.look()
            return 0
        new = min(count, reply.next_offset - self.end)
        self.end = self.position = reply.next_offset
        self.high = max(self.high, self.end)
        self.messages += new
        self.bytes += len(body)
        return new

    async def _explain(self) -> None:
        """After a read that did not give the message at `position`: goes on where the primary now begins."""
        before = self.position
        await self.look()
        if self.position <= before < self.high:
            raise Stuck(f"the primary has no message at offset {before}, but earlier and later ones")


async def _end(cluster: Cluster, broker: str, place: Place) -> int:
    asked = GetMaxOffset(topic=place.topic, queue_id=place.queue_id)
    return max(0, (await cluster.ask(broker, asked)).offset)


async def _begin(cluster: Cluster, broker: str, place: Place) -> int:
    asked = GetMinOffset(topic=place.topic, queue_id=place.queue_id)
    return max(0, (await cluster.ask(broker, asked)).offset)


def first_run(body: bytes) -> tuple[int, int, int]:
    """First offset, bytes and number of the stored messages at the front whose offsets have no gap."""
    _, first = _HEAD.unpack_from(body)
    position, count, end = 0, 0, len(body)
    while position < end:
        size, offset = _HEAD.unpack_from(body, position)
        if offset != first + count or size < _HEAD.size:
            break
        position += size
        count += 1
    return first, position, count
