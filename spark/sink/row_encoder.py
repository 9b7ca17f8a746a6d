"""Encode the rows of an Arrow batch as messages, or refuse them with the official client's error texts."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from codec import properties as names
from codec.hashing import java_hash
from codec.message import MAX_PROPERTIES_BYTES
from codec.sysflag import COMPRESSED, COMPRESSION_ZLIB
from spark.errors import RowError
from spark.sink.dedup_ids import DedupIds
from spark.sink.name_checks import topic_name_error
from spark.sink.options import SinkSpec

_SEPARATORS: Final = (names.NAME_VALUE_SEPARATOR, names.PROPERTY_SEPARATOR)
_ZLIB_LEVEL: Final = 5
"""Compression level of stock clients. Source: DefaultMQProducerImpl.zipCompressLevel, 5.4.0."""


class OutgoingMessage(NamedTuple):
    """A message ready to be sent, with the queue or the key hash that its row asks for."""

    row: int
    topic: str
    body: bytes
    properties: bytes
    flag: int = 0
    sys_flag: int = 0
    key_hash: int | None = None
    queue_id: int | None = None
    broker: str | None = None
    timed: bool = False


class RowEncoder:
    """Encodes the rows of one partition. `places` are the columns' positions (`check_columns`)."""

    def __init__(self, spec: SinkSpec, positions: Mapping[str, int], ids: DedupIds) -> None:
        self._spec = spec
        self._positions = positions
        self._ids = ids
        self._next_row = 0
        self._topics: dict[str | None, str | None] = {}

    def encode_rows(self, batch: pa.RecordBatch) -> Iterator[OutgoingMessage]:
        """Yield the messages of a batch in order. Raises RowError, which names the row within its partition."""
        columns = {
            name: _column_values(batch.column(position), name) for name, position in self._positions.items()
        }
        nulls = [None] * batch.num_rows
        table = zip(*(columns.get(name, nulls) for name in _FIELD_ORDER), strict=True)
        for values in table:
            row = self._next_row
            self._next_row = row + 1
            try:
                yield self._encode_row(row, *values)
            except ValueError as error:
                raise RowError(f"row {row}: {error}") from None

    def _encode_row(
        self,
        row: int,
        body: bytes | None,
        topic: str | None,
        tags: str | None,
        keys: str | None,
        properties: list[tuple[str, str | None]] | None,
        delay_level: int | None,
        delay_ms: int | None,
        deliver_at_ms: int | None,
        sharding: tuple[str, int] | None,
        queue_id: int | None,
        broker: str | None,
        flag: int | None,
    ) -> OutgoingMessage:
        """Encode one row. Raises ValueError."""
        topic = self._resolve_topic(topic)
        body, sys_flag = self._encode_body(body)
        # Order matters: a property that the row sets itself must not replace one that a column or the sink sets.
        message_properties = {names.UNIQ_CLIENT_MESSAGE_ID_KEYIDX: self._ids.unique_key(row)}
        if keys:
            message_properties[names.KEYS] = keys
        if tags:
            message_properties[names.TAGS] = tags
        if self._spec.dedup_property is not None:
            message_properties[self._spec.dedup_property] = self._ids.dedup_id(row)
        if sharding is not None:
            message_properties[names.SHARDING_KEY] = sharding[0]
        timed = self._add_delay(message_properties, delay_level, delay_ms, deliver_at_ms)
        for name, value in properties or ():
            if name not in names.RESERVED and value:
                message_properties.setdefault(name, value)
        if queue_id is not None and queue_id < 0:
            raise ValueError(f"queueId {queue_id} is negative")
        return OutgoingMessage(
            row,
            topic,
            body,
            _encode_properties(message_properties),
            _signed_32("flag", flag or 0),
            sys_flag,
            None if sharding is None else sharding[1],
            queue_id,
            broker,
            timed,
        )

    def _resolve_topic(self, topic: str | None) -> str:
        topic = self._spec.topic or topic
        if topic not in self._topics:
            self._topics[topic] = topic_name_error(topic)
        error = self._topics[topic]
        if error is not None or topic is None:
            raise ValueError(error)
        return topic

    def _encode_body(self, body: bytes | None) -> tuple[bytes, int]:
        if body is None:
            raise ValueError("the message body is null")
        if not body:
            raise ValueError("the message body length is zero")
        if len(body) > self._spec.max_body_bytes:
            raise ValueError(f"the message body size over max value, MAX: {self._spec.max_body_bytes}")
        if 0 < self._spec.compress_above < len(body):
            return zlib.compress(body, _ZLIB_LEVEL), COMPRESSED | COMPRESSION_ZLIB
        return body, 0

    @staticmethod
    def _add_delay(
        message_properties: dict[str, str], level: int | None, delay_ms: int | None, deliver_at_ms: int | None
    ) -> bool:
        """Add the property that delays delivery, if any; tell whether there is one."""
        delays = [
            (name, column, value)
            for name, column, value in (
                (names.DELAY_TIME_LEVEL, "delayLevel", level or None),
                (names.TIMER_DELAY_MS, "delayMs", delay_ms or None),
                (names.TIMER_DELIVER_MS, "deliverAt", deliver_at_ms),
            )
            if value is not None
        ]
        if len(delays) > 1:
            raise ValueError(
                f"{delays[0][1]} and {delays[1][1]} both delay the message: use only one of them"
            )
        for name, column, value in delays:
            if value < 0:
                raise ValueError(f"{column} {value} is negative")
            message_properties[name] = str(value)
        return bool(delays)


_FIELD_ORDER: Final = (
    "body",
    "topic",
    "tags",
    "keys",
    "properties",
    "delayLevel",
    "delayMs",
    "deliverAt",
    "shardingKey",
    "queueId",
    "brokerName",
    "flag",
)


def java_long_hash(number: int) -> int:
    """Return Java's hashCode of a Long."""
    folded = (number ^ (number & 0xFFFFFFFFFFFFFFFF) >> 32) & 0xFFFFFFFF
    return folded - (1 << 32) if folded & 0x80000000 else folded


def _encode_properties(properties: Mapping[str, str]) -> bytes:
    text = names.properties_text(properties)
    # One separator more than there are properties means that a name or a value contains one.
    if any(text.count(separator) != len(properties) for separator in _SEPARATORS):
        raise ValueError("a property, key or tag contains one of the characters \\x01 and \\x02")
    encoded = text.encode("utf-8", "replace")
    if len(encoded) > MAX_PROPERTIES_BYTES:
        raise ValueError(
            f"the message properties take {len(encoded)} bytes, msg properties length limit 32KB"
        )
    return encoded


def _signed_32(column: str, value: int) -> int:
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{column} {value} does not fit 32 bits")
    return value


# -- columns ------------------------------------------------------------------------------------------------------


def _column_values(column: pa.Array, name: str) -> list[Any]:
    """Return the values of a column as Python values, nulls as None."""
    return _READERS.get(name, _plain_values)(column)


def _plain_values(column: pa.Array) -> list[Any]:
    return column.to_pylist()  # type: ignore[no-any-return]


def _binary_values(column: pa.Array) -> list[Any]:
    return column.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]


def _key_values(column: pa.Array) -> list[Any]:
    values = column.to_pylist()
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return [None if keys is None else " ".join(key for key in keys if key) for keys in values]
    return [key.decode("utf-8", "replace") if isinstance(key, bytes) else key for key in values]


def _property_values(column: pa.Array) -> list[Any]:
    """Return pairs of names and values. Of Kafka headers with the same name the last one counts."""
    values = column.to_pylist()
    if pa.types.is_map(column.type):
        return values  # type: ignore[no-any-return]
    return [
        None if headers is None else list({_header_name(h): _header_text(h) for h in headers if h}.items())
        for headers in values
    ]


def _header_name(header: Mapping[str, Any]) -> str:
    return str(header["key"])


def _header_text(header: Mapping[str, Any]) -> str | None:
    value = header["value"]
    return None if value is None else value.decode("utf-8", "replace")


def _time_values_ms(column: pa.Array) -> list[Any]:
    """Return times in ms, rounded up, so that no message is delivered early."""
    times_us = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return [None if time_us is None else -(-time_us // 1000) for time_us in times_us]


def _sharding_values(column: pa.Array) -> list[Any]:
    """Return each key as text with its Java hash, which for integers depends on the type, Integer or Long."""
    hashed: Callable[[Any], int] = java_hash
    if pa.types.is_integer(column.type):
        hashed = java_long_hash if column.type == pa.int64() else int
    return [None if key is None else (str(key), hashed(key)) for key in column.to_pylist()]


_READERS: Final[Mapping[str, Callable[[pa.Array], list[Any]]]] = {
    "body": _binary_values,
    "keys": _key_values,
    "properties": _property_values,
    "deliverAt": _time_values_ms,
    "shardingKey": _sharding_values,
}
