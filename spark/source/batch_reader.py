"""Batch reads: from positions to positions, all resolved when the query is planned."""

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
    """The offset ranges that one task reads."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def read_partition(spec: ReadSpec, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
    """Yield the messages of one task, or its offset ranges for `schema=ranges`.

    If there is nothing to read, Spark makes up a partition of its own, for which nothing is yielded.
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
    """Plan partitions for these bounds [start, end) of queues, as the options demand."""
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
    return [QueuePartition(group) for group in planned]


class RocketmqReader(DataSourceReader):
    """Batch reader. The constructor raises OptionError for options that only a stream has."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        refuse_stream_options(values)
        self.values = dict(values)
        self.spec = read_spec(values)

    def __getstate__(self) -> dict[str, Any]:
        # Executors only need the options for reading.
        return {"spec": self.spec}

    def partitions(self) -> list[InputPartition]:
        """Resolve the positions and plan partitions. Raises OptionError, EndpointError, DataLossError."""
        cluster = ClusterClient(self.spec.endpoint)
        try:
            snapshot = QueueDiscovery(cluster, TopicSelection.from_options(self.values)).require_snapshot()
            return build_partitions(self._resolve_ranges(snapshot, cluster), snapshot.queues, self.values)
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the messages of one partition. Raises EndpointError, DataLossError."""
        return read_partition(self.spec, partition)

    def _resolve_ranges(
        self, snapshot: QueueSnapshot, cluster: ClusterClient
    ) -> dict[Queue, tuple[int, int]]:
        check_filter_expression(self.spec, snapshot, cluster)
        fail = self.spec.fail_on_data_loss
        starts = clamp_offsets(
            resolve_position(starting_position(self.values, EARLIEST), snapshot, cluster),
            snapshot.extents,
            fail,
        )
        ends = clamp_offsets(
            resolve_position(ending_position(self.values), snapshot, cluster), snapshot.extents, fail
        )
        return {queue: (start, ends[queue]) for queue, start in starts.items() if start < ends[queue]}


class FilteringReader(RocketmqReader):
    """Batch reader that uses Spark's filters. Spark refuses it unless filter push-down is enabled in its
    configuration.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.pushed = PushedFilters(self.spec.schema)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Return the filters that Spark still has to apply."""
        remaining = [condition for condition in filters if not self.pushed.apply_filter(condition)]
        expression = self.pushed.tag_expression()
        if expression is not None and self.spec.expression == "*":
            self.spec = replace(self.spec, expression=expression, expression_type="TAG")
        return remaining

    def _resolve_ranges(
        self, snapshot: QueueSnapshot, cluster: ClusterClient
    ) -> dict[Queue, tuple[int, int]]:
        ranges = {
            queue: (max(start, self.pushed.offsets.low), min(end, self.pushed.offsets.high))
            for queue, (start, end) in super()._resolve_ranges(snapshot, cluster).items()
            if self.pushed.includes_queue(queue)
        }
        queues = {queue: snapshot.queues[queue] for queue in ranges}
        times = self.pushed.times_ms
        if times.low > 0:
            first = cluster.find_offsets_at(queues, dict.fromkeys(queues, times.low))
            ranges = {queue: (max(start, first[queue]), end) for queue, (start, end) in ranges.items()}
        if times.high < Interval().high:
            last = cluster.find_offsets_at(queues, dict.fromkeys(queues, max(times.high, 0)))
            ranges = {queue: (start, min(end, last[queue])) for queue, (start, end) in ranges.items()}
        return {queue: bounds for queue, bounds in ranges.items() if bounds[0] < bounds[1]}


def check_filter_expression(spec: ReadSpec, snapshot: QueueSnapshot, cluster: ClusterClient) -> None:
    """Raise EndpointError if a broker refuses the filter expression, before any task starts."""
    if spec.expression_type != "SQL92":
        return
    for address, queue in {address: queue for queue, address in snapshot.queues.items()}.items():
        cluster.check_expression(queue.topic, address, spec.expression)
