"""Consumer offsets that no commit through the gateway brings over: those from before, of other clients, of pops, and
those the target lost in a crash. They are compared now and then, and moved forward.

Never back: a group that was moved to the target and rests there is further than the primary knows.
"""

from collections.abc import Callable, Iterator

from codec.topics import TOOL_GROUPS, is_system_group
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.mirror.consumer_offsets import ConsumerOffsetWriter
from gateway.shadow.replication.feed_set import FeedSet
from remoting.errors import RequestError
from remoting.requests.offsets import GetAllConsumerOffset

OffsetTable = dict[str, dict[int, int]]
"""Offsets by queue, by topic@group."""


class ConsumerOffsetSync:
    """Compares the offsets of all kept queues; ``target_of`` as for `KeptFeeds`."""

    def __init__(
        self, primary: Cluster, target: Cluster, feeds: FeedSet, target_of: Callable[[str], str]
    ) -> None:
        self.moved_total = 0
        self._primary = primary
        self._target = target
        self._feeds = feeds
        self._target_of = target_of

    async def sync_offsets(self) -> None:
        """Moves what is behind. Raises ASKING_FAILED of `cluster`, LookupError for an unknown broker."""
        for broker in sorted({key[0] for key in self._feeds.feeds}):
            target_broker = self._target_of(broker)
            theirs: OffsetTable = (await self._primary.ask(broker, GetAllConsumerOffset())).data.offset_table
            ours: OffsetTable = (
                await self._target.ask(target_broker, GetAllConsumerOffset())
            ).data.offset_table
            sides = self._primary, self._target, broker, target_broker
            commits = ConsumerOffsetWriter(*sides, PreservedOffsets(self._feeds), retry_topics=True)
            for topic, group, queue_id, offset in self._find_behind(broker, theirs, ours):
                await self._advance_offset(commits, group, topic, queue_id, offset)

    async def _advance_offset(
        self, commits: ConsumerOffsetWriter, group: str, topic: str, queue_id: int, offset: int
    ) -> None:
        try:
            self.moved_total += await commits.advance_offset(group, topic, queue_id, offset)
        except RequestError:
            return  # one group that the target refuses does not keep the others back

    def _find_behind(
        self, broker: str, theirs: OffsetTable, ours: OffsetTable
    ) -> Iterator[tuple[str, str, int, int]]:
        """Topic, group, queue and the offset where the group should be."""
        for name, offsets in theirs.items():
            topic, _, group = name.partition("@")
            if not group or "@" in group or group in TOOL_GROUPS or is_system_group(group):
                continue
            known = ours.get(name, {})
            for queue_id, offset in offsets.items():
                end = self._feeds.target_end(broker, topic, queue_id)
                if end is not None and min(offset, end) > known.get(queue_id, -1):
                    yield topic, group, queue_id, min(offset, end)


class PreservedOffsets:
    """Offsets of the target by those of the primary: the same ones, as far as the target has the messages."""

    def __init__(self, feeds: FeedSet) -> None:
        self._feeds = feeds

    def translate(self, queue: tuple[str, str, int], offset: int) -> int | None:
        """The same offset, or the target's end where that is before it; None for a queue that is not kept."""
        end = self._feeds.target_end(*queue)
        return None if end is None or offset < 0 else min(offset, end)
