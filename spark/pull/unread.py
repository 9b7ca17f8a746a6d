"""Messages that tasks fetch themselves where they need them, so that only offset ranges pass through Spark.

Rows of a Python data source pass through the JVM one by one, and once more on their way to the next Python worker. For
bodies of 1 KiB that is most of the work. A job that processes the messages in Python avoids it:

    ranges = session.readStream.format("rocketmq").options(**options, schema="ranges").load()
    unread = Unread(ranges, read_spec(source_options(options)))

Batches, offsets, limits, partitions and retries are handled by Spark as usual.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark.pull.read_spec import OffsetRange, ReadSpec
from spark.schema import RANGE_COLUMNS, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Unread:
    """A frame of `schema=ranges`, with the options for fetching its messages."""

    ranges: "DataFrame"
    spec: ReadSpec

    @property
    def sparkSession(self) -> "SparkSession":
        """The Spark session of the frame."""
        return self.ranges.sparkSession

    def messages(self) -> "DataFrame":
        """Return the messages as a frame, for use by Spark itself."""
        return self.ranges.mapInArrow(self.fetch, self.spec.spark_ddl())

    @property
    def fetch(self) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """Function that tasks apply to batches of ranges to get batches of messages. Raises as `read_ranges` does."""
        spec = self.spec

        def fetch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from spark.pull.garbage_collection import freeze_loaded_objects
            from spark.pull.range_reader import read_ranges

            freeze_loaded_objects()
            for batch in batches:
                yield from read_ranges(spec, ranges_from_batch(batch))

        return fetch


def batch_from_ranges(ranges: Sequence[OffsetRange]) -> pa.RecordBatch:
    """Return a record batch with a row for each offset range."""
    rows = [
        (offsets.topic, offsets.broker, *offsets.address, offsets.queue_id, offsets.start, offsets.end)
        for offsets in ranges
    ]
    schema = arrow_schema(RANGE_COLUMNS)
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def ranges_from_batch(batch: pa.RecordBatch) -> list[OffsetRange]:
    """Return the offset ranges of a record batch made by `batch_from_ranges`."""
    columns = [batch.column(column.name).to_pylist() for column in RANGE_COLUMNS]
    return [
        OffsetRange(topic, broker, (host, port), queue_id, start, end)
        for topic, broker, host, port, queue_id, start, end in zip(*columns, strict=True)
    ]
