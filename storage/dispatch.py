"""Queue entries from the messages of the log: the one path that recovery and a replica share.

An append writes a message and its queue entry together (`storage.append`). Recovery and a replica find messages in the
log that have no entry yet, because a crash lost it or because a master sent the bytes. `EntryDispatch` derives the
entry from the message alone, so that a replica's queues equal those of its master, and those that recovery would build.

A message of the log gets the queue offset that it names. Four cases are special:

- half and rolled back messages, and messages of deleted topics, get no entry;
- a message whose offset is ahead of the queue's end shows that entries are missing: `EntryDispatch.append_entry`
  reports it, or bridges the gap;
- a message whose offset is below the queue's end belongs to a topic that was deleted and created again: the queue
  begins anew with it;
- a message whose topic or queue id no queue can have (only another broker could have stored it) is left out.
"""

import logging

from codec.message import MIN_MESSAGE_BYTES
from codec.topics import SCHEDULE_TOPIC
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue
from storage.delay_levels import DelayLevels
from storage.deleted_topics import DeletedTopics
from storage.errors import MessageIllegal
from storage.log_scan import ScannedMessage
from storage.queue_set import QueueSet
from storage.tags import tags_code_of

log = logging.getLogger(__name__)

_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()

QueueKey = tuple[bytes, int]
"""Encoded topic and queue id, as a message holds them."""


class EntryDispatch:
    """Appends the queue entries of messages that are in the log already.

    ``queues`` are those of the store by encoded topic. ``restarted_queues`` began anew because their topic was deleted
    and created again. ``changed_paths`` are queue files with erased entries, and deleted ones, which have to be flushed
    before the checkpoint covers their entries. ``lost_bytes`` are the bytes of the log that damage has taken: an upper
    limit of the messages that queues can lack.
    """

    def __init__(self, config: StoreConfig, queue_set: QueueSet, deleted_topics: DeletedTopics) -> None:
        self.queues: dict[QueueKey, ConsumeQueue] = {}
        self.restarted_queues: set[ConsumeQueue] = set()
        self.changed_paths: list[str] = []
        self.lost_bytes = 0
        self._queue_set = queue_set
        self._deleted_topics = deleted_topics
        self._delays = DelayLevels(config.delay_levels)

    def append_entry(self, message: ScannedMessage, from_beginning: bool) -> bool:
        """Append the queue entry of a message; return False when entries before it are missing.

        With ``from_beginning`` the whole log was read, so what is missing is not in the log: the queue then
        continues after a gap, and the result is True. Raises StoreFull.
        """
        if not self.needs_entry(message):
            return True
        queue = self.find_queue(message)
        if queue is None:
            return True
        if message.queue_offset > queue.next_offset:
            if not from_beginning:
                return False
            self._bridge_gap(queue, message)
        elif message.queue_offset < queue.next_offset:
            self._restart_queue(queue, message.queue_offset)
        queue.append_entry(message.physical_offset, message.size, self.tags_code(message))
        return True

    def needs_entry(self, message: ScannedMessage) -> bool:
        """Return False for a half or rolled back message, and for one of a deleted topic."""
        return message.has_queue_entry and not self._deleted_topics.has_message(message)

    def has_plain_entries(self, message: ScannedMessage) -> bool:
        """Return True if this message and later ones of its queue need entries that hold their tags code."""
        topic = message.topic
        return topic != _SCHEDULE_TOPIC and not self._deleted_topics.may_concern(
            topic, message.physical_offset
        )

    def find_queue(self, message: ScannedMessage) -> ConsumeQueue | None:
        """Return the queue of a message, created if it is missing; None if no queue can be the message's."""
        key = (message.topic, message.queue_id)
        queue = self.queues.get(key)
        if queue is None:
            try:
                if message.queue_offset < 0:
                    raise MessageIllegal(f"queue offset {message.queue_offset} is out of range")
                topic = message.topic.decode()
                queue = self._queue_set.by_key.get((topic, message.queue_id)) or self._queue_set.create(
                    topic, message.queue_id
                )
            except (MessageIllegal, UnicodeDecodeError) as error:
                extra = {"physical_offset": message.physical_offset, "reason": str(error)}
                log.warning("message gets no queue entry", extra=extra)
                return None
            self.queues[key] = queue
        return queue

    def take_changed_paths(self) -> list[str]:
        """Return the files that have changed since the last call."""
        paths, self.changed_paths = self.changed_paths, []
        return paths

    def _restart_queue(self, queue: ConsumeQueue, offset: int) -> None:
        """Let a queue begin anew: its topic was deleted and created again, and the new messages replace the old."""
        self.restarted_queues.add(queue)
        queue.erase_from(offset, all_of_file=True)
        self.changed_paths += queue.truncate_at(offset)

    def _bridge_gap(self, queue: ConsumeQueue, message: ScannedMessage) -> None:
        """Let a queue continue with a message although entries before it are missing."""
        missing = message.queue_offset - queue.next_offset
        # The damaged bytes of the log can have held that many messages: holes keep their offsets.
        if queue.bases and missing <= self.lost_bytes // MIN_MESSAGE_BYTES:
            queue.append_holes(missing, message.physical_offset - 1)
            return
        if queue.next_offset > queue.min_offset:
            # An offset-preserving append with ``reset`` began the queue anew, after what the source had dropped.
            data = {"queue": queue.directory, "end": queue.next_offset, "begin": message.queue_offset}
            log.warning("queue continues after a gap, earlier messages left out", extra=data)
        queue.restart_at(message.queue_offset)

    def tags_code(self, message: ScannedMessage) -> int:
        """Return what the entry of a message holds for filtering: its tags code, or its delivery time."""
        deliver_ms = self._delays.scheduled_deliver_ms(
            message.topic, message.properties, message.store_timestamp
        )
        return tags_code_of(message.properties) if deliver_ms is None else deliver_ms
