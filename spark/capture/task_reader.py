"""Reading in one task: file ranges to record batches, with reports of damage."""

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


def read_file_ranges(spec: CaptureSpec, stretches: Sequence[FileRange]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task. Raises DamageError and DataLossError if the options demand it."""
    batches = _damage_rows(spec, stretches) if spec.rows == "damage" else _record_rows(spec, stretches)
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


def _record_rows(spec: CaptureSpec, stretches: Sequence[FileRange]) -> Iterator[pa.RecordBatch]:
    exchanges, messages = ExchangeRows(spec), None
    if spec.rows == "messages":
        messages = MessageRows(spec)
    for path, found in _undamaged_blocks(spec, stretches, DamagePolicy(spec)):
        if messages is None:
            yield from exchanges.build_batches(found, os.path.basename(path))
        else:
            complain = DamagePolicy(spec).reporter_for(path)
            yield from messages.build_batches(found, os.path.basename(path), complain)


class DamagePolicy:
    """Fails at damage or logs it, as the options demand."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._fail = spec.fail_on_damage

    def reporter_for(self, path: str) -> Callable[[Damage], None]:
        """Return the function that reports damage in a file. It raises DamageError or logs a warning."""

        def tell(damage: Damage) -> None:
            text = f"{path}: damage at byte {damage.position:,}, {damage.size:,} bytes: {damage.reason}"
            if self._fail:
                raise DamageError(f"{text} (failOnDamage=false continues after it)")
            log.warning(text)

        return tell


def _undamaged_blocks(
    spec: CaptureSpec, stretches: Sequence[FileRange], policy: DamagePolicy
) -> Iterator[tuple[str, RecordBlock]]:
    for stretch in stretches:
        tell = policy.reporter_for(stretch.path)
        for found in _read_range(spec, stretch):
            if isinstance(found, Damage):
                tell(found)
            else:
                yield stretch.path, found


def _read_range(spec: CaptureSpec, stretch: FileRange) -> Iterator[RecordBlock | Damage]:
    """Yield the matching records of a range, and its damage."""
    try:
        file = CaptureBlockReader(stretch.path)
    except FileNotFoundError:
        _report_removed(spec, stretch.path)
        return
    with file:
        if file.size < stretch.end:
            yield Damage(file.size, stretch.end - file.size, "the file was truncated since the query began")
        for found in blocks_in_range(file, stretch, spec.record_filter):
            yield found if isinstance(found, Damage) else _decode_block(file, found, spec)


def _decode_block(file: CaptureBlockReader, block: CaptureBlock, spec: CaptureSpec) -> RecordBlock | Damage:
    try:
        return RecordBlock(file.read_block(block), block, spec.record_filter)
    except CaptureError as error:
        return Damage(block.position, block.size, error.reason)


def _report_removed(spec: CaptureSpec, path: str) -> None:
    text = f"{path}: the file was removed before it was read"
    if spec.fail_on_data_loss:
        raise DataLossError(f"{text} (failOnDataLoss=false continues without it)")
    log.warning(text)


def _damage_rows(spec: CaptureSpec, stretches: Sequence[FileRange]) -> Iterator[pa.RecordBatch]:
    """Yield the damage itself as rows; finding it takes reading every block."""
    schema = spec.arrow_schema()
    for stretch in stretches:
        rows = [
            {"file": stretch.path, "position": each.position, "bytes": each.size, "reason": each.reason}
            for each in _read_range(spec, stretch)
            if isinstance(each, Damage)
        ]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema)
