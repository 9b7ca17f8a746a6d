"""Rows of exchanges from the records of a block, in record batches.

Columns found in record heads are built with numpy for all records at once. Frames are decoded one by one, and only
for columns that need them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from codec import properties as names
from codec.command import Command
from codec.errors import MessageFormatError
from spark.capture.frame_decoding import (
    PULL_CODES,
    SEND_CODES,
    CapturedSend,
    count_batch_messages,
    count_stored_messages,
    decode_header_only,
    decode_send,
    decompress_if_needed,
    int_field,
    long_field,
    request_name,
)
from spark.capture.options import CaptureSpec
from spark.capture.record_block import (
    ANSWERED,
    BY_TARGET,
    REDACTED,
    REVERSE,
    TARGET_ANSWERED,
    RecordArray,
    RecordBlock,
)
from spark.pull.row_decoder import MAX_TIME_MS, MIN_TIME_MS

_ROW_OVERHEAD_BYTES: Final = 600
"""Assumed size of a row besides its body and frames."""
_cached_request_name = lru_cache(maxsize=1024)(request_name)


class CapturedExchange:
    """One record, whose frames are decoded on first use."""

    def __init__(self, records: RecordBlock, row: int) -> None:
        self.records = records
        self.row = row
        self.code = int(records.heads["code"][row])

    @cached_property
    def request_header(self) -> Command | None:
        """The request without its body."""
        return self._decoded_request[0]

    @cached_property
    def answer_header(self) -> Command | None:
        """The answer without its body."""
        return self._decoded_answer[0]

    @cached_property
    def target_header(self) -> Command | None:
        """The target's answer without its body."""
        return self._decoded_target[0]

    @cached_property
    def send_summary(self) -> CapturedSend | None:
        """The decoded send, or None for another request."""
        if self.code not in SEND_CODES or self.request_header is None:
            return None
        return decode_send(self.code, self.request_header, self.answer_header, lambda: self.request_body)

    @property
    def request_body(self) -> bytes:
        """The request's body as sent."""
        return self.records.payload[self._decoded_request[1] : int(self.records.answer_at[self.row])]

    @property
    def body_bytes(self) -> int:
        """Size of the request's body."""
        return int(self.records.answer_at[self.row]) - self._decoded_request[1]

    @property
    def answer_body(self) -> memoryview:
        """The answer's body."""
        return memoryview(self.records.payload)[
            self._decoded_answer[1] : int(self.records.target_at[self.row])
        ]

    @property
    def has_unreadable_frame(self) -> bool:
        """Tell whether a frame is not a valid command."""
        return self.request_header is None or any(
            command is None and self._has_flag(flag)
            for command, flag in ((self.answer_header, ANSWERED), (self.target_header, TARGET_ANSWERED))
        )

    @property
    def message_count(self) -> int | None:
        """Number of messages of a send or of a pull's answer."""
        if self.send_summary is not None:
            return count_batch_messages(self.request_body) if self.send_summary.is_batch else 1
        if self.code not in PULL_CODES:
            return None
        return count_stored_messages(
            self.records.payload, self._decoded_answer[1], int(self.records.target_at[self.row])
        )

    @cached_property
    def _decoded_request(self) -> tuple[Command | None, int]:
        records, row = self.records, self.row
        return decode_header_only(records.payload, int(records.request_at[row]), int(records.answer_at[row]))

    @cached_property
    def _decoded_answer(self) -> tuple[Command | None, int]:
        records, row = self.records, self.row
        return decode_header_only(records.payload, int(records.answer_at[row]), int(records.target_at[row]))

    @cached_property
    def _decoded_target(self) -> tuple[Command | None, int]:
        records, row = self.records, self.row
        return decode_header_only(records.payload, int(records.target_at[row]), int(records.end_at[row]))

    def _has_flag(self, flag: int) -> bool:
        return bool(self.records.heads["flags"][self.row] & flag)


def _queue_id(exchange: CapturedExchange) -> int | None:
    if exchange.send_summary is not None:
        return exchange.send_summary.queue_id
    return int_field(exchange.request_header.ext, "queueId") if exchange.request_header is not None else None


def _queue_offset(exchange: CapturedExchange) -> int | None:
    if exchange.send_summary is not None:
        return exchange.send_summary.queue_offset
    return (
        long_field(exchange.request_header.ext, "queueOffset")
        if exchange.code in PULL_CODES and exchange.request_header is not None
        else None
    )


def _plain_body(exchange: CapturedExchange) -> bytes | None:
    send = exchange.send_summary
    if send is None or send.is_batch:
        return exchange.request_body
    try:
        return decompress_if_needed(exchange.request_body, send.sys_flag)
    except MessageFormatError:
        return None


def _property_reader(name: str) -> Callable[[CapturedExchange], str | None]:
    return lambda exchange: (
        None if exchange.send_summary is None else exchange.send_summary.properties.get(name)
    )


_FRAME_COLUMNS: Final[Mapping[str, Callable[[CapturedExchange], Any]]] = {
    "language": lambda exchange: (
        None if exchange.request_header is None else exchange.request_header.language
    ),
    "oneway": lambda exchange: None if exchange.request_header is None else exchange.request_header.is_oneway,
    "fields": lambda exchange: (
        None if exchange.request_header is None else list(exchange.request_header.ext.items())
    ),
    "queueId": _queue_id,
    "queueOffset": _queue_offset,
    "msgId": lambda exchange: None if exchange.send_summary is None else exchange.send_summary.msg_id,
    "tags": _property_reader(names.TAGS),
    "keys": _property_reader(names.KEYS),
    "shardingKey": _property_reader(names.SHARDING_KEY),
    "reconsumeTimes": lambda exchange: (
        None if exchange.send_summary is None else exchange.send_summary.int_field("reconsumeTimes")
    ),
    "messages": lambda exchange: exchange.message_count,
    "bodyBytes": lambda exchange: None if exchange.request_header is None else exchange.body_bytes,
    "answerCode": lambda exchange: None if exchange.answer_header is None else exchange.answer_header.code,
    "answerRemark": lambda exchange: (
        None if exchange.answer_header is None else exchange.answer_header.remark
    ),
    "targetCode": lambda exchange: None if exchange.target_header is None else exchange.target_header.code,
    "targetRemark": lambda exchange: (
        None if exchange.target_header is None else exchange.target_header.remark
    ),
    "unreadable": lambda exchange: exchange.has_unreadable_frame,
    "body": _plain_body,
}


def time_column(wall_ms: RecordArray) -> pa.Array:
    """Build a time column, null for times beyond the type's range."""
    in_range = (wall_ms >= MIN_TIME_MS) & (wall_ms <= MAX_TIME_MS)
    micros = np.where(in_range, wall_ms, 0).astype(np.int64) * 1000
    return pa.array(micros, pa.timestamp("us", tz="UTC"), mask=~in_range)


def _primary_us(records: RecordBlock) -> pa.Array:
    return pa.array(records.heads["answered_us"].astype(np.int64), mask=records.flag_mask(BY_TARGET))


def _target_us(records: RecordBlock) -> pa.Array:
    """Latency of the target's answer, or of the mirrored request; null if the target got no request."""
    by_target = records.flag_mask(BY_TARGET)
    latency_us = np.where(by_target, records.heads["answered_us"], records.heads["target_us"]).astype(
        np.int64
    )
    return pa.array(latency_us, mask=~(by_target | records.flag_mask(TARGET_ANSWERED) | (latency_us > 0)))


_HEAD_COLUMNS: Final[Mapping[str, Callable[[RecordBlock], pa.Array]]] = {
    "time": lambda records: time_column(records.heads["wall_ms"]),
    "code": lambda records: pa.array(records.heads["code"].astype(np.int32)),
    "name": lambda records: pa.array(map(_cached_request_name, records.heads["code"].tolist()), pa.string()),
    "topic": lambda records: records.text_column("topic"),
    "group": lambda records: records.text_column("group"),
    "client": lambda records: records.text_column("client"),
    "upstream": lambda records: records.text_column("upstream"),
    "brokerName": lambda records: records.text_column("broker"),
    "connection": lambda records: pa.array(records.heads["connection"].astype(np.int64)),
    "fate": lambda records: records.fate_column(),
    "gatewayUs": lambda records: pa.array(records.heads["forwarded_us"].astype(np.int64)),
    "primaryUs": _primary_us,
    "targetUs": _target_us,
    "byTarget": lambda records: pa.array(records.flag_mask(BY_TARGET)),
    "reverse": lambda records: pa.array(records.flag_mask(REVERSE)),
    "redacted": lambda records: pa.array(records.flag_mask(REDACTED)),
    "requestBytes": lambda records: records.frame_size_column("request"),
    "answerBytes": lambda records: records.frame_size_column("answer"),
    "targetBytes": lambda records: records.frame_size_column("target"),
    "position": lambda records: pa.repeat(pa.scalar(records.block.position, pa.int64()), len(records)),
    "record": lambda records: pa.array(records.numbers.astype(np.int32)),
}
_FRAME_NAMES: Final = frozenset(("request", "answer", "target"))


class ExchangeRows:
    """Builds record batches of the selected columns."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.schema = spec.arrow_schema()
        self._limit = spec.arrow_batch_bytes

    def build_batches(self, records: RecordBlock, file: str) -> Iterator[pa.RecordBatch]:
        """Yield all records as rows, in batches below the size limit or of a single row."""
        head_columns = {
            name: _HEAD_COLUMNS[name](records) for name in self.schema.names if name in _HEAD_COLUMNS
        }
        if "file" in self.schema.names:
            head_columns["file"] = pa.repeat(pa.scalar(file, pa.string()), len(records))
        for rows in self._batch_slices(records):
            yield self._build_batch(records, rows, head_columns)

    def _build_batch(
        self, records: RecordBlock, rows: slice, head_columns: Mapping[str, pa.Array]
    ) -> pa.RecordBatch:
        exchanges = [CapturedExchange(records, row) for row in range(rows.start, rows.stop)]
        columns = []
        for field in self.schema:
            if field.name in head_columns:
                columns.append(head_columns[field.name][rows])
            elif field.name in _FRAME_NAMES:
                columns.append(records.frame_column(field.name, rows))
            else:
                columns.append(build_column(list(map(_FRAME_COLUMNS[field.name], exchanges)), field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _batch_slices(self, records: RecordBlock) -> Iterator[slice]:
        """Yield the rows of each batch, by the size of their bodies and frames."""
        heads = records.heads
        weights = np.full(len(records), _ROW_OVERHEAD_BYTES, np.int64)
        if "body" in self.schema.names:
            weights += heads["request"]
        for name in _FRAME_NAMES & set(self.schema.names):
            weights += heads[name]
        starts = split_by_weight(weights.tolist(), self._limit)
        for start, stop in pairwise([*starts, len(records)]):
            yield slice(start, stop)


def split_by_weight(weights: Sequence[int], limit: int) -> list[int]:
    """Return where to start groups so that none weighs more than `limit`, except groups of one."""
    starts: list[int] = []
    group_weight = 0
    for at, weight in enumerate(weights):
        if not starts or group_weight + weight > limit:
            starts.append(at)
            group_weight = 0
        group_weight += weight
    return starts


def build_column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Build a column. Lone surrogates, which Arrow does not accept, become question marks."""
    try:
        return pa.array(values, kind)
    except (UnicodeEncodeError, pa.ArrowInvalid):
        return pa.array([_replace_surrogates(value) for value in values], kind)


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return type(value)(map(_replace_surrogates, value))
    return value
