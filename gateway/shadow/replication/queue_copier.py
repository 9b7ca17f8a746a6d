"""Copies one queue from the primary to the target at the same offsets, one read and one put at a time.

Theory of operation
-------------------
Problem: the target's queue must at any moment be a contiguous piece of the primary's queue, with the same offsets,
although either side may crash, lose its latest messages, or drop its oldest ones.

Invariant: the only state is the target's own next offset (`target_end`). The target refuses a put that does not begin
there, or whose first message differs from the message it already has at that offset. So after any crash, of either side
or of the gateway, copying resumes at the offset that the target reports, and several copiers of the same queue (a feed
and a backfill, say) cannot harm each other.

Steps:
1. `refresh_offsets` asks both sides for their offsets. Reading begins at the target's last message, not after it, so
   that the first put proves that both sides hold the same queue.
2. `copy_once` reads from `position` and puts the messages. If the target expects another offset, the copier refreshes
   the offsets and reads again.
3. If the primary does not return the message at `position`, either it has deleted old messages in the meantime, and
   copying skips to its first one (the put has the field `reset`), or its queue has a hole.

`QueueStuck` is raised where copying further would corrupt the queue: the target is ahead of the primary, or the primary
has a hole. If a message differs, the target refuses the put, which raises RequestError. `queue_feed.py` and backfills
decide when to copy; `read_ahead.py` reads several ranges at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from codec.constants import ResponseCode
from gateway.shadow.clusters.cluster import Cluster
from remoting.requests.offsets import GetMaxOffset, GetMinOffset
from remoting.requests.pull import TOOLS_GROUP, PullMessage, PullMessageReply, read_only_pull
from remoting.requests.replication import UNEXPECTED_OFFSET, PutMessagesAtOffsets

REQUEST_MARGIN_S: Final = 3.0
_MESSAGE_HEAD: Final = Struct(">I16xq")
"""Size and queue offset of a stored message."""


class QueuePlace(NamedTuple):
    """One queue of the primary, and the broker of the target that it is copied to."""

    broker: str
    target_broker: str
    topic: str
    queue_id: int


class QueueStuck(Exception):
    """Copying a queue further would lose messages or mix them up; the text says why."""


@dataclass(frozen=True, slots=True)
class MessageRun:
    """Stored messages with consecutive offsets, as one read returned them."""

    first: int
    count: int
    body: bytes


class PullOptions(NamedTuple):
    """The consumer group under which the primary is read, and the batch size.

    The pull carries its own filter and commits no offset, so that nothing is stored at the primary.
    Source: PullMessageProcessor.processRequest, 5.4.0: the group only has to exist; the broker remembers in memory how
    far the group has read.
    """

    group: str = TOOLS_GROUP
    batch_messages: int = 32

    def build_pull(
        self, queue_place: QueuePlace, offset: int, wait_ms: int, max_messages: int | None = None
    ) -> PullMessage:
        """Return a pull from an offset on, of at most ``max_messages``, that waits up to ``wait_ms`` for a message."""
        count = self.batch_messages if max_messages is None else min(max_messages, self.batch_messages)
        return read_only_pull(
            queue_place.topic, queue_place.queue_id, offset, count, wait_ms=wait_ms, group=self.group
        )


class QueueCopier:
    """Copies one queue, and tracks its progress.

    `primary_min` and `primary_end` are the primary's first offset and its end, `target_end` is the next offset of the
    target, all as last seen. ``begin`` is the setting of that name, and counts while the target's queue is empty.
    """

    def __init__(
        self,
        primary: Cluster,
        target: Cluster,
        queue_place: QueuePlace,
        pull_options: PullOptions,
        begin: str = "history",
    ) -> None:
        self._primary = primary
        self._target = target
        self._pull_options = pull_options
        self._begin = begin
        self._initial_offset: int | None = None
        self.queue_place = queue_place
        self.primary_min = 0
        self.primary_end = 0
        self.target_end = 0
        self.position = 0
        """Offset at which reading continues: at or before `target_end`, or after messages the primary has deleted."""
        self.copied_messages = 0
        self.copied_bytes = 0

    @property
    def batch_messages(self) -> int:
        """Maximum number of messages per read."""
        return self._pull_options.batch_messages

    @property
    def behind_messages(self) -> int:
        """Messages that the primary has and the target lacks."""
        return max(0, self.primary_end - self.position)

    async def refresh_offsets(self) -> None:
        """Ask both sides for their offsets, and set `position`.

        Raises CLUSTER_ERRORS of `cluster`, KeyError for an unknown broker, QueueStuck when the target is ahead.
        """
        queue_place = self.queue_place
        self.target_end = await _fetch_end_offset(self._target, queue_place.target_broker, queue_place)
        self.primary_min = await _fetch_min_offset(self._primary, queue_place.broker, queue_place)
        self.primary_end = await _fetch_end_offset(self._primary, queue_place.broker, queue_place)
        if self.target_end > self.primary_end:
            ahead = self.target_end - self.primary_end
            self.position = self.target_end
            raise QueueStuck(f"the target's queue is {ahead} messages ahead of the primary's")
        # Chosen once: with "now", messages that arrive during a failure must not be skipped.
        if self._initial_offset is None:
            self._initial_offset = self.primary_end if self._begin == "now" else self.primary_min
        # Begin with the last message that the target has, so that the target checks that it is the same.
        self.position = max(
            self.target_end - 1 if self.target_end else self._initial_offset, self.primary_min
        )

    async def copy_once(self, wait_ms: int) -> int:
        """Read once and put the messages; return the number of messages new at the target.

        Waits up to ``wait_ms`` for a message. Raises what `refresh_offsets` raises.
        """
        queue_place = self.queue_place
        request = self._pull_options.build_pull(queue_place, self.position, wait_ms)
        reply = await self._primary.ask_broker(queue_place.broker, request, wait_ms / 1000 + REQUEST_MARGIN_S)
        self.primary_min, self.primary_end = reply.min_offset, reply.max_offset
        # There is no new message, and so no put that would show that the target has lost some in the meantime.
        if reply.code == ResponseCode.PULL_NOT_FOUND:
            if (
                await _fetch_end_offset(self._target, queue_place.target_broker, queue_place)
                != self.target_end
            ):
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

    async def read_run(self, offset: int, max_messages: int) -> MessageRun | None:
        """Read once without waiting or moving; return None when the message at that offset did not come.

        Raises CLUSTER_ERRORS of `cluster`, KeyError for an unknown broker.
        """
        queue_place = self.queue_place
        reply = await self._primary.ask_broker(
            queue_place.broker, self._pull_options.build_pull(queue_place, offset, 0, max_messages)
        )
        # Answers may overtake each other.
        self.primary_min = max(self.primary_min, reply.min_offset)
        self.primary_end = max(self.primary_end, reply.max_offset)
        if reply.code != ResponseCode.SUCCESS or not reply.body:
            return None
        run = first_message_run(reply.body)
        return run if run.first == offset else None

    async def put_runs(self, runs: Sequence[MessageRun]) -> int:
        """Put consecutive runs; if the target expects another offset, refresh the offsets and return 0.

        Return the number of messages new at the target. Raises what `refresh_offsets` raises.
        """
        queue_place, first = self.queue_place, runs[0].first
        # `reset` is set only after a skip to the primary's first message: it tells the target that the gap is
        # intended.
        request = PutMessagesAtOffsets(
            topic=queue_place.topic,
            queue_id=queue_place.queue_id,
            first_offset=first,
            reset=first > self.target_end,
        )
        request.body = runs[0].body if len(runs) == 1 else b"".join(run.body for run in runs)
        reply = await self._target.ask_broker(queue_place.target_broker, request)
        # The target has lost its last messages in a crash, or another copier of this queue was faster.
        if reply.code == UNEXPECTED_OFFSET:
            await self.refresh_offsets()
            return 0
        # The first run may begin with the target's last message, which is not new.
        new = min(sum(run.count for run in runs), reply.next_offset - self.target_end)
        self.target_end = self.position = reply.next_offset
        self.primary_end = max(self.primary_end, self.target_end)
        self.copied_messages += new
        self.copied_bytes += len(request.body)
        return new

    async def _recheck_offsets(self) -> None:
        """After a read without the message at `position`, continue at the primary's first message.

        Raises QueueStuck when the primary's queue has a hole.
        """
        before = self.position
        await self.refresh_offsets()
        if self.position <= before < self.primary_end:
            raise QueueStuck(f"the primary has no message at offset {before}, but earlier and later ones")


async def _fetch_end_offset(cluster: Cluster, broker: str, queue_place: QueuePlace) -> int:
    request = GetMaxOffset(topic=queue_place.topic, queue_id=queue_place.queue_id)
    return max(0, (await cluster.ask_broker(broker, request)).offset)


async def _fetch_min_offset(cluster: Cluster, broker: str, queue_place: QueuePlace) -> int:
    request = GetMinOffset(topic=queue_place.topic, queue_id=queue_place.queue_id)
    return max(0, (await cluster.ask_broker(broker, request)).offset)


def first_message_run(body: bytes) -> MessageRun:
    """Return the messages at the front of a pull answer that have consecutive offsets.

    Raises OSError if it begins with no whole message.
    """
    first = position = count = 0
    end = len(body)
    while end - position >= _MESSAGE_HEAD.size:
        size, offset = _MESSAGE_HEAD.unpack_from(body, position)
        if not count:
            first = offset
        if offset != first + count or not _MESSAGE_HEAD.size <= size <= end - position:
            break
        position += size
        count += 1
    if not count:
        raise OSError("the primary's answer to a pull does not begin with a message")
    return MessageRun(first, count, body if position == end else body[:position])
