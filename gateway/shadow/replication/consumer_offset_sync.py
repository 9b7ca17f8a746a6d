"""Moves consumer offsets of replicated queues forward when no commit through the gateway does so.

Such offsets date from before the mirror started, belong to clients that bypass the gateway or to pops, or were lost by
the target in a crash. Both offset tables are compared at intervals. Offsets never move back: a group that was moved to
the target, and is idle there, is ahead of its offset at the primary.
"""

from collections.abc import Callable, Iterator

from codec.topics import TOOL_GROUPS, is_system_group
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.mirror.consumer_offsets import ConsumerOffsetWriter
from gateway.shadow.replication.feed_set import FeedSet
from remoting.errors import RequestError
from remoting.requests.offsets import GetAllConsumerOffset

OffsetTable = dict[str, dict[int, int]]
"""Offsets by `topic@group`, then by queue id."""


class ConsumerOffsetSync:
    """Compares the offsets of all replicated queues. ``target_of`` maps a broker of the primary to the target's."""

    def __init__(
        self, primary: Cluster, target: Cluster, feeds: FeedSet, target_of: Callable[[str], str]
    ) -> None:
        self.moved_total = 0
        self._primary = primary
        self._target = target
        self._feeds = feeds
        self._target_of = target_of

    async def sync_offsets(self) -> None:
        """Compare both tables and advance offsets that are behind at the target.

        Raises CLUSTER_ERRORS of `cluster`, LookupError for an unknown broker.
        """
        for broker in sorted({key[0] for key in self._feeds.feeds}):
            target_broker = self._target_of(broker)
            at_primary: OffsetTable = (
                await self._primary.ask_broker(broker, GetAllConsumerOffset())
            ).data.offset_table
            at_target: OffsetTable = (
                await self._target.ask_broker(target_broker, GetAllConsumerOffset())
            ).data.offset_table
            sides = self._primary, self._target, broker, target_broker
            offset_writer = ConsumerOffsetWriter(*sides, PreservedOffsets(self._feeds), retry_topics=True)
            for topic, group, queue_id, offset in self._find_behind(broker, at_primary, at_target):
                await self._advance_offset(offset_writer, group, topic, queue_id, offset)

    async def _advance_offset(
        self, offset_writer: ConsumerOffsetWriter, group: str, topic: str, queue_id: int, offset: int
    ) -> None:
        try:
            self.moved_total += await offset_writer.advance_offset(group, topic, queue_id, offset)
        except RequestError:
            return  # A group that the target refuses must not hold up the others.

    def _find_behind(
        self, broker: str, at_primary: OffsetTable, at_target: OffsetTable
    ) -> Iterator[tuple[str, str, int, int]]:
        """Yield topic, group, queue id and new offset of each group that is behind at the target."""
        for name, offsets in at_primary.items():
            topic, _, group = name.partition("@")
            if not group or "@" in group or group in TOOL_GROUPS or is_system_group(group):
                continue
            target_offsets = at_target.get(name, {})
            for queue_id, offset in offsets.items():
                end = self._feeds.target_end(broker, topic, queue_id)
                # Never beyond the target's messages: consumers would skip those that are still to be copied.
                if end is not None and min(offset, end) > target_offsets.get(queue_id, -1):
                    yield topic, group, queue_id, min(offset, end)


class PreservedOffsets:
    """An `OffsetTranslation` for replicated queues: the same offsets, as far as the target has the messages."""

    def __init__(self, feeds: FeedSet) -> None:
        self._feeds = feeds

    def translate(self, queue: tuple[str, str, int], offset: int) -> int | None:
        """Return the offset, or the target's end if that is lower; None if the queue is not replicated."""
        end = self._feeds.target_end(*queue)
        return None if end is None or offset < 0 else min(offset, end)
