"""Entry point of a task: offset ranges in, record batches out."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from spark.endpoint import Connections
from spark.pull.loss_reporter import LossReporter
from spark.pull.pull_pipeline import PullPipeline
from spark.pull.read_spec import OffsetRange, ReadSpec
from spark.pull.record_batches import decode_answers, group_answers
from toolkit.rate_limiter import BlockingRateLimiter


def read_ranges(spec: ReadSpec, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of the ranges, range by range, in offset order, each message once.

    Raises EndpointError if a broker cannot be reached or refuses, DataLossError for missing messages,
    CorruptMessageError for bytes that are not a message.
    """
    losses = LossReporter(spec.fail_on_data_loss)
    rate_limiter = BlockingRateLimiter(spec.max_messages_per_second, burst_s=1)
    with Connections(spec.endpoint) as connections:
        for _, of_broker in groupby(ranges, lambda each: (each.broker, each.address)):
            pulls = PullPipeline(spec, list(of_broker), connections, losses)
            for answers in group_answers(pulls, spec.arrow_batch_bytes, spec.max_messages_per_second or None):
                for batch in decode_answers(answers, spec, losses):
                    rate_limiter.acquire(batch.num_rows)
                    yield batch
