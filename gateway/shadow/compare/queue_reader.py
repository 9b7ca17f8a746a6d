"""Reads queues of a cluster without leaving a trace: no consumer group, no committed offset, no wait at the broker."""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

import trio

from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.compare.entries import ComparedMessage, parse_entries
from remoting.requests.offsets import GetMaxOffset, GetMinOffset, SearchOffsetByTimestamp
from remoting.requests.pull import PullMessageReply, read_only_pull

MAX_MESSAGES_PER_PULL: Final = 256
MAX_MESSAGES_PER_ANSWER: Final = 1024


class ReadRateLimiter:
    """Bounds the messages read per second, shared by several readers; 0 is without limit."""

    def __init__(self, per_second: float, now: Callable[[], float] = trio.current_time) -> None:
        self._per_second = per_second
        self._now = now
        self._free_at = 0.0

    async def acquire(self, count: int) -> None:
        """Wait until ``count`` more messages may be read."""
        if self._per_second <= 0 or not count:
            return
        self._free_at = max(self._free_at, self._now()) + count / self._per_second
        await trio.sleep(max(0.0, self._free_at - self._now()))


class QueueReader:
    """Reads one queue of one broker; `buffer` holds messages that were read and not taken yet.

    `end_offset` (exclusive) bounds the messages that count, `stop_offset` those that are read at all. `at_end`: the
    last pull found no further message.
    """

    def __init__(
        self,
        cluster: Cluster,
        broker: str,
        topic: str,
        queue_id: int,
        *,
        same_offsets: bool,
        rate_limiter: ReadRateLimiter,
    ) -> None:
        self.buffer: deque[ComparedMessage] = deque()
        self.next_offset = 0
        self.end_offset = 0
        self.stop_offset: int | None = None
        self.at_end = False
        self.broker = broker
        self._cluster = cluster
        self._topic, self._queue_id = topic, queue_id
        self._same_offsets = same_offsets
        self._rate_limiter = rate_limiter

    @property
    def is_done(self) -> bool:
        """True when every message that counts was taken from the buffer."""
        if self.buffer:
            return self.buffer[0].offset >= self.end_offset
        return self.at_end or self.next_offset >= self.end_offset

    async def read_bounds(self) -> tuple[int, int]:
        """Return minimum and maximum (exclusive) offset of the queue. Raises CLUSTER_ERRORS, LookupError."""
        low = await self._cluster.ask_broker(
            self.broker, GetMinOffset(topic=self._topic, queue_id=self._queue_id)
        )
        high = await self._cluster.ask_broker(
            self.broker, GetMaxOffset(topic=self._topic, queue_id=self._queue_id)
        )
        return low.offset, high.offset

    async def find_offset_at(self, stored_ms: int) -> int:
        """Return the offset of the first message stored at that time or later. Raises CLUSTER_ERRORS, LookupError."""
        request = SearchOffsetByTimestamp(topic=self._topic, queue_id=self._queue_id, timestamp=stored_ms)
        return (await self._cluster.ask_broker(self.broker, request)).offset

    async def fill_buffer(self, count: int) -> None:
        """Read until ``count`` messages are buffered or the queue has no more.

        Raises CLUSTER_ERRORS, LookupError, MessageFormatError.
        """
        self.at_end = False
        while len(self.buffer) < count and not self.at_end:
            if self.stop_offset is not None and self.next_offset >= self.stop_offset:
                self.at_end = True
                return
            request = read_only_pull(self._topic, self._queue_id, self.next_offset, MAX_MESSAGES_PER_PULL)
            await self._rate_limiter.acquire(
                self._take_reply(await self._cluster.ask_broker(self.broker, request))
            )

    def _take_reply(self, reply: PullMessageReply) -> int:
        """Buffer the messages of an answer and advance the read position; return the number of messages."""
        at, self.next_offset = self.next_offset, max(self.next_offset, reply.next_begin_offset)
        if reply.code != ResponseCode.SUCCESS:
            # No message at this offset: the queue ends, or continues higher up after expired or filtered messages.
            self.at_end = reply.code == ResponseCode.PULL_NOT_FOUND or self.next_offset == at
            return 0
        if self.next_offset == at:
            raise MessageFormatError(
                f"pull at {at} returned messages but continues at {reply.next_begin_offset}"
            )
        high = self.next_offset if self.stop_offset is None else self.stop_offset
        entries = list(
            islice(parse_entries(reply.body, same_offsets=self._same_offsets), MAX_MESSAGES_PER_ANSWER)
        )
        if len(entries) == MAX_MESSAGES_PER_ANSWER:
            raise MessageFormatError(f"more than {MAX_MESSAGES_PER_PULL} messages in an answer to a pull")
        new_entries = [entry for entry in entries if at <= entry.offset < high]
        self.buffer += new_entries
        return len(new_entries)
