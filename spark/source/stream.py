"""Reading as a stream: what is new since the last batch, as much of it as the limits allow.

Where a stream starts is pinned by its first batch, which is empty: Spark writes down only where batches end, and asks
for the start again until it has. Nothing is kept at the broker for that.

Not responsible for options, nor for reading messages.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark.cluster import Cluster
from spark.source.batch import partitions_of, read_stretches
from spark.source.discovery import Discovery
from spark.source.limits import Gate, cap_rows, lags
from spark.source.offsets import Nested, Offsets, from_json, to_json
from spark.source.options import LATEST, Topics, read_spec, refuse_batch_options
from spark.source.positions import keep_within, report_losses, resolve, starting

if TYPE_CHECKING:
    import pyarrow as pa

_OUR_LIMITS: Final = ReadMaxRows((1 << 63) - 1)
"""Tells Spark's wish for everything at once (`once=True`) from its usual one, where our options hold."""


class RocketmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One per query, in one process of the driver. Raises OptionError for what does not go together in a stream."""

    def __init__(self, values: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        refuse_batch_options(values)
        self.values = dict(values)
        self.spec = read_spec(values)
        self.cluster = Cluster(self.spec.endpoint)
        self.discovery = Discovery(
            self.cluster, Topics.from_options(values), values["metadataMaxAgeMs"] / 1000, clock
        )
        self.gate = Gate(values["minOffsetsPerTrigger"], values["maxTriggerDelay"], clock)
        self._initial: Offsets | None = None
        self._pinning = False
        self._target: Offsets | None = None

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
        self._target = {queue: extent.end for queue, extent in self.discovery.extents(fresh=True).items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> Nested:
        """Where the next batch ends, which starts at `start`. Raises EndpointError, DataLossError."""
        begins = from_json(start) if start else {}
        if self._pinning and begins == self._initial and not isinstance(limit, ReadAllAvailable):
            self._pinning = False
            return to_json(begins)
        self._pinning = False
        ends = self._ends(begins)
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limited(begins, ends)
        return to_json(ends)

    def reportLatestOffset(self) -> Nested | None:
        """Where the queues end, for the progress. Raises EndpointError."""
        return to_json({queue: extent.end for queue, extent in self.discovery.extents().items()}) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The partitions of a batch. Raises EndpointError, DataLossError."""
        if self._pinning:
            self._pinning = False
            return []  # the first batch once more, after a crash: it was empty
        starts, ends = from_json(start) if start else {}, from_json(end) if end else {}
        extents = self.discovery.extents(fresh=True)
        kept = keep_within(starts, ends, extents, self.spec.fail_on_data_loss)
        return partitions_of(kept, self.discovery.queues(), self.values)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The messages of one partition. Raises EndpointError, DataLossError."""
        return read_stretches(self.spec, partition)

    def stop(self) -> None:
        """Close the connections."""
        self.cluster.close()

    def _start(self) -> Offsets:
        self.discovery.require()
        extents = self.discovery.extents(fresh=True)
        starts = resolve(starting(self.values, LATEST), self.discovery.queues(), extents, self.cluster)
        outside = [
            f"{queue} holds [{extents[queue].begin}, {extents[queue].end}), which {offset} is outside of"
            for queue, offset in starts.items()
            if not extents[queue].begin <= offset <= extents[queue].end
        ]
        report_losses(outside, self.spec.fail_on_data_loss)
        return {
            queue: min(max(offset, extents[queue].begin), extents[queue].end)
            for queue, offset in starts.items()
        }

    def _ends(self, begins: Offsets) -> Offsets:
        """Where the queues end. One that is gone stays where it is: if it comes back nothing is read twice."""
        extents = self.discovery.extents()
        ends = begins | {queue: extent.end for queue, extent in extents.items()}
        if self._target is not None:
            ends = {
                queue: min(end, self._target.get(queue, begins.get(queue, 0))) for queue, end in ends.items()
            }
        return ends

    def _limited(self, begins: Offsets, ends: Offsets) -> Offsets:
        extents = self.discovery.extents()
        known = {queue: extents[queue].begin for queue in ends if queue not in begins} | begins
        if not self.gate.opens(sum(lags(known, ends).values())) and self._target is None:
            return begins
        most = self.values["maxOffsetsPerTrigger"]
        return cap_rows(known, ends, most) if most else ends
