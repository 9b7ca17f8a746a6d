"""What a task calls: ranges in, record batches out.

Not responsible for planning ranges.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from codec.message import iter_messages
from remoting.errors import RequestError
from remoting.reading import reading_pull
from spark.endpoint import Connections
from spark.errors import DataLossError, EndpointError
from spark.pull.rows import rows_of, unwrapped
from spark.pull.spec import Range, ReadSpec


def read_ranges(spec: ReadSpec, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """The messages of the ranges, each range in order of its offsets.

    Raises EndpointError for a broker that cannot be reached or refuses, DataLossError for messages that are gone.
    """
    with Connections(spec.endpoint) as connections:
        for each in ranges:
            yield from _read(connections, spec, each)


def _read(connections: Connections, spec: ReadSpec, each: Range) -> Iterator[pa.RecordBatch]:
    at = each.start
    while at < each.end:
        pull = reading_pull(
            each.topic,
            each.queue_id,
            at,
            min(spec.pull_batch_size, each.end - at),
            subscription=spec.expression,
            expression_type=spec.expression_type,
        )
        try:
            reply = connections.ask(each.address, pull)
        except RequestError as error:
            raise EndpointError(f"{each.topic} at {each.broker}: {error}") from error
        if reply.code == 0:
            found = [m for m in unwrapped(iter_messages(reply.body)) if at <= m.queue_offset < each.end]
            yield rows_of(found, each.broker, spec)
        elif reply.next_begin_offset <= at or (reply.code != 20 and spec.fail_on_data_loss):
            where = f"{each.topic} at {each.broker}, queue {each.queue_id}"
            raise DataLossError(f"{where}: offset {at} is gone")
        at = reply.next_begin_offset
