"""The file that says where in the log, and when, topics were deleted: their messages stay deleted after a crash.

The messages of a deleted topic stay in the commit log until they expire, and a power cut may bring back queue files
that were just deleted. Recovery would take both for messages of a topic of that name. So the file is written durably
before the queues of a topic are deleted, which makes the deletion happen at once: what a crash leaves of the topic is
all or nothing. An official broker ignores the file, and brings such messages back.

A message belongs to the deleted topic if it lies before the end of the log at that time and was not stored later. The
time counts where the log lost that end to a power cut, and an official broker went on from there: it is taken with a
margin, since clocks are set back by a little, and a machine takes longer to start.
"""

import logging
import threading
from typing import Final

from codec import fastjson
from codec.errors import JsonError
from codec.java_numbers import read_json_integer
from storage.commit_log import CommitLog
from storage.consume_queue import ConsumeQueue
from storage.errors import StoreFull
from storage.files import Files
from storage.log_scan import ScannedMessage, check_message_at
from storage.queue_ends import delete_queue_ends

log = logging.getLogger(__name__)

FILE_NAME: Final = "deletedtopics.json"
CLOCK_MARGIN_MS: Final = 3000
Deletion = tuple[int, int]
"""The end of the log when a topic was deleted, as a physical offset, and the time, in ms."""


class DeletedTopics:
    """The last deletion of each topic of which the log may still have messages. Read from its file when built."""

    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._root = root
        self._path = f"{root}/{FILE_NAME}"
        self._lock = threading.Lock()
        self._deletions = self._read()

    def add(self, topic: str, log_end: int, time_ms: int) -> None:
        """Note durably that a topic is deleted. Raises OSError, and then it is not deleted. Thread safe.

        The ends of queues are forgotten first; as they are in the same folder, the note makes that durable, too. On a
        full disk the deletion goes on without a note, because it may be what makes room.
        """
        with self._lock:
            delete_queue_ends(self._files, self._root)
            deletions = {**self._deletions, topic.encode(): (log_end, time_ms)}
            try:
                self._write(deletions)
            except StoreFull as error:
                data = {"topic": topic, "reason": str(error)}
                log.warning("deletion not noted, a crash may bring messages of the topic back", extra=data)
            self._deletions = deletions

    def has_message(self, message: ScannedMessage) -> bool:
        """Tell whether a stored message is of a deleted topic, not of a later one of the same name."""
        return self._has(message.topic, message.physical_offset, message.store_timestamp)

    def has_queue(self, queue: ConsumeQueue, commit_log: CommitLog) -> bool:
        """Tell whether a crash has left the files of a queue of a deleted topic, as its first entry shows."""
        topic = queue.topic.encode()
        place = queue.first_place() if topic in self._deletions else None
        # Holes that stand for messages of before the queue point to the last byte of the log.
        if place is None or place >= self._deletions[topic][0] - 1:
            return False
        message = check_message_at(commit_log, place) if place >= commit_log.first_base else None
        return self._has(topic, place, message.store_timestamp if isinstance(message, ScannedMessage) else 0)

    def _has(self, topic: bytes, physical_offset: int, store_timestamp: int) -> bool:
        deletion = self._deletions.get(topic)
        if deletion is None or physical_offset >= deletion[0]:
            return False
        return store_timestamp <= deletion[1] + CLOCK_MARGIN_MS

    def settle(self, log_start: int, log_end: int) -> None:
        """Forget the deletions whose messages have all expired, and limit the others to what is left of the log.

        Called after recovery: what the log lost to a power cut will be written again, with other messages.
        """
        left = {
            topic: (min(end, log_end), time_ms)
            for topic, (end, time_ms) in self._deletions.items()
            if min(end, log_end) > log_start
        }
        if left != self._deletions:
            self._write(left)
            self._deletions = left

    def _write(self, deletions: dict[bytes, Deletion]) -> None:
        topics = {topic.decode(): deletion for topic, deletion in deletions.items()}
        self._files.write_small(self._path, fastjson.dumps(topics))

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
