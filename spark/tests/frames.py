"""Frames for tables without Spark: the part of a DataFrame that `append` uses, implemented with Arrow."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

MIDNIGHT = datetime(2026, 1, 31, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("storeTimestamp", pa.timestamp("us", tz="UTC")),
        ("dt", pa.date32()),
        ("hour", pa.int32()),
    ]
)


def rows(topic: str, queue: int, offsets: Sequence[int], day: int = 0) -> list[dict[str, Any]]:
    """Return rows of a queue, one per second, `day` days after the last of January."""
    found = []
    for offset in offsets:
        time = MIDNIGHT + timedelta(days=day, seconds=offset)
        found.append(
            {
                "topic": topic,
                "brokerName": "broker-a",
                "queueId": queue,
                "queueOffset": offset,
                "body": f"{topic}/{queue}/{offset}".encode(),
                "properties": {"UNIQ_KEY": f"{topic}{queue}{offset}"},
                "storeTimestamp": time,
                "dt": time.date(),
                "hour": time.hour,
            }
        )
    return found


class Frame:
    """A frame of partitions, each a list of rows. `fail` is called with the number of each before it is done."""

    def __init__(self, *partitions: list[dict[str, Any]], fail: Callable[[int], None] | None = None) -> None:
        self.partitions = partitions
        self.schema = from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)
        self.fail = fail

    def mapInArrow(
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _ddl: str
    ) -> SimpleNamespace:
        def collect() -> list[tuple[Any, ...]]:
            found = []
            for number, partition in enumerate(self.partitions):
                # Spark hands a few rows at a time, and an empty batch for an empty partition.
                batches = [
                    pa.RecordBatch.from_pylist(partition[at : at + 3], SCHEMA)
                    for at in range(0, max(1, len(partition)), 3)
                ]
                for batch in function(iter(batches)):
                    found += [tuple(row.values()) for row in batch.to_pylist()]
                if self.fail:
                    self.fail(number)
            return found

        return SimpleNamespace(collect=collect)
