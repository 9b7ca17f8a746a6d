"""Records of a block as rows of exchanges, in Arrow batches.

Columns that stand in the records' heads are made all at once; frames are decoded one by one, and only those that a
wanted column needs. Not responsible for which records are read.
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
from spark.capture.commands import (
    PULLS,
    SENDS,
    Sent,
    count_batch,
    count_stored,
    header_of,
    long,
    number,
    plain_body,
    request_name,
    sent_of,
)
from spark.capture.options import CaptureSpec
from spark.capture.records import ANSWERED, BY_TARGET, REDACTED, REVERSE, TARGET_ANSWERED, Numbers, Records
from spark.pull.row_decoder import MAX_TIME_MS

_ROW_BYTES: Final = 600
"""What a row is taken to need beside its body and frames."""
_name = lru_cache(maxsize=1024)(request_name)


class Exchange:
    """One record, decoded as far as somebody asks."""

    def __init__(self, records: Records, row: int) -> None:
        self.records = records
        self.row = row
        self.code = int(records.heads["code"][row])

    @cached_property
    def asked(self) -> Command | None:
        """The request without its body."""
        return self._asked[0]

    @cached_property
    def answer(self) -> Command | None:
        """The answer without its body."""
        return self._answer[0]

    @cached_property
    def target(self) -> Command | None:
        """The target's answer without its body."""
        return self._target[0]

    @cached_property
    def sent(self) -> Sent | None:
        """What a send is about."""
        if self.code not in SENDS or self.asked is None:
            return None
        return sent_of(self.code, self.asked, self.answer, lambda: self.body)

    @property
    def body(self) -> bytes:
        """The request's body as sent."""
        return self.records.payload[self._asked[1] : int(self.records.answer_at[self.row])]

    @property
    def body_bytes(self) -> int:
        """Its size."""
        return int(self.records.answer_at[self.row]) - self._asked[1]

    @property
    def answer_body(self) -> memoryview:
        """The answer's body."""
        return memoryview(self.records.payload)[self._answer[1] : int(self.records.target_at[self.row])]

    @property
    def unreadable(self) -> bool:
        """Whether a frame that is there is no command."""
        return self.asked is None or any(
            command is None and self._has(flag)
            for command, flag in ((self.answer, ANSWERED), (self.target, TARGET_ANSWERED))
        )

    @property
    def messages(self) -> int | None:
        """Messages of a send or of a pull's answer."""
        if self.sent is not None:
            return count_batch(self.body) if self.sent.batch else 1
        if self.code not in PULLS:
            return None
        return count_stored(self.records.payload, self._answer[1], int(self.records.target_at[self.row]))

    @cached_property
    def _asked(self) -> tuple[Command | None, int]:
        records, row = self.records, self.row
        return header_of(records.payload, int(records.request_at[row]), int(records.answer_at[row]))

    @cached_property
    def _answer(self) -> tuple[Command | None, int]:
        records, row = self.records, self.row
        return header_of(records.payload, int(records.answer_at[row]), int(records.target_at[row]))

    @cached_property
    def _target(self) -> tuple[Command | None, int]:
        records, row = self.records, self.row
        return header_of(records.payload, int(records.target_at[row]), int(records.end_at[row]))

    def _has(self, flag: int) -> bool:
        return bool(self.records.heads["flags"][self.row] & flag)


def _queue_id(each: Exchange) -> int | None:
    if each.sent is not None:
        return each.sent.queue_id
    return number(each.asked.ext, "queueId") if each.asked is not None else None


def _queue_offset(each: Exchange) -> int | None:
    if each.sent is not None:
        return each.sent.queue_offset
    return long(each.asked.ext, "queueOffset") if each.code in PULLS and each.asked is not None else None


def _body(each: Exchange) -> bytes | None:
    sent = each.sent
    if sent is None or sent.batch:
        return each.body
    try:
        return plain_body(each.body, sent.sys_flag)
    except MessageFormatError:
        return None


def _property(name: str) -> Callable[[Exchange], str | None]:
    return lambda each: None if each.sent is None else each.sent.properties.get(name)


_DECODED: Final[Mapping[str, Callable[[Exchange], Any]]] = {
    "language": lambda each: None if each.asked is None else each.asked.language,
    "oneway": lambda each: None if each.asked is None else each.asked.is_oneway,
    "fields": lambda each: None if each.asked is None else list(each.asked.ext.items()),
    "queueId": _queue_id,
    "queueOffset": _queue_offset,
    "msgId": lambda each: None if each.sent is None else each.sent.msg_id,
    "tags": _property(names.TAGS),
    "keys": _property(names.KEYS),
    "shardingKey": _property(names.SHARDING_KEY),
    "reconsumeTimes": lambda each: None if each.sent is None else each.sent.field("reconsumeTimes"),
    "messages": lambda each: each.messages,
    "bodyBytes": lambda each: None if each.asked is None else each.body_bytes,
    "answerCode": lambda each: None if each.answer is None else each.answer.code,
    "answerRemark": lambda each: None if each.answer is None else each.answer.remark,
    "targetCode": lambda each: None if each.target is None else each.target.code,
    "targetRemark": lambda each: None if each.target is None else each.target.remark,
    "unreadable": lambda each: each.unreadable,
    "body": _body,
}


def times(wall_ms: Numbers) -> pa.Array:
    """Times as a column; null for those beyond what it can hold."""
    there = (wall_ms >= -MAX_TIME_MS) & (wall_ms <= MAX_TIME_MS)
    micros = np.where(there, wall_ms, 0).astype(np.int64) * 1000
    return pa.array(micros, pa.timestamp("us", tz="UTC"), mask=~there)


def _primary_us(records: Records) -> pa.Array:
    return pa.array(records.heads["answered_us"].astype(np.int64), mask=records.flag(BY_TARGET))


def _target_us(records: Records) -> pa.Array:
    """Of the answer where the target gave it; otherwise of the mirror's request, 0 where there was none."""
    by_target = records.flag(BY_TARGET)
    took = np.where(by_target, records.heads["answered_us"], records.heads["target_us"]).astype(np.int64)
    return pa.array(took, mask=~(by_target | records.flag(TARGET_ANSWERED) | (took > 0)))


_HEADS: Final[Mapping[str, Callable[[Records], pa.Array]]] = {
    "time": lambda records: times(records.heads["wall_ms"]),
    "code": lambda records: pa.array(records.heads["code"].astype(np.int32)),
    "name": lambda records: pa.array(map(_name, records.heads["code"].tolist()), pa.string()),
    "topic": lambda records: records.text("topic"),
    "group": lambda records: records.text("group"),
    "client": lambda records: records.text("client"),
    "upstream": lambda records: records.text("upstream"),
    "brokerName": lambda records: records.text("broker"),
    "connection": lambda records: pa.array(records.heads["connection"].astype(np.int64)),
    "fate": lambda records: records.fate(),
    "gatewayUs": lambda records: pa.array(records.heads["forwarded_us"].astype(np.int64)),
    "primaryUs": _primary_us,
    "targetUs": _target_us,
    "byTarget": lambda records: pa.array(records.flag(BY_TARGET)),
    "reverse": lambda records: pa.array(records.flag(REVERSE)),
    "redacted": lambda records: pa.array(records.flag(REDACTED)),
    "requestBytes": lambda records: records.frame_sizes("request"),
    "answerBytes": lambda records: records.frame_sizes("answer"),
    "targetBytes": lambda records: records.frame_sizes("target"),
    "position": lambda records: pa.repeat(pa.scalar(records.block.position, pa.int64()), len(records)),
    "record": lambda records: pa.array(records.numbers.astype(np.int32)),
}
_FRAMES: Final = frozenset(("request", "answer", "target"))


class ExchangeRows:
    """Makes batches of the wanted columns."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.schema = spec.arrow_schema()
        self._limit = spec.arrow_batch_bytes

    def batches(self, records: Records, file: str) -> Iterator[pa.RecordBatch]:
        """All records as rows; as many batches as keep each within its limit, or of one row."""
        whole = {name: _HEADS[name](records) for name in self.schema.names if name in _HEADS}
        if "file" in self.schema.names:
            whole["file"] = pa.repeat(pa.scalar(file, pa.string()), len(records))
        for rows in self._slices(records):
            yield self._batch(records, rows, whole)

    def _batch(self, records: Records, rows: slice, whole: Mapping[str, pa.Array]) -> pa.RecordBatch:
        exchanges = [Exchange(records, row) for row in range(rows.start, rows.stop)]
        columns = []
        for field in self.schema:
            if field.name in whole:
                columns.append(whole[field.name][rows])
            elif field.name in _FRAMES:
                columns.append(records.frame(field.name, rows))
            else:
                columns.append(column(list(map(_DECODED[field.name], exchanges)), field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _slices(self, records: Records) -> Iterator[slice]:
        """Rows of one batch each, by what their bodies and frames take."""
        heads = records.heads
        weights = np.full(len(records), _ROW_BYTES, np.int64)
        if "body" in self.schema.names:
            weights += heads["request"]
        for name in _FRAMES & set(self.schema.names):
            weights += heads[name]
        starts = slices(weights.tolist(), self._limit)
        for start, stop in pairwise([*starts, len(records)]):
            yield slice(start, stop)


def slices(weights: Sequence[int], limit: int) -> list[int]:
    """Where to begin anew so that no stretch weighs more than `limit`, unless it is a single one."""
    starts: list[int] = []
    sum_ = 0
    for at, weight in enumerate(weights):
        if not starts or sum_ + weight > limit:
            starts.append(at)
            sum_ = 0
        sum_ += weight
    return starts


def column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values as a column; half characters, which no text may have, become question marks."""
    try:
        return pa.array(values, kind)
    except (UnicodeEncodeError, pa.ArrowInvalid):
        return pa.array([_clean(value) for value in values], kind)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return type(value)(map(_clean, value))
    return value
