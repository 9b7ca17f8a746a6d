"""Reading as a stream: what is new since the last batch, as much of it as the limits allow.

Where a stream starts is pinned by its first batch, which is empty: Spark writes down only where batches end, and asks
for the start again until it has. Nothing is kept at the broker for that.

Not responsible for options, nor for reading messages.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark.cluster import ClusterClient, Queue
from spark.source.batch_reader import build_partitions, check_filter_expression, read_partition
from spark.source.offset_json import Offsets, OffsetsJson, offsets_from_json, offsets_to_json
from spark.source.options import LATEST, TopicSelection, read_spec, refuse_batch_options
from spark.source.positions import (
    clamp_offsets,
    readable_ranges,
    report_losses,
    resolve_position,
    starting_position,
    unreachable_queues,
)
from spark.source.progress_committer import ProgressCommitter
from spark.source.queue_discovery import QueueDiscovery, QueueSnapshot
from spark.source.read_limits import (
    TriggerDelay,
    cap_bytes,
    cap_rows,
    choose_samples,
    queue_lags,
    summarize_samples,
)

if TYPE_CHECKING:
    import pyarrow as pa

_LIMITS_OF_OPTIONS: Final = ReadMaxRows((1 << 63) - 1)
"""Tells Spark's wish for everything at once (`once=True`) from its usual one, where our options hold."""


class RocketmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One per query, in one process of the driver. Raises OptionError for what does not go together in a stream."""

    def __init__(
        self,
        values: Mapping[str, Any],
        cluster: ClusterClient | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        refuse_batch_options(values)
        self.values = dict(values)
        self.spec = read_spec(values)
        self.cluster = ClusterClient(self.spec.endpoint) if cluster is None else cluster
        self.discovery = QueueDiscovery(
            self.cluster, TopicSelection.from_options(values), values["metadataMaxAgeMs"] / 1000, clock
        )
        self.trigger_delay = TriggerDelay(values["minOffsetsPerTrigger"], values["maxTriggerDelay"], clock)
        group = values["consumerGroup"] if values["commitOffsetsToBroker"] else None
        self.progress_committer = ProgressCommitter(group, self.cluster)
        self._sleep = sleep
        self._initial_offsets: Offsets | None = None
        self._is_pinning_start = False
        self._available_now_ends: Offsets | None = None
        self._removed_queues: set[Queue] = set()

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get nothing but what reading needs.
        return {"spec": self.spec}

    def initialOffset(self) -> OffsetsJson:
        """Where the stream starts; the same each time. Raises OptionError, EndpointError, DataLossError."""
        if self._initial_offsets is None:
            self._initial_offsets = self._resolve_start()
            self._is_pinning_start = True
        return offsets_to_json(self._initial_offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What stands for the limits of our options, which Spark could not express."""
        return _LIMITS_OF_OPTIONS

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is what will be read. Raises EndpointError."""
        self._available_now_ends = self.discovery.take_snapshot(fresh=True).end_offsets

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> OffsetsJson:
        """Where the next batch ends, which starts at `start`. Raises EndpointError, DataLossError."""
        begins = offsets_from_json(start) if start else {}
        everything = isinstance(limit, ReadAllAvailable)
        pinning, self._is_pinning_start = self._is_pinning_start, False
        if pinning and begins == self._initial_offsets and not everything:
            return offsets_to_json(begins)
        view = self._checked_snapshot(begins)
        self.progress_committer.commit_progress(view.queues, begins)
        ends = self._available_ends(begins, view)
        return offsets_to_json(ends if everything else self._apply_limits(begins, ends, view))

    def reportLatestOffset(self) -> OffsetsJson | None:
        """Where the queues end, for the progress. Raises EndpointError."""
        return offsets_to_json(self.discovery.take_snapshot().end_offsets) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The partitions of a batch. Raises EndpointError, DataLossError."""
        again, self._is_pinning_start = self._is_pinning_start, False
        if again:
            return []  # the first batch once more, after a crash: it was empty
        starts, ends = offsets_from_json(start) if start else {}, offsets_from_json(end) if end else {}
        if starts == ends:
            return []
        view = self._snapshot_with_retries(
            lambda view: unreachable_queues(starts, ends, view.extents), fresh=True
        )
        kept = readable_ranges(starts, ends, view.extents, self.spec.fail_on_data_loss)
        return build_partitions(kept, view.queues, self.values)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The messages of one partition. Raises EndpointError, DataLossError."""
        return read_partition(self.spec, partition)

    def stop(self) -> None:
        """Close the connections."""
        self.cluster.close()

    def _resolve_start(self) -> Offsets:
        view = self.discovery.require_snapshot()
        check_filter_expression(self.spec, view, self.cluster)
        starts = resolve_position(starting_position(self.values, LATEST), view, self.cluster)
        starts = clamp_offsets(starts, view.extents, self.spec.fail_on_data_loss)
        self.progress_committer.claim_group(view.queues, starts)
        return starts

    def _checked_snapshot(self, begins: Offsets) -> QueueSnapshot:
        """What there is, once no queue is gone or shorter than it was, or that has been so for some time and is said.

        Raises DataLossError if the user wants to know.
        """
        view = self._snapshot_with_retries(lambda view: self._describe_missing(begins, view))
        missing = self._describe_missing(begins, view)
        report_losses(missing.values(), self.spec.fail_on_data_loss)
        self._removed_queues = {queue for queue in begins if queue not in view.extents}
        return view

    def _snapshot_with_retries(
        self, find_faults: Callable[[QueueSnapshot], Collection[Queue]], *, fresh: bool = False
    ) -> QueueSnapshot:
        """What there is, once nothing is wrong with it, or after all retries."""
        endpoint = self.spec.endpoint
        view = self.discovery.take_snapshot(fresh=fresh)
        pause_s = endpoint.retry_interval_s
        for _ in range(endpoint.retries):
            if not find_faults(view):
                break
            self._sleep(pause_s)
            pause_s *= 2
            view = self.discovery.take_snapshot(fresh=True)
        return view

    def _describe_missing(self, begins: Offsets, snapshot: QueueSnapshot) -> dict[Queue, str]:
        found = {}
        for queue, begin in begins.items():
            if queue not in snapshot.extents:
                if queue not in self._removed_queues:
                    found[queue] = f"{queue}, which was read up to {begin}, is not there any more"
            elif snapshot.extents[queue].end < begin:
                found[queue] = f"{queue} was read up to {begin} and ends at {snapshot.extents[queue].end} now"
        return found

    def _available_ends(self, begins: Offsets, snapshot: QueueSnapshot) -> Offsets:
        """Where the queues end. One that is gone stays where it is: if it comes back nothing is read twice."""
        ends = begins | snapshot.end_offsets
        if self._available_now_ends is None:
            return ends
        target = begins | self._available_now_ends
        return {queue: min(end, target[queue]) for queue, end in ends.items() if queue in target}

    def _apply_limits(self, begins: Offsets, ends: Offsets, snapshot: QueueSnapshot) -> Offsets:
        known = snapshot.begin_offsets | begins
        rows = sum(queue_lags(known, ends).values())
        if not rows:
            return ends
        if not self.trigger_delay.should_start(rows) and self._available_now_ends is None:
            return begins
        most_rows, most_bytes = self.values["maxOffsetsPerTrigger"], self.values["maxBytesPerTrigger"]
        if most_rows:
            ends = cap_rows(known, ends, most_rows)
        if most_bytes:
            ends = self._cap_bytes(known, ends, snapshot, most_bytes)
        return ends

    def _cap_bytes(self, begins: Offsets, ends: Offsets, snapshot: QueueSnapshot, max_bytes: int) -> Offsets:
        spots = {
            queue: choose_samples(max(begins[queue], snapshot.extents[queue].begin), ends[queue])
            for queue in queue_lags(begins, ends)
        }
        seen = self.cluster.sample_sizes(snapshot.queues, spots)
        return cap_bytes(
            begins, ends, {queue: summarize_samples(found) for queue, found in seen.items()}, max_bytes
        )
