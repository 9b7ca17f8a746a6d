"""Rows of the messages in captured exchanges: messages that clients sent, and messages they got by pulls and pops.

Columns that every message has are those of the source `rocketmq`.
"""

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from codec.batch import split_batch
from codec.capture import FATES, Damage
from codec.constants import STORED_CODES
from codec.errors import MessageFormatError
from codec.hosts import format_host
from codec.message import Message, iter_messages
from codec.properties import KEYS, TAGS, UNIQ_CLIENT_MESSAGE_ID_KEYIDX, decode_properties
from spark.capture.columns import MESSAGES
from spark.capture.exchange_rows import CapturedExchange, build_column
from spark.capture.frame_decoding import PULL_CODES, CapturedSend, decompress_if_needed, int_field, long_field
from spark.capture.options import CaptureSpec
from spark.capture.record_block import REDACTED, RecordBlock
from spark.pull.row_decoder import MAX_TIME_MS, MIN_TIME_MS, unwrap_batches
from spark.pull.row_decoder import plain_body as stored_body

Row = tuple[Any, ...]
DamageCallback = Callable[[Damage], None]
_ROW_OVERHEAD_BYTES: Final = 600
_COLUMN_POSITIONS: Final = {column.name: position for position, column in enumerate(MESSAGES)}


class MessageRows:
    """Builds record batches of the selected columns."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.schema = spec.arrow_schema()
        self._limit = spec.arrow_batch_bytes
        self._readers = [itemgetter(_COLUMN_POSITIONS[name]) for name in self.schema.names]

    def build_batches(
        self, records: RecordBlock, file: str, report_damage: DamageCallback
    ) -> Iterator[pa.RecordBatch]:
        """Yield all messages as rows. Damage in one exchange is reported, and the other exchanges are read."""
        rows: list[Row] = []
        size = 0
        for row in range(len(records)):
            exchange = CapturedExchange(records, row)
            try:
                for values, body_bytes in _message_rows(exchange):
                    if rows and size + body_bytes + _ROW_OVERHEAD_BYTES > self._limit:
                        yield self._build_batch(rows)
                        rows, size = [], 0
                    rows.append((*values, file, records.block.position, int(records.numbers[row])))
                    size += body_bytes + _ROW_OVERHEAD_BYTES
            except MessageFormatError as error:
                if exchange.send_summary is not None and not exchange.send_summary.is_stored:
                    continue  # a refused send may be malformed
                reason = f"messages of record {records.numbers[row]}: {error}"
                report_damage(Damage(records.block.position, records.block.size, reason))
        if rows:
            yield self._build_batch(rows)

    def _build_batch(self, rows: list[Row]) -> pa.RecordBatch:
        columns = [
            build_column(list(map(read, rows)), field.type)
            for read, field in zip(self._readers, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _message_rows(exchange: CapturedExchange) -> Iterator[tuple[Row, int]]:
    """Yield the values of all columns but file, position and record, and the size of the body."""
    if exchange.send_summary is not None:
        return _sent_rows(exchange, exchange.send_summary)
    return _read_rows(exchange) if exchange.code in PULL_CODES else iter(())


def _sent_rows(exchange: CapturedExchange, send: CapturedSend) -> Iterator[tuple[Row, int]]:
    target = exchange.target_header
    answer_code = None if exchange.answer_header is None else exchange.answer_header.code
    target_fields = None if target is None or target.code not in STORED_CODES else target.ext
    target_offset = None if target_fields is None else long_field(target_fields, "queueOffset")
    heads = exchange.records.heads
    for index, (flag, body, properties) in enumerate(_sent_messages(exchange, send)):
        msg_id = properties.get(UNIQ_CLIENT_MESSAGE_ID_KEYIDX) or _id_in_answer(exchange, index)
        # The messages within a batch are not compressed one by one.
        sys_flag = 0 if send.is_batch else send.sys_flag
        # In the order of `MESSAGES`; the caller adds file, position and record.
        values = (
            _record_text(exchange, "topic"),
            _record_text(exchange, "broker"),
            send.queue_id,
            None if send.queue_offset is None else send.queue_offset + index,
            msg_id,
            properties.get(TAGS),
            properties.get(KEYS),
            decompress_if_needed(body, sys_flag),
            list(properties.items()),
            _time_us(long_field(send.header_fields, send.field_names["born"])),
            None,
            _record_text(exchange, "client"),
            _record_text(exchange, "upstream"),
            send.sys_flag,
            flag,
            send.int_field("reconsumeTimes") or 0,
            0,
            None,
            "sent",
            *_request_values(exchange),
            answer_code,
            send.waiting_as,
            index,
            len(body),
            _record_fate(exchange),
            None if target is None else target.code,
            None if target_fields is None else int_field(target_fields, "queueId"),
            None if target_offset is None or send.waiting_as else target_offset + index,
            bool(heads["flags"][exchange.row] & REDACTED),
        )
        yield values, len(body)


def _sent_messages(
    exchange: CapturedExchange, send: CapturedSend
) -> Iterator[tuple[int, bytes, dict[str, str]]]:
    """Yield flag, body and properties of each message of a send."""
    if not send.is_batch:
        yield send.int_field("flag") or 0, exchange.request_body, send.properties
        return
    for flag, body, packed in split_batch(exchange.request_body):
        yield flag, body, decode_properties(packed)


def _read_rows(exchange: CapturedExchange) -> Iterator[tuple[Row, int]]:
    for index, message in enumerate(unwrap_batches(iter_messages(exchange.answer_body, check_crc=False))):
        values = (
            *_stored_values(message, _record_text(exchange, "broker")),
            "read",
            *_request_values(exchange),
            None if exchange.answer_header is None else exchange.answer_header.code,
            None,
            index,
            len(message.body),
            None,
            None,
            None,
            None,
            bool(exchange.records.heads["flags"][exchange.row] & REDACTED),
        )
        yield values, len(message.body)


def _stored_values(message: Message, broker: str | None) -> Row:
    """Return the columns of the source `rocketmq`."""
    return (
        message.topic,
        broker,
        message.queue_id,
        message.queue_offset,
        message.unique_key or message.msg_id,
        message.tags,
        message.properties.get(KEYS),
        stored_body(message),
        list(message.properties.items()),
        _time_us(message.born_timestamp),
        _time_us(message.store_timestamp),
        format_host(message.born_host),
        format_host(message.store_host),
        message.sys_flag,
        message.flag,
        message.reconsume_times,
        message.prepared_transaction_offset,
        message.physical_offset,
    )


def _request_values(exchange: CapturedExchange) -> Row:
    """Return time, code, client and group."""
    wall_ms = int(exchange.records.heads["wall_ms"][exchange.row])
    return _time_us(wall_ms), exchange.code, _record_text(exchange, "client"), _record_text(exchange, "group")


def _id_in_answer(exchange: CapturedExchange, index: int) -> str | None:
    """Return the offset message id that the answer gives the message; a batch's answer lists several."""
    ids = [] if exchange.answer_header is None else exchange.answer_header.ext.get("msgId", "").split(",")
    return ids[index] or None if index < len(ids) else None


def _record_text(exchange: CapturedExchange, name: str) -> str | None:
    return exchange.records.texts[exchange.records.heads[name][exchange.row]] or None


def _record_fate(exchange: CapturedExchange) -> str | None:
    return FATES[exchange.records.heads["fate"][exchange.row]] or None


def _time_us(at_ms: int | None) -> int | None:
    """Convert ms to Arrow's microseconds, or None beyond the type's range."""
    return None if at_ms is None or not MIN_TIME_MS <= at_ms <= MAX_TIME_MS else at_ms * 1000
