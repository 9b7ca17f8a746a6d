"""Entry point of a task: offset ranges in, record batches out, and no requested offset missing unnoticed.

Pull answers are decoded in groups by the vectorised decoder (`column_decoder`). It gives up on a damaged message and on
a stored batch, which holds several messages. From the message where it stopped, the group is then decoded message by
message (`row_decoder`), which finds out which message is damaged and reports exactly that one.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby, islice

import numpy as np
import pyarrow as pa

from codec.errors import MessageFormatError
from codec.message import QUEUE_OFFSET_AT, Message, decode_message, message_end
from spark.endpoint import Connections
from spark.errors import CorruptMessageError
from spark.pull.column_decoder import decode_columns
from spark.pull.gather import Indices
from spark.pull.loss_reporter import LossReporter, describe_queue
from spark.pull.pull_pipeline import PulledRange, PullPipeline
from spark.pull.read_spec import OffsetRange, ReadSpec
from spark.pull.row_decoder import build_record_batch, plain_body, unwrap_batches
from spark.pull.stored_messages import StoredMessages, locate_messages
from toolkit.rate_limiter import BlockingRateLimiter

_NOT_SENT_REASON = "the broker did not send them"


def read_ranges(spec: ReadSpec, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of the ranges, range by range, in offset order, each message once.

    Raises EndpointError if a broker cannot be reached or refuses, DataLossError for missing messages,
    CorruptMessageError for bytes that are not a message.
    """
    losses = LossReporter(spec.fail_on_data_loss)
    rate_limiter = BlockingRateLimiter(spec.max_messages_per_second, burst_s=1)
    with Connections(spec.endpoint) as connections:
        for _, broker_ranges in groupby(ranges, lambda offsets: (offsets.broker, offsets.address)):
            pulls = PullPipeline(spec, list(broker_ranges), connections, losses)
            for answers in group_answers(pulls, spec.arrow_batch_bytes, spec.max_messages_per_second or None):
                for batch in decode_answers(answers, spec, losses):
                    rate_limiter.acquire(batch.num_rows)
                    yield batch


def group_answers(
    answers: Iterable[PulledRange], min_bytes: int, min_offsets: int | None = None
) -> Iterator[list[PulledRange]]:
    """Yield answers in groups of at least `min_bytes` bytes or `min_offsets` offsets; the last group may be smaller."""
    group: list[PulledRange] = []
    size = offsets = 0
    for answer in answers:
        group.append(answer)
        size += len(answer.body)
        offsets += answer.end - answer.start
        if size >= min_bytes or (min_offsets is not None and offsets >= min_offsets):
            yield group
            group, size, offsets = [], 0, 0
    if group:
        yield group


def decode_answers(
    answers: Sequence[PulledRange], spec: ReadSpec, losses: LossReporter
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of some answers of one broker in order, dropping messages outside the answers' offsets.

    Raises DataLossError, CorruptMessageError.
    """
    answers = [answer for answer in answers if answer.body]
    if not answers:
        return
    broker, yielded = answers[0].requested.broker, 0
    try:
        messages = locate_messages(b"".join([answer.body for answer in answers]))
        if not messages.has_batches:
            selected, counts = _select_requested(messages, answers)
            for batch in decode_columns(selected, broker, spec):
                # Before the first batch: a missing message fails the task before any message of its group is yielded.
                if not yielded and not spec.is_filtered:
                    _report_gaps(selected, counts, answers, losses)
                yielded += batch.num_rows
                yield batch
            return
    except MessageFormatError:
        pass  # a message after those already yielded is damaged; the slow decoder finds it
    yield from _decode_one_by_one(answers, spec, losses, yielded)


def _select_requested(
    messages: StoredMessages, answers: Sequence[PulledRange]
) -> tuple[StoredMessages, Indices]:
    """Return the messages whose offsets their answer covers, and how many there are per answer."""
    # The answers' bodies were joined, so an answer's messages are those that start within its part of the buffer.
    begins = np.array(list(accumulate((len(answer.body) for answer in answers[:-1]), initial=0)))
    rows = np.searchsorted(messages.starts, begins)
    counts = np.diff(np.append(rows, len(messages)))
    offsets = messages.head["offset"].astype(np.int64)
    low = np.repeat([answer.start for answer in answers], counts)
    high = np.repeat([answer.end for answer in answers], counts)
    is_requested = (offsets >= low) & (offsets < high)
    if is_requested.all():
        return messages, counts
    # `reduceat` yields an element instead of 0 for an empty slice, hence the factor.
    selected_counts = np.add.reduceat(np.append(is_requested, 0), rows) * (counts > 0)
    return messages.select_rows(is_requested), selected_counts


def _report_gaps(
    messages: StoredMessages, counts: Indices, answers: Sequence[PulledRange], losses: LossReporter
) -> None:
    """Report offsets that the answers cover but that hold no message."""
    offsets = messages.head["offset"].astype(np.int64)
    expected = np.concatenate([np.arange(answer.start, answer.end) for answer in answers])
    if len(offsets) == len(expected) and (offsets == expected).all():
        return
    offsets_by_answer = np.split(offsets, np.cumsum(counts)[:-1])
    for answer, present_offsets in zip(answers, offsets_by_answer, strict=True):
        report_missing_offsets(answer, present_offsets.tolist(), losses)


def report_missing_offsets(answer: PulledRange, offsets: Sequence[int], losses: LossReporter) -> None:
    """Report covered offsets without a message. Raises CorruptMessageError if the offsets do not ascend."""
    following = answer.start
    for offset in [*offsets, answer.end]:
        if offset < following:
            raise CorruptMessageError(
                f"{describe_queue(answer.requested)}: offset {offset} came after {following - 1}"
            )
        if offset > following:
            losses.report_missing(answer.requested, following, offset, _NOT_SENT_REASON)
        following = offset + 1


def _decode_one_by_one(
    answers: Sequence[PulledRange], spec: ReadSpec, losses: LossReporter, skip: int
) -> Iterator[pa.RecordBatch]:
    """Decode message by message, after skipping the first `skip`; stored batches are split."""
    group: list[Message] = []
    size = 0
    sized_messages = (pair for answer in answers for pair in _iter_messages(answer, spec, losses))
    for message, plain_bytes in islice(sized_messages, skip, None):
        group.append(message)
        size += plain_bytes
        if size >= spec.arrow_batch_bytes:
            yield build_record_batch(group, answers[0].requested.broker, spec)
            group, size = [], 0
    if group:
        yield build_record_batch(group, answers[0].requested.broker, spec)


def _iter_messages(
    answer: PulledRange, spec: ReadSpec, losses: LossReporter
) -> Iterator[tuple[Message, int]]:
    """Yield the messages of an answer with the size of their plain bodies; damaged messages are reported."""
    seen_offsets: list[int] = []
    position = 0
    while position < len(answer.body):
        try:
            end = message_end(answer.body, position)
        except MessageFormatError as error:
            at = seen_offsets[-1] + 1 if seen_offsets else answer.start
            raise CorruptMessageError(
                f"{describe_queue(answer.requested)}: no message at offset {at}: {error}"
            ) from error
        for message, plain_bytes in _decode_entry(answer, position, spec, losses, seen_offsets):
            if answer.start <= message.queue_offset < answer.end:
                seen_offsets.append(message.queue_offset)
                yield message, plain_bytes
        position = end
    if not spec.is_filtered:
        report_missing_offsets(answer, seen_offsets, losses)


def _decode_entry(
    answer: PulledRange, position: int, spec: ReadSpec, losses: LossReporter, seen_offsets: list[int]
) -> list[tuple[Message, int]]:
    """Return the messages of one stored entry: one, those of a stored batch, or none if it is damaged."""
    try:
        stored_message = decode_message(answer.body, position, check_crc=spec.verify_body_crc)
        entry_messages = list(unwrap_batches([stored_message]))
        if spec.wants_body:
            return [(message, len(plain_body(message))) for message in entry_messages]
        return [(message, len(message.body)) for message in entry_messages]
    except MessageFormatError as error:
        at = position + QUEUE_OFFSET_AT
        offset = int.from_bytes(answer.body[at : at + 8], signed=True)
        if answer.start <= offset < answer.end:
            losses.report_corrupt(answer.requested, offset, str(error))
            seen_offsets.append(offset)
        return []
