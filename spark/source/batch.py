"""Reading in a batch: from positions to positions, all fixed when the query is planned.

Not responsible for options, nor for reading messages.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from spark.cluster import Cluster, Queue, Queues
from spark.pull.spec import RANGES, Range, ReadSpec
from spark.source.discovery import Discovery, View
from spark.source.options import EARLIEST, Topics, read_spec, refuse_stream_options
from spark.source.planning import plan
from spark.source.positions import ending, inside, resolve, starting
from spark.source.pushdown import Span, Wanted

if TYPE_CHECKING:
    import pyarrow as pa


class Stretches(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def read_stretches(spec: ReadSpec, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
    """The messages of one task, or its ranges where these were asked for.

    None for the partition Spark makes up where there is nothing to read.
    """
    from spark.pull.worker import settle

    settle()
    if not isinstance(partition, Stretches):
        return
    if spec.schema == RANGES:
        from spark.pull.unread import range_batch

        yield range_batch(partition.ranges)
    else:
        from spark.pull.read import read_ranges

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

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get nothing but what reading needs.
        return {"spec": self.spec}

    def partitions(self) -> list[InputPartition]:
        """Where to read, as of now. Raises OptionError, EndpointError, DataLossError."""
        cluster = Cluster(self.spec.endpoint)
        try:
            view = Discovery(cluster, Topics.from_options(self.values)).require()
            return partitions_of(self._stretches(view, cluster), view.queues, self.values)
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The messages of one partition. Raises EndpointError, DataLossError."""
        return read_stretches(self.spec, partition)

    def _stretches(self, view: View, cluster: Cluster) -> dict[Queue, tuple[int, int]]:
        check_expression(self.spec, view, cluster)
        fail = self.spec.fail_on_data_loss
        starts = inside(resolve(starting(self.values, EARLIEST), view, cluster), view.extents, fail)
        ends = inside(resolve(ending(self.values), view, cluster), view.extents, fail)
        return {queue: (start, ends[queue]) for queue, start in starts.items() if start < ends[queue]}


class PushingReader(RocketmqReader):
    """Makes use of Spark's filters. Spark has to be told that there are such sources, else it refuses this one."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.wanted = Wanted(self.spec.schema)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """The filters Spark still has to apply."""
        left = [condition for condition in filters if not self.wanted.take(condition)]
        expression = self.wanted.expression()
        if expression is not None and self.spec.expression == "*":
            self.spec = replace(self.spec, expression=expression, expression_type="TAG")
        return left

    def _stretches(self, view: View, cluster: Cluster) -> dict[Queue, tuple[int, int]]:
        found = {
            queue: (max(start, self.wanted.offsets.low), min(end, self.wanted.offsets.high))
            for queue, (start, end) in super()._stretches(view, cluster).items()
            if self.wanted.has(queue)
        }
        queues = {queue: view.queues[queue] for queue in found}
        times = self.wanted.times_ms
        if times.low > 0:
            first = cluster.at_time(queues, dict.fromkeys(queues, times.low))
            found = {queue: (max(start, first[queue]), end) for queue, (start, end) in found.items()}
        if times.high < Span().high:
            last = cluster.at_time(queues, dict.fromkeys(queues, max(times.high, 0)))
            found = {queue: (start, min(end, last[queue])) for queue, (start, end) in found.items()}
        return {queue: stretch for queue, stretch in found.items() if stretch[0] < stretch[1]}


def check_expression(spec: ReadSpec, view: View, cluster: Cluster) -> None:
    """Raises EndpointError where a broker refuses the filter, before there are any tasks."""
    if spec.expression_type != "SQL92":
        return
    for address, queue in {address: queue for queue, address in view.queues.items()}.items():
        cluster.check_expression(queue.topic, address, spec.expression)
