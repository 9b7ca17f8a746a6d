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
2. `ReplicaLog.dispatch` appends the queue entries of what was copied, at most so many at a time: `log_dispatch`. A
   message is readable from then on.

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
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6
from storage.commit_log import NO_LIMIT, CommitLog
from storage.damage import find_next_message
from storage.errors import StoreError
from storage.layout import BLANK_BYTES, INT, PHYSICAL_OFFSET_AT, START
from storage.log_dispatch import LogDispatch
from storage.store import MessageStore

log = logging.getLogger(__name__)

MAX_TAIL_BYTES: Final = 64 << 20
"""Longest message that a slave takes, whatever its own ``maxMessageSize`` says."""
COMPARED_BYTES: Final = 1 << 20
"""Bytes of the log's end that `ReplicaLog.comparison` compares unless told otherwise."""
MESSAGES_PER_TURN: Final = 2000
"""Messages that a comparison looks at before other tasks have their turn: less than a millisecond."""

_START_BYTES: Final = PHYSICAL_OFFSET_AT + 8
# Size, magic and physical offset, which are in the first 36 bytes of a message.
_START: Final = Struct(">II20xq")
# Size, magic, CRC, physical offset, sys flag and body bytes of a message with IPv4 hosts.
_CHECKED_HEAD: Final = Struct(">III16xqi44xi")
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_MORE_BYTES_OF_V6: Final = 12
_BODY_AT: Final = 88


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
        self._dispatch = LogDispatch(store)
        self._max_bytes = min(max(MAX_TAIL_BYTES, store.config.max_message_bytes), self._log.file_bytes)
        self._tail = bytearray()

    @property
    def end(self) -> int:
        """The physical offset of the next byte that the master must send."""
        return self._log.max_offset + len(self._tail)

    def drop_tail(self) -> None:
        """Forget the unfinished message at the end, because the next connection begins before it."""
        self._tail.clear()

    def begin_at(self, physical_offset: int) -> None:
        """Let an empty log begin at the start of a file, durably; blocks. Raises StoreError, StoreFull, FlushFailed."""
        self._tail.clear()
        self._store.begin_log_at(physical_offset)

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
        self._dispatch.begin()
        try:
            if self._tail:
                position = self._finish_tail(data)
            while position < size and not self._tail:
                position = self._copy_messages(data, position)
        except BaseException:
            self._tail.clear()
            raise
        finally:
            self._log.queued_until = self._log.max_offset
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

    @property
    def undispatched_bytes(self) -> int:
        """Bytes of the log whose messages have no queue entries yet."""
        return self._dispatch.undispatched_bytes

    def dispatch(self, limit: int, end: int = NO_LIMIT) -> list[tuple[str, int]]:
        """Append the queue entries of at most ``limit`` more messages, up to a physical offset; see `LogDispatch`."""
        return self._dispatch.dispatch(limit, end)

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
