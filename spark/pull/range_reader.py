"""What a task calls: ranges in, record batches out.

Not responsible for planning ranges.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from spark.endpoint import Connections
from spark.pull.loss_reporter import LossReporter
from spark.pull.pace import Pace
from spark.pull.pull_pipeline import PullPipeline
from spark.pull.read_spec import OffsetRange, ReadSpec
from spark.pull.record_batches import decode_answers, group_answers


def read_ranges(spec: ReadSpec, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """The messages of the ranges, range by range, each in order of its offsets, each message once.

    Raises EndpointError for a broker that cannot be reached or refuses, DataLossError for messages that are gone,
    CorruptMessageError for what is no message.
    """
    losses = LossReporter(spec.fail_on_data_loss)
    pace = Pace(spec.max_messages_per_second)
    with Connections(spec.endpoint) as connections:
        for _, some in groupby(ranges, lambda each: (each.broker, each.address)):
            pulls = PullPipeline(spec, list(some), connections, losses)
            for chunks in group_answers(pulls, spec.arrow_batch_bytes, spec.max_messages_per_second or None):
                for batch in decode_answers(chunks, spec, losses):
                    pace.take(batch.num_rows)
                    yield batch
