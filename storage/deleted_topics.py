"""The file of deleted topics, which keeps their messages deleted after a crash.

The messages of a deleted topic stay in the commit log until they expire, and a power cut may bring back queue files
that were just deleted. Recovery would take both for messages of a topic of that name. So the file is written durably
before the queues of a topic are deleted, which makes the deletion happen at once: what a crash leaves of the topic is
all or nothing. An official broker ignores the file, and brings such messages back.

For each topic the file holds the end of the log at the deletion, and the time. A message belongs to the deleted topic
if it lies before that end and was not stored after that time. The time decides where a power cut took the end of the
log, and an official broker went on from there. It is compared with a margin: clocks are set back by a little, and a
machine takes longer than that to start.

The broker stores its table of topics before it deletes the messages. A second file names the topics for which this is
about to happen, so that the broker, when it starts after a kill between the two, can finish the deletion.

The newest deletions stay in the file after their messages have expired, for slaves: one may have copied the log up to
there and not yet have heard of the deletion, and the messages of its queues may expire later than the master's.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from codec import fastjson
from codec.errors import JsonError
from codec.java_numbers import read_json_integer
from storage.commit_log import CommitLog
from storage.consume_queue import ConsumeQueue
from storage.files import Files
from storage.log_scan import ScannedMessage, check_message_at
from storage.queue_ends import delete_queue_ends

log = logging.getLogger(__name__)

FILE_NAME: Final = "deletedtopics.json"
ANNOUNCED_FILE_NAME: Final = "topicsbeingdeleted.json"
CLOCK_MARGIN_MS: Final = 3000
MAX_EXPIRED_DELETIONS: Final = 100
"""Maximum number of remembered deletions whose messages have expired. A slave compares them with its queues at each
copy of the tables."""
Deletion = tuple[int, int]
"""The end of the log when a topic was deleted, as a physical offset, and the time, in ms."""


class DeletedTopics:
    """The last deletion of each topic of which a log may still have messages. Read from its file when built."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = root
        self._path = f"{root}/{FILE_NAME}"
        # Of the two files of deletions, which are written durably.
        self._lock = threading.Lock()
        # Of the file of queue ends, for moments only: the event loop must not wait for the disk.
        self._ends_lock = threading.Lock()
        self.deletions_begun = 0
        # Number of deletions that are under way: queues that are about to go are still listed.
        self._unfinished = 0
        self._deletions = self._read()
        self._announced_path = f"{root}/{ANNOUNCED_FILE_NAME}"
        self.announced = self._read_announced()

    def announce(self, topics: Iterable[str]) -> None:
        """Record durably that topics are about to be deleted. Raises StoreFull, OSError. Thread safe."""
        with self._lock:
            announced = self.announced.union(topics)
            self._files.write_small(self._announced_path, fastjson.dumps(sorted(announced)))
            self.announced = announced

    def forget_announced(self) -> None:
        """Forget all announcements, after those of a killed process were carried out. Raises StoreFull, OSError."""
        if self.announced:
            self._files.write_small(self._announced_path, fastjson.dumps([]))
            self.announced = frozenset()

    def add(self, topic: str, log_start: int, log_end: int, time_ms: int) -> None:
        """Record durably that a topic is deleted. Raises StoreFull, OSError; then it is not deleted. Thread safe.

        Of deletions whose messages have all expired the oldest are forgotten, so that the file does not grow.
        The file of queue ends is deleted first; it is in the same folder, so writing this file makes that durable as
        well.
        """
        self.add_all({topic: (log_end, time_ms)}, log_start)

    def add_all(self, added: Mapping[str, Deletion], log_start: int) -> None:
        """Record as `add` does that several topics are deleted: all of them, or none."""
        with self._lock:
            self.forget_queue_ends()
            deletions = _drop_oldest_expired(self._deletions, log_start)
            deletions |= {topic.encode(): deletion for topic, deletion in added.items()}
            self._write(deletions)
            self._deletions = deletions
            # The file of announcements follows at the next one. Until then it names topics without messages.
            self.announced -= added.keys()

    def run_unless_deleted_since(self, deletions_begun: int, write_ends: Callable[[], None]) -> None:
        """Write the file of queue ends, unless a topic was deleted since its content was read. Thread safe.

        ``write_ends`` must not wait for the disk.
        """
        with self._ends_lock:
            if self.deletions_begun == deletions_begun and not self._unfinished:
                write_ends()

    @contextmanager
    def hold_queue_ends(self) -> Iterator[None]:
        """Have no file of queue ends written until queues that are to go are gone. Thread safe.

        A crash would otherwise let a later topic of the name continue at the end of the deleted one.
        """
        with self._ends_lock:
            self._unfinished += 1
        try:
            yield
        finally:
            with self._ends_lock:
                self._unfinished -= 1
                # Whoever read the ends meanwhile must not write them later.
                self.deletions_begun += 1

    def has_message(self, message: ScannedMessage) -> bool:
        """Return True for a message of a deleted topic, False for one of a later topic of the same name."""
        return self.has(message.topic, message.physical_offset, message.store_timestamp)

    def may_concern(self, topic: bytes, physical_offset: int) -> bool:
        """Return False if no message of a topic from a physical offset on can belong to a deleted topic."""
        deletion = self._deletions.get(topic)
        return deletion is not None and physical_offset < deletion[0]

    def deletion_of(self, topic: str) -> Deletion | None:
        """Return the last deletion of a topic; None when none was, or it is forgotten."""
        return self._deletions.get(topic.encode())

    def notes(self) -> dict[str, Deletion]:
        """Return all deletions."""
        return {topic.decode(): deletion for topic, deletion in self._deletions.items()}

    def time_ms(self, topic: str) -> int | None:
        """Return the wall time (ms) of the last deletion of a topic; None when none was, or it is forgotten."""
        deletion = self._deletions.get(topic.encode())
        return None if deletion is None else deletion[1]

    def has_queue(self, queue: ConsumeQueue, commit_log: CommitLog) -> bool:
        """Return True if a queue's files belong to a deleted topic and were left by a crash; its first entry tells."""
        topic = queue.topic.encode()
        if topic not in self._deletions:
            return False
        physical_offset = queue.first_physical_offset()
        if physical_offset is None:
            # Of messages that had expired: the log has those of a later topic, unless these have expired as well.
            return self._deletions[topic][0] > commit_log.first_base
        # Holes that stand for messages of before the queue point to the last byte of the log.
        if physical_offset >= self._deletions[topic][0] - 1:
            return False
        message = (
            check_message_at(commit_log, physical_offset)
            if physical_offset >= commit_log.first_base
            else None
        )
        return self.has(
            topic, physical_offset, message.store_timestamp if isinstance(message, ScannedMessage) else 0
        )

    def has(self, topic: bytes, physical_offset: int, store_timestamp: int) -> bool:
        """Return True if what is stored at a physical offset, for a topic, was stored before the topic's deletion."""
        deletion = self._deletions.get(topic)
        if deletion is None or physical_offset >= deletion[0]:
            return False
        return store_timestamp <= deletion[1] + CLOCK_MARGIN_MS

    def forget_queue_ends(self) -> None:
        """Delete the file of queue ends, because a queue begins anew at a lower offset. Thread safe.

        Never waits for the disk, not even while another thread writes a deletion.
        """
        with self._ends_lock:
            self.deletions_begun += 1
            delete_queue_ends(self._files, self._root)

    def topics_deleted_after(self, log_end: int) -> list[str]:
        """Return the topics that were deleted when the log was longer than this."""
        return [topic.decode() for topic, deletion in self._deletions.items() if deletion[0] > log_end]

    def forget_after(self, log_end: int) -> None:
        """Forget, durably, the deletions of when the log was longer than this, because it was cut.

        Raises StoreFull, OSError.
        """
        with self._lock:
            remaining = {
                topic: deletion for topic, deletion in self._deletions.items() if deletion[0] <= log_end
            }
            if remaining != self._deletions:
                with self._ends_lock:
                    self.deletions_begun += 1
                self._write(remaining)
                self._deletions = remaining

    def settle(self, log_start: int, log_end: int | None) -> None:
        """Forget old deletions, and limit the others to the present end of the log.

        Called after recovery: what the log lost to a power cut will be written again, with other messages. Not so at a
        slave, which gets the same messages: there ``log_end`` is None, and nothing is limited.
        """
        limited = {
            topic: (end if log_end is None else min(end, log_end), time_ms)
            for topic, (end, time_ms) in self._deletions.items()
        }
        remaining = _drop_oldest_expired(limited, log_start)
        if remaining != self._deletions:
            self._write(remaining)
            self._deletions = remaining

    def _write(self, deletions: dict[bytes, Deletion]) -> None:
        topics = {topic.decode(): deletion for topic, deletion in deletions.items()}
        self._files.write_small(self._path, fastjson.dumps(topics))

    def _read_announced(self) -> frozenset[str]:
        data = self._files.read_small(self._announced_path)
        try:
            return frozenset(map(str, fastjson.loads(data, fastjson.MAX_TRUSTED_VALUES) if data else ()))
        except (JsonError, ValueError, TypeError) as error:
            reason = {"path": self._announced_path, "reason": str(error)}
            log.warning("file cannot be read, an interrupted deletion may stay unfinished", extra=reason)
            return frozenset()

    def _read(self) -> dict[bytes, Deletion]:
        data = self._files.read_small(self._path)
        if data is None:
            return {}
        try:
            content = fastjson.loads(data, fastjson.MAX_TRUSTED_VALUES)
            return {
                topic.encode(): (read_json_integer(end), read_json_integer(time_ms))
                for topic, (end, time_ms) in content.items()
            }
        except (JsonError, ValueError, TypeError, AttributeError) as error:
            reason = {"path": self._path, "reason": str(error)}
            log.warning("file cannot be read, messages of deleted topics may come back", extra=reason)
            return {}


def _drop_oldest_expired(deletions: Mapping[bytes, Deletion], log_start: int) -> dict[bytes, Deletion]:
    """Return the deletions without the oldest of those whose messages have all expired."""
    expired_topics = [topic for topic, deletion in deletions.items() if deletion[0] <= log_start]
    # A topic that was deleted again has its earlier place in the table.
    expired_topics.sort(key=lambda topic: deletions[topic])
    dropped_topics = set(expired_topics[:-MAX_EXPIRED_DELETIONS])
    return {topic: deletion for topic, deletion in deletions.items() if topic not in dropped_topics}
