"""What a read of a queue answers and how it walks the queue; not long polling, not filters' meaning."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import accumulate
from struct import Struct

from codec.constants import MAGIC_V1, MAGIC_V2
from storage.commit_log import CommitLog
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue
from storage.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES

TagsPredicate = Callable[[int], bool]
MessagePredicate = Callable[[memoryview], bool]
Candidates = Callable[[bytes], list[int]]
"""Ascending positions in stored messages laid end to end; each message that matches has at least one in it."""

MAX_READ_BYTES = 128 << 20  # Source: DefaultMessageStore.MAX_PULL_MSG_SIZE, 5.4.0
_MIN_READ_BYTES = 100
_MOST_LOOKED_AT = 4096
# So many are looked at one by one, which is quicker where every fourth one matches; else candidates are searched in
# as many as the result may need by what was found so far: what comes behind a full result was searched in vain.
_LOOKED_AT_FIRST = 16
_DENSE = 4
_SEARCHED_MORE = 4
_MAGICS = (MAGIC_V1, MAGIC_V2)


class ReadStatus(Enum):
    """Outcome of a read. Source: GetMessageStatus, 5.4.0."""

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
    """Messages [offset asked for, next_offset) of a queue, as far as they matched.

    `chunks` are slices of the mapped commit log, each one or more whole messages; joined they are a pull
    body.
    They stay readable after the store deletes the file, but hold its memory: write them out and drop them.
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


_CHECKED = Struct(">II20xq").unpack_from  # size, magic, physical offset

_flat: dict[int, Struct] = {}


def _entries_struct(count: int) -> Struct:
    known = _flat.get(count)
    if known is None:
        known = Struct(">" + "qiq" * count)
        if count <= 1024:
            _flat[count] = known
    return known


def read_queue(
    log: CommitLog,
    config: StoreConfig,
    queue: ConsumeQueue,
    offset: int,
    max_messages: int,
    max_bytes: int,
    tags_match: TagsPredicate | None,
    message_match: MessagePredicate | None,
    candidates: Candidates | None,
) -> ReadResult:
    """Reads from queue offset `offset` on. Source: DefaultMessageStore.getMessage, 5.4.0.

    Deviation: a queue nobody wrote to is not created by reading it. However many messages are asked for, a
    filter looks at a few thousand, since nothing else is done meanwhile.
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
        walk = _Walk(log, config, queue, result, max_messages, max_bytes, tags_match, message_match)
        walk.run(candidates)
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
    """The usual case: all messages wanted are recent, in one file and within the limits."""
    offset = result.next_offset
    count = min(max_messages, config.max_transfer_count_in_memory, result.max_offset - offset)
    if count <= 0:
        return False
    encoded = queue.entries(offset, count)
    count = len(encoded) // QUEUE_ENTRY_BYTES
    fields = _entries_struct(count).unpack(encoded)
    places, sizes = fields[0::3], fields[1::3]
    start, end, size = places[0], places[-1] + sizes[-1], sum(sizes)
    if size > config.max_transfer_bytes_in_memory or size > max_bytes or min(sizes) <= 0:
        return False
    log_end = log.base + log.position
    base = start - (start - log.first_base) % log.file_bytes
    if start < log.first_base or end > log_end or end > base + log.file_bytes:
        return False
    if log_end - start > config.access_in_memory_bytes:
        return False
    view = log.mapped(base).view
    # Entries ascend and never overlap: they are contiguous exactly when their sizes fill the distance.
    if end - start == size:
        check_start(log, view, start - base, start, sizes[0])
        result.chunks.append(view[start - base : end - base])
    else:
        _slice_runs(log, view, base, places, sizes, result.chunks)
    result.status = ReadStatus.FOUND
    result.next_offset = offset + count
    result.count = count
    result.size_bytes = size
    return True


def _slice_runs(
    log: CommitLog,
    view: memoryview,
    base: int,
    places: tuple[int, ...],
    sizes: tuple[int, ...],
    chunks: list[memoryview],
) -> None:
    """Slices messages out of the file at `base`, neighbours together."""
    start = end = places[0]
    check_start(log, view, start - base, start, sizes[0])
    for place, size in zip(places, sizes, strict=True):
        if place != end:
            chunks.append(view[start - base : end - base])
            check_start(log, view, place - base, place, size)
            start = place
        end = place + size
    chunks.append(view[start - base : end - base])


def check_start(log: CommitLog, view: memoryview, position: int, physical_offset: int, size: int) -> None:
    """Raises CorruptionError unless a message of `size` bytes starts at `position` of `view`.

    That is all a read checks: bodies have a CRC of their own that consumers check.
    """
    found, magic, own_offset = _CHECKED(view, position)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise log.damage(physical_offset, f"no message starts here, magic number {magic:#010x}")
    if found != size:
        raise log.damage(physical_offset, f"the message has {found} bytes, its queue entry says {size}")
    if own_offset != physical_offset:
        raise log.damage(physical_offset, "the message belongs at another physical offset")


class _Walk:
    """One read that looks at entries one by one, or at those messages that may match."""

    __slots__ = (
        "_collector", "_config", "_last", "_left", "_log", "_max_messages", "_message_match", "_near", "_queue",
        "_result", "_room", "_tags_match",
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
    ) -> None:
        self._log, self._config, self._queue, self._result = log, config, queue, result
        self._tags_match, self._message_match = tags_match, message_match
        self._max_messages = max_messages
        self._room = min(max(max_bytes, _MIN_READ_BYTES), MAX_READ_BYTES)
        self._near = self._last = log.max_offset - config.access_in_memory_bytes
        self._collector = _Collector(log, result)
        most = min(max_messages, _MOST_LOOKED_AT)
        look_at = max(config.max_filter_message_bytes, most * QUEUE_ENTRY_BYTES)
        self._left = min(result.max_offset - result.next_offset, -(-look_at // QUEUE_ENTRY_BYTES))

    def run(self, candidates: Candidates | None) -> None:
        """Fills the result."""
        if candidates is None or self._message_match is None:
            self._each(self._left)
        else:
            self._search(self._message_match, candidates)
        self._result.suggest_slave = self._last < self._near
        self._collector.finish()

    def _search(self, message_match: MessagePredicate, candidates: Candidates) -> None:
        result, looked_at = self._result, min(_LOOKED_AT_FIRST, self._left)
        going_on = self._each(looked_at)
        if going_on and _DENSE * result.count > looked_at:
            self._each(self._left - looked_at)
            return
        count = looked_at
        while going_on and looked_at < self._left:
            missing = max(1, self._max_messages - result.count)
            count = min(_SEARCHED_MORE * count, missing * looked_at // max(1, result.count))
            count = min(count, self._left - looked_at)
            going_on = self._among(count, message_match, candidates)
            looked_at += count

    def _limits(self, physical_offset: int) -> tuple[int, int]:
        """(messages, bytes) that one read takes, by how old its messages are. Source: isTheBatchFull, 5.4.0."""
        config = self._config
        if physical_offset >= self._near:
            most_messages, most_bytes = (
                config.max_transfer_count_in_memory,
                config.max_transfer_bytes_in_memory,
            )
        else:
            most_messages, most_bytes = config.max_transfer_count_on_disk, config.max_transfer_bytes_on_disk
        return min(self._max_messages, most_messages), min(self._room, most_bytes)

    def _each(self, most: int) -> bool:
        """Looks at the next entries one by one; False when the result is full."""
        log, queue, result, collector = self._log, self._queue, self._result, self._collector
        tags_match, message_match = self._tags_match, self._message_match
        offset, going_on, skip_to, near = result.next_offset, True, -1, self._near
        view, base, end, last = memoryview(b""), 0, 0, self._last
        is_near = False
        most_messages, most_bytes = self._limits(near - 1)
        for physical_offset, size, tags_code in QUEUE_ENTRY.iter_unpack(queue.entries(offset, most)):
            if size <= 0 or physical_offset < 0:
                raise queue.damage(offset, "an empty entry below the end of the queue")
            if physical_offset >= near and not is_near:
                is_near = True
                most_messages, most_bytes = self._limits(physical_offset)
            count = result.count
            if count and (count >= most_messages or result.size_bytes + size > most_bytes):
                going_on = False
                break
            offset, last = offset + 1, physical_offset
            if physical_offset < skip_to or (tags_match is not None and not tags_match(tags_code)):
                continue
            if not base <= physical_offset <= end - size:
                whole = log.select(physical_offset, size)
                if whole is None:
                    if not count:
                        result.status = ReadStatus.MESSAGE_WAS_REMOVING
                    skip_to = log.first_base if physical_offset < log.first_base else log.max_offset
                    continue
                view, base, end = log.file_around(physical_offset)
            position = physical_offset - base
            found, magic, own_offset = _CHECKED(view, position)
            if found != size or own_offset != physical_offset or magic not in _MAGICS:
                check_start(log, view, position, physical_offset, size)
            if message_match is None or message_match(view[position : position + size]):
                collector.add(physical_offset, size)
        result.next_offset, self._last = offset, last
        return going_on

    def _among(self, most: int, message_match: MessagePredicate, candidates: Candidates) -> bool:
        """Looks at those of the next messages that may match; False when the result is full."""
        log, result, collector, offset = self._log, self._result, self._collector, self._result.next_offset
        places, sizes, _ = zip(*QUEUE_ENTRY.iter_unpack(self._queue.entries(offset, most)), strict=True)
        base = places[0] - (places[0] - log.first_base) % log.file_bytes
        end = places[-1] + sizes[-1]
        if min(sizes) <= 0 or places[0] < log.first_base or end > min(log.max_offset, base + log.file_bytes):
            return self._each(most)  # They lie in two files, or something is wrong that is found there.
        view, looked_at = log.mapped(base).view, -1
        starts = list(accumulate(sizes, initial=0))
        for position in candidates(_joined(view, base, places, sizes)):
            if position < starts[looked_at + 1]:
                continue
            looked_at += 1
            if position >= starts[looked_at + 1]:
                looked_at = bisect_right(starts, position, looked_at + 1) - 1
            place, size = places[looked_at], sizes[looked_at]
            most_messages, most_bytes = self._limits(place)
            if result.count and (result.count >= most_messages or result.size_bytes + size > most_bytes):
                result.next_offset, self._last = offset + looked_at, place
                return False
            check_start(log, view, place - base, place, size)
            if message_match(view[place - base : place - base + size]):
                collector.add(place, size)
        result.next_offset, self._last = offset + len(places), places[-1]
        return True


def _joined(view: memoryview, base: int, places: Sequence[int], sizes: Sequence[int]) -> bytes:
    """The bytes of messages, end to end."""
    start, end = places[0] - base, places[-1] + sizes[-1] - base
    if end - start == sum(sizes):
        return bytes(view[start:end])
    return b"".join([view[at - base : at - base + size] for at, size in zip(places, sizes, strict=True)])


class _Collector:
    """Joins neighbouring messages into one slice."""

    __slots__ = ("_end", "_log", "_result", "_start")

    def __init__(self, log: CommitLog, result: ReadResult) -> None:
        self._log = log
        self._result = result
        self._start = self._end = -1

    def add(self, physical_offset: int, size: int) -> None:
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
