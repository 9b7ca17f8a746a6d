"""Reading in a batch: from positions to positions, all fixed when the query is planned.

Not responsible for options, nor for reading messages.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from spark.cluster import ClusterClient, Queue, QueueAddresses
from spark.pull.read_spec import RANGES_SCHEMA, OffsetRange, ReadSpec
from spark.source.filter_pushdown import Interval, PushedFilters
from spark.source.options import EARLIEST, TopicSelection, read_spec, refuse_stream_options
from spark.source.partition_planning import plan_partitions
from spark.source.positions import clamp_offsets, ending_position, resolve_position, starting_position
from spark.source.queue_discovery import QueueDiscovery, QueueSnapshot

if TYPE_CHECKING:
    import pyarrow as pa


class QueuePartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def read_partition(spec: ReadSpec, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
    """The messages of one task, or its ranges where these were asked for.

    None for the partition Spark makes up where there is nothing to read.
    """
    from spark.pull.garbage_collection import freeze_loaded_objects

    freeze_loaded_objects()
    if not isinstance(partition, QueuePartition):
        return
    if spec.schema == RANGES_SCHEMA:
        from spark.pull.unread import batch_from_ranges

        yield batch_from_ranges(partition.ranges)
    else:
        from spark.pull.range_reader import read_ranges

        yield from read_ranges(spec, partition.ranges)


def build_partitions(
    bounds: Mapping[Queue, tuple[int, int]], queues: QueueAddresses, values: Mapping[str, Any]
) -> list[InputPartition]:
    """The partitions for these stretches, by the options."""
    ranges = [
        OffsetRange(queue.topic, queue.broker, queues[queue], queue.queue_id, start, end)
        for queue, (start, end) in bounds.items()
    ]
    planned = plan_partitions(
        ranges,
        min_partitions=values["minPartitions"],
        max_partitions=values["maxPartitions"],
        max_records=values["maxRecordsPerPartition"],
        min_records=values["minRecordsPerPartition"],
    )
    return [QueuePartition(each) for each in planned]


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
        cluster = ClusterClient(self.spec.endpoint)
        try:
            view = QueueDiscovery(cluster, TopicSelection.from_options(self.values)).require_snapshot()
            return build_partitions(self._resolve_ranges(view, cluster), view.queues, self.values)
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The messages of one partition. Raises EndpointError, DataLossError."""
        return read_partition(self.spec, partition)

    def _resolve_ranges(self, view: QueueSnapshot, cluster: ClusterClient) -> dict[Queue, tuple[int, int]]:
        check_filter_expression(self.spec, view, cluster)
        fail = self.spec.fail_on_data_loss
        starts = clamp_offsets(
            resolve_position(starting_position(self.values, EARLIEST), view, cluster), view.extents, fail
        )
        ends = clamp_offsets(
            resolve_position(ending_position(self.values), view, cluster), view.extents, fail
        )
        return {queue: (start, ends[queue]) for queue, start in starts.items() if start < ends[queue]}


class FilteringReader(RocketmqReader):
    """Makes use of Spark's filters. Spark has to be told that there are such sources, else it refuses this one."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.pushed = PushedFilters(self.spec.schema)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """The filters Spark still has to apply."""
        left = [condition for condition in filters if not self.pushed.apply_filter(condition)]
        expression = self.pushed.tag_expression()
        if expression is not None and self.spec.expression == "*":
            self.spec = replace(self.spec, expression=expression, expression_type="TAG")
        return left

    def _resolve_ranges(self, view: QueueSnapshot, cluster: ClusterClient) -> dict[Queue, tuple[int, int]]:
        found = {
            queue: (max(start, self.pushed.offsets.low), min(end, self.pushed.offsets.high))
            for queue, (start, end) in super()._resolve_ranges(view, cluster).items()
            if self.pushed.includes_queue(queue)
        }
        queues = {queue: view.queues[queue] for queue in found}
        times = self.pushed.times_ms
        if times.low > 0:
            first = cluster.find_offsets_at(queues, dict.fromkeys(queues, times.low))
            found = {queue: (max(start, first[queue]), end) for queue, (start, end) in found.items()}
        if times.high < Interval().high:
            last = cluster.find_offsets_at(queues, dict.fromkeys(queues, max(times.high, 0)))
            found = {queue: (start, min(end, last[queue])) for queue, (start, end) in found.items()}
        return {queue: stretch for queue, stretch in found.items() if stretch[0] < stretch[1]}


def check_filter_expression(spec: ReadSpec, view: QueueSnapshot, cluster: ClusterClient) -> None:
    """Raises EndpointError where a broker refuses the filter, before there are any tasks."""
    if spec.expression_type != "SQL92":
        return
    for address, queue in {address: queue for queue, address in view.queues.items()}.items():
        cluster.check_expression(queue.topic, address, spec.expression)
