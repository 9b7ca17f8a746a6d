"""Reads messages of a queue: follows its entries into the commit log, applies filters, and stops at the limits.

`read_queue` tries the common case first, a run of recent messages without a filter (`_read_run`), and falls back to
`_FilteredRead`. In this module ``offsets`` are the physical offsets of messages and ``sizes`` their sizes, both taken
from queue entries. Long polling and the meaning of filters live in `gateway/broker`.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import accumulate
from struct import Struct
from struct import error as StructError
from typing import Protocol

from codec.constants import MAGIC_V1, MAGIC_V2
from storage.commit_log import CommitLog
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue
from storage.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, QUEUE_HOLE_SIZE
from storage.tags import MAX_EXTENSION_ADDRESS, stored_tags_code

TagsPredicate = Callable[[int], bool]
MessagePredicate = Callable[[memoryview], bool]


class BatchPredicate(Protocol):
    """A predicate that is evaluated over many messages at once.

    ``is_fast``: where few messages match, it takes a fraction of the time that testing each message would take.
    ``max_batch_messages`` is the largest number that is evaluated within a few milliseconds.
    """

    is_fast: bool
    max_batch_messages: int

    def select(self, stored: bytes, ends: Sequence[int], max_matches: int, /) -> Sequence[int]:
        """Return the numbers (from 0, ascending) of the first ``max_matches`` messages that match.

        ``stored`` holds the messages end to end, and ``ends`` the end of each within it.
        Raises IndexError, ValueError or struct.error for bytes that are not messages.
        """

    def estimate_scan_count(self, max_matches: int, /) -> int:
        """Estimate how many messages, at least one, must be scanned to find ``max_matches`` matches."""


MAX_READ_BYTES = 128 << 20  # Source: DefaultMessageStore.MAX_PULL_MSG_SIZE, 5.4.0
_MIN_READ_BYTES = 100
_MAX_SCANNED_MESSAGES = 4096
# No message is tested after this time, because the broker serves no other request meanwhile; one test takes up to 1 ms.
_MAX_SCAN_S = 0.005
# A batch has at most as many messages as fit a processor's first-level cache. Within that limit it has as many as the
# result is expected to need, because scanning messages beyond a full result is wasted work.
_MAX_BATCH_MESSAGES = 96
_MIN_BATCH_MESSAGES = 8
_MAX_BATCH_BYTES = 256 << 10
# A fast predicate may scan this many times as many messages as one-by-one tests may, up to _MAX_SCANNED_MESSAGES.
_FAST_SCAN_FACTOR = 4
_MAGICS = (MAGIC_V1, MAGIC_V2)


class ReadStatus(Enum):
    """The outcome of a read. Source: GetMessageStatus, 5.4.0."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


class ReadResult:
    """The matching messages among [requested offset, next_offset) of a queue.

    ``chunks`` are slices of the mapped commit log, each one or more whole messages; joined they are the body of a
    pull answer. They stay readable after the store deletes the file, but hold its memory: write them out and drop
    them.
    """

    __slots__ = (
        "chunks",
        "count",
        "max_offset",
        "min_offset",
        "next_offset",
        "size_bytes",
        "status",
        "suggest_slave",
    )

    def __init__(self, status: ReadStatus, next_offset: int, min_offset: int, max_offset: int) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.chunks: list[memoryview] = []
        self.count = 0
        self.size_bytes = 0
        self.suggest_slave = False


_unpack_start = Struct(">II20xq").unpack_from  # size, magic, physical offset

_entries_structs: dict[int, Struct] = {}


def _entries_struct(count: int) -> Struct:
    """Return the struct of ``count`` queue entries in a row."""
    struct = _entries_structs.get(count)
    if struct is None:
        struct = Struct(">" + "qiq" * count)
        if count <= 1024:
            _entries_structs[count] = struct
    return struct


def read_queue(
    log: CommitLog,
    config: StoreConfig,
    queue: ConsumeQueue,
    offset: int,
    max_messages: int,
    max_bytes: int,
    tags_match: TagsPredicate | None,
    message_match: MessagePredicate | None,
    batch_match: BatchPredicate | None,
    monotonic: Callable[[], float],
) -> ReadResult:
    """Read messages from queue offset ``offset`` on. Source: DefaultMessageStore.getMessage, 5.4.0.

    Deviation: reading does not create a queue that was never written to. Whatever the requested number of messages, a
    filter scans at most `_MAX_SCANNED_MESSAGES`, and tests messages for at most `_MAX_SCAN_S`, because the broker
    serves no other request during the scan. At least one message is tested.
    """
    end, first = queue.next_offset, queue.min_offset
    if first <= offset < end:
        result = ReadResult(ReadStatus.NO_MATCHED_MESSAGE, offset, first, end)
        if (
            tags_match is None
            and message_match is None
            and _read_run(log, config, queue, result, max_messages, max_bytes)
        ):
            return result
        filtered = _FilteredRead(
            log, config, queue, result, max_messages, max_bytes, tags_match, message_match, monotonic
        )
        filtered.run(batch_match)
        return result
    if end == 0:
        return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, first, end)
    if offset < first:
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, first, first, end)
    if offset == end:
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, first, end)
    return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, end, first, end)


def _read_run(
    log: CommitLog,
    config: StoreConfig,
    queue: ConsumeQueue,
    result: ReadResult,
    max_messages: int,
    max_bytes: int,
) -> bool:
    """Read the common case: all requested messages are recent, in one file and within the limits.

    Return False, with the result unchanged, in any other case.
    """
    # The entries, decoded by one call of a struct as long as all of them.
    offset = result.next_offset
    count = min(max_messages, config.max_transfer_count_in_memory, result.max_offset - offset)
    if count <= 0:
        return False
    encoded = queue.read_entries(offset, count)
    count = len(encoded) // QUEUE_ENTRY_BYTES
    fields = _entries_struct(count).unpack(encoded)
    offsets, sizes = fields[0::3], fields[1::3]
    start, end, size = offsets[0], offsets[-1] + sizes[-1], sum(sizes)
    # Anything unusual is left to `_FilteredRead`: a result that must be cut off at a limit, an empty entry (size 0), a
    # hole (larger than any file), messages that are deleted, in two files, or old enough for the smaller limits.
    if size > config.max_transfer_bytes_in_memory or size > max_bytes or min(sizes) <= 0:
        return False
    log_end = log.base + log.position
    base = start - (start - log.first_base) % log.file_bytes
    if start < log.first_base or end > log_end or end > base + log.file_bytes:
        return False
    if log_end - start > config.access_in_memory_bytes:
        return False
    view = log.mapped_file(base).view
    # Entries ascend and never overlap: they are contiguous exactly when their sizes fill the distance.
    if end - start == size:
        check_start(log, view, start - base, start, sizes[0])
        result.chunks.append(view[start - base : end - base])
    else:
        _slice_runs(log, view, base, offsets, sizes, result.chunks)
    result.status = ReadStatus.FOUND
    result.next_offset = offset + count
    result.count = count
    result.size_bytes = size
    return True


def _slice_runs(
    log: CommitLog,
    view: memoryview,
    base: int,
    offsets: Sequence[int],
    sizes: Sequence[int],
    chunks: list[memoryview],
) -> None:
    """Slice messages out of the file at ``base``, adjacent ones together."""
    for first, chunk in _runs(view, base, offsets, sizes):
        check_start(log, view, offsets[first] - base, offsets[first], sizes[first])
        chunks.append(chunk)


def _runs(
    view: memoryview, base: int, offsets: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[int, memoryview]]:
    """Yield the number of the first message of each run of adjacent messages, and the bytes of the run."""
    first, end = 0, offsets[0]
    for number, offset in enumerate(offsets):
        if offset != end:
            yield first, view[offsets[first] - base : end - base]
            first = number
        end = offset + sizes[number]
    yield first, view[offsets[first] - base : end - base]


def check_start(log: CommitLog, view: memoryview, position: int, physical_offset: int, size: int) -> None:
    """Raise CorruptionError unless a message of ``size`` bytes starts at ``position`` of ``view``.

    A read checks nothing else; consumers check the CRC of each body.
    """
    try:
        stored_size, magic, own_offset = _unpack_start(view, position)
    except StructError as error:
        raise log.corruption_error(physical_offset, "no message can start here") from error
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise log.corruption_error(physical_offset, f"no message starts here, magic number {magic:#010x}")
    if stored_size != size:
        raise log.corruption_error(
            physical_offset, f"the message has {stored_size} bytes, its queue entry says {size}"
        )
    if own_offset != physical_offset:
        raise log.corruption_error(physical_offset, "the message belongs at another physical offset")


class _FilteredRead:
    """One read with filters, or beyond the limits of `_read_run`; it tests entries one by one or in batches.

    ``_memory_start`` is the physical offset from which on messages count as being in memory, ``_last`` the physical
    offset of the entry tested last, ``_max_bytes`` the largest size of the result, and ``_end_s`` the monotonic time
    at which tests of messages end.
    """

    __slots__ = (
        "_collector",
        "_config",
        "_end_s",
        "_last",
        "_log",
        "_max_bytes",
        "_max_messages",
        "_max_scanned",
        "_memory_start",
        "_message_match",
        "_monotonic",
        "_queue",
        "_result",
        "_tags_match",
    )  # fmt: skip

    def __init__(
        self,
        log: CommitLog,
        config: StoreConfig,
        queue: ConsumeQueue,
        result: ReadResult,
        max_messages: int,
        max_bytes: int,
        tags_match: TagsPredicate | None,
        message_match: MessagePredicate | None,
        monotonic: Callable[[], float],
    ) -> None:
        self._monotonic, self._end_s = monotonic, 0.0
        self._log, self._config, self._queue, self._result = log, config, queue, result
        self._tags_match, self._message_match = tags_match, message_match
        self._max_messages = max_messages
        self._max_bytes = min(max(max_bytes, _MIN_READ_BYTES), MAX_READ_BYTES)
        self._memory_start = self._last = log.max_offset - config.access_in_memory_bytes
        self._collector = _Collector(log, result)
        max_scanned = min(max_messages, _MAX_SCANNED_MESSAGES)
        max_scan_bytes = max(config.max_filter_message_bytes, max_scanned * QUEUE_ENTRY_BYTES)
        self._max_scanned = -(-max_scan_bytes // QUEUE_ENTRY_BYTES)

    def run(self, batch_match: BatchPredicate | None) -> None:
        """Test entries until the result is full, the queue ends, or a limit on scanned entries is reached."""
        if self._message_match is not None:
            self._end_s = self._monotonic() + _MAX_SCAN_S
        available, max_scanned = self._result.max_offset - self._result.next_offset, self._max_scanned
        if batch_match is None:
            self._test_one_by_one(min(available, max_scanned))
        else:
            fast_limit = (
                min(max_scanned * _FAST_SCAN_FACTOR, _MAX_SCANNED_MESSAGES) if batch_match.is_fast else 0
            )
            self._test_in_batches(batch_match, min(available, max(max_scanned, fast_limit)))
        self._result.suggest_slave = self._last < self._memory_start
        self._collector.finish()

    def _test_in_batches(self, batch_match: BatchPredicate, max_entries: int) -> None:
        """Test at most ``max_entries`` entries in batches, until the result is full or the time is over."""
        has_room = True
        while has_room and max_entries > 0:
            missing = max(0, self._max_messages - self._result.count)
            scan_count = max(batch_match.estimate_scan_count(missing), _MIN_BATCH_MESSAGES)
            count = min(scan_count, _MAX_BATCH_MESSAGES, batch_match.max_batch_messages, max_entries)
            max_entries -= count
            has_room = self._test_batch(count, batch_match) and self._monotonic() < self._end_s

    def _limits(self, physical_offset: int) -> tuple[int, int]:
        """Return the maximum (messages, bytes) of one read, which depend on the age of its messages.

        Source: isTheBatchFull, 5.4.0.
        """
        config = self._config
        if physical_offset >= self._memory_start:
            max_result_messages, max_result_bytes = (
                config.max_transfer_count_in_memory,
                config.max_transfer_bytes_in_memory,
            )
        else:
            max_result_messages, max_result_bytes = (
                config.max_transfer_count_on_disk,
                config.max_transfer_bytes_on_disk,
            )
        return min(self._max_messages, max_result_messages), min(self._max_bytes, max_result_bytes)

    def _test_one_by_one(self, max_entries: int) -> bool:
        """Test the next entries one by one; return False when the result is full or the time is over."""
        # Locals, because the loop may look at thousands of entries.
        log, queue, result, collector = self._log, self._queue, self._result, self._collector
        tags_match, message_match = self._tags_match, self._message_match
        memory_start, max_address = self._memory_start, MAX_EXTENSION_ADDRESS
        offset = result.next_offset
        last_offset = self._last
        has_room = True
        # Messages below this physical offset are skipped without a look, because one of them was missing.
        skip_until = -1
        # The log file with the message tested last, its first physical offset and the end of its messages.
        view, base, end = memoryview(b""), 0, 0
        # The limits for messages on the disk, until the first one comes that counts as being in memory.
        is_in_memory = False
        max_result_messages, max_result_bytes = self._limits(memory_start - 1)
        for physical_offset, size, tags_code in QUEUE_ENTRY.iter_unpack(
            queue.read_entries(offset, max_entries)
        ):
            # Entries up to next_offset were written before it was raised, so an empty one is damage.
            if size <= 0 or physical_offset < 0:
                raise queue.corruption_error(offset, "an empty entry below the end of the queue")
            # Stop before a message that does not fit, so that the next read begins with it. The first one is read
            # whatever its size, or a consumer could never get past it.
            if physical_offset >= memory_start and not is_in_memory:
                is_in_memory = True
                max_result_messages, max_result_bytes = self._limits(physical_offset)
            count = result.count
            if count and (count >= max_result_messages or result.size_bytes + size > max_result_bytes):
                has_room = False
                break
            # From here on the entry counts as read, whether its message matches or not.
            offset, last_offset = offset + 1, physical_offset
            if size >= QUEUE_HOLE_SIZE:
                continue  # a hole, or a blank entry at the beginning of a queue: no message belongs to it
            # The tags code first: it is in the entry, so most messages that do not match are never touched. An address
            # of an extension file, which an official broker has put in its place, says nothing of the tags.
            if physical_offset < skip_until or (
                tags_match is not None
                and not tags_match(tags_code)
                and (tags_code > max_address or not self._has_matching_tags(physical_offset, size))
            ):
                continue
            # The log does not hold the message if retention has deleted its file, or if its entry points past the end.
            if not base <= physical_offset <= end - size:
                if log.select(physical_offset, size) is None:
                    if not count:
                        result.status = ReadStatus.MESSAGE_WAS_REMOVING
                    skip_until = log.first_base if physical_offset < log.first_base else log.max_offset
                    continue
                view, base, end = log.file_containing(physical_offset)
            # The comparison of `check_start`, in place; calling it only names the damage.
            position = physical_offset - base
            stored_size, magic, own_offset = _unpack_start(view, position)
            if stored_size != size or own_offset != physical_offset or magic not in _MAGICS:
                check_start(log, view, position, physical_offset, size)
            if message_match is None:
                collector.add_message(physical_offset, size)
                continue
            if message_match(view[position : position + size]):
                collector.add_message(physical_offset, size)
            # Only tests of whole messages are slow enough for the clock; at least one has been done.
            if self._monotonic() >= self._end_s:
                has_room = False
                break
        result.next_offset, self._last = offset, last_offset
        return has_room

    def _has_matching_tags(self, physical_offset: int, size: int) -> bool:
        """Return True if a message passes the test of tags by its own tags, or cannot be read.

        The official broker lets the latter pass as well: the client tests the tags again.
        """
        assert self._tags_match is not None
        message = self._log.select(physical_offset, size)
        tags_code = None if message is None else stored_tags_code(message)
        return tags_code is None or self._tags_match(tags_code)

    def _test_batch(self, max_entries: int, batch_match: BatchPredicate) -> bool:
        """Test the next messages as one batch; return False when the result is full."""
        log, result = self._log, self._result
        encoded = self._queue.read_entries(result.next_offset, max_entries)
        fields = _entries_struct(len(encoded) // QUEUE_ENTRY_BYTES).unpack(encoded)
        offsets, sizes = fields[0::3], fields[1::3]
        first, last = offsets[0], offsets[-1]
        base = first - (first - log.first_base) % log.file_bytes
        end = min(log.max_offset, base + log.file_bytes)
        # A batch that spans two files, or is damaged, is tested one by one, which also reports where the damage is.
        if min(sizes) <= 0 or first < log.first_base or last + sizes[-1] > end:
            return self._test_one_by_one(max_entries)
        # One limit must hold for the whole batch, and its copy must not take long.
        if first < self._memory_start <= last or sum(sizes) > _MAX_BATCH_BYTES:
            return self._test_one_by_one(max_entries)
        max_result_messages, max_result_bytes = self._limits(first)
        # The first message is read whatever the limits are, as when entries are tested one by one.
        max_matches = max_result_messages - result.count if result.count else max(1, max_result_messages)
        if max_matches <= 0:
            return False
        view = log.mapped_file(base).view
        try:
            numbers = batch_match.select(
                _joined(view, base, offsets, sizes), list(accumulate(sizes)), max_matches
            )
        except (IndexError, ValueError, StructError):
            return self._test_one_by_one(max_entries)  # bytes that are not messages: it says which
        added = self._add_matches(
            view, base, [offsets[n] for n in numbers], [sizes[n] for n in numbers], max_result_bytes
        )
        # The next read begins with the first match that did not fit, or after the last one of a full result. Messages
        # after that were not asked about: `select` stops at ``max_matches``.
        scanned = len(offsets)
        if added < len(numbers):
            scanned = numbers[added]
        elif added == max_matches:
            scanned = numbers[-1] + 1
        result.next_offset, self._last = result.next_offset + scanned, offsets[max(0, scanned - 1)]
        return scanned == len(offsets)

    def _add_matches(
        self, view: memoryview, base: int, offsets: list[int], sizes: list[int], max_result_bytes: int
    ) -> int:
        """Add messages of the file at ``base`` to the result while they fit; return how many were added."""
        result = self._result
        max_bytes = max_result_bytes - result.size_bytes
        while sizes and sum(sizes) > max_bytes and (result.count or len(sizes) > 1):
            offsets.pop()
            sizes.pop()
        if offsets:
            self._collector.finish()
            _slice_runs(self._log, view, base, offsets, sizes, result.chunks)
            result.status = ReadStatus.FOUND
            result.count += len(offsets)
            result.size_bytes += sum(sizes)
        return len(offsets)


def _joined(view: memoryview, base: int, offsets: Sequence[int], sizes: Sequence[int]) -> bytes:
    """Return the messages' bytes, joined end to end."""
    start, size = offsets[0] - base, sum(sizes)
    if offsets[-1] + sizes[-1] - offsets[0] == size:
        return bytes(view[start : start + size])
    return b"".join([chunk for _, chunk in _runs(view, base, offsets, sizes)])


class _Collector:
    """Adds messages to a result one by one, and joins adjacent ones into one slice; `finish` adds the last slice."""

    __slots__ = ("_end", "_log", "_result", "_start")

    def __init__(self, log: CommitLog, result: ReadResult) -> None:
        self._log = log
        self._result = result
        self._start = self._end = -1

    def add_message(self, physical_offset: int, size: int) -> None:
        result = self._result
        result.count += 1
        result.size_bytes += size
        if physical_offset != self._end:
            self.finish()
            self._start = physical_offset
        self._end = physical_offset + size

    def finish(self) -> None:
        if self._end > self._start:
            self._result.status = ReadStatus.FOUND
            chunk = self._log.select(self._start, self._end - self._start)
            if chunk is not None:
                self._result.chunks.append(chunk)
        self._start = self._end
