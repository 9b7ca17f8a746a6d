"""Reading in one task: file ranges to record batches. Damage and removed files fail the task or are logged."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from codec.capture import CaptureBlock, Damage
from codec.errors import CaptureError
from spark.capture.capture_file import CaptureBlockReader
from spark.capture.exchange_rows import ExchangeRows
from spark.capture.message_rows import MessageRows
from spark.capture.options import CaptureSpec
from spark.capture.record_block import RecordBlock
from spark.capture.task_planning import FileRange, blocks_in_range
from spark.errors import DamageError, DataLossError

log = logging.getLogger(__name__)


def read_file_ranges(spec: CaptureSpec, ranges: Sequence[FileRange]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task. Raises DamageError and DataLossError if the options demand it."""
    batches = _damage_rows(spec, ranges) if spec.rows == "damage" else _record_rows(spec, ranges)
    return join_batches(batches, spec.arrow_schema(), spec.arrow_batch_bytes)


def join_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, limit: int
) -> Iterator[pa.RecordBatch]:
    """Join small record batches, up to about `limit` bytes."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if waiting and size + batch.nbytes > limit:
            yield _combine_batches(waiting, schema)
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes
    if waiting:
        yield _combine_batches(waiting, schema)


def _combine_batches(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return whole


def _record_rows(spec: CaptureSpec, ranges: Sequence[FileRange]) -> Iterator[pa.RecordBatch]:
    """Yield exchanges or messages as rows; damage fails the task or is logged."""
    exchanges, messages = ExchangeRows(spec), MessageRows(spec) if spec.rows == "messages" else None
    for file_range in ranges:
        report_damage = damage_reporter(spec, file_range.path)
        file = os.path.basename(file_range.path)
        for part in _read_range(spec, file_range):
            if isinstance(part, Damage):
                report_damage(part)
            elif messages is None:
                yield from exchanges.build_batches(part, file)
            else:
                yield from messages.build_batches(part, file, report_damage)


def damage_reporter(spec: CaptureSpec, path: str) -> Callable[[Damage], None]:
    """Return the function that reports damage in a file: it raises DamageError or logs a warning (`failOnDamage`)."""

    def report(damage: Damage) -> None:
        text = f"{path}: damage at byte {damage.position:,}, {damage.size:,} bytes: {damage.reason}"
        if spec.fail_on_damage:
            raise DamageError(f"{text} (failOnDamage=false continues after it)")
        log.warning(text)

    return report


def _read_range(spec: CaptureSpec, file_range: FileRange) -> Iterator[RecordBlock | Damage]:
    """Yield the matching records of a range, and its damage. Raises DataLossError if the file was removed."""
    try:
        file = CaptureBlockReader(file_range.path)
    except FileNotFoundError:
        text = f"{file_range.path}: the file was removed before it was read"
        if spec.fail_on_data_loss:
            raise DataLossError(f"{text} (failOnDataLoss=false continues without it)") from None
        log.warning(text)
        return
    with file:
        if file.size < file_range.end:
            yield Damage(
                file.size, file_range.end - file.size, "the file was truncated since the query began"
            )
        for part in blocks_in_range(file, file_range, spec.record_filter):
            yield part if isinstance(part, Damage) else _decode_block(file, part, spec)


def _decode_block(file: CaptureBlockReader, block: CaptureBlock, spec: CaptureSpec) -> RecordBlock | Damage:
    try:
        return RecordBlock(file.read_block(block), block, spec.record_filter)
    except CaptureError as error:
        return Damage(block.position, block.size, error.reason)


def _damage_rows(spec: CaptureSpec, ranges: Sequence[FileRange]) -> Iterator[pa.RecordBatch]:
    """Yield the damage itself as rows; finding it takes reading every block."""
    schema = spec.arrow_schema()
    for file_range in ranges:
        rows = [
            {"file": file_range.path, "position": part.position, "bytes": part.size, "reason": part.reason}
            for part in _read_range(spec, file_range)
            if isinstance(part, Damage)
        ]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema)
