"""What one task does: stretches of files to batches of rows, and what happens at damage.

Not responsible for which stretches there are.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from codec.capture import CaptureBlock, Damage
from codec.errors import CaptureError
from spark.capture.exchanges import ExchangeRows
from spark.capture.files import CaptureFile
from spark.capture.messages import MessageRows
from spark.capture.options import CaptureSpec
from spark.capture.planning import Stretch, stretch_blocks
from spark.capture.records import Records
from spark.errors import DamageError, DataLossError

log = logging.getLogger(__name__)


def read_stretches(spec: CaptureSpec, stretches: Sequence[Stretch]) -> Iterator[pa.RecordBatch]:
    """The rows of one task. Raises DamageError and DataLossError where the options want that."""
    batches = _damage(spec, stretches) if spec.rows == "damage" else _rows(spec, stretches)
    return joined(batches, spec.arrow_schema(), spec.arrow_batch_bytes)


def joined(batches: Iterable[pa.RecordBatch], schema: pa.Schema, limit: int) -> Iterator[pa.RecordBatch]:
    """Small batches put together, to about `limit` bytes."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if waiting and size + batch.nbytes > limit:
            yield _one(waiting, schema)
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes
    if waiting:
        yield _one(waiting, schema)


def _one(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return whole


def _rows(spec: CaptureSpec, stretches: Sequence[Stretch]) -> Iterator[pa.RecordBatch]:
    exchanges, messages = ExchangeRows(spec), None
    if spec.rows == "messages":
        messages = MessageRows(spec)
    for path, found in _blocks(spec, stretches, Policy(spec)):
        if messages is None:
            yield from exchanges.batches(found, os.path.basename(path))
        else:
            complain = Policy(spec).at(path)
            yield from messages.batches(found, os.path.basename(path), complain)


class Policy:
    """What to do with what cannot be read."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._fail = spec.fail_on_damage

    def at(self, path: str) -> Callable[[Damage], None]:
        """What is called with the damage of a file. Raises DamageError if that is wanted, or logs it."""

        def tell(damage: Damage) -> None:
            text = f"{path}: damage at byte {damage.position:,}, {damage.size:,} bytes: {damage.reason}"
            if self._fail:
                raise DamageError(f"{text} (failOnDamage=false reads on behind it)")
            log.warning(text)

        return tell


def _blocks(spec: CaptureSpec, stretches: Sequence[Stretch], policy: Policy) -> Iterator[tuple[str, Records]]:
    for stretch in stretches:
        tell = policy.at(stretch.path)
        for found in _opened(spec, stretch):
            if isinstance(found, Damage):
                tell(found)
            else:
                yield stretch.path, found


def _opened(spec: CaptureSpec, stretch: Stretch) -> Iterator[Records | Damage]:
    """What is wanted of a stretch, and what of it cannot be read."""
    try:
        file = CaptureFile(stretch.path)
    except FileNotFoundError:
        _gone(spec, stretch.path)
        return
    with file:
        if file.size < stretch.end:
            yield Damage(file.size, stretch.end - file.size, "the file was cut since the query began")
        for found in stretch_blocks(file, stretch, spec.wanted):
            yield found if isinstance(found, Damage) else _records(file, found, spec)


def _records(file: CaptureFile, block: CaptureBlock, spec: CaptureSpec) -> Records | Damage:
    try:
        return Records(file.read(block), block, spec.wanted)
    except CaptureError as error:
        return Damage(block.position, block.size, error.reason)


def _gone(spec: CaptureSpec, path: str) -> None:
    text = f"{path}: the file was removed before it was read"
    if spec.fail_on_data_loss:
        raise DataLossError(f"{text} (failOnDataLoss=false goes on without it)")
    log.warning(text)


def _damage(spec: CaptureSpec, stretches: Sequence[Stretch]) -> Iterator[pa.RecordBatch]:
    """The damage itself as rows; every block is read to find it."""
    schema = spec.arrow_schema()
    for stretch in stretches:
        rows = [
            {"file": stretch.path, "position": each.position, "bytes": each.size, "reason": each.reason}
            for each in _opened(spec, stretch)
            if isinstance(each, Damage)
        ]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema)
