"""Checks every entry of every consume queue against the commit log, and each queue's ends.

`LogCheck` must have run: it knows which messages the queues must hold, and where the log is damaged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from codec.java_numbers import I64
from codec.topics import SCHEDULE_TOPIC
from storage.consume_queue import ConsumeQueue
from storage.errors import CorruptionError
from storage.layout import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, QUEUE_HOLE_SIZES
from storage.log_scan import ScannedMessage, check_message_at
from storage.tags import tags_code_of
from storage.tools.findings import Part, StoreFinding, damage, note
from storage.tools.log_check import LogCheck, Progress
from storage.tools.store_reader import QueueKey, StoreReader

_ENTRIES_PER_READ: Final = 4096
_LITE_PREFIX: Final = "%LMQ%"
EPOCHS_NAME: Final = "epochFileCheckpoint"
"""The file of a log's epochs, which brokers under a controller have."""
_MIN_TAGS_CODE: Final = -(1 << 31)
"""A lower code is an address in the queue's extension file, if it has one. Source: ConsumeQueueExt.isExtAddr, 5.4.0."""


@dataclass(slots=True)
class BadEntries:
    """Consecutive entries [first, end) that are wrong for the same kind of reason."""

    first: int
    end: int
    reason: str


class QueueCheck:
    """One pass over all queues. The counts are complete once `run` has been exhausted.

    ``holes``: entries of messages lost to damage that was mended before. ``unreadable``: entries of messages that lie
    in damaged bytes, which the log's own findings report. ``ends``: the ends of queues without damage. ``topics``: the
    topics that have queues.
    """

    def __init__(
        self, reader: StoreReader, log_check: LogCheck, known_topics: frozenset[str], progress: Progress
    ) -> None:
        self._reader = reader
        self._log = reader.log
        self._log_check = log_check
        self._known_topics = known_topics
        self._progress = progress
        self.queues = 0
        self.entries = 0
        self.holes = 0
        self.unreadable = 0
        self.ends: dict[QueueKey, int] = {}
        self.topics: frozenset[str] = frozenset()

    def run(self) -> Iterator[StoreFinding]:
        """Check all queues; yield findings queue by queue."""
        queue_keys = set()
        for queue in self._reader.queues():
            self.queues += 1
            queue_keys.add((queue.topic.encode(), queue.queue_id))
            is_whole = True
            for finding in self._check_or_skip(queue):
                is_whole &= not finding.is_damage
                yield finding
            if is_whole:
                self.ends[queue.topic, queue.queue_id] = queue.next_offset
        self.topics = frozenset(topic.decode() for topic, _ in queue_keys)
        yield from self._check_missing(queue_keys)

    def _awaits_confirmation(self) -> bool:
        """Return True for the store of a broker under a controller, whose last messages may have no entries yet."""
        return EPOCHS_NAME in self._reader.files.list(self._reader.config.root)

    def _check_or_skip(self, queue: ConsumeQueue) -> Iterator[StoreFinding]:
        """Check a queue, unless the broker deletes it meanwhile."""
        try:
            self._reader.find_ends(queue)
            yield from self._check_queue(queue)
        except CorruptionError as error:
            yield damage(Part.QUEUE, error.file, error.offset, error.reason, **_named(queue))
        except FileNotFoundError:
            if not self._reader.state.may_change:
                raise

    def _check_missing(self, queue_keys: set[tuple[bytes, int]]) -> Iterator[StoreFinding]:
        """Report queues of which the log has messages, but which have no files."""
        batch_topics = set(self._reader.files.list(f"{self._reader.config.root}/batchconsumequeue"))
        for (topic, queue_id), run in self._log_check.queues.items():
            name = topic.decode(errors="replace")
            if (topic, queue_id) in queue_keys or name in batch_topics:
                continue
            path = f"{self._reader.config.consume_queue_path}/{name}/{queue_id}"
            details = {"topic": name, "queue_id": queue_id}
            if not run.covered_end and self._awaits_confirmation():
                reason = "no message of the queue was confirmed by all replicas in sync yet"
                yield note(Part.QUEUE, path, 0, reason, **details)
            elif name in self._known_topics and self._reader.state.is_end_settled:
                reason = (
                    f"the queue has no files, but the log holds its messages up to offset {run.end}; "
                    "this is not damage if the topic was deleted and created again"
                )
                yield damage(Part.QUEUE, path, 0, reason, **details)
            else:
                yield note(Part.QUEUE, path, 0, "messages of a deleted topic are still in the log", **details)

    def _check_queue(self, queue: ConsumeQueue) -> Iterator[StoreFinding]:
        bad: BadEntries | None = None
        extension = f"{self._reader.config.root}/consumequeue_ext/{queue.topic}/{queue.queue_id}"
        lowest_code = _MIN_TAGS_CODE if self._reader.files.list(extension) else I64.low
        last_offset, holes, first = -1, 0, queue.next_offset
        for number, physical_offset, size, code in self._read_entries(queue):
            # Blank entries, which point to offset 0 before any message does, fill the beginning of a file. They are not
            # counted as holes.
            if size in QUEUE_HOLE_SIZES and not self._is_whole_message(queue, number, physical_offset):
                holes += physical_offset > 0 or last_offset >= 0
                continue
            if physical_offset >= self._log_check.end and self._reader.state.may_change:
                break  # stored since the log was read
            first = min(first, number)
            self.entries += 1
            reason = self._check_entry(queue, number, (physical_offset, size, code), last_offset, lowest_code)
            last_offset = max(last_offset, physical_offset)
            # One finding for all entries in a row that are wrong: a lost sector spoils 25 of them.
            if reason and bad and bad.end == number:
                bad.end += 1
            elif reason:
                if bad:
                    yield _report(queue, bad)
                bad = BadEntries(number, number + 1, reason)
        if bad:
            yield _report(queue, bad)
        if holes:
            self.holes += holes
            reason = f"{holes} messages were lost to damage and are skipped by readers"
            yield note(Part.QUEUE, queue.path(queue.bases[0]), 0, reason, **_named(queue))
        yield from self._check_ends(queue, first)

    def _read_entries(self, queue: ConsumeQueue) -> Iterator[tuple[int, int, int, int]]:
        """Yield number, physical offset, size and tags code of the entries up to the queue's end."""
        number = queue.bases[0]
        while number < queue.next_offset:
            count = min(_ENTRIES_PER_READ, queue.next_offset - number)
            data = queue.read_entries(number, count)
            for physical_offset, size, code in QUEUE_ENTRY.iter_unpack(data):
                yield number, physical_offset, size, code
                number += 1
            self._progress(len(data))

    def _check_entry(
        self,
        queue: ConsumeQueue,
        number: int,
        entry: tuple[int, int, int],
        last_offset: int,
        lowest_code: int,
    ) -> str:
        """Return why an entry is wrong; an empty text if it is right, or cannot be compared.

        A tags code below ``lowest_code`` is not compared.
        """
        physical_offset, size, code = entry
        if size <= 0 or physical_offset < 0:
            return "the entry is empty, but others follow"
        if physical_offset < self._log.first_base:
            return ""  # its message has expired
        if self._log_check.is_lost(physical_offset):
            self.unreadable += 1
            return ""
        if physical_offset >= self._log_check.end:
            settled = self._reader.state.is_end_settled
            return f"it points to {physical_offset}, after the end of the log" if settled else ""
        if physical_offset <= last_offset:
            return f"it points to {physical_offset}, before the message of an earlier entry"
        message = check_message_at(self._log, physical_offset)
        if not isinstance(message, ScannedMessage):
            return f"no message starts at {physical_offset}: {message.reason or 'nothing is there'}"
        return _compare(queue, number, size, code if code >= lowest_code else None, message)

    def _is_whole_message(self, queue: ConsumeQueue, number: int, physical_offset: int) -> bool:
        """Return True if a hole stands where a message of this queue and offset is: then its size is damaged."""
        if not self._log.first_base <= physical_offset < self._log_check.end or self._log_check.is_lost(
            physical_offset
        ):
            return False
        message = check_message_at(self._log, physical_offset)
        return (
            isinstance(message, ScannedMessage)
            and (message.topic, message.queue_id) == (queue.topic.encode(), queue.queue_id)
            and message.queue_offset == number
        )

    def _check_ends(self, queue: ConsumeQueue, first: int) -> Iterator[StoreFinding]:
        """Compare a queue's ends with those of its messages in the log."""
        run = self._log_check.queues.get((queue.topic.encode(), queue.queue_id))
        if run is None:
            return
        if run.end > queue.next_offset:
            number = queue.next_offset
            reason = f"entries end at {number}, but the log holds messages up to offset {run.end}"
            base = number - number % queue.file_entries
            position = (number - base) * QUEUE_ENTRY_BYTES
            details = _named(queue) | {"queue_offset": number}
            if number >= run.covered_end and self._awaits_confirmation():
                reason += "; the rest was not confirmed by all replicas in sync yet"
                yield note(Part.QUEUE, queue.path(base), position, reason, **details)
            elif self._reader.state.is_end_settled:
                yield damage(Part.QUEUE, queue.path(base), position, reason, **details)
            elif not self._reader.state.may_change:
                reason += "; the next start adds them"
                yield note(Part.QUEUE, queue.path(base), position, reason, **details)
        if run.first < first and run.end > run.first and run.first < queue.next_offset:
            reason = f"entries begin at {first}, but the log holds messages from offset {run.first} on"
            details = _named(queue) | {"queue_offset": run.first}
            yield damage(Part.QUEUE, queue.path(queue.bases[0]), 0, reason, **details)


def _compare(queue: ConsumeQueue, number: int, size: int, code: int | None, message: ScannedMessage) -> str:
    """Return how an entry and its message differ; an empty text if they agree."""
    if message.size != size:
        return f"it says {size} bytes, the message has {message.size}"
    if queue.topic.startswith(_LITE_PREFIX):
        return ""  # its messages belong to another topic
    owner = f"{message.topic.decode(errors='replace')} {message.queue_id}, offset {message.queue_offset}"
    if (message.topic, message.queue_id) != (queue.topic.encode(), queue.queue_id):
        return f"it points to a message of another queue: {owner}"
    if message.queue_offset != number:
        return f"it points to another message: {owner}"
    if queue.topic != SCHEDULE_TOPIC and code is not None:
        expected = tags_code_of(message.properties)
        if code != expected:
            return f"its tags code is {code}, that of the message {expected}"
    return ""


def _named(queue: ConsumeQueue) -> dict[str, object]:
    return {"topic": queue.topic, "queue_id": queue.queue_id}


def _report(queue: ConsumeQueue, bad: BadEntries) -> StoreFinding:
    base = bad.first - bad.first % queue.file_entries
    count = bad.end - bad.first
    more = f" (and {count - 1} entries after it)" if count > 1 else ""
    return damage(
        Part.QUEUE, queue.path(base), (bad.first - base) * QUEUE_ENTRY_BYTES, bad.reason + more,
        bytes=count * QUEUE_ENTRY_BYTES, queue_offset=bad.first, **_named(queue),
    )  # fmt: skip
