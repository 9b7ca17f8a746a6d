"""A Delta table by delta-spark, on the versions of Spark it supports: Spark writes, commits and compacts.

The session needs delta-spark's jar and its two settings (see docs/how-to/spark/ingest.md).
"""

import json
from typing import TYPE_CHECKING

from spark.errors import TableError
from spark.pull.unread import Unread
from spark.tables.base import KEEP_HOURS, TARGET_BYTES, Appended, Compacted, rows_by_topic
from spark.tables.layout import ORDER, PARTITIONS, by_day

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_COMMITTED = "spark.databricks.delta.lastCommitVersionInSession"


class DeltaSparkTable:
    """The table at `path`, any address Spark can write to."""

    format = "delta"

    def __init__(self, path: str, session: "SparkSession") -> None:
        self._path = path
        self._session = session

    @property
    def path(self) -> str:
        return self._path

    def exists(self) -> bool:
        from delta import DeltaTable

        return bool(DeltaTable.isDeltaTable(self._session, self._path))

    def append(self, app_id: str, batch_id: int, rows: "DataFrame | Unread") -> Appended:
        if isinstance(rows, Unread):
            rows = by_day(rows.messages())
        order = [name for name in ORDER if name in rows.columns]
        rows.sparkSession.conf.unset(_COMMITTED)
        (
            rows.sortWithinPartitions(*order)
            .write.format("delta")
            .mode("append")
            .partitionBy(*PARTITIONS)
            .option("txnAppId", app_id)
            .option("txnVersion", batch_id)
            .save(self._path)
        )
        version = rows.sparkSession.conf.get(_COMMITTED, None)
        return Appended(again=True) if version is None else self._told(int(version))

    def _told(self, version: int) -> Appended:
        """What a commit added, as it says itself."""
        log = self._session.read.text(f"{self._path}/_delta_log/{version:020d}.json").collect()
        adds = [line["add"] for row in log if "add" in (line := json.loads(row[0]))]
        counts = rows_by_topic(
            (add["partitionValues"]["topic"], json.loads(add["stats"])["numRecords"]) for add in adds
        )
        return Appended(counts, len(adds), sum(add["size"] for add in adds))

    def read(self, session: "SparkSession") -> "DataFrame":
        self._must_exist()
        return session.read.format("delta").load(self._path)

    def files(self) -> list[str]:
        if not self.exists():
            return []
        # Delta does not escape them as URLs, so that a local one is no `file:` URL, whatever it begins with.
        return sorted(name.removeprefix("file:") for name in self.read(self._session).inputFiles())

    def dataset(self) -> "ds.Dataset":
        """By delta-rs, which reads the same tables; it has to be installed."""
        from spark.tables.delta_rs import dataset

        return dataset(self._path)

    def compact(self, target_bytes: int = TARGET_BYTES, keep_hours: float = KEEP_HOURS) -> Compacted:
        from delta import DeltaTable

        if not self.exists():
            return Compacted(0, 0)
        before = len(self.files())
        self._session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(target_bytes))
        table = DeltaTable.forPath(self._session, self._path)
        table.optimize().executeCompaction()
        table.vacuum(keep_hours)
        return Compacted(before, len(self.files()))

    def _must_exist(self) -> None:
        if not self.exists():
            raise TableError(f"{self._path}: nothing was appended yet")
