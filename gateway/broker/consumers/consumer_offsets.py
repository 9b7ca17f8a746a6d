"""Consumer offsets of every group and queue, stored in consumerOffset.json.

Any offset is accepted here: processors check who may commit, and the store knows where a queue begins and ends. What
clients and administrators commit is also in the journal (`offset_journal.py`), so that SIGKILL does not lose it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from codec import fastjson
from codec.java_numbers import I32, I64, quoted, read_json_integer
from gateway.broker.consumers.offset_journal import OffsetJournal, Record
from gateway.broker.topics.limit_errors import limit_error
from gateway.broker.topics.topic_table import count_change
from gateway.config.limits import BrokerLimits
from gateway.runtime.config_file import ChangingTable, ConfigFile
from gateway.runtime.saved_tables import load_table, parse_entries, parse_name, parse_version
from remoting.bodies.progress import ConsumerOffsetSerializeWrapper
from remoting.bodies.queues import DataVersion
from storage.clock import Clock

log = logging.getLogger(__name__)

COMMITS_PER_VERSION = 500
"""Number of commits that the version of the table counts as one change.

Source: BrokerConfig.consumerOffsetUpdateVersionStep.
"""

MAX_PULL_OFFSETS = 100_000
"""Number of queues and groups for which the last pull is remembered. Statistics show nothing in flight for others."""
OFFSETS_PER_SLICE: Final = 2000
"""Offsets encoded at once, which takes about half a millisecond."""

QueueOffsets = dict[int, int]
"""Queue id to consumer offset: the queue offset to consume next."""


def table_key(topic: str, group: str) -> str:
    """Return the table's key for a topic and group."""
    return f"{topic}@{group}"


class ConsumerOffsets(ChangingTable):
    """Offsets by ``topic@group`` and queue. Source: ConsumerOffsetManager, 5.4.0.

    Commits are written by `save_changes`, which the broker calls every few seconds, and when it stops. ``limits`` are
    set again when the configuration changes. A first commit for a queue beyond them is refused with a RequestError.
    ``records`` are those that a killed process left in the journal.
    """

    def __init__(
        self,
        file: ConfigFile,
        clock: Clock,
        *,
        server_side_reset: bool = True,
        limits: BrokerLimits | None = None,
        journal: OffsetJournal | None = None,
        records: Iterable[Record] = (),
    ) -> None:
        super().__init__(file)
        self._clock = clock
        self._journal = journal
        self._commits = 0
        self.server_side_reset = server_side_reset
        self.limits = limits or BrokerLimits()
        self.table: dict[str, QueueOffsets] = {}
        self._pulled: dict[tuple[str, str, int], int] = {}
        self._reset: dict[str, QueueOffsets] = {}
        self.version = DataVersion(timestamp=clock.now_ms())
        saved = file.load(parse_offsets)
        if saved is not None:
            self.table = saved.offset_table
            self.version = saved.data_version or self.version
        self._count = sum(map(len, self.table.values()))
        self._keys_of_topic: dict[str, set[str]] = {}
        self._keys_of_group: dict[str, set[str]] = {}
        self._removal_listeners: list[Callable[[str], object]] = []
        for key in self.table:
            self._add_key(key)
        self._take_over(records)

    def _take_over(self, records: Iterable[Record]) -> None:
        changed = 0
        for key, queue_id, offset in records:
            queues = self.table.get(key)
            before = None if queues is None else queues.get(queue_id)
            if queues is None or before is None:
                queues = self._add_queues(key, 1, by_broker=True)
            if before != offset:
                queues[queue_id] = offset
                changed += 1
        if changed:
            self._dirty = True
            log.info("consumer offsets of a killed process taken over", extra={"offsets": changed})

    def _add_key(self, key: str) -> None:
        topic, _, group = key.partition("@")
        self._keys_of_topic.setdefault(topic, set()).add(key)
        self._keys_of_group.setdefault(group, set()).add(key)

    def limit_to_queues(self, end_of_queue: Callable[[str, int], int], last_done_group: str = "") -> int:
        """Move offsets beyond the end of their queue back to it, and return their number. Done after a crash.

        A consumer may have read and committed a message that was not yet on the disk. The next message gets its queue
        offset, and the group would skip it. An offset of ``last_done_group`` is not that of the next message but of
        the last one that is done, which must exist.
        """
        moved = 0
        for key, queues in self.table.items():
            topic, _, group = key.partition("@")
            for queue_id, offset in queues.items():
                end = end_of_queue(topic, queue_id) - (group == last_done_group)
                if offset > end:
                    queues[queue_id] = end
                    self._keep_in_journal(key, queue_id, end)
                    moved += 1
        if moved:
            self._dirty = True
            log.warning("offsets beyond the end of their queue moved back to it", extra={"offsets": moved})
        return moved

    # -- committing and querying -----------------------------------------------------------------------------

    def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, *, by_broker: bool = False
    ) -> None:
        """Record the next offset to consume, even when it is before the last one; it may be lost by SIGKILL.

        Raises RequestError at the limit of offsets, except ``by_broker``: for offsets of the broker's own groups.
        """
        key = f"{topic}@{group}"
        self._commit(key, queue_id, offset, by_broker=by_broker)
        if self._journal is not None:
            self._journal.forget(key, queue_id)

    def commit_of_client(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Record the next offset to consume as a client says; it survives SIGKILL. Raises RequestError at the limit."""
        key = f"{topic}@{group}"
        self._commit(key, queue_id, offset)
        self._keep_in_journal(key, queue_id, offset)

    def _keep_in_journal(self, key: str, queue_id: int, offset: int) -> None:
        if self._journal is not None:
            self._journal.record(key, queue_id, offset)

    def _commit(self, key: str, queue_id: int, offset: int, *, by_broker: bool = False) -> None:
        queues = self.table.get(key)
        before = None if queues is None else queues.get(queue_id)
        if queues is None or before is None:
            queues = self._add_queues(key, 1, by_broker=by_broker)
        elif before > offset:
            extra = {"key": key, "queue_id": queue_id, "offset": offset, "before": before}
            log.warning("consumer offset moved backwards", extra=extra)
        queues[queue_id] = offset
        self._dirty = True
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0:
            count_change(self.version, self._clock.now_ms())

    def _add_queues(self, key: str, number: int, *, by_broker: bool = False) -> QueueOffsets:
        """Count offsets of queues that are about to be added to a key; return the key's offsets."""
        max_offsets = self.limits.max_committed_offsets
        if self._count + number > max_offsets and not by_broker:
            raise limit_error(
                "maxCommittedOffsets", max_offsets, "consumer offsets", "delete groups or topics"
            )
        self._count += number
        if key not in self.table:
            self.table[key] = {}
            self._add_key(key)
        return self.table[key]

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

        Raises RequestError at the limit of offsets. Source: ConsumerOffsetManager.assignResetOffset, 5.4.0.
        """
        key = table_key(topic, group)
        if queue_id not in self.table.get(key, ()):
            self._add_queues(key, 1)
        self._reset.setdefault(key, {})[queue_id] = offset
        self.table[key][queue_id] = offset
        self._keep_in_journal(key, queue_id, offset)
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

    def merge(self, offsets: Mapping[str, QueueOffsets]) -> int:
        """Raise offsets to the greater ones of another replica; return the number of those that changed.

        An offset never goes back here: consumers that reached this replica may have committed a newer one.
        """
        changed = 0
        for key, queues in offsets.items():
            own = self.table.get(key)
            if own == queues:
                continue
            if own is None:
                own = self._add_queues(key, 0, by_broker=True)
            for queue_id, offset in queues.items():
                before = own.get(queue_id)
                if before is None:
                    self._count += 1
                if before is None or before < offset:
                    own[queue_id] = offset
                    changed += 1
                    if self._journal is not None:
                        self._journal.forget(key, queue_id)
        if changed:
            self._dirty = True
            count_change(self.version, self._clock.now_ms())
        return changed

    def adopt_progress(self, offsets: Mapping[str, QueueOffsets]) -> None:
        """Take over the progress of the master's own groups, also where it is lower than here.

        That of a former master counts work, such as revived messages, which the present master has not done.
        """
        for key, queues in offsets.items():
            own = self.table.get(key)
            if own == queues:
                continue
            if own is None:
                own = self._add_queues(key, 0, by_broker=True)
            self._count += len(queues.keys() - own.keys())
            own.update(queues)
            self._dirty = True
            if self._journal is not None:
                for queue_id in queues:
                    self._journal.forget(key, queue_id)

    def restart_groups(self, starts: Mapping[str, int]) -> None:
        """Set all offsets of some of the broker's own groups to one value each."""
        for key, queues in self.table.items():
            start = starts.get(key.partition("@")[2])
            if start is not None:
                for queue_id in queues:
                    queues[queue_id] = start
                    self._keep_in_journal(key, queue_id, start)
                self._dirty = True

    def clone_offsets(self, source_group: str, target_group: str, topic: str) -> None:
        """Give a group the offsets of another one in one topic. Raises RequestError at the limit of offsets."""
        offsets = self.table.get(table_key(topic, source_group))
        if offsets is not None:
            key, copied = table_key(topic, target_group), dict(offsets)
            self._add_queues(key, len(copied) - len(self.table.get(key, ())))
            if self._journal is not None:
                self._journal.forget_key(key)
            self.table[key] = copied
            for queue_id, offset in copied.items():
                self._keep_in_journal(key, queue_id, offset)
            self._dirty = True

    def topics_of_group(self, group: str) -> set[str]:
        """Return the topics in which the group has offsets.

        Source: ConsumerOffsetManager.whichTopicByConsumer, 5.4.0.
        """
        if "@" in group:
            return set()
        return {key.partition("@")[0] for key in self._keys_of_group.get(group, ()) if "@" in key}

    def groups_of_topic(self, topic: str) -> set[str]:
        """Return the groups with offsets in the topic. Source: ConsumerOffsetManager.whichGroupByTopic, 5.4.0."""
        groups = {key.partition("@")[2] for key in self._keys_of_topic.get(topic, ()) if "@" in key}
        return {group for group in groups if "@" not in group}

    def remove_topic(self, topic: str) -> None:
        """Forget all groups' offsets in a topic."""
        self._remove_keys(list(self._keys_of_topic.get(topic, ())))
        self._pulled = {key: offset for key, offset in self._pulled.items() if key[1] != topic}

    def remove_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        self._remove_keys(list(self._keys_of_group.get(group, ())))
        self._pulled = {key: offset for key, offset in self._pulled.items() if key[0] != group}

    def remove_keys(self, keys: Iterable[str]) -> None:
        """Forget the offsets of some groups in some topics, by their keys in the table."""
        self._remove_keys([key for key in keys if key in self.table])

    def add_removal_listener(self, listener: Callable[[str], object]) -> None:
        """Have ``listener`` called with each key, as topic@group, that leaves the table."""
        self._removal_listeners.append(listener)

    def _remove_keys(self, keys: list[str]) -> None:
        for key in keys:
            self._count -= len(self.table.pop(key))
            self._reset.pop(key, None)
            if self._journal is not None:
                self._journal.forget_key(key)
            topic, _, group = key.partition("@")
            for index, name in ((self._keys_of_topic, topic), (self._keys_of_group, group)):
                index[name].discard(key)
                if not index[name]:
                    del index[name]
            for listener in self._removal_listeners:
                listener(key)
            self._dirty = True

    def lower_to_group(
        self, smallest: QueueOffsets, group: str, topic: str, min_offset: Callable[[str, int], int]
    ) -> None:
        """Lower the offsets per queue to those of a group that are smaller, but not before the queue's beginning.

        Source: ConsumerOffsetManager.queryMinOffsetInAllGroup, 5.4.0. Deviation: the official broker
        deletes the offsets of the groups to leave out; here a query changes nothing.
        """
        for queue_id, offset in self.table.get(table_key(topic, group), {}).items():
            if offset >= min_offset(topic, queue_id):
                smallest[queue_id] = min(offset, smallest.get(queue_id, offset))

    # -- the file ------------------------------------------------------------------------------------------

    def delete_journal(self) -> None:
        """Delete the journal at the end, after `persist` has written all offsets."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.delete()

    def _write(self, data: bytes) -> None:
        journal = self._journal
        if journal is not None:
            journal.flush()
        super()._write(data)

    def encode_slices(self) -> Iterator[bytes]:
        """Yield the content of consumerOffset.json. It may have millions of offsets."""
        yield b'{"offsetTable":{'
        comma, part, count = "", [], 0
        for key in list(self.table):
            queues = self.table.get(key)
            if queues is None:
                continue  # removed since the encoding began
            offsets = ",".join([f"{queue_id}:{offset}" for queue_id, offset in queues.items()])
            part.append(f"{comma}{fastjson.dumps(key).decode()}:{{{offsets}}}")
            comma, count = ",", count + len(queues) + 1
            if count >= OFFSETS_PER_SLICE:
                yield "".join(part).encode()
                part, count = [], 0
        yield "".join(part).encode()
        yield b'},"dataVersion":' + self.version.to_json() + b"}"


def parse_offsets(content: bytes) -> ConsumerOffsetSerializeWrapper:
    """Parse consumerOffset.json, which is also what a master answers. Raises ValueError.

    A queue whose offset cannot be read is left out.
    """
    saved = load_table(content)
    offsets = parse_entries("consumerOffset.json", saved.get("offsetTable"), _parse_queues)
    return ConsumerOffsetSerializeWrapper(
        offset_table=offsets, data_version=parse_version(saved.get("dataVersion"))
    )


def _parse_queues(key: object, value: object) -> tuple[str, QueueOffsets]:
    return parse_name(key), parse_entries(f"offsets of {quoted(str(key))}", value, _parse_offset)


def _parse_offset(queue_id: object, offset: object) -> tuple[int, int]:
    return read_json_integer(queue_id, I32), read_json_integer(offset, I64)
