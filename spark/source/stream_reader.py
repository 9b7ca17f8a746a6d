"""Stream reads: messages that are new since the last batch, as many as the limits allow.

Theory of operation: Spark stores only the ends of batches, and asks `initialOffset` again until it has stored one. If
the answer changed in between (`startingOffsets=latest`, or messages that expire), messages would be lost or read
twice after a crash in the first batch. So the first batch is always empty: it ends where the stream starts, which
pins the start in Spark's checkpoint. A crash at any point has one of two outcomes:

1. Before Spark stored the end of the first batch, a restart resolves the start anew; nothing has been read yet.
2. After that, a restart gets the stored offsets, and Spark may call `partitions` for a batch that is re-run.

Nothing is stored at the broker for this. With `commitOffsetsToBroker`, progress is also committed as offsets of a
consumer group, for tools that show lag (`ProgressCommitter`). The checkpoint stays authoritative: committed offsets are
never read back unless the user asks for it with `startingOffsets=committed`.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark.cluster import ClusterClient, Queue, QueueAddresses
from spark.errors import EndpointError
from spark.source.batch_reader import build_partitions, check_filter_expression, read_partition
from spark.source.offset_json import (
    Offsets,
    OffsetsJson,
    fingerprints_from_json,
    offsets_from_json,
    offsets_to_json,
    positions_to_json,
)
from spark.source.options import LATEST, SOURCE, TopicSelection, read_spec, refuse_batch_options
from spark.source.positions import (
    clamp_offsets,
    readable_ranges,
    report_losses,
    resolve_position,
    starting_position,
    unreachable_queues,
)
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

_LOG = logging.getLogger(__name__)
_LIMITS_OF_OPTIONS: Final = ReadMaxRows((1 << 63) - 1)
"""Read limit that stands for our options. Spark passes it back, or `ReadAllAvailable` (`once=True`) to override
them.
"""


class RocketmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader, one per query, in one process of the driver. Raises OptionError for options only a batch has."""

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
        # Executors only need the options for reading.
        return {"spec": self.spec}

    def initialOffset(self) -> OffsetsJson:
        """Return the start of the stream, the same at each call. Raises OptionError, EndpointError, DataLossError."""
        if self._initial_offsets is None:
            self._initial_offsets = self._resolve_start()
            self._is_pinning_start = True
        return offsets_to_json(self._initial_offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the placeholder for our options' limits, which Spark's own limits cannot express."""
        return _LIMITS_OF_OPTIONS

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the current ends of the queues as the stream's end. Raises EndpointError."""
        self._available_now_ends = self.discovery.take_snapshot(fresh=True).end_offsets

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> OffsetsJson:
        """Return the end of the batch that starts at `start`. Raises EndpointError, DataLossError."""
        begins = offsets_from_json(start) if start else {}
        everything = isinstance(limit, ReadAllAvailable)
        pinning, self._is_pinning_start = self._is_pinning_start, False
        # The empty first batch. `once=True` has only one batch, which must not be empty.
        if pinning and begins == self._initial_offsets and not everything:
            return offsets_to_json(begins)
        fingerprints = fingerprints_from_json(start)
        snapshot = self._checked_snapshot(begins, fingerprints)
        self.progress_committer.commit_progress(snapshot.queues, begins)
        ends = self._available_ends(begins, snapshot)
        ends = ends if everything else self._apply_limits(begins, ends, snapshot)
        return positions_to_json(ends, self._fingerprint_ends(begins, ends, fingerprints, snapshot))

    def reportLatestOffset(self) -> OffsetsJson | None:
        """Return the current ends of the queues, for Spark's progress reports. Raises EndpointError."""
        return offsets_to_json(self.discovery.take_snapshot().end_offsets) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of a batch. Raises EndpointError, DataLossError."""
        was_pinning, self._is_pinning_start = self._is_pinning_start, False
        if was_pinning:
            return []  # the first batch is re-run after a crash; it was empty
        starts, ends = offsets_from_json(start) if start else {}, offsets_from_json(end) if end else {}
        if starts == ends:
            return []
        snapshot = self._snapshot_with_retries(
            lambda snapshot: unreachable_queues(starts, ends, snapshot.extents), fresh=True
        )
        ranges = readable_ranges(starts, ends, snapshot.extents, self.spec.fail_on_data_loss)
        return build_partitions(ranges, snapshot.queues, self.values)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the messages of one partition. Raises EndpointError, DataLossError."""
        return read_partition(self.spec, partition)

    def stop(self) -> None:
        """Close the connections."""
        self.cluster.close()

    def _resolve_start(self) -> Offsets:
        snapshot = self.discovery.require_snapshot()
        check_filter_expression(self.spec, snapshot, self.cluster)
        starts = resolve_position(starting_position(self.values, LATEST), snapshot, self.cluster)
        starts = clamp_offsets(starts, snapshot.extents, self.spec.fail_on_data_loss)
        self.progress_committer.claim_group(snapshot.queues, starts)
        return starts

    def _fingerprint_ends(
        self, begins: Offsets, ends: Offsets, fingerprints: Mapping[Queue, int], snapshot: QueueSnapshot
    ) -> dict[Queue, int]:
        """Return the fingerprints of the last messages before the ends.

        A queue without new messages keeps its fingerprint: Spark compares positions as text, and would start a batch.
        """
        last_offsets = {
            queue: end - 1
            for queue, end in ends.items()
            if end != begins.get(queue) and queue in snapshot.queues and end > snapshot.extents[queue].begin
        }
        kept = {queue: value for queue, value in fingerprints.items() if ends.get(queue) == begins.get(queue)}
        return kept | self.cluster.fingerprint_messages(snapshot.queues, last_offsets)

    def _describe_new_queues(
        self, begins: Offsets, fingerprints: Mapping[Queue, int], snapshot: QueueSnapshot
    ) -> Iterator[str]:
        """Describe queues that began anew: another message stands where the last one that was read stood."""
        last_offsets = {
            queue: begins[queue] - 1
            for queue in fingerprints
            if queue in snapshot.extents
            and snapshot.extents[queue].begin < begins.get(queue, 0) < snapshot.extents[queue].end
        }
        found = self.cluster.fingerprint_messages(snapshot.queues, last_offsets) if last_offsets else {}
        for queue, fingerprint in found.items():
            if fingerprint != fingerprints[queue]:
                yield (
                    f"{queue} was read up to {begins[queue]} and has other messages now: its topic was deleted and "
                    "created again"
                )

    def _checked_snapshot(self, begins: Offsets, fingerprints: Mapping[Queue, int]) -> QueueSnapshot:
        """Return a snapshot after waiting for queues that disappeared or became shorter.

        Those that stay so, or that began anew, are losses. Raises DataLossError if losses are errors.
        """
        snapshot = self._snapshot_with_retries(lambda snapshot: self._describe_missing(begins, snapshot))
        missing_queues = self._describe_missing(begins, snapshot)
        new_queues = self._describe_new_queues(begins, fingerprints, snapshot)
        report_losses([*missing_queues.values(), *new_queues], self.spec.fail_on_data_loss)
        self._removed_queues = {queue for queue in begins if queue not in snapshot.extents}
        return snapshot

    def _snapshot_with_retries(
        self, find_faults: Callable[[QueueSnapshot], Collection[Queue]], *, fresh: bool = False
    ) -> QueueSnapshot:
        """Return a snapshot once `find_faults` finds none in it, or after all retries."""
        endpoint = self.spec.endpoint
        snapshot = self.discovery.take_snapshot(fresh=fresh)
        pause_s = endpoint.retry_interval_s
        for _ in range(endpoint.retries):
            if not find_faults(snapshot):
                break
            self._sleep(pause_s)
            pause_s *= 2
            snapshot = self.discovery.take_snapshot(fresh=True)
        return snapshot

    def _describe_missing(self, begins: Offsets, snapshot: QueueSnapshot) -> dict[Queue, str]:
        descriptions = {}
        for queue, begin in begins.items():
            if queue not in snapshot.extents:
                if queue not in self._removed_queues:
                    descriptions[queue] = f"{queue}, which was read up to {begin}, no longer exists"
            elif snapshot.extents[queue].end < begin:
                descriptions[queue] = (
                    f"{queue} was read up to {begin} and ends at {snapshot.extents[queue].end} now"
                )
        return descriptions

    def _available_ends(self, begins: Offsets, snapshot: QueueSnapshot) -> Offsets:
        """Return the ends of the queues. A removed queue keeps its offset: if it comes back, nothing is read twice."""
        ends = begins | snapshot.end_offsets
        if self._available_now_ends is None:
            return ends
        target = begins | self._available_now_ends
        return {queue: min(end, target[queue]) for queue, end in ends.items() if queue in target}

    def _apply_limits(self, begins: Offsets, ends: Offsets, snapshot: QueueSnapshot) -> Offsets:
        starts = snapshot.begin_offsets | begins
        rows = sum(queue_lags(starts, ends).values())
        if not rows:
            return ends
        if not self.trigger_delay.should_start(rows) and self._available_now_ends is None:
            return begins
        max_rows, max_bytes = self.values["maxOffsetsPerTrigger"], self.values["maxBytesPerTrigger"]
        if max_rows:
            ends = cap_rows(starts, ends, max_rows)
        if max_bytes:
            ends = self._cap_bytes(starts, ends, snapshot, max_bytes)
        return ends

    def _cap_bytes(self, begins: Offsets, ends: Offsets, snapshot: QueueSnapshot, max_bytes: int) -> Offsets:
        samples = {
            queue: choose_samples(max(begins[queue], snapshot.extents[queue].begin), ends[queue])
            for queue in queue_lags(begins, ends)
        }
        sizes = self.cluster.sample_sizes(snapshot.queues, samples)
        return cap_bytes(
            begins, ends, {queue: summarize_samples(samples) for queue, samples in sizes.items()}, max_bytes
        )


class GroupOffsets(Protocol):
    """Part of `ClusterClient` that commits offsets."""

    def has_live_consumers(self, group: str, queues: QueueAddresses) -> bool: ...

    def commit_offsets(self, group: str, queues: QueueAddresses, offsets: Mapping[Queue, int]) -> None: ...


class ProgressCommitter:
    """Commits the progress of one stream; does nothing if `group` is None. Never touches a group with live
    consumers.
    """

    def __init__(self, group: str | None, cluster: GroupOffsets) -> None:
        self._group = group
        self._cluster = cluster
        self._last_committed: Offsets | None = None

    def claim_group(self, queues: QueueAddresses, offsets: Offsets) -> None:
        """Commit the start of a new stream. Raises EndpointError if that fails, or if the group has live consumers."""
        if self._group is None:
            return
        if self._cluster.has_live_consumers(self._group, queues):
            raise EndpointError(
                f"{SOURCE}: group {self._group} has live consumers, whose offsets commitOffsetsToBroker would move; "
                "use a consumerGroup that nothing else consumes with"
            )
        self._cluster.commit_offsets(self._group, queues, offsets)
        self._last_committed = offsets

    def commit_progress(self, queues: QueueAddresses, offsets: Offsets) -> None:
        """Commit that everything before these offsets is processed. Failures are logged and do not stop the stream."""
        if self._group is None or offsets == self._last_committed:
            return
        try:
            if self._cluster.has_live_consumers(self._group, queues):
                _LOG.warning("group %s has live consumers: progress is not committed", self._group)
            else:
                self._cluster.commit_offsets(self._group, queues, offsets)
        except EndpointError as error:
            _LOG.warning("progress of group %s could not be committed: %s", self._group, error)
        self._last_committed = offsets
