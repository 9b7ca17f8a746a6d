"""Reading in a batch: from positions to positions, all fixed when the query is planned.

Not responsible for options, nor for reading messages.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark.cluster import Cluster, Queue, Queues
from spark.pull.spec import Range, ReadSpec
from spark.source.discovery import Discovery
from spark.source.options import EARLIEST, Topics, read_spec, refuse_stream_options
from spark.source.planning import plan
from spark.source.positions import ending, keep_within, resolve, starting

if TYPE_CHECKING:
    import pyarrow as pa


class Stretches(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def read_stretches(spec: ReadSpec, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
    """The messages of one task; none for the partition Spark makes up where there is nothing to read."""
    from spark.pull.read import read_ranges

    if isinstance(partition, Stretches):
        yield from read_ranges(spec, partition.ranges)


def partitions_of(
    kept: Mapping[Queue, tuple[int, int]], queues: Queues, values: Mapping[str, Any]
) -> list[InputPartition]:
    """The partitions for these stretches, by the options."""
    ranges = [
        Range(queue.topic, queue.broker, queues[queue], queue.queue_id, start, end)
        for queue, (start, end) in kept.items()
    ]
    planned = plan(
        ranges,
        min_partitions=values["minPartitions"],
        max_partitions=values["maxPartitions"],
        max_records=values["maxRecordsPerPartition"],
        min_records=values["minRecordsPerPartition"],
    )
    return [Stretches(each) for each in planned]


class RocketmqReader(DataSourceReader):
    """Raises OptionError for what does not go together in a batch."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        refuse_stream_options(values)
        self.values = dict(values)
        self.spec = read_spec(values)

    def partitions(self) -> list[InputPartition]:
        """Where to read, as of now. Raises OptionError, EndpointError, DataLossError."""
        cluster = Cluster(self.spec.endpoint)
        try:
            return self._plan(cluster)
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The messages of one partition. Raises EndpointError, DataLossError."""
        return read_stretches(self.spec, partition)

    def _plan(self, cluster: Cluster) -> list[InputPartition]:
        discovery = Discovery(cluster, Topics.from_options(self.values), max_age_s=float("inf"))
        discovery.require()
        queues, extents = discovery.queues(), discovery.extents()
        starts = resolve(starting(self.values, EARLIEST), queues, extents, cluster)
        ends = resolve(ending(self.values), queues, extents, cluster)
        kept = keep_within(starts, ends, extents, self.spec.fail_on_data_loss)
        return partitions_of(kept, queues, self.values)
