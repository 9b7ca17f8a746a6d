"""All consume queues of one store: creates them, finds them and removes their files."""

import logging
from collections.abc import Callable, Generator, Iterator
from typing import Final

from codec.java_numbers import I32, parse_integer_or
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue, QueueFilePool
from storage.errors import MessageIllegal, StoreFull
from storage.files import Files
from storage.layout import QUEUE_ENTRY_BYTES, mapped_file_offsets

log = logging.getLogger(__name__)

CHECKED_PER_SLICE: Final = 2000
CHECKED_PER_EXPIRY: Final = 50
"""Queues that can be looked at in the time it takes to hide the expired entries of one, about 10 us."""
QUEUES_PER_SLICE: Final = 16
"""Queues whose files are deleted at once, which takes about a millisecond."""


def list_queue_files(files: Files, root: str) -> Iterator[tuple[str, int, list[int]]]:
    """Yield topic, queue id and the first byte of each file, ascending, of every queue below ``root``."""
    for topic in files.list(root):
        for name in files.list(f"{root}/{topic}"):
            queue_id = parse_integer_or(name, -1, I32)
            offsets = mapped_file_offsets(files.list(f"{root}/{topic}/{name}")) if queue_id >= 0 else []
            if offsets:
                yield topic, queue_id, offsets


class QueueSet:
    """The consume queues of a store by topic and queue id, which share one pool of mapped files.

    ``by_key`` is public because every append looks its queue up there. ``removals`` counts the times that queues were
    removed from it, for those who keep queues of their own.
    """

    def __init__(self, config: StoreConfig, files: Files) -> None:
        self._config = config
        self._files = files
        self._pool = QueueFilePool(files, config.max_open_queue_files)
        self._file_entries = config.consume_queue_file_entries
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        self._ids: dict[str, set[int]] = {}
        self._being_deleted: set[str] = set()
        self._deleted_paths: list[str] = []
        self.removals = 0

    def use_file_bytes(self, file_bytes: int) -> None:
        """Create queues with files of this size, which those on the disk have, whatever the settings say."""
        self._file_entries = file_bytes // QUEUE_ENTRY_BYTES

    def create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Add a queue, whose first file is created with its first entry. Raises MessageIllegal.

        Raises StoreFull while earlier queues of the topic are being deleted: their files have the same paths.
        """
        if not topic or "/" in topic or "\0" in topic or topic in (".", "..") or len(topic.encode()) > 255:
            raise MessageIllegal(f"the topic name cannot be used as a folder name: {topic[:64]!r}")
        if not 0 <= queue_id <= 0x7FFFFFFF:
            raise MessageIllegal(f"queue id {queue_id} is out of range")
        if topic in self._being_deleted:
            raise StoreFull(f"the topic {topic} is being deleted")
        directory = f"{self._config.consume_queue_path}/{topic}/{queue_id}"
        queue = ConsumeQueue(
            topic, queue_id, directory, self._file_entries,
            self._config.reserve_queue_bytes, self._pool, self._files,
        )  # fmt: skip
        self.by_key[topic, queue_id] = queue
        self._ids.setdefault(topic, set()).add(queue_id)
        return queue

    def queues(self) -> list[ConsumeQueue]:
        """Return all queues, as a copy that another thread may iterate over."""
        return list(self.by_key.values())

    def queues_of(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic."""
        return [self.by_key[topic, queue_id] for queue_id in self._ids.get(topic, ())]

    def topics(self) -> set[str]:
        """Return the topics that have at least one queue."""
        return set(self._ids)

    def delete_topic(self, topic: str, note_deletion: Callable[[], None]) -> Generator[None, None, None]:
        """Remove all queues of a topic, which gets no new ones until the iterator has ended.

        The first slice calls ``note_deletion``; if that raises StoreFull or OSError, nothing has changed. The others
        delete the files. Closing the iterator between them deletes the rest at once.
        """
        keys = [(topic, queue_id) for queue_id in self._ids.pop(topic, ())]
        # Note the paths before the queues leave ``by_key``: a checkpoint in another thread lists the queues first and
        # the paths second, so that it finds each file in one of the two.
        self._deleted_paths += [path for key in keys for path in self.by_key[key].unflushed_paths()]
        queues = [self.by_key.pop(key) for key in keys]
        self.removals += 1
        if not queues:
            # Messages for the topic may wait in queues of other topics.
            return _note_only(note_deletion)
        self._being_deleted.add(topic)
        return self._delete_queues(topic, queues, note_deletion)

    def _delete_queues(
        self, topic: str, queues: list[ConsumeQueue], note_deletion: Callable[[], None]
    ) -> Generator[None, None, None]:
        try:
            note_deletion()
        except (StoreFull, OSError):
            self.by_key.update(((topic, queue.queue_id), queue) for queue in queues)
            self._ids[topic] = {queue.queue_id for queue in queues}
            self._being_deleted.discard(topic)
            raise
        remaining = list(queues)
        try:
            yield
            while remaining:
                remaining.pop().delete_files()
                if len(remaining) % QUEUES_PER_SLICE == 0:
                    yield
        finally:
            for queue in remaining:
                queue.delete_files()
            self._files.delete_tree(f"{self._config.consume_queue_path}/{topic}")
            self._being_deleted.discard(topic)
            log.info("topic deleted", extra={"topic": topic})

    def discard(self, queue: ConsumeQueue) -> list[str]:
        """Remove one queue and its files; return their paths."""
        del self.by_key[queue.topic, queue.queue_id]
        self.removals += 1
        self._ids[queue.topic].discard(queue.queue_id)
        if not self._ids[queue.topic]:
            del self._ids[queue.topic]
        paths = [queue.path(base) for base in queue.bases]
        queue.delete_files()
        return paths

    def deleted_paths(self) -> list[str]:
        """Return the files of deleted topics with entries that no flush has covered, until `forget_deleted_paths`.

        A power cut can bring a deleted file back. Once the checkpoint covers the entries in it, the file must be whole,
        or its deletion durable.
        """
        return list(self._deleted_paths)

    def note_changed_paths(self, paths: list[str]) -> None:
        """Have the next checkpoint flush files with erased entries, and deletions, like those of deleted topics."""
        self._deleted_paths += paths

    def forget_deleted_paths(self, count: int) -> None:
        """Forget the first ``count`` deleted paths, which have been flushed."""
        del self._deleted_paths[:count]

    def delete_before(self, physical_offset: int) -> Iterator[None]:
        """Remove the files and hide the entries of messages before a physical offset, in slices.

        Other tasks may run at each yield; `MessageStore` looks after a queue itself before it reads from it.
        """
        slice_cost = 0
        for queue in self.queues():
            if queue.expired_before < physical_offset:
                queue.delete_before(physical_offset)
                slice_cost += CHECKED_PER_EXPIRY
            slice_cost += 1
            if slice_cost >= CHECKED_PER_SLICE:
                slice_cost = 0
                yield

    def close(self) -> None:
        """Close all mapped files."""
        self._pool.close()


def _note_only(note_deletion: Callable[[], None]) -> Generator[None, None, None]:
    note_deletion()
    yield
