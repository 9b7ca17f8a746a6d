"""Decode messages one by one to Arrow, as `codec.message` reads them. Slow, but handles every message.

`spark.pull.column_decoder` decodes large numbers of messages, and is tested to give the same columns.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from codec import properties as names
from codec.batch import split_batch
from codec.hosts import format_host
from codec.message import Buffer, Message, iter_messages
from codec.properties import decode_properties
from codec.sysflag import COMPRESSED, INNER_BATCH, NEED_UNWRAP
from spark.pull.decompression import decompress_body
from spark.pull.read_spec import ReadSpec

MAX_TIME_MS: Final = 253_402_300_799_999 - 86_400_000
"""A day before the year 10000, in ms since 1970, because Python's datetime ends there, in any time zone.

Later times, such as a birth that a producer gave in microseconds, become null: they would make `collect` fail.
"""
MIN_TIME_MS: Final = -62_135_596_800_000 + 86_400_000
"""A day after the beginning of the year 1. Earlier times become null."""
LOG_APPEND_TIME: Final = 1
"""`timestampType` of the Kafka connector for a time set by the broker."""


def decode_rows(body: Buffer, broker: str, spec: ReadSpec) -> pa.RecordBatch:
    """Decode a pull answer in order. Raises MessageFormatError."""
    return build_record_batch(
        unwrap_batches(iter_messages(body, check_crc=spec.verify_body_crc)), broker, spec
    )


def build_record_batch(messages: Iterable[Message], broker: str, spec: ReadSpec) -> pa.RecordBatch:
    """Build a record batch with one row per message. Raises MessageFormatError if a body cannot be decompressed."""
    readers = [_column_reader(column.name, broker, spec) for column in spec.selected_columns()]
    rows = [[read(message) for read in readers] for message in messages]
    schema = spec.arrow_schema()
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(schema.types)]
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def unwrap_batches(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield the messages, splitting each stored batch into messages at its queue offset and the following ones.

    Raises MessageFormatError. Source: MessageDecoder.decodeMessage, PullAPIWrapper.processPullResult, 5.4.0.
    """
    for message in messages:
        if message.sys_flag & (INNER_BATCH | NEED_UNWRAP) == INNER_BATCH | NEED_UNWRAP:
            yield from _split_stored_batch(message)
        else:
            yield message


def _split_stored_batch(batch: Message) -> Iterator[Message]:
    body = plain_body(batch)
    for index, (flag, inner, packed) in enumerate(split_batch(body)):
        yield replace(
            batch,
            body=inner,
            properties=decode_properties(packed),
            flag=flag,
            sys_flag=batch.sys_flag & ~COMPRESSED,
            queue_offset=batch.queue_offset + index,
            reconsume_times=0,
            prepared_transaction_offset=0,
        )


def plain_body(message: Message) -> bytes:
    """Return the decompressed body. Raises MessageFormatError."""
    if message.sys_flag & COMPRESSED:
        return decompress_body(message.body, message.sys_flag)
    return message.body


def _time_us(ms: int) -> int | None:
    return ms * 1000 if MIN_TIME_MS <= ms <= MAX_TIME_MS else None


def _keys_bytes(message: Message) -> bytes | None:
    keys = message.properties.get(names.KEYS)
    return None if keys is None else keys.encode()


def _property_pairs(properties: Mapping[str, str]) -> list[tuple[str, str]]:
    return list(properties.items())


def _property_headers(properties: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": value.encode()} for name, value in properties.items()]


_READERS: Final[Mapping[str, Callable[[Message], Any]]] = {
    "topic": lambda message: message.topic,
    "queueId": lambda message: message.queue_id,
    "queueOffset": lambda message: message.queue_offset,
    "msgId": lambda message: message.unique_key or message.msg_id,
    "tags": lambda message: message.tags,
    "keys": lambda message: message.properties.get(names.KEYS),
    "body": plain_body,
    "properties": lambda message: _property_pairs(message.properties),
    "bornTimestamp": lambda message: _time_us(message.born_timestamp),
    "storeTimestamp": lambda message: _time_us(message.store_timestamp),
    "bornHost": lambda message: format_host(message.born_host),
    "storeHost": lambda message: format_host(message.store_host),
    "sysFlag": lambda message: message.sys_flag,
    "flag": lambda message: message.flag,
    "reconsumeTimes": lambda message: message.reconsume_times,
    "preparedTransactionOffset": lambda message: message.prepared_transaction_offset,
    "commitLogOffset": lambda message: message.physical_offset,
    "key": _keys_bytes,
    "value": plain_body,
    "partition": lambda message: message.queue_id,
    "offset": lambda message: message.queue_offset,
    "timestamp": lambda message: _time_us(message.store_timestamp),
    "timestampType": lambda _: LOG_APPEND_TIME,
    "headers": lambda message: _property_headers(message.properties),
}
BODY_COLUMNS: Final = frozenset({"body", "value"})
PROPERTIES_COLUMNS: Final = frozenset({"properties", "headers"})


def _column_reader(column: str, broker: str, spec: ReadSpec) -> Callable[[Message], Any]:
    if column == "brokerName":
        return lambda _: broker
    left_out = (column in BODY_COLUMNS and not spec.include_body) or (
        column in PROPERTIES_COLUMNS and not spec.include_properties
    )
    return (lambda _: None) if left_out else _READERS[column]
