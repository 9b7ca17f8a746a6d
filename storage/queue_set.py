"""All consume queues of one store: creates them, finds them and removes their files."""

import logging

from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue, QueueFilePool
from storage.errors import MessageIllegal
from storage.files import Files
from storage.layout import QUEUE_ENTRY_BYTES

log = logging.getLogger(__name__)


class QueueSet:
    """The consume queues of a store by topic and queue id, which share one pool of mapped files.

    ``by_key`` is public because every append looks its queue up there. Recovery creates queues with files; after it,
    ``creates_young`` is set, and new queues get their files later.
    """

    def __init__(self, config: StoreConfig, files: Files) -> None:
        self._config = config
        self._files = files
        self._pool = QueueFilePool(files, config.max_open_queue_files)
        self._file_entries = config.consume_queue_file_entries
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        self._ids: dict[str, set[int]] = {}
        self.creates_young = False

    def use_file_bytes(self, file_bytes: int) -> None:
        """Create queues with files of this size, which those on the disk have, whatever the settings say."""
        self._file_entries = file_bytes // QUEUE_ENTRY_BYTES

    def create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Add a queue, whose first file is created with its first entry. Raises MessageIllegal."""
        if not topic or "/" in topic or "\0" in topic or topic in (".", "..") or len(topic.encode()) > 255:
            raise MessageIllegal(f"the topic name cannot be used as a folder name: {topic[:64]!r}")
        if not 0 <= queue_id <= 0x7FFFFFFF:
            raise MessageIllegal(f"queue id {queue_id} is out of range")
        directory = f"{self._config.consume_queue_path}/{topic}/{queue_id}"
        queue = ConsumeQueue(
            topic, queue_id, directory, self._file_entries,
            self._config.reserve_queue_bytes, self._pool, self._files, is_young=self.creates_young,
        )  # fmt: skip
        self.by_key[topic, queue_id] = queue
        self._ids.setdefault(topic, set()).add(queue_id)
        return queue

    def queues(self) -> list[ConsumeQueue]:
        """Return all queues, as a copy that another thread may iterate over."""
        return list(self.by_key.values())

    def topics(self) -> set[str]:
        """Return the topics that have at least one queue."""
        return set(self._ids)

    def delete_topic(self, topic: str) -> int:
        """Remove all queues of a topic with their files; return how many there were."""
        ids = self._ids.pop(topic, set())
        for queue_id in ids:
            self.by_key.pop((topic, queue_id)).delete_files()
        if ids:
            self._files.delete_tree(f"{self._config.consume_queue_path}/{topic}")
            log.info("topic deleted", extra={"topic": topic})
        return len(ids)

    def delete_before(self, physical_offset: int) -> None:
        """Remove the files and hide the entries of messages before a physical offset."""
        for queue in self.queues():
            queue.delete_before(physical_offset)

    def close(self) -> None:
        """Close all mapped files."""
        self._pool.close()
