"""Queue entries from the messages of an open log, some at a time: at a replica, and where messages wait for others.

A slave receives its master's log and builds the entries afterwards. A master under a controller appends messages, and
builds their entries once all replicas in sync have them (`storage.confirmed_store`). Both read the log from
`CommitLog.dispatched_until` on, and a message is readable from then on. What a message of the log means for its queue
is the same for them and for recovery: `storage.dispatch`.

`CommitLog.readable_until` is the confirm offset of a checkpoint, whereas `CommitLog.flush` makes all bytes durable.
After a crash recovery derives the entries that are missing.
"""

import logging
from contextlib import nullcontext
from struct import Struct
from typing import Final

from codec.constants import MAGIC_V1
from codec.message import MIN_MESSAGE_BYTES
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED
from storage.commit_log import NO_LIMIT, store_timestamp_of
from storage.consume_queue import ConsumeQueue
from storage.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, START
from storage.log_scan import ScannedMessage, check_message
from storage.store import MessageStore
from storage.tags import TAGS, tags_code_of

log = logging.getLogger(__name__)

MAX_BRIDGED_HOLES: Final = 1 << 20
"""Most missing messages of a queue for which holes are appended. After a longer gap the queue begins anew."""

# Size, magic, queue id, queue offset, physical offset, sys flag and body bytes of a message with IPv4 hosts.
_HEAD: Final = Struct(">II4xi4xqqi44xi")
_BODY_AT: Final = 88
# A message with one of these flags takes the general path: other layouts, and half and rolled back messages, which have
# no queue entry. Both have this bit of the transaction type; a committed message has not.
_UNUSUAL: Final = BORN_HOST_V6 | STORE_HOST_V6 | TRANSACTION_PREPARED


class LogDispatch:
    """Appends the queue entries of messages that an open store has in its log already. One thread calls it.

    The queues that got entries are collected until `take_grown`, also where appending ended with an error: whoever
    waits for their messages has to be told once.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._log = store.commit_log
        self._entries = store.entry_dispatch()
        # Queues of which a message needs no other check than its offset, by encoded topic and queue id.
        self._plain_queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._removals_seen = -1
        self._grown: set[ConsumeQueue] = set()

    def begin(self) -> None:
        """Note that messages come into the log without entries from now on. Idempotent."""
        self._log.dispatched_until = self._log.readable_until

    @property
    def undispatched_bytes(self) -> int:
        """Bytes of the log whose messages have no queue entries yet."""
        return self._log.max_offset - self._log.readable_until

    def dispatch(self, limit: int, end: int = NO_LIMIT) -> list[tuple[str, int]]:
        """Append entries as `append_entries` does; return the queues as `take_grown` does."""
        self.append_entries(limit, end)
        return self.take_grown()

    def take_grown(self) -> list[tuple[str, int]]:
        """Return the queues that have got entries since the last call."""
        grown = [(queue.topic, queue.queue_id) for queue in self._grown]
        self._grown.clear()
        return grown

    def append_entries(self, limit: int, end: int = NO_LIMIT) -> None:
        """Append the queue entries of at most ``limit`` more messages.

        Messages that reach beyond the physical offset ``end`` get none. `undispatched_bytes` says if there is more.
        Raises StoreFull when the disk has no room for an entry, or the topic is just being deleted: entries before it
        are written, and the call may be repeated.
        """
        log = self._log
        removals = self._store.queue_removals
        if removals != self._removals_seen:
            self._plain_queues.clear()
            self._entries.queues.clear()
            self._removals_seen = removals
        end = min(end, log.max_offset)
        while limit > 0 and (offset := log.readable_until) < end:
            view, base, file_end = log.file_containing(offset)
            # A blank marker counts as a message that ends with the file: the next one begins in the next file.
            file_end = min(end, file_end)
            limit -= self._dispatch_common(view, base, offset - base, file_end - base, limit)
            if limit > 0 and (offset := log.dispatched_until) < file_end:
                taken = self._dispatch_any(view, base, offset - base, file_end - base)
                if taken < 0:
                    break
                limit -= taken

    def _dispatch_common(self, view: memoryview, base: int, start: int, end: int, limit: int) -> int:
        """Append the entries of consecutive messages of common layout, each the next of its queue; return how many.

        ``start`` and ``end`` are positions in the file that begins at ``base``.
        """
        plain_queues, grown = self._plain_queues, self._grown
        unpack, pack_into = _HEAD.unpack_from, QUEUE_ENTRY.pack_into
        position, count, last_start, size = start, 0, end - MIN_MESSAGE_BYTES, 0
        while count < limit and position <= last_start:
            size, magic, queue_id, queue_offset, own_offset, sys_flag, body_bytes = unpack(view, position)
            topic_at = position + _BODY_AT + body_bytes
            following = position + size
            if (
                magic != MAGIC_V1
                or sys_flag & _UNUSUAL
                or body_bytes < 0
                or topic_at + 3 > following
                or following > end
            ):
                break
            # One byte of topic length, the topic, two bytes of properties length.
            properties_at = topic_at + 3 + view[topic_at]
            queue = plain_queues.get((bytes(view[topic_at + 1 : properties_at - 2]), queue_id))
            if (
                queue is None
                or queue.next_offset != queue_offset
                or queue.position >= queue.limit
                or properties_at > following
                or properties_at + (view[properties_at - 2] << 8 | view[properties_at - 1]) != following
            ):
                break
            properties = bytes(view[properties_at:following])
            tags_code = tags_code_of(properties) if TAGS in properties else 0
            pack_into(queue.buffer, queue.position, own_offset, size, tags_code)
            queue.position += QUEUE_ENTRY_BYTES
            queue.next_offset = queue_offset + 1
            queue.recently_used = True
            grown.add(queue)
            position = following
            count += 1
            last = following - size
        if count:
            # After the entries: a checkpoint in another thread takes it for its confirm offset.
            self._log.dispatched_until = base + position
            self._store.dispatched_until_ms = store_timestamp_of(view[last:position])
        return count

    def _dispatch_any(self, view: memoryview, base: int, position: int, end: int) -> int:
        """Append the entry of one message of any layout, or step over a blank marker; return the messages taken.

        The result is -1 if the message reaches beyond ``end``.
        """
        commit_log = self._log
        message = check_message(view, position, base + position, check_crc=False)
        if isinstance(message, ScannedMessage):
            if position + message.size > end:
                return -1
            queue = self._append_entry(message)
            if queue is not None:
                self._grown.add(queue)
            # Before the confirm offset can cover the entry that took the place of erased ones.
            self._store.flush_queue_files_later(self._entries.take_changed_paths())
            commit_log.dispatched_until = base + position + message.size
            self._store.dispatched_until_ms = message.store_timestamp
            return 1
        if message.is_blank_marker:
            if end < commit_log.file_bytes:
                return -1
            commit_log.dispatched_until = base + commit_log.file_bytes
            return 0
        # Whoever wrote it has checked the size, so the place of the next message is known.
        following = position + START.unpack_from(view, position)[0]
        if following > end:
            return -1
        extra = {"physical_offset": base + position, "reason": message.reason}
        log.error("message is damaged, as the master sent it: it gets no queue entry", extra=extra)
        commit_log.dispatched_until = base + following
        return 1

    def _append_entry(self, message: ScannedMessage) -> ConsumeQueue | None:
        """Append one entry; return the queue that got it."""
        dispatch = self._entries
        queue = dispatch.find_queue(message) if dispatch.needs_entry(message) else None
        if queue is None:
            return None
        missing = message.queue_offset - queue.next_offset
        if missing > 0 and queue.expired_before < self._log.first_base:
            queue.delete_before(self._log.first_base)
        has_messages = queue.next_offset > queue.min_offset
        if 0 < missing <= MAX_BRIDGED_HOLES and has_messages and not self._store.config.start_at_second_file:
            # The master lost them to damage. They are missing in its log, so they never come: holes stand for them. At
            # a mirror's target a queue may begin anew instead, after what the source has dropped.
            queue.append_holes(missing, message.physical_offset - 1)
        with self._store.forget_queue_ends() if missing < 0 else nullcontext():
            dispatch.append_entry(message, from_beginning=True)
        if dispatch.has_plain_entries(message):
            self._plain_queues[message.topic, message.queue_id] = queue
        return queue
