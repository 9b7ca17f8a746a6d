"""Finds where the entries of a consume queue stop being valid, when the store is opened.

An entry is valid if a whole message lies where it points, and names that queue and that queue offset. `recovery.py`
drops entries that are not, and derives them from the commit log again.
"""

from collections.abc import Callable
from typing import NamedTuple

from storage.commit_log import CommitLog
from storage.consume_queue import ConsumeQueue
from storage.layout import QUEUE_HOLE_SIZES
from storage.log_scan import ScannedMessage, check_message

NO_LIMIT = 1 << 62


class FoundEntries(NamedTuple):
    """The end of a queue as found in its files.

    ``entries`` is the number of its first invalid entry; ``last_place`` and ``last_size`` are those of the entry before
    it (-1 and 0 if there is none). ``is_end``: there is no entry behind it. ``is_doubtful``: the invalid entry should
    be valid, because it was on the disk with its message.
    """

    entries: int
    last_place: int
    last_size: int
    is_end: bool
    is_doubtful: bool

    @property
    def end_of_last(self) -> int:
        """The physical offset behind the last message; -1 if it is not known."""
        if self.last_place < 0 or self.last_size in QUEUE_HOLE_SIZES:
            return -1
        return self.last_place + self.last_size


class EntrySearch:
    """Searches the queues of a store that was just opened.

    ``queued_until``: the entries of messages below this physical offset were on the disk, with their messages.
    ``crashed``: the last run did not end in order. ``sectors_lost``: with a power cut.
    """

    def __init__(
        self, commit_log: CommitLog, queued_until: int, *, crashed: bool, sectors_lost: bool
    ) -> None:
        self.queued_until = queued_until
        self._log = commit_log
        self._crashed = crashed
        self._sectors_lost = sectors_lost

    def find_entries(self, queue: ConsumeQueue) -> FoundEntries:
        """Find the first entry of a queue that is invalid or, after a crash, that the checkpoint does not cover."""
        before = self.queued_until if self._crashed and self.queued_until else NO_LIMIT
        count = self.find_end(queue, before)
        last = queue.read_entry(count - 1) if count > queue.bases[0] else (-1, 0, 0)
        if count == queue.bases[-1] + queue.file_entries or queue.read_entry(count)[:2] == (0, 0):
            return FoundEntries(count, last[0], last[1], True, False)
        trusted = self.queued_until if self._crashed else NO_LIMIT
        return FoundEntries(count, last[0], last[1], False, queue.read_entry(count)[0] < trusted)

    def find_end(self, queue: ConsumeQueue, before: int) -> int:
        """Return the number of the first entry that is invalid or points to ``before`` or behind it.

        Entries of messages that the checkpoint covers were on the disk, so that looking at the queue's file is enough;
        only the last one is compared with its message. After a power cut entries that were cut off may have reappeared,
        and all that are looked at are compared.
        """
        confirmed = self.queued_until

        def looks_valid(number: int) -> bool:
            place, size, _ = queue.read_entry(number)
            if 0 <= place < confirmed:
                return size > 0 and place < before
            return self._is_valid_entry(queue, number, before, NO_LIMIT)

        if confirmed and not self._sectors_lost:
            end = _find_first_failing(queue, looks_valid)
            if end == queue.bases[0] or self._is_valid_entry(queue, end - 1, before, NO_LIMIT):
                return end
        return self.first_invalid_entry(queue, before, NO_LIMIT)

    def first_invalid_entry(self, queue: ConsumeQueue, before: int, until_ms: int) -> int:
        """Return the number of the first entry that is invalid, or whose message is too late.

        A message is too late if it lies at physical offset ``before`` or behind it, or was stored after ``until_ms``.
        """
        return _find_first_failing(
            queue, lambda number: self._is_valid_entry(queue, number, before, until_ms)
        )

    def _is_valid_entry(self, queue: ConsumeQueue, offset: int, before: int, until_ms: int) -> bool:
        place, size, _ = queue.read_entry(offset)
        if size in QUEUE_HOLE_SIZES:
            return place < before
        if size <= 0 or place < 0 or place >= before:
            return False
        if place < self._log.first_base:
            return True  # its message was deleted by retention
        base = self._log.base_of(place)
        if place + size > base + self._log.file_bytes or base > self._log.base:
            return False
        # A torn header may hold a wrong time, so the whole message is checked where it may be torn. Elsewhere a damaged
        # body does not make its entry invalid.
        check_crc = place >= self.queued_until
        mapped, position = self._log.mapped_file(base), place - base
        if mapped.readable_until(position) < position + size:
            return False
        message = check_message(mapped.view, position, place, check_crc, self._sectors_lost)
        return (
            isinstance(message, ScannedMessage)
            and message.size == size
            and message.topic == queue.topic.encode()
            and message.queue_id == queue.queue_id
            and message.queue_offset == offset
            and message.store_timestamp <= until_ms
        )


def _find_first_failing(queue: ConsumeQueue, is_valid: Callable[[int], bool]) -> int:
    """Return the number of a queue's first entry that fails a test which all entries before it pass."""
    for base in reversed(queue.bases):
        if base != queue.bases[0] and not is_valid(base):
            continue
        # Most queues are short: probing 1, 2, 4… entries from the beginning stays in few pages of the file.
        low, high, step = base, base + queue.file_entries, 1
        while low < high:
            middle = min(low + step - 1, (low + high) // 2)
            if is_valid(middle):
                low, step = middle + 1, 2 * step
            else:
                high, step = middle, queue.file_entries
        return low
    return queue.next_offset
