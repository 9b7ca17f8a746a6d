"""The log of a slave: a master's bytes, appended as they are, and the queue entries that follow from them.

Theory of operation
-------------------
A slave's commit log is a prefix of its master's, byte for byte, so a message has one physical offset and one queue
offset at both. The master sends pieces of at most some 32 KiB, cut anywhere in a message. Copying and dispatching are
separate steps, so that the slave can acknowledge what it has copied before it has built any queue entry:

1. `ReplicaLog.receive` hops from message to message over their size fields, which checks that each names its own
   physical offset and that its body matches its CRC, and copies all whole messages of the piece at once. As in
   `commit_log`, the first eight bytes are stored last: a process killed in between leaves a size of zero, which ends
   the log. The unfinished message at the end of the piece stays in memory (*tail*) until its rest comes. A blank marker
   is copied with all that follows it in its file, and the log continues in the next file.
2. `ReplicaLog.dispatch` reads from `CommitLog.queued_until` on and appends queue entries, at most so many at a time.
   A message is readable from then on. `CommitLog.queued_until` stays the confirm offset of a checkpoint, whereas
   `CommitLog.flush` makes all received bytes durable.

Every length comes from the network. Nothing is read or written by a size before the size was checked, and the tail is
bounded by `MAX_TAIL_BYTES`.

After a crash `storage.recovery` finds the end of the log as it does for a master, and derives the entries that are
missing. A new connection begins at the end of the last whole message: call `ReplicaLog.drop_tail` then.

**Divergence.** A former master may have messages that its new master never got. So before anything is appended,
`ReplicaLog.comparison` compares the last messages of the log with the master's bytes. `Diverged` names the first one
that differs; the caller closes the store and cuts it there (`storage.cut`).
"""

import logging
from collections.abc import Generator, Iterator
from struct import Struct
from typing import Final
from zlib import crc32

from codec.constants import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from codec.message import MIN_MESSAGE_BYTES
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED
from storage.commit_log import CommitLog, store_timestamp_of
from storage.consume_queue import ConsumeQueue
from storage.damage import find_next_message
from storage.errors import StoreError
from storage.layout import BLANK_BYTES, INT, PHYSICAL_OFFSET_AT, QUEUE_ENTRY, QUEUE_ENTRY_BYTES, START
from storage.log_scan import ScannedMessage, check_message
from storage.store import MessageStore
from storage.tags import TAGS, tags_code_of

log = logging.getLogger(__name__)

MAX_TAIL_BYTES: Final = 64 << 20
"""Longest message that a slave takes, whatever its own ``maxMessageSize`` says."""
COMPARED_BYTES: Final = 1 << 20
"""Bytes of the log's end that `ReplicaLog.comparison` compares unless told otherwise."""
MESSAGES_PER_TURN: Final = 2000
"""Messages that a comparison looks at before other tasks have their turn: less than a millisecond."""
MAX_BRIDGED_HOLES: Final = 1 << 20
"""Most missing messages of a queue for which holes are appended. After a longer gap the queue begins anew."""

_START_BYTES: Final = PHYSICAL_OFFSET_AT + 8
# Size, magic and physical offset, which are in the first 36 bytes of a message.
_START: Final = Struct(">II20xq")
# Size, magic, CRC, physical offset, sys flag and body bytes of a message with IPv4 hosts.
_CHECKED_HEAD: Final = Struct(">III16xqi44xi")
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_MORE_BYTES_OF_V6: Final = 12
# Size, magic, queue id, queue offset, physical offset, sys flag and body bytes of a message with IPv4 hosts.
_HEAD: Final = Struct(">II4xi4xqqi44xi")
_BODY_AT: Final = 88
# A message with one of these flags takes the general path: other layouts, and half and rolled back messages, which have
# no queue entry. Both have this bit of the transaction type; a committed message has not.
_UNUSUAL: Final = BORN_HOST_V6 | STORE_HOST_V6 | TRANSACTION_PREPARED


class ReplicaGap(StoreError):
    """A master's bytes begin at another physical offset than ``expected``, the one that a slave wants next."""

    def __init__(self, expected: int, offset: int) -> None:
        super().__init__(f"the master's bytes begin at {offset}, this log expects {expected}")
        self.expected = expected
        self.offset = offset


class BadReplicaData(StoreError):
    """A master's bytes are not a message where one must begin; nothing of that message was stored."""

    def __init__(self, physical_offset: int, reason: str) -> None:
        super().__init__(f"the master's bytes at {physical_offset} are not a message: {reason}")
        self.physical_offset = physical_offset
        self.reason = reason


class DamagedMessage(BadReplicaData):
    """A master's bytes are a message whose body does not match its CRC."""


class Diverged(StoreError):
    """This log has other bytes than the master's, from the message at ``physical_offset`` on."""

    def __init__(self, physical_offset: int) -> None:
        super().__init__(f"this log differs from the master's from the message at {physical_offset} on")
        self.physical_offset = physical_offset


class ReplicaLog:
    """Appends a master's bytes to the log of an open store, and builds the queue entries.

    One thread calls it: the one that appends at a master. With ``check_crc`` the bodies of messages are checked;
    ``accepted_damage`` is the physical offset of a message that is appended all the same, -1 for none.
    """

    def __init__(self, store: MessageStore, *, check_crc: bool = True) -> None:
        self.check_crc = check_crc
        self.accepted_damage = -1
        self._store = store
        self._log = store.commit_log
        self._dispatch = store.entry_dispatch()
        self._max_bytes = min(max(MAX_TAIL_BYTES, store.config.max_message_bytes), self._log.file_bytes)
        self._tail = bytearray()
        # Queues of which a message needs no other check than its offset, by encoded topic and queue id.
        self._plain_queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._removals_seen = -1
        self._log.received_until = self._log.max_offset

    @property
    def end(self) -> int:
        """The physical offset of the next byte that the master must send."""
        return self._log.max_offset + len(self._tail)

    @property
    def undispatched_bytes(self) -> int:
        """Bytes of the log whose messages have no queue entries yet."""
        return self._log.max_offset - self._log.queued_until

    def drop_tail(self) -> None:
        """Forget the unfinished message at the end, because the next connection begins before it."""
        self._tail.clear()

    def begin_at(self, physical_offset: int) -> None:
        """Let an empty log begin at the start of a file, durably; blocks. Raises StoreError, StoreFull, FlushFailed."""
        self._tail.clear()
        self._store.begin_log_at(physical_offset)
        self._log.received_until = physical_offset

    # -- receiving --

    def receive(self, offset: int, data: memoryview) -> int:
        """Append the master's bytes from a physical offset on; return the end of the whole messages in the log.

        That end may be acknowledged. Raises ReplicaGap for another offset than `end`, BadReplicaData where a message
        must begin and does not, DamagedMessage for one whose body is damaged; the messages before it are stored then.
        Raises StoreFull if the disk has no room. After an error the master has to send again from the end of the log
        on.
        """
        if offset != self.end:
            raise ReplicaGap(self.end, offset)
        position, size = 0, len(data)
        try:
            if self._tail:
                position = self._finish_tail(data)
            while position < size and not self._tail:
                position = self._copy_messages(data, position)
        except BaseException:
            self._tail.clear()
            raise
        finally:
            self._log.received_until = self._log.max_offset
        return self._log.max_offset

    def _finish_tail(self, data: memoryview) -> int:
        """Move bytes to the unfinished message of an earlier piece, append it once it is whole; return their number."""
        tail, taken = self._tail, 0
        while len(tail) < (needed := self._needed_bytes(tail, 0, self._log.max_offset)):
            more = data[taken : taken + needed - len(tail)]
            if not more:
                return taken
            tail += more
            taken += len(more)
        self._tail = bytearray()
        self._copy_messages(memoryview(tail), 0)
        return taken

    def _needed_bytes(self, view: memoryview | bytearray, position: int, physical_offset: int) -> int:
        """Return the size of the message that begins here, or a size to know it by. Raises BadReplicaData."""
        size: int
        available = len(view) - position
        if available < BLANK_BYTES:
            return BLANK_BYTES
        size, magic = START.unpack_from(view, position)
        room = self._log.file_bytes - (physical_offset - self._log.base)
        if magic == MAGIC_BLANK:
            if size != room or size > self._max_bytes:
                raise BadReplicaData(
                    physical_offset, f"a blank marker of {size} bytes where {room} are left in the file"
                )
            return size
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise BadReplicaData(physical_offset, f"magic number {magic:#010x}")
        if not MIN_MESSAGE_BYTES <= size <= min(self._max_bytes, room - BLANK_BYTES):
            raise BadReplicaData(
                physical_offset, f"a message of {size} bytes where {room} are left in the file"
            )
        if available < _START_BYTES:
            return _START_BYTES
        own_offset = _START.unpack_from(view, position)[2]
        if own_offset != physical_offset:
            raise BadReplicaData(physical_offset, f"the message belongs at physical offset {own_offset}")
        return size

    def _copy_messages(self, data: memoryview, start: int) -> int:
        """Copy the whole messages of a piece, up to the end of the log file; return where the copied bytes end.

        What is left of an unfinished message becomes the tail.
        """
        log, end = self._log, len(data)
        base, position, unpack = log.base + log.position - start, start, _CHECKED_HEAD.unpack_from
        # The most bytes of messages that fit before the end of the file.
        file_end = start + log.file_bytes - log.position - BLANK_BYTES
        max_bytes, last_start = self._max_bytes, end - _CHECKED_HEAD.size
        checks, is_damaged, needed = self.check_crc, False, 0
        try:
            while position <= last_start:
                size, magic, body_crc, own_offset, sys_flag, body_bytes = unpack(data, position)
                following = position + size
                if (
                    own_offset != base + position
                    or (magic != MAGIC_V1 and magic != MAGIC_V2)
                    or not MIN_MESSAGE_BYTES <= size <= max_bytes
                    or following > file_end
                    or following > end
                ):
                    break
                if checks:
                    body = position + _BODY_AT
                    if sys_flag & _HOSTS_V6:
                        body, body_bytes = _find_long_body(data, position, sys_flag)
                    if body_bytes and not (
                        0 < body_bytes < size
                        and crc32(data[body : body + body_bytes]) & 0x7FFFFFFF == body_crc
                    ):
                        is_damaged = own_offset != self.accepted_damage
                        if is_damaged:
                            break
                position = following
            if is_damaged:
                raise DamagedMessage(base + position, "the body does not match its CRC")
            if position < end:
                needed = self._needed_bytes(data, position, base + position)
        finally:
            if position > start:
                self._write(data[start:position])
        if position == end:
            return position
        if needed > end - position:
            self._tail += data[position:]
            return end
        # Only a blank marker is left over here: the loop takes all other messages that are whole.
        self._end_file(data[position : position + needed])
        return position + needed

    def _write(self, messages: memoryview) -> None:
        """Append whole messages, the first size and magic last."""
        log, size = self._log, len(messages)
        if log.position + size > log.limit:
            log.make_room(size)
        position, buffer = log.position, log.buffer
        buffer[position + 8 : position + size] = messages[8:]
        buffer[position : position + 8] = messages[:8]
        log.position = position + size

    def _end_file(self, blank: memoryview) -> None:
        """Append a blank marker with the bytes after it, and continue in the next file."""
        # The bytes after the marker mean nothing and are zeros as a rule, which need no disk space.
        rest = blank[BLANK_BYTES:]
        has_bytes = bytes(rest).count(0) != len(rest)
        self._log.copy_end_of_file(blank if has_bytes else blank[:BLANK_BYTES])

    # -- dispatching --

    def dispatch(self, limit: int) -> list[tuple[str, int]]:
        """Append the queue entries of at most ``limit`` more messages; return the queues that got any.

        `undispatched_bytes` says if there is more. Raises StoreFull when the disk has no room for an entry, or the
        topic is just being deleted: entries before it are written, and the call may be repeated.
        """
        log = self._log
        removals = self._store.queue_removals
        if removals != self._removals_seen:
            self._plain_queues.clear()
            self._dispatch.queues.clear()
            self._removals_seen = removals
        grown: set[ConsumeQueue] = set()
        while limit > 0 and (offset := log.queued_until) < log.max_offset:
            view, base, end = log.file_containing(offset)
            limit -= self._dispatch_common(view, base, offset - base, end - base, limit, grown)
            if limit > 0 and (offset := log.queued_until) < end:
                limit -= self._dispatch_any(view, base, offset - base, grown)
        return [(queue.topic, queue.queue_id) for queue in grown]

    def _dispatch_common(
        self, view: memoryview, base: int, start: int, end: int, limit: int, grown: set[ConsumeQueue]
    ) -> int:
        """Append the entries of consecutive messages of common layout, each the next of its queue; return how many.

        ``start`` and ``end`` are positions in the file that begins at ``base``.
        """
        plain_queues, unpack, pack_into = self._plain_queues, _HEAD.unpack_from, QUEUE_ENTRY.pack_into
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
            self._log.queued_until = base + position
            self._store.replicated_until_ms = store_timestamp_of(view[last:position])
        return count

    def _dispatch_any(self, view: memoryview, base: int, position: int, grown: set[ConsumeQueue]) -> int:
        """Append the entry of one message of any layout, or step over a blank marker; return the messages taken."""
        commit_log = self._log
        message = check_message(view, position, base + position, check_crc=False)
        if isinstance(message, ScannedMessage):
            queue = self._append_entry(message)
            if queue is not None:
                grown.add(queue)
            # Before the confirm offset can cover the entry that took the place of erased ones.
            self._store.flush_queue_files_later(self._dispatch.take_changed_paths())
            commit_log.queued_until = base + position + message.size
            self._store.replicated_until_ms = message.store_timestamp
            return 1
        if message.is_blank_marker:
            commit_log.queued_until = base + commit_log.file_bytes
            return 0
        # `receive` has checked the size, so the place of the next message is known.
        extra = {"physical_offset": base + position, "reason": message.reason}
        log.error("message is damaged, as the master sent it: it gets no queue entry", extra=extra)
        commit_log.queued_until = base + position + START.unpack_from(view, position)[0]
        return 1

    def _append_entry(self, message: ScannedMessage) -> ConsumeQueue | None:
        """Append one entry; return the queue that got it."""
        dispatch = self._dispatch
        queue = dispatch.find_queue(message) if dispatch.needs_entry(message) else None
        if queue is None:
            return None
        missing = message.queue_offset - queue.next_offset
        if missing < 0:
            self._store.forget_queue_ends()
        if missing > 0 and queue.expired_before < self._log.first_base:
            queue.delete_before(self._log.first_base)
        has_messages = queue.next_offset > queue.min_offset
        if 0 < missing <= MAX_BRIDGED_HOLES and has_messages and not self._store.config.start_at_second_file:
            # The master lost them to damage. They are missing in its log, so they never come: holes stand for them. At
            # a mirror's target a queue may begin anew instead, after what the source has dropped.
            queue.append_holes(missing, message.physical_offset - 1)
        dispatch.append_entry(message, from_beginning=True)
        if dispatch.has_plain_entries(message):
            self._plain_queues[message.topic, message.queue_id] = queue
        return queue

    # -- comparing --

    def comparison(self, max_bytes: int = COMPARED_BYTES) -> "LogComparison":
        """Return a comparison of the last messages of the log, up to ``max_bytes`` but at least one, with the master's.

        Nothing may be received until it is done. When even the first message differs, ask for more bytes.
        """
        for comparison in self.comparison_slices(max_bytes):
            if comparison is not None:
                return comparison
        raise AssertionError("the last slice is the comparison")

    def comparison_slices(self, max_bytes: int) -> Iterator["LogComparison | None"]:
        """Yield None wherever other tasks may have their turn, then the `comparison`: it looks at each message."""
        starts = None
        for starts in _message_starts(self._log, max_bytes):
            if starts is None:
                yield None
        yield LogComparison(self._log, starts or [])


class LogComparison:
    """Compares the end of a log with the master's bytes.

    ``start`` is the physical offset from which the master has to send. ``done`` is True when all was compared.
    """

    def __init__(self, commit_log: CommitLog, starts: list[int]) -> None:
        self._log = commit_log
        self._starts = starts
        self.start = self._starts[0] if self._starts else commit_log.max_offset
        self.position = self.start

    @property
    def done(self) -> bool:
        """True when all messages were compared."""
        return self.position >= self._log.max_offset

    @property
    def is_whole_log(self) -> bool:
        """True if there is nothing before ``start``."""
        return self.start <= self._log.first_base

    def compare(self, offset: int, data: memoryview) -> int:
        """Compare the master's bytes from a physical offset on; return the number compared, which end with the log.

        The bytes after them are new, and may be received once the comparison is done. Raises ReplicaGap for another
        offset than ``position``, Diverged where the bytes differ.
        """
        if offset != self.position:
            raise ReplicaGap(self.position, offset)
        size = min(len(data), self._log.max_offset - offset)
        compared = 0
        while compared < size:
            view, base, end = self._log.file_containing(offset + compared)
            at = offset + compared - base
            length = min(size - compared, end - base - at)
            if view[at : at + length] != data[compared : compared + length]:
                self._find_difference(offset + compared, view[at : at + length], data[compared:])
            compared += length
        self.position = offset + compared
        return compared

    def _find_difference(self, offset: int, own: memoryview, data: memoryview) -> None:
        """Raise Diverged for the first message with other bytes. The bytes after a blank marker mean nothing."""
        for at, byte in enumerate(own):
            if byte != data[at]:
                start = self._message_with(offset + at)
                if offset + at < start + BLANK_BYTES or not _is_blank_marker(self._log, start):
                    raise Diverged(start)

    def _message_with(self, offset: int) -> int:
        """Return the start of the message that holds a byte."""
        return max(start for start in self._starts if start <= offset)

    def master_ended(self) -> None:
        """Raise Diverged if the master has no more bytes, although this log has: it is ahead of its master."""
        if not self.done:
            raise Diverged(self._message_with(self.position))


def _message_starts(commit_log: CommitLog, max_bytes: int) -> Iterator[list[int] | None]:
    """Yield the starts of the last messages and blank markers, ascending, that take about ``max_bytes``.

    None is yielded before, wherever other tasks may have their turn.
    """
    end = commit_log.max_offset
    offset = max(commit_log.first_base, end - max_bytes)
    if offset >= end:
        return
    if offset > commit_log.first_base:
        # A message that looks like one within another's body is none: hopping on from it does not lead to the end.
        start = find_next_message(commit_log, offset - 1, end, sectors_lost=False)
        starts = (yield from _hop(commit_log, start, end)) if start is not None else None
        if starts:
            yield starts
            return
    base = commit_log.base_of(end - 1)
    while True:
        starts = yield from _hop(commit_log, base, end)
        if starts is None:
            raise commit_log.corruption_error(
                base, "messages do not lead from its start to the end of the log"
            )
        # A blank marker proves nothing: two logs may have the same one after different messages.
        messages = [start for start in starts if not _is_blank_marker(commit_log, start)]
        if base <= commit_log.first_base or (messages and messages[0] <= offset):
            break
        base -= commit_log.file_bytes
    first = max((start for start in messages if start <= offset), default=starts[0])
    yield [start for start in starts if start >= first]


def _find_long_body(data: memoryview, position: int, sys_flag: int) -> tuple[int, int]:
    """Return position and size of the body of a message with IPv6 hosts."""
    more = _MORE_BYTES_OF_V6 * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
    body = position + _BODY_AT + more
    return body, INT.unpack_from(data, body - INT.size)[0] if body <= len(data) else -1


def _is_blank_marker(commit_log: CommitLog, start: int) -> bool:
    view, base, _ = commit_log.file_containing(start)
    return bool(START.unpack_from(view, start - base)[1] == MAGIC_BLANK)


def _hop(commit_log: CommitLog, offset: int, end: int) -> Generator[None, None, list[int] | None]:
    """Return the starts of all messages from one on; None if they do not lead to the end of the log.

    None is yielded wherever other tasks may have their turn.
    """
    starts: list[int] = []
    while offset < end:
        view, base, file_end = commit_log.file_containing(offset)
        position = offset - base
        while base + position < file_end:
            if position + BLANK_BYTES > len(view):
                return None
            size, magic = START.unpack_from(view, position)
            if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) or size < BLANK_BYTES:
                return None
            starts.append(base + position)
            position += size
            if len(starts) % MESSAGES_PER_TURN == 0:
                yield None
        if base + position > file_end:
            return None
        offset = base + position
    return starts
