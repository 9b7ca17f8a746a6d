"""Counts and logs stored records that cannot be used, so that the services which walk internal queues skip them.

Every record is checked again when it is read: it may come from an earlier version, from an official broker, or from a
client that sent to an internal topic before that was refused. A record that cannot be used is skipped, so that those
after it are still processed.
"""

import logging
from collections.abc import Iterable, Iterator
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

from codec.errors import MessageFormatError
from codec.message import QUEUE_ID_AT, Message, decode_message, split_messages
from gateway.runtime.metrics import Metric

log = logging.getLogger(__name__)

MAX_REASON_CHARS: Final = 300
_PLACE: Final = Struct(f">{QUEUE_ID_AT}xi4xqq")


class RecordKind(Enum):
    """The kinds of records that are checked when they are read; the values are labels of the metric."""

    POP_RECORD = "pop_record"
    POPPED_MESSAGE = "popped_message"
    TIMER_MESSAGE = "timer_message"
    HALF_MESSAGE = "half_message"
    OP_MESSAGE = "op_message"
    DELAYED_MESSAGE = "delayed_message"
    STAGED_PART = "staged_part"


class RecordLocation(NamedTuple):
    """The location of a stored record: its queue, its offset in the queue, and its physical offset."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int

    @classmethod
    def of_message(cls, message: Message) -> "RecordLocation":
        """Return the location of a decoded message."""
        return cls(message.topic, message.queue_id, message.queue_offset, message.physical_offset)

    @classmethod
    def of_stored(cls, topic: str, stored: memoryview) -> "RecordLocation":
        """Return the location of a message that is not decoded."""
        return cls(topic, *_PLACE.unpack_from(stored))


class DamagedRecords:
    """Counts the records that one broker, ``part``, has skipped."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._skipped = dict.fromkeys(RecordKind, 0)

    def skip(self, kind: RecordKind, location: RecordLocation, reason: object) -> None:
        """Count a record that the caller skips, and log its location."""
        self._skipped[kind] += 1
        extra = {"kind": kind.value, **location._asdict(), "reason": f"{reason}"[:MAX_REASON_CHARS]}
        log.error("stored record cannot be used and is skipped", extra=extra)

    def decode_one(self, kind: RecordKind, topic: str, chunks: Iterable[memoryview]) -> Message | None:
        """Return the message in the result of reading one message; None if there is none, or it is damaged."""
        for stored in chunks:
            try:
                return decode_message(stored)
            except MessageFormatError as error:
                self.skip(kind, RecordLocation.of_stored(topic, stored), error)
        return None

    def decode_readable(
        self, kind: RecordKind, topic: str, queue_id: int, offset: int, chunk: memoryview
    ) -> Iterator[Message]:
        """Yield the messages of a chunk that was read from a queue at ``offset``; skip those that are damaged.

        The CRC is not checked: it protects the body on its way to a consumer, and the callers check bodies themselves.
        """
        try:
            for stored in split_messages(chunk):
                try:
                    message = decode_message(stored, check_crc=False)
                except MessageFormatError as error:
                    self.skip(kind, RecordLocation.of_stored(topic, stored), error)
                else:
                    yield message
        except MessageFormatError as error:
            self.skip(kind, RecordLocation(topic, queue_id, offset, -1), error)

    def count(self, kind: RecordKind) -> int:
        """Return the number of records of a kind that were skipped since the start."""
        return self._skipped[kind]

    def metrics(self) -> Iterator[Metric]:
        """Yield the number of skipped records of each kind."""
        meaning = "stored records that could not be used when they were read, and were skipped"
        for kind, skipped in self._skipped.items():
            labels = {"part": self._part, "kind": kind.value}
            yield Metric("damaged_records_total", skipped, meaning, labels=labels)
