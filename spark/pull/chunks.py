"""Answers of a broker to record batches, checked to hold exactly the offsets they speak for.

Not responsible for asking, nor for how messages become columns.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice

import numpy as np
import pyarrow as pa

from codec.errors import MessageFormatError
from codec.message import QUEUE_OFFSET_AT, Message, decode_message, message_end
from spark.errors import CorruptMessageError
from spark.pull.decode import batches
from spark.pull.gather import Places
from spark.pull.losses import Losses, place
from spark.pull.pulls import Chunk
from spark.pull.rows import plain_body, rows_of, unwrapped
from spark.pull.spec import ReadSpec
from spark.pull.stored import Stored, stored

_NOT_SENT = "the broker did not send them"


def joined(
    chunks: Iterable[Chunk], most_bytes: int, most_offsets: int | None = None
) -> Iterator[list[Chunk]]:
    """Chunks in groups of at least so many bytes or offsets, except for the last."""
    group: list[Chunk] = []
    size = offsets = 0
    for chunk in chunks:
        group.append(chunk)
        size += len(chunk.body)
        offsets += chunk.end - chunk.start
        if size >= most_bytes or (most_offsets is not None and offsets >= most_offsets):
            yield group
            group, size, offsets = [], 0, 0
    if group:
        yield group


def decoded(chunks: Sequence[Chunk], spec: ReadSpec, losses: Losses) -> Iterator[pa.RecordBatch]:
    """The messages of some chunks of one broker, in order, without those outside of what a chunk speaks for.

    Raises DataLossError, CorruptMessageError.
    """
    chunks = [chunk for chunk in chunks if chunk.body]
    if not chunks:
        return
    broker, given = chunks[0].where.broker, 0
    try:
        messages = stored(b"".join([chunk.body for chunk in chunks]))
        if not messages.has_batches:
            kept, counts = _within(messages, chunks)
            for batch in batches(kept, broker, spec):
                if not given and not spec.is_filtered:
                    _check(kept, counts, chunks, losses)
                given += batch.num_rows
                yield batch
            return
    except MessageFormatError:
        pass  # Somewhere among the rest; what was given out is in order.
    yield from _slowly(chunks, spec, losses, given)


def _within(messages: Stored, chunks: Sequence[Chunk]) -> tuple[Stored, Places]:
    """The messages with offsets that their chunk speaks for, and how many there are of each chunk."""
    begins = np.array(list(accumulate((len(chunk.body) for chunk in chunks[:-1]), initial=0)))
    rows = np.searchsorted(messages.starts, begins)
    counts = np.diff(np.append(rows, len(messages)))
    offsets = messages.head["offset"].astype(np.int64)
    low = np.repeat([chunk.start for chunk in chunks], counts)
    high = np.repeat([chunk.end for chunk in chunks], counts)
    kept = (offsets >= low) & (offsets < high)
    if kept.all():
        return messages, counts
    return messages.some(kept), np.add.reduceat(np.append(kept, 0), rows) * (counts > 0)


def _check(messages: Stored, counts: Places, chunks: Sequence[Chunk], losses: Losses) -> None:
    """Reports offsets that chunks speak for and that are not there."""
    offsets = messages.head["offset"].astype(np.int64)
    expected = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
    if len(offsets) == len(expected) and (offsets == expected).all():
        return
    of_chunks = np.split(offsets, np.cumsum(counts)[:-1])
    for chunk, found in zip(chunks, of_chunks, strict=True):
        check_offsets(chunk, found.tolist(), losses)


def check_offsets(chunk: Chunk, found: Sequence[int], losses: Losses) -> None:
    """Reports offsets of a chunk that are not there. Raises CorruptMessageError for those that do not ascend."""
    following = chunk.start
    for offset in [*found, chunk.end]:
        if offset < following:
            raise CorruptMessageError(f"{place(chunk.where)}: offset {offset} came after {following - 1}")
        if offset > following:
            losses.gone(chunk.where, following, offset, _NOT_SENT)
        following = offset + 1


def _slowly(chunks: Sequence[Chunk], spec: ReadSpec, losses: Losses, given: int) -> Iterator[pa.RecordBatch]:
    """The same message by message, after the first `given`; stored batches are taken apart."""
    group: list[Message] = []
    size = 0
    every = (pair for chunk in chunks for pair in _messages(chunk, spec, losses))
    for message, plain_bytes in islice(every, given, None):
        group.append(message)
        size += plain_bytes
        if size >= spec.arrow_batch_bytes:
            yield rows_of(group, chunks[0].where.broker, spec)
            group, size = [], 0
    if group:
        yield rows_of(group, chunks[0].where.broker, spec)


def _messages(chunk: Chunk, spec: ReadSpec, losses: Losses) -> Iterator[tuple[Message, int]]:
    """The messages of a chunk, with how large their bodies will be; those that are damaged are reported."""
    seen: list[int] = []
    position = 0
    while position < len(chunk.body):
        try:
            end = message_end(chunk.body, position)
        except MessageFormatError as error:
            at = seen[-1] + 1 if seen else chunk.start
            raise CorruptMessageError(f"{place(chunk.where)}: no message at offset {at}: {error}") from error
        for message, plain_bytes in _one(chunk, position, spec, losses, seen):
            if chunk.start <= message.queue_offset < chunk.end:
                seen.append(message.queue_offset)
                yield message, plain_bytes
        position = end
    if not spec.is_filtered:
        check_offsets(chunk, seen, losses)


def _one(
    chunk: Chunk, position: int, spec: ReadSpec, losses: Losses, seen: list[int]
) -> list[tuple[Message, int]]:
    """What is stored at this place: a message, those of a stored batch, or none if it is damaged."""
    try:
        stored_message = decode_message(chunk.body, position, check_crc=spec.verify_body_crc)
        several = list(unwrapped([stored_message]))
        if spec.wants_body:
            return [(message, len(plain_body(message))) for message in several]
        return [(message, len(message.body)) for message in several]
    except MessageFormatError as error:
        at = position + QUEUE_OFFSET_AT
        offset = int.from_bytes(chunk.body[at : at + 8], signed=True)
        if chunk.start <= offset < chunk.end:
            losses.corrupt(chunk.where, offset, str(error))
            seen.append(offset)
        return []
