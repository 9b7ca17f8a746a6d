"""The revive topic: records of pops and acks, which `reviver.py` writes and reads back.

Source: PopMessageProcessor.buildCkMsg, 5.4.0. Deviation: records are written to the revive topic at once, not through
the timer, which delivers them when a pop's time is nearly over. Only acks of a pop that this broker does not
know go through the timer (`write_timed_acks`), because an official broker may have left the pop's checkpoint there.
An official broker treats both alike.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

import orjson

from codec import properties as keys
from codec.hosts import pack_host
from codec.message import Message
from gateway.broker.messages.damaged_records import DamagedRecords, RecordKind, RecordLocation
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.messages.message_writer import MessageDraft, MessageWriter
from gateway.broker.pop.checkpoint import ACK_TAG, BATCH_ACK_TAG, CK_TAG, AckRecord, PopCheckpoint
from gateway.broker.pop.receipts import revive_topic
from gateway.config.process import BrokerConfig
from storage.append import NewMessage

MESSAGES_PER_READ: Final = 32
MAX_RECORD_BYTES: Final = 64 * 1024
"""A longer record is not parsed; one with the longest names and 32 messages takes less than a tenth of this."""


REPEATED: Final = "POP_REPEATED"
"""Property of a checkpoint whose messages an earlier one has, ours alone: official brokers do not look at it."""


class ReviveRecord(NamedTuple):
    """One record of a revive queue, with its place in the store.

    ``timed`` is True if an official broker's timer delivered the record; acks of its pop may then still be with the
    timer. ``is_repeated`` is True for a checkpoint that did not move the offset of its group, because its messages were
    popped before; it is False where that is unknown, as in records of official brokers.
    """

    location: RecordLocation
    content: PopCheckpoint | AckRecord
    timed: bool
    is_repeated: bool


class ReviveLog:
    """The revive topic of one broker."""

    def __init__(self, config: BrokerConfig, services: MessageServices, writer: MessageWriter) -> None:
        self.topic = revive_topic(config.broker_cluster_name)
        self._broker_name = config.broker_name
        self._store = services.store
        self._clock = services.store.clock
        self._hosts = services.hosts
        self._damaged: DamagedRecords = services.damaged
        self._writer = writer

    # -- writing --------------------------------------------------------------------------------------------

    def write_record(
        self, queue_id: int, content: PopCheckpoint | AckRecord, *, is_repeated: bool = False
    ) -> int:
        """Store a record and return its queue offset. Raise RequestError when the store refuses it."""
        record = self._build_message(queue_id, content, self._clock.now_ms(), is_repeated=is_repeated)
        return self._writer.append(record)[0]

    def write_timed_acks(self, queue_id: int, acks: AckRecord, due_ms: int) -> None:
        """Store acks that the timer delivers at ``due_ms``, as the official broker does. Raise RequestError."""
        self._writer.write(self._build_message(queue_id, acks, due_ms))

    def _build_message(
        self,
        queue_id: int,
        content: PopCheckpoint | AckRecord,
        deliver_ms: int,
        *,
        is_repeated: bool = False,
    ) -> MessageDraft:
        key = content.key
        if isinstance(content, PopCheckpoint):
            tag, what = CK_TAG, str(key.start_offset)
        else:
            offsets = content.offsets
            tag, what = content.tag, str(offsets[0] if len(offsets) == 1 else offsets)
        unique = f"{key.topic}@{key.queue_id}@{what}@{key.group}@{key.pop_time}@{key.broker_name}@{tag}"
        host = pack_host(self._hosts.own_address())
        properties = {
            keys.TAGS: tag,
            keys.UNIQ_CLIENT_MESSAGE_ID_KEYIDX: unique,
            # When an official broker takes over, this property tells it the time up to which the queue was written.
            keys.TIMER_DELIVER_MS: str(deliver_ms),
        }
        if is_repeated:
            properties[REPEATED] = "true"
        return NewMessage(
            self.topic,
            queue_id,
            content.to_json(),
            properties,
            born_timestamp=self._clock.now_ms(),
            born_host=host,
            store_host=host,
        )

    # -- reading --------------------------------------------------------------------------------------------

    def end_offset(self, queue_id: int) -> int:
        """Return the queue offset of the next record."""
        return self._store.max_offset(self.topic, queue_id)

    def read_records(self, queue_id: int, offset: int, end: int) -> Iterator[ReviveRecord]:
        """Yield the records of [offset, end). Expired records, and those that cannot be parsed, are skipped."""
        offset = max(offset, self._store.min_offset(self.topic, queue_id))
        while offset < end:
            result = self._store.read(self.topic, queue_id, offset, MESSAGES_PER_READ)
            for chunk in result.chunks:
                for message in self._damaged.decode_readable(
                    RecordKind.POP_RECORD, self.topic, queue_id, offset, chunk
                ):
                    record = self._parse_record(message)
                    if record is not None:
                        yield record
            if result.next_offset <= offset:
                return
            offset = result.next_offset

    def read_records_from(self, queue_id: int, physical_offset: int) -> Iterator[ReviveRecord]:
        """Yield the records whose messages start at or after a physical offset."""
        numbers = range(self._store.min_offset(self.topic, queue_id), self.end_offset(queue_id))
        first = bisect_left(
            numbers,
            physical_offset,
            key=lambda number: self._store.physical_offset_at(self.topic, queue_id, number),
        )
        yield from self.read_records(queue_id, numbers.start + first, numbers.stop)

    def _parse_record(self, message: Message) -> ReviveRecord | None:
        location = RecordLocation.of_message(message)
        try:
            content = _parse_content(message)
        except ValueError as error:
            self._damaged.skip(RecordKind.POP_RECORD, location, error)
            return None
        if not content.key.broker_name:
            content.key = content.key._replace(broker_name=self._broker_name)
        properties = message.properties
        return ReviveRecord(location, content, keys.TIMER_OUT_MS in properties, REPEATED in properties)


def _parse_content(message: Message) -> PopCheckpoint | AckRecord:
    """Parse the body of a record. Raises ValueError."""
    if message.tags not in (CK_TAG, ACK_TAG, BATCH_ACK_TAG):
        raise ValueError("a record without a known tag")
    if len(message.body) > MAX_RECORD_BYTES:
        raise ValueError(f"a record of {len(message.body)} bytes")
    kind = PopCheckpoint if message.tags == CK_TAG else AckRecord
    return kind.from_value(orjson.loads(message.body))
