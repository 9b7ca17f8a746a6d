"""Monitoring of streams of the source `rocketmq`: lag per queue, rows, bytes and ages.

    listener = LagListener(print)
    spark.streams.addListener(listener)
    query = observe(spark.readStream.format("rocketmq") … .load()).writeStream … .start()

Spark's progress has no metrics of Python sources, so the lag is computed from the offsets that it reports.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark.cluster import Queue
from spark.source.offset_json import offsets_from_json

OBSERVATION: Final = "rocketmq"


@dataclass(frozen=True, slots=True)
class Lag:
    """Messages between one batch of a stream and the ends of its queues. `query` is the query's id."""

    query: str
    name: str | None
    batch: int
    behind: dict[Queue, int]

    @property
    def metrics(self) -> dict[str, float]:
        """The three lag metrics of the Kafka connector, under its names."""
        lags = list(self.behind.values())
        return {
            "minOffsetsBehindLatest": min(lags, default=0),
            "maxOffsetsBehindLatest": max(lags, default=0),
            "avgOffsetsBehindLatest": sum(lags) / len(lags) if lags else 0.0,
        }


def lag_by_queue(sources: Iterable[Any]) -> dict[Queue, int]:
    """Return the lag per queue in messages; sources of other kinds are skipped."""
    lags: dict[Queue, int] = {}
    for source in sources:
        try:
            latest, end = (
                offsets_from_json(json.loads(source.latestOffset)),
                offsets_from_json(json.loads(source.endOffset)),
            )
        except (TypeError, ValueError):  # not our source, or no offset yet
            continue
        for queue, last in latest.items():
            lags[queue] = max(0, last - end.get(queue, 0))
    return lags


class LagListener(StreamingQueryListener):
    """Keeps the last lag of each query by query id in `latest`, and passes each lag to `tell`."""

    def __init__(self, tell: Callable[[Lag], None] | None = None) -> None:
        self.latest: dict[str, Lag] = {}
        self._tell = tell

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: no lag is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Compute the lag after a batch."""
        progress = event.progress
        lags = lag_by_queue(progress.sources)
        if not lags:
            return
        lag = Lag(str(progress.id), progress.name, progress.batchId, lags)
        self.latest[lag.query] = lag
        if self._tell is not None:
            self._tell(lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the lag is unchanged."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query's lag."""
        self.latest.pop(str(event.id), None)


def observe(frame: DataFrame, name: str = OBSERVATION) -> DataFrame:
    """Return the same rows; each progress then has `observedMetrics[name]`: rows, bodyBytes, first and last
    storeTimestamp.

    With `schema=kafka` the columns have other names, which are found as well. Metrics of missing columns are left out.
    """
    body = _first_of(frame, "body", "value")
    stored = _first_of(frame, "storeTimestamp", "timestamp")
    metrics = [F.count(F.lit(1)).alias("rows")]
    if body is not None:
        metrics.append(F.sum(F.length(F.col(body))).alias("bodyBytes"))
    if stored is not None:
        metrics += [F.min(stored).alias("firstStored"), F.max(stored).alias("lastStored")]
    return frame.observe(name, *metrics)


def _first_of(frame: DataFrame, *names: str) -> str | None:
    return next((name for name in names if name in frame.columns), None)
