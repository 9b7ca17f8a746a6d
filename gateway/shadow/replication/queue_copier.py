"""Copies one queue of the primary to the target, at the same offsets: one read, one put.

Not responsible for when (kept_feed and the backfill are), for several reads at a time (kept_ahead is), nor for topics
being there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from codec.constants import ResponseCode
from gateway.shadow.clusters.cluster import Cluster
from remoting.read_only_pull import TOOLS_GROUP, read_only_pull
from remoting.requests.offsets import GetMaxOffset, GetMinOffset
from remoting.requests.pull import PullMessage, PullMessageReply
from remoting.requests.replication import UNEXPECTED_OFFSET, PutMessagesAtOffsets

REQUEST_MARGIN_S: Final = 3.0
_MESSAGE_HEAD: Final = Struct(">I16xq")
"""Size and queue offset of a stored message."""


class QueuePlace(NamedTuple):
    """One queue, and the broker of the target that has it as well."""

    broker: str
    target_broker: str
    topic: str
    queue_id: int


class QueueStuck(Exception):
    """Going on would lose messages or mix them up; the text says why."""


@dataclass(frozen=True, slots=True)
class MessageRun:
    """Stored messages without a gap among their offsets, as one read brought them."""

    first: int
    count: int
    body: bytes


class PullOptions(NamedTuple):
    """How the primary is read. The request brings its filter along, and no offset: nothing is left there.

    Source: PullMessageProcessor.processRequest, 5.4.0: only a group's existence is asked for; memory of the broker
    keeps, until it ends, how far the group read.
    """

    group: str = TOOLS_GROUP
    batch_messages: int = 32

    def build_pull(
        self, place: QueuePlace, offset: int, wait_ms: int, max_messages: int | None = None
    ) -> PullMessage:
        """A pull from an offset on, of at most so many messages, which waits for a message for at most so long."""
        count = self.batch_messages if max_messages is None else min(max_messages, self.batch_messages)
        return read_only_pull(place.topic, place.queue_id, offset, count, wait_ms=wait_ms, group=self.group)


class QueueCopier:
    """How far one queue is. The only state is the target's own: the offset it expects next, `end`.

    ``begin`` (as in KeptSettings) counts while the target has nothing. `low` and `high` are the primary's first offset
    and its end as far as is known.
    """

    def __init__(
        self,
        primary: Cluster,
        target: Cluster,
        place: QueuePlace,
        reader: PullOptions,
        begin: str = "history",
    ) -> None:
        self._primary = primary
        self._target = target
        self._pull_options = reader
        self._begin = begin
        self._initial_offset: int | None = None
        self.place = place
        self.primary_min = 0
        self.primary_end = 0
        self.target_end = 0
        self.position = 0
        """Where reading goes on: at or before `end`, or behind messages that the primary dropped meanwhile."""
        self.copied_messages = 0
        self.copied_bytes = 0

    @property
    def batch_messages(self) -> int:
        """Most messages of one read."""
        return self._pull_options.batch_messages

    @property
    def behind_messages(self) -> int:
        """Messages the primary has and the target does not."""
        return max(0, self.primary_end - self.position)

    async def refresh_offsets(self) -> None:
        """Asks both sides where they are.

        Raises ASKING_FAILED of `cluster`, KeyError for an unknown broker, Stuck when the target is ahead.
        """
        place = self.place
        self.target_end = await _fetch_end_offset(self._target, place.target_broker, place)
        self.primary_min = await _fetch_min_offset(self._primary, place.broker, place)
        self.primary_end = await _fetch_end_offset(self._primary, place.broker, place)
        if self.target_end > self.primary_end:
            ahead = self.target_end - self.primary_end
            self.position = self.target_end
            raise QueueStuck(f"the target's queue is {ahead} messages ahead of the primary's")
        if (
            self._initial_offset is None
        ):  # later ones must not be passed over because something failed meanwhile
            self._initial_offset = self.primary_end if self._begin == "now" else self.primary_min
        # From the last message that is there on: the target finds out whether it is the same one.
        self.position = max(
            self.target_end - 1 if self.target_end else self._initial_offset, self.primary_min
        )

    async def copy_once(self, wait_ms: int) -> int:
        """Reads once and puts what came; the number of messages new at the target. Raises as `look` does."""
        place = self.place
        request = self._pull_options.build_pull(place, self.position, wait_ms)
        reply = await self._primary.ask(place.broker, request, wait_ms / 1000 + REQUEST_MARGIN_S)
        self.primary_min, self.primary_end = reply.min_offset, reply.max_offset
        if reply.code == ResponseCode.PULL_NOT_FOUND:
            if await _fetch_end_offset(self._target, place.target_broker, place) != self.target_end:
                await self.refresh_offsets()
            return 0
        if reply.code == ResponseCode.SUCCESS and reply.body:
            return await self._put_answer(reply)
        await self._recheck_offsets()
        return 0

    async def _put_answer(self, reply: PullMessageReply) -> int:
        run = first_message_run(reply.body)
        if run.first != self.position:
            await self._recheck_offsets()
            return 0
        return await self.put_runs([run])

    async def read_run(self, offset: int, most: int) -> MessageRun | None:
        """Reads once, without waiting and without moving; None when the message at that offset did not come.

        Raises ASKING_FAILED of `cluster`, KeyError for an unknown broker.
        """
        place = self.place
        reply = await self._primary.ask(place.broker, self._pull_options.build_pull(place, offset, 0, most))
        # Answers may overtake each other.
        self.primary_min, self.primary_end = (
            max(self.primary_min, reply.min_offset),
            max(self.primary_end, reply.max_offset),
        )
        if reply.code != ResponseCode.SUCCESS or not reply.body:
            return None
        run = first_message_run(reply.body)
        return run if run.first == offset else None

    async def put_runs(self, runs: Sequence[MessageRun]) -> int:
        """Puts runs that follow each other; what the target lost meanwhile is read again. Raises as `look` does."""
        place, first = self.place, runs[0].first
        request = PutMessagesAtOffsets(
            topic=place.topic, queue_id=place.queue_id, first_offset=first, reset=first > self.target_end
        )
        request.body = runs[0].body if len(runs) == 1 else b"".join(run.body for run in runs)
        reply = await self._target.ask(place.target_broker, request)
        if reply.code == UNEXPECTED_OFFSET:
            await self.refresh_offsets()
            return 0
        new = min(sum(run.count for run in runs), reply.next_offset - self.target_end)
        self.target_end = self.position = reply.next_offset
        self.primary_end = max(self.primary_end, self.target_end)
        self.copied_messages += new
        self.copied_bytes += len(request.body)
        return new

    async def _recheck_offsets(self) -> None:
        """After a read that did not give the message at `position`: goes on where the primary now begins."""
        before = self.position
        await self.refresh_offsets()
        if self.position <= before < self.primary_end:
            raise QueueStuck(f"the primary has no message at offset {before}, but earlier and later ones")


async def _fetch_end_offset(cluster: Cluster, broker: str, place: QueuePlace) -> int:
    asked = GetMaxOffset(topic=place.topic, queue_id=place.queue_id)
    return max(0, (await cluster.ask(broker, asked)).offset)


async def _fetch_min_offset(cluster: Cluster, broker: str, place: QueuePlace) -> int:
    asked = GetMinOffset(topic=place.topic, queue_id=place.queue_id)
    return max(0, (await cluster.ask(broker, asked)).offset)


def first_message_run(body: bytes) -> MessageRun:
    """The stored messages at the front of a pull answer whose offsets have no gap."""
    _, first = _MESSAGE_HEAD.unpack_from(body)
    position, count, end = 0, 0, len(body)
    while position < end:
        size, offset = _MESSAGE_HEAD.unpack_from(body, position)
        if offset != first + count or size < _MESSAGE_HEAD.size:
            break
        position += size
        count += 1
    return MessageRun(first, count, body if position == end else body[:position])
