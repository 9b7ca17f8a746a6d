"""Decode many stored messages into Arrow columns at once: numpy locates their parts, Arrow gathers them.

One Python step per message remains, the walk from size to size; compressed bodies and CRC checks take another. The
columns are bit-identical to those of `spark.pull.row_decoder`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from codec import properties as names
from codec.errors import MessageFormatError
from codec.hosts import MAX_PORT, format_host, unpack_host
from codec.ids import encode_message_id
from codec.sysflag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from spark.pull.decompression import decompress_body
from spark.pull.gather import (
    Indices,
    NumberArray,
    gather_slices,
    read_records,
    repeat_value,
    take_or_null,
    text_array,
)
from spark.pull.packed_properties import PackedProperties, unpack_properties
from spark.pull.read_spec import ReadSpec
from spark.pull.row_decoder import BODY_COLUMNS, LOG_APPEND_TIME, MAX_TIME_MS, MIN_TIME_MS, PROPERTIES_COLUMNS
from spark.pull.stored_messages import StoredMessages

_HEX_DIGITS: Final = np.frombuffer(bytes(range(256)).hex().upper().encode(), "V2")
_TIME_TYPE: Final = pa.timestamp("us", tz="UTC")


def decode_columns(messages: StoredMessages, broker: str, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    """Yield one record batch, or several if decompressed bodies exceed the size of a batch by far.

    No entry may be a stored batch. Raises MessageFormatError if a body fails its CRC or cannot be decompressed.
    """
    if spec.verify_body_crc:
        messages.verify_bodies()
    if not spec.wants_body or not messages.has_flag(COMPRESSED).any():
        yield _ColumnBuilder(messages, broker, spec).build_batch()
        return
    for start, end, plain in _split_decompressed(messages, spec.arrow_batch_bytes):
        yield _ColumnBuilder(messages.select_rows(slice(start, end)), broker, spec, plain).build_batch()


def _split_decompressed(
    messages: StoredMessages, max_bytes: int
) -> Iterator[tuple[int, int, dict[int, bytes]]]:
    """Yield slices (begin, end) of the messages, each with its decompressed bodies by row within the slice.

    Compressed bodies may be many times larger than stored, so a slice ends once its plain bodies reach `max_bytes`.
    """
    packed = messages.has_flag(COMPRESSED).tolist()
    flags = messages.head["sys_flag"].tolist()
    begin, plain, size_bytes = 0, dict[int, bytes](), 0
    for row, (start, end) in enumerate(
        zip(messages.body_at.tolist(), messages.body_end.tolist(), strict=True)
    ):
        if size_bytes >= max_bytes:
            yield begin, row, plain
            begin, plain, size_bytes = row, {}, 0
        if packed[row]:
            body = plain[row - begin] = decompress_body(messages.raw[start:end], flags[row])
            size_bytes += len(body)
        else:
            size_bytes += end - start
    yield begin, len(messages), plain


class _ColumnBuilder:
    """Builds the columns of some messages; values that several columns need are computed once."""

    def __init__(
        self, messages: StoredMessages, broker: str, spec: ReadSpec, plain: Mapping[int, bytes] | None = None
    ) -> None:
        self._messages, self._broker, self._spec = messages, broker, spec
        self._plain = plain or {}

    def build_batch(self) -> pa.RecordBatch:
        spec, count = self._spec, len(self._messages)
        schema = spec.arrow_schema()
        if not schema.names:
            return pa.RecordBatch.from_struct_array(pa.repeat(pa.scalar({}, pa.struct([])), count))
        columns = []
        for field in schema:
            left_out = (field.name in BODY_COLUMNS and not spec.include_body) or (
                field.name in PROPERTIES_COLUMNS and not spec.include_properties
            )
            columns.append(pa.nulls(count, field.type) if left_out else _COLUMNS[field.name](self))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    # -- shared by several columns ----------------------------------------------------------------------------------

    @cached_property
    def properties(self) -> PackedProperties:
        messages = self._messages
        return unpack_properties(
            gather_slices(messages.raw, messages.properties_at, messages.ends, pa.binary())
        )

    @cached_property
    def keys(self) -> pa.Array:
        return self.properties.value_column(names.KEYS)

    # -- columns ----------------------------------------------------------------------------------------------------

    def number_column(self, name: str, kind: str) -> pa.Array:
        return pa.array(self._messages.head[name].astype(kind))

    def broker_column(self) -> pa.Array:
        return repeat_value(self._broker, len(self._messages), pa.string())

    def topic_column(self) -> pa.Array:
        messages = self._messages
        starts, ends = messages.topic_at, messages.topic_end
        size = int(ends[0] - starts[0]) if len(starts) else 0
        # The messages of one queue nearly always have one topic: compare them all at once instead of copying each.
        if size and (ends - starts == size).all():
            topics = read_records(messages.raw, starts, f"V{size}")
            if (topics == topics[0]).all():
                return repeat_value(str(topics[0].tobytes(), "utf-8", "replace"), len(topics), pa.string())
        return text_array(gather_slices(messages.raw, starts, ends, pa.binary()))

    def message_id_column(self) -> pa.Array:
        ids = self.properties.value_column(names.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
        if not ids.null_count:
            return ids
        # Append the offset ids to the unique keys, and take each message's id from either part.
        without_key = np.flatnonzero(ids.is_null().to_numpy(zero_copy_only=False))
        positions = np.arange(len(ids))
        positions[without_key] = len(ids) + np.arange(len(without_key))
        return take_or_null(pa.concat_arrays([ids, self._offset_ids(without_key)]), positions)

    def _offset_ids(self, rows: NumberArray) -> pa.Array:
        """Return offset message ids: broker address and physical offset in hexadecimal."""
        messages = self._messages
        if messages.has_flag(STORE_HOST_V6).any():
            hosts = _packed_hosts(messages, messages.store_host_at, STORE_HOST_V6)
            physical_offsets = messages.head["physical_offset"].tolist()
            return pa.array(
                [encode_message_id(*unpack_host(hosts[row]), physical_offsets[row]) for row in rows.tolist()]
            )
        ids = np.empty(len(rows), [("host", "V8"), ("physical_offset", ">i8")])
        addresses = read_records(messages.raw, messages.store_host_at[rows], "V8")
        ports = np.frombuffer(addresses.tobytes(), ">u4")[1::2]
        if (ports > MAX_PORT).any():  # damage; `encode_message_id` refuses such a port, too
            raise MessageFormatError(f"not a port: {int(ports.max())}")
        ids["host"] = addresses
        ids["physical_offset"] = messages.head["physical_offset"][rows]
        digits = _HEX_DIGITS[ids.view(np.uint8)].tobytes()
        ends = np.arange(0, len(digits) + 1, 32, dtype=np.int32)
        return pa.Array.from_buffers(pa.string(), len(rows), [None, pa.py_buffer(ends), pa.py_buffer(digits)])

    def body_column(self) -> pa.Array:
        messages = self._messages
        if not self._plain:
            return gather_slices(messages.raw, messages.body_at, messages.body_end, pa.binary())
        # As stored, but empty for compressed bodies; then replace those by the plain bodies appended at the end.
        rows = np.fromiter(self._plain, np.int64, len(self._plain))
        ends = messages.body_end.copy()
        ends[rows] = messages.body_at[rows]
        plain = pa.array(list(self._plain.values()), pa.binary())
        stored = gather_slices(messages.raw, messages.body_at, ends, pa.binary())
        positions = np.arange(len(messages))
        positions[rows] = len(messages) + np.arange(len(rows))
        return pa.concat_arrays([stored, plain]).take(pa.array(positions))

    def properties_column(self) -> pa.Array:
        return self.properties.map_column()

    def headers_column(self) -> pa.Array:
        return self.properties.header_column(self._spec.arrow_schema().field("headers").type)

    def born_time_column(self) -> pa.Array:
        return _time_array(self._messages.head["born_ms"])

    def store_time_column(self) -> pa.Array:
        return _time_array(self._messages.store_ms)

    def born_host_column(self) -> pa.Array:
        return _host_array(self._messages, self._messages.born_host_at, BORN_HOST_V6)

    def store_host_column(self) -> pa.Array:
        return _host_array(self._messages, self._messages.store_host_at, STORE_HOST_V6)


def _time_array(ms: NumberArray) -> pa.Array:
    native = ms.astype(np.int64)
    fitting = (native >= MIN_TIME_MS) & (native <= MAX_TIME_MS)
    if fitting.all():
        return pa.array(native * 1000).cast(_TIME_TYPE)
    return pa.array(np.where(fitting, native, 0) * 1000, mask=~fitting).cast(_TIME_TYPE)


def _host_array(messages: StoredMessages, at: Indices, v6: int) -> pa.Array:
    """Return hosts as text. There are few distinct hosts, so each is formatted once."""
    if messages.has_flag(v6).any():
        text_by_host: dict[bytes, str] = {}
        packed = _packed_hosts(messages, at, v6)
        texts = [
            text_by_host.get(host) or text_by_host.setdefault(host, format_host(unpack_host(host)))
            for host in packed
        ]
        return pa.array(texts, pa.string())
    encoded = pa.array(read_records(messages.raw, at, "<i8")).dictionary_encode()
    texts = [
        format_host(unpack_host(packed_host.to_bytes(8, "little", signed=True)))
        for packed_host in encoded.dictionary.to_pylist()
    ]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _packed_hosts(messages: StoredMessages, at: Indices, v6: int) -> list[bytes]:
    sizes = np.where(messages.has_flag(v6), 20, 8)
    hosts: list[bytes] = gather_slices(messages.raw, at, at + sizes, pa.binary()).to_pylist()
    return hosts


_COLUMNS: Final[Mapping[str, Callable[[_ColumnBuilder], pa.Array]]] = {
    "topic": _ColumnBuilder.topic_column,
    "brokerName": _ColumnBuilder.broker_column,
    "queueId": lambda batch: batch.number_column("queue_id", "i4"),
    "queueOffset": lambda batch: batch.number_column("offset", "i8"),
    "msgId": _ColumnBuilder.message_id_column,
    "tags": lambda batch: batch.properties.value_column(names.TAGS),
    "keys": lambda batch: batch.keys,
    "body": _ColumnBuilder.body_column,
    "properties": _ColumnBuilder.properties_column,
    "bornTimestamp": _ColumnBuilder.born_time_column,
    "storeTimestamp": _ColumnBuilder.store_time_column,
    "bornHost": _ColumnBuilder.born_host_column,
    "storeHost": _ColumnBuilder.store_host_column,
    "sysFlag": lambda batch: batch.number_column("sys_flag", "i4"),
    "flag": lambda batch: batch.number_column("flag", "i4"),
    "reconsumeTimes": lambda batch: pa.array(batch._messages.reconsumed.astype("i4")),
    "preparedTransactionOffset": lambda batch: pa.array(batch._messages.prepared.astype("i8")),
    "commitLogOffset": lambda batch: batch.number_column("physical_offset", "i8"),
    "key": lambda batch: batch.keys.cast(pa.binary()),
    "value": _ColumnBuilder.body_column,
    "partition": lambda batch: batch.number_column("queue_id", "i4"),
    "offset": lambda batch: batch.number_column("offset", "i8"),
    "timestamp": _ColumnBuilder.store_time_column,
    "timestampType": lambda batch: pa.array(np.full(len(batch._messages), LOG_APPEND_TIME, np.int32)),
    "headers": _ColumnBuilder.headers_column,
}
