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

from spark.cluster import Cluster, Queue
from spark.source.batch import check_expression, partitions_of, read_stretches
from spark.source.discovery import Discovery, View
from spark.source.limits import Gate, cap_bytes, cap_rows, lags, sizes_of, spots_of
from spark.source.offsets import Nested, Offsets, from_json, to_json
from spark.source.options import LATEST, Topics, read_spec, refuse_batch_options
from spark.source.positions import away, inside, keep_within, report_losses, resolve, starting
from spark.source.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

_OUR_LIMITS: Final = ReadMaxRows((1 << 63) - 1)
"""Tells Spark's wish for everything at once (`once=True`) from its usual one, where our options hold."""


class RocketmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One per query, in one process of the driver. Raises OptionError for what does not go together in a stream."""

    def __init__(
        self,
        values: Mapping[str, Any],
        cluster: Cluster | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        refuse_batch_options(values)
        self.values = dict(values)
        self.spec = read_spec(values)
        self.cluster = Cluster(self.spec.endpoint) if cluster is None else cluster
        self.discovery = Discovery(
            self.cluster, Topics.from_options(values), values["metadataMaxAgeMs"] / 1000, clock
        )
        self.gate = Gate(values["minOffsetsPerTrigger"], values["maxTriggerDelay"], clock)
        group = values["consumerGroup"] if values["commitOffsetsToBroker"] else None
        self.progress = Progress(group, self.cluster)
        self._sleep = sleep
        self._initial: Offsets | None = None
        self._pinning = False
        self._target: Offsets | None = None
        self._gone: set[Queue] = set()

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get nothing but what reading needs.
        return {"spec": self.spec}

    def initialOffset(self) -> Nested:
        """Where the stream starts; the same each time. Raises OptionError, EndpointError, DataLossError."""
        if self._initial is None:
            self._initial = self._start()
            self._pinning = True
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What stands for the limits of our options, which Spark could not express."""
        return _OUR_LIMITS

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is what will be read. Raises EndpointError."""
        self._target = self.discovery.look(fresh=True).ends

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Nested:
        """Where the next batch ends, which starts at `start`. Raises EndpointError, DataLossError."""
        begins = from_json(start) if start else {}
        everything = isinstance(limit, ReadAllAvailable)
        pinning, self._pinning = self._pinning, False
        if pinning and begins == self._initial and not everything:
            return to_json(begins)
        view = self._checked(begins)
        self.progress.done(view.queues, begins)
        ends = self._ends(begins, view)
        return to_json(ends if everything else self._limited(begins, ends, view))

    def reportLatestOffset(self) -> Nested | None:
        """Where the queues end, for the progress. Raises EndpointError."""
        return to_json(self.discovery.look().ends) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The partitions of a batch. Raises EndpointError, DataLossError."""
        again, self._pinning = self._pinning, False
        if again:
            return []  # the first batch once more, after a crash: it was empty
        starts, ends = from_json(start) if start else {}, from_json(end) if end else {}
        if starts == ends:
            return []
        view = self._patiently(lambda view: away(starts, ends, view.extents), fresh=True)
        kept = keep_within(starts, ends, view.extents, self.spec.fail_on_data_loss)
        return partitions_of(kept, view.queues, self.values)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The messages of one partition. Raises EndpointError, DataLossError."""
        return read_stretches(self.spec, partition)

    def stop(self) -> None:
        """Close the connections."""
        self.cluster.close()

    def _start(self) -> Offsets:
        view = self.discovery.require()
        check_expression(self.spec, view, self.cluster)
        starts = resolve(starting(self.values, LATEST), view, self.cluster)
        starts = inside(starts, view.extents, self.spec.fail_on_data_loss)
        self.progress.begin(view.queues, starts)
        return starts

    def _checked(self, begins: Offsets) -> View:
        """What there is, once no queue is gone or shorter than it was, or that has been so for some time and is said.

        Raises DataLossError if the user wants to know.
        """
        view = self._patiently(lambda view: self._missing(begins, view))
        missing = self._missing(begins, view)
        report_losses(missing.values(), self.spec.fail_on_data_loss)
        self._gone = {queue for queue in begins if queue not in view.extents}
        return view

    def _patiently(self, wrong: Callable[[View], Collection[Queue]], *, fresh: bool = False) -> View:
        """What there is, once nothing is wrong with it, or after all retries."""
        endpoint = self.spec.endpoint
        view = self.discovery.look(fresh=fresh)
        pause_s = endpoint.retry_interval_s
        for _ in range(endpoint.retries):
            if not wrong(view):
                break
            self._sleep(pause_s)
            pause_s *= 2
            view = self.discovery.look(fresh=True)
        return view

    def _missing(self, begins: Offsets, view: View) -> dict[Queue, str]:
        found = {}
        for queue, begin in begins.items():
            if queue not in view.extents:
                if queue not in self._gone:
                    found[queue] = f"{queue}, which was read up to {begin}, is not there any more"
            elif view.extents[queue].end < begin:
                found[queue] = f"{queue} was read up to {begin} and ends at {view.extents[queue].end} now"
        return found

    def _ends(self, begins: Offsets, view: View) -> Offsets:
        """Where the queues end. One that is gone stays where it is: if it comes back nothing is read twice."""
        ends = begins | view.ends
        if self._target is None:
            return ends
        target = begins | self._target
        return {queue: min(end, target[queue]) for queue, end in ends.items() if queue in target}

    def _limited(self, begins: Offsets, ends: Offsets, view: View) -> Offsets:
        known = view.begins | begins
        rows = sum(lags(known, ends).values())
        if not rows:
            return ends
        if not self.gate.opens(rows) and self._target is None:
            return begins
        most_rows, most_bytes = self.values["maxOffsetsPerTrigger"], self.values["maxBytesPerTrigger"]
        if most_rows:
            ends = cap_rows(known, ends, most_rows)
        if most_bytes:
            ends = self._cap_bytes(known, ends, view, most_bytes)
        return ends

    def _cap_bytes(self, begins: Offsets, ends: Offsets, view: View, most: int) -> Offsets:
        spots = {
            queue: spots_of(max(begins[queue], view.extents[queue].begin), ends[queue])
            for queue in lags(begins, ends)
        }
        seen = self.cluster.sizes(view.queues, spots)
        return cap_bytes(begins, ends, {queue: sizes_of(found) for queue, found in seen.items()}, most)
