"""Queues of a cluster read from outside, leaving nothing behind: no consumer group, no offset, no wait at the broker.

Not responsible for what is made of the messages (entries.py, alignment.py).
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.compare.entries import Entry, entries
from remoting.reading import reading_pull
from remoting.requests.offsets import GetMaxOffset, GetMinOffset, SearchOffsetByTimestamp
from remoting.requests.pull import PullMessageReply

MESSAGES_A_PULL: Final = 256


class Budget:
    """At most so many messages a second, shared by all that read; 0 is without limit."""

    def __init__(self, per_second: float, now: Callable[[], float] = trio.current_time) -> None:
        self._per_second = per_second
        self._now = now
        self._free_at = 0.0

    async def spend(self, count: int) -> None:
        """Waits until ``count`` more may be read."""
        if self._per_second <= 0 or not count:
            return
        self._free_at = max(self._free_at, self._now()) + count / self._per_second
        await trio.sleep(max(0.0, self._free_at - self._now()))


class QueueReader:
    """One queue of one broker from an offset on; `buffer` holds what was read and not taken yet.

    `end` is the queue offset, exclusive, up to which messages count; `limit` the one up to which any are read.
    `ended` says that the queue had no more when last asked.
    """

    def __init__(
        self,
        cluster: Cluster,
        broker: str,
        topic: str,
        queue_id: int,
        *,
        kept: bool,
        budget: Budget,
    ) -> None:
        self.buffer: deque[Entry] = deque()
        self.next = 0
        self.end = 0
        self.limit: int | None = None
        self.ended = False
        self.broker = broker
        self._cluster = cluster
        self._topic, self._queue_id = topic, queue_id
        self._kept = kept
        self._budget = budget

    @property
    def done(self) -> bool:
        """Whether all that counts was taken."""
        if self.buffer:
            return self.buffer[0].offset >= self.end
        return self.ended or self.next >= self.end

    async def bounds(self) -> tuple[int, int]:
        """Where the queue begins and ends now, exclusive. Raises what `Cluster.ask` raises."""
        low = await self._cluster.ask(self.broker, GetMinOffset(topic=self._topic, queue_id=self._queue_id))
        high = await self._cluster.ask(self.broker, GetMaxOffset(topic=self._topic, queue_id=self._queue_id))
        return low.offset, high.offset

    async def at_time(self, stored_ms: int) -> int:
        """The offset of the first message stored at that time or later. Raises what `Cluster.ask` raises."""
        request = SearchOffsetByTimestamp(topic=self._topic, queue_id=self._queue_id, timestamp=stored_ms)
        return (await self._cluster.ask(self.broker, request)).offset

    async def fill(self, count: int) -> None:
        """Reads until ``count`` are in the buffer or there are no more.

        Raises what `Cluster.ask` raises, and MessageFormatError.
        """
        self.ended = False
        while len(self.buffer) < count and not self.ended:
            if self.limit is not None and self.next >= self.limit:
                self.ended = True
                return
            request = reading_pull(self._topic, self._queue_id, self.next, MESSAGES_A_PULL)
            await self._budget.spend(self._take(await self._cluster.ask(self.broker, request)))

    def _take(self, reply: PullMessageReply) -> int:
        """Keeps what an answer brought, and goes on behind it; how many messages that were."""
        at, self.next = self.next, max(self.next, reply.next_begin_offset)
        if reply.code != ResponseCode.SUCCESS:
            # Nothing here: the queue ends here, or goes on further up when older messages expired or were filtered.
            self.ended = reply.code == ResponseCode.PULL_NOT_FOUND or self.next == at
            return 0
        if self.next == at:
            raise MessageFormatError(
                f"a pull at {at} brought messages and goes on at {reply.next_begin_offset}"
            )
        high = self.next if self.limit is None else self.limit
        found = [each for each in entries(reply.body, kept=self._kept) if at <= each.offset < high]
        self.buffer += found
        return len(found)
