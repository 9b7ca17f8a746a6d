"""The messages in captured exchanges as rows: what clients sent, and what they were given by pulls and pops.

Columns that a message has wherever it comes from are those of the source `rocketmq`. Not responsible for which records
are read.
"""

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from codec.batch import split_batch
from codec.capture import FATES, Damage
from codec.constants import STORED_CODES
from codec.errors import MessageFormatError
from codec.message import Message, iter_messages
from codec.properties import KEYS, TAGS, UNIQ_CLIENT_MESSAGE_ID_KEYIDX, decode_properties
from spark.capture.columns import MESSAGES
from spark.capture.commands import PULLS, Sent, long, number, plain_body
from spark.capture.exchanges import Exchange, column
from spark.capture.options import CaptureSpec
from spark.capture.records import REDACTED, Records
from spark.pull.row_decoder import MAX_TIME_MS, host_text, unwrap_batches
from spark.pull.row_decoder import plain_body as stored_body

Row = tuple[Any, ...]
Complain = Callable[[Damage], None]
_ROW_BYTES: Final = 600
_PLACES: Final = {column.name: place for place, column in enumerate(MESSAGES)}


class MessageRows:
    """Makes batches of the wanted columns."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.schema = spec.arrow_schema()
        self._limit = spec.arrow_batch_bytes
        self._readers = [itemgetter(_PLACES[name]) for name in self.schema.names]

    def batches(self, records: Records, file: str, complain: Complain) -> Iterator[pa.RecordBatch]:
        """All messages as rows. What cannot be read of one exchange is told, and the others are read."""
        rows: list[Row] = []
        size = 0
        for row in range(len(records)):
            each = Exchange(records, row)
            try:
                for values, body_bytes in _messages(each):
                    if rows and size + body_bytes + _ROW_BYTES > self._limit:
                        yield self._batch(rows)
                        rows, size = [], 0
                    rows.append((*values, file, records.block.position, int(records.numbers[row])))
                    size += body_bytes + _ROW_BYTES
            except MessageFormatError as error:
                if each.sent is not None and not each.sent.stored:
                    continue  # What the broker refused need not make sense.
                reason = f"messages of record {records.numbers[row]}: {error}"
                complain(Damage(records.block.position, records.block.size, reason))
        if rows:
            yield self._batch(rows)

    def _batch(self, rows: list[Row]) -> pa.RecordBatch:
        columns = [
            column(list(map(read, rows)), field.type)
            for read, field in zip(self._readers, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _messages(each: Exchange) -> Iterator[tuple[Row, int]]:
    """Values of the columns, without the place, and the size of the body."""
    if each.sent is not None:
        return _sent(each, each.sent)
    return _read(each) if each.code in PULLS else iter(())


def _sent(each: Exchange, sent: Sent) -> Iterator[tuple[Row, int]]:
    target = each.target
    answer_code = None if each.answer is None else each.answer.code
    mirrored = None if target is None or target.code not in STORED_CODES else target.ext
    placed = None if mirrored is None else long(mirrored, "queueOffset")
    heads = each.records.heads
    for index, (flag, body, properties) in enumerate(_parts(each, sent)):
        msg_id = properties.get(UNIQ_CLIENT_MESSAGE_ID_KEYIDX) or _answered_id(each, index)
        sys_flag = 0 if sent.batch else sent.sys_flag
        values = (
            _text(each, "topic"),
            _text(each, "broker"),
            sent.queue_id,
            None if sent.queue_offset is None else sent.queue_offset + index,
            msg_id,
            properties.get(TAGS),
            properties.get(KEYS),
            plain_body(body, sys_flag),
            list(properties.items()),
            _moment(long(sent.fields, sent.names["born"])),
            None,
            _text(each, "client"),
            _text(each, "upstream"),
            sent.sys_flag,
            flag,
            sent.field("reconsumeTimes") or 0,
            0,
            None,
            "sent",
            *_about(each),
            answer_code,
            sent.waits,
            index,
            len(body),
            _fate(each),
            None if target is None else target.code,
            None if mirrored is None else number(mirrored, "queueId"),
            None if placed is None or sent.waits else placed + index,
            bool(heads["flags"][each.row] & REDACTED),
        )
        yield values, len(body)


def _parts(each: Exchange, sent: Sent) -> Iterator[tuple[int, bytes, dict[str, str]]]:
    """Flag, body and properties of each message of a send."""
    if not sent.batch:
        yield sent.field("flag") or 0, each.body, sent.properties
        return
    for flag, body, packed in split_batch(each.body):
        yield flag, body, decode_properties(packed)


def _read(each: Exchange) -> Iterator[tuple[Row, int]]:
    for index, message in enumerate(unwrap_batches(iter_messages(each.answer_body, check_crc=False))):
        values = (
            *_stored(message, _text(each, "broker")),
            "read",
            *_about(each),
            None if each.answer is None else each.answer.code,
            None,
            index,
            len(message.body),
            None,
            None,
            None,
            None,
            bool(each.records.heads["flags"][each.row] & REDACTED),
        )
        yield values, len(message.body)


def _stored(message: Message, broker: str | None) -> Row:
    """The columns of the source `rocketmq`."""
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
        _moment(message.born_timestamp),
        _moment(message.store_timestamp),
        host_text(message.born_host),
        host_text(message.store_host),
        message.sys_flag,
        message.flag,
        message.reconsume_times,
        message.prepared_transaction_offset,
        message.physical_offset,
    )


def _about(each: Exchange) -> Row:
    """Time, code, client and group."""
    wall_ms = int(each.records.heads["wall_ms"][each.row])
    return _moment(wall_ms), each.code, _text(each, "client"), _text(each, "group")


def _answered_id(each: Exchange, index: int) -> str | None:
    """The offset message id that the answer gives the message; a batch's answer lists them."""
    ids = [] if each.answer is None else each.answer.ext.get("msgId", "").split(",")
    return ids[index] or None if index < len(ids) else None


def _text(each: Exchange, name: str) -> str | None:
    return each.records.texts[each.records.heads[name][each.row]] or None


def _fate(each: Exchange) -> str | None:
    return FATES[each.records.heads["fate"][each.row]] or None


def _moment(at_ms: int | None) -> int | None:
    """Microseconds, as Arrow takes them for a time; None for what it cannot hold."""
    return None if at_ms is None or not -MAX_TIME_MS <= at_ms <= MAX_TIME_MS else at_ms * 1000
