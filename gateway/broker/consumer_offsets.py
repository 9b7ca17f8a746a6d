"""Consumer offsets of every group and queue, stored in consumerOffset.json.

Any offset is accepted here: processors check who may commit, and the store knows where a queue begins and ends.
"""

import logging
from collections.abc import Callable, Iterator

from codec.java_numbers import I32, I64, quoted, read_json_integer
from gateway.broker.topic_table import count_change
from gateway.runtime.config_file import ChangingTable, ConfigFile
from gateway.runtime.saved_tables import dump_table, load_table, parse_entries, parse_name, parse_version
from remoting.bodies.progress import ConsumerOffsetSerializeWrapper
from remoting.bodies.queues import DataVersion
from storage.clock import Clock

log = logging.getLogger(__name__)

COMMITS_PER_VERSION = 500
"""Number of commits that the version of the table counts as one change.

Source: BrokerConfig.consumerOffsetUpdateVersionStep.
"""

MAX_PULL_OFFSETS = 100_000
"""Number of queues and groups for which the last pull is remembered; further ones count as nothing in flight."""
QueueOffsets = dict[int, int]
"""Queue id to consumer offset: the queue offset to consume next."""


def table_key(topic: str, group: str) -> str:
    """Return the table's key for a topic and group."""
    return f"{topic}@{group}"


class ConsumerOffsets(ChangingTable):
    """Offsets by ``topic@group`` and queue. Source: ConsumerOffsetManager, 5.4.0.

    Commits are written by `persist`, which the broker calls every few seconds and when it stops.
    """

    def __init__(self, file: ConfigFile, clock: Clock, *, server_side_reset: bool = True) -> None:
        super().__init__(file)
        self._clock = clock
        self._commits = 0
        self.server_side_reset = server_side_reset
        self.table: dict[str, QueueOffsets] = {}
        self._pulled: dict[tuple[str, str, int], int] = {}
        self._reset: dict[str, QueueOffsets] = {}
        self.version = DataVersion(timestamp=clock.now_ms())
        saved = file.load(_parse_file)
        if saved is not None:
            self.table = saved.offset_table
            self.version = saved.data_version or self.version

    def limit_to_queues(self, end_of_queue: Callable[[str, int], int]) -> int:
        """Move offsets beyond the end of their queue back to it, and return their number. Done after a power cut.

        A consumer may have read and committed a message that was not yet on the disk. The next message gets its queue
        offset, and the group would skip it.
        """
        moved = 0
        for key, queues in self.table.items():
            topic = key.partition("@")[0]
            for queue_id, offset in queues.items():
                end = end_of_queue(topic, queue_id)
                if offset > end:
                    queues[queue_id] = end
                    moved += 1
        if moved:
            self._dirty = True
            log.warning("offsets beyond the end of their queue moved back to it", extra={"offsets": moved})
        return moved

    # -- committing and querying -----------------------------------------------------------------------------

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Record the next offset to consume, even when it is before the last one."""
        key = f"{topic}@{group}"
        queues = self.table.get(key)
        if queues is None:
            queues = self.table[key] = {}
        elif (before := queues.get(queue_id, offset)) > offset:
            extra = {"key": key, "queue_id": queue_id, "offset": offset, "before": before}
            log.warning("consumer offset moved backwards", extra=extra)
        queues[queue_id] = offset
        self._dirty = True
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0:
            count_change(self.version, self._clock.now_ms())

    def query_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the next offset to consume: that of a pending reset, else the last committed one, else -1."""
        key = f"{topic}@{group}"
        if self._reset and self.server_side_reset:
            pending = self._reset.get(key)
            if pending is not None and queue_id in pending:
                return pending[queue_id]
        queues = self.table.get(key)
        return -1 if queues is None else queues.get(queue_id, -1)

    def queue_offsets(self, group: str, topic: str) -> QueueOffsets | None:
        """Return all committed offsets of a group in a topic, not copied; None when it never committed."""
        return self.table.get(table_key(topic, group))

    def record_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Remember, in memory only, the end of what a group last pulled: statistics call the rest in flight.

        Source: ConsumerOffsetManager.commitPullOffset, 5.4.0.
        """
        key = group, topic, queue_id
        if len(self._pulled) < MAX_PULL_OFFSETS or key in self._pulled:
            self._pulled[key] = next_offset

    def query_pull(self, group: str, topic: str, queue_id: int) -> int:
        """Return the group's last pull offset, else the offset at which it would start; -1 when neither is known."""
        pulled = self._pulled.get((group, topic, queue_id))
        return self.query_offset(group, topic, queue_id) if pulled is None else pulled

    # -- resetting -----------------------------------------------------------------------------------------

    def assign_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Make the group's next pull of the queue start at `offset`, whatever clients commit until then.

        Source: ConsumerOffsetManager.assignResetOffset, 5.4.0.
        """
        key = table_key(topic, group)
        self._reset.setdefault(key, {})[queue_id] = offset
        self.table.setdefault(key, {})[queue_id] = offset
        self._pulled.pop((group, topic, queue_id), None)
        self._dirty = True

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Tell whether a reset waits for the group's next pull of the queue."""
        return bool(self._reset) and queue_id in self._reset.get(table_key(topic, group), ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a waiting reset and end the reset; None when there is none."""
        if not self._reset:
            return None
        key = table_key(topic, group)
        pending = self._reset.get(key)
        if pending is None:
            return None
        offset = pending.pop(queue_id, None)
        if not pending:
            del self._reset[key]
        return offset

    # -- whole groups and topics ---------------------------------------------------------------------------

    def clone_offsets(self, source_group: str, target_group: str, topic: str) -> None:
        """Give a group the offsets of another one in one topic."""
        offsets = self.table.get(table_key(topic, source_group))
        if offsets is not None:
            self.table[table_key(topic, target_group)] = dict(offsets)
            self._dirty = True

    def _topics_and_groups(self) -> Iterator[tuple[str, str]]:
        for key in self.table:
            topic, at, group = key.partition("@")
            if at and "@" not in group:
                yield topic, group

    def topics_of_group(self, group: str) -> set[str]:
        """Return the topics in which the group has offsets.

        Source: ConsumerOffsetManager.whichTopicByConsumer, 5.4.0.
        """
        return {topic for topic, owner in self._topics_and_groups() if owner == group}

    def groups_of_topic(self, topic: str) -> set[str]:
        """Return the groups with offsets in the topic. Source: ConsumerOffsetManager.whichGroupByTopic, 5.4.0."""
        return {group for consumed, group in self._topics_and_groups() if consumed == topic}

    def remove_topic(self, topic: str) -> None:
        """Forget all groups' offsets in a topic."""
        self._remove_matching(lambda key: key.partition("@")[0] == topic)
        self._pulled = {key: offset for key, offset in self._pulled.items() if key[1] != topic}

    def remove_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        self._remove_matching(lambda key: key.partition("@")[2] == group)
        self._pulled = {key: offset for key, offset in self._pulled.items() if key[0] != group}

    def _remove_matching(self, matches: Callable[[str], bool]) -> None:
        for table in (self.table, self._reset):
            for key in [key for key in table if matches(key)]:
                del table[key]
                self._dirty = True

    def min_offsets_of_groups(
        self, topic: str, min_offset: Callable[[str, int], int], without: set[str]
    ) -> QueueOffsets:
        """Return per queue the smallest offset of any group that is not before the queue's beginning.

        Source: ConsumerOffsetManager.queryMinOffsetInAllGroup, 5.4.0. Deviation: the official broker
        deletes the offsets of the groups to leave out; here a query changes nothing.
        """
        found: QueueOffsets = {}
        for owned, group in list(self._topics_and_groups()):
            if owned != topic or group in without:
                continue
            for queue_id, offset in self.table[table_key(topic, group)].items():
                if offset >= min_offset(topic, queue_id):
                    found[queue_id] = min(offset, found.get(queue_id, offset))
        return found

    # -- the file ------------------------------------------------------------------------------------------

    def snapshot(self) -> ConsumerOffsetSerializeWrapper:
        """Return table and version as they go to the file and other brokers, not copied."""
        return ConsumerOffsetSerializeWrapper(offset_table=self.table, data_version=self.version)

    def to_json(self) -> bytes:
        """Return the content of consumerOffset.json."""
        return dump_table("consumerOffset.json", self.snapshot().to_value())


def _parse_file(content: bytes) -> ConsumerOffsetSerializeWrapper:
    """Parse consumerOffset.json. A queue whose offset cannot be read is left out. Raises ValueError."""
    saved = load_table(content)
    offsets = parse_entries("consumerOffset.json", saved.get("offsetTable"), _parse_queues)
    return ConsumerOffsetSerializeWrapper(
        offset_table=offsets, data_version=parse_version(saved.get("dataVersion"))
    )


def _parse_queues(key: object, value: object) -> tuple[str, QueueOffsets]:
    return parse_name(key), parse_entries(f"offsets of {quoted(str(key))}", value, _parse_offset)


def _parse_offset(queue_id: object, offset: object) -> tuple[int, int]:
    return read_json_integer(queue_id, I32), read_json_integer(offset, I64)
