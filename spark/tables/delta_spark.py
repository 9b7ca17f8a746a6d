"""Delta tables with delta-spark, on the Spark versions it supports: Spark writes, commits and compacts.

The session needs delta-spark's jar and its two settings (see the documentation of `ingest`).
"""

import json
from typing import TYPE_CHECKING

from spark.errors import TableError
from spark.pull.unread import Unread
from spark.tables.layout import PARTITION_COLUMNS, SORT_COLUMNS, by_day
from spark.tables.table import (
    DEFAULT_KEEP_HOURS,
    DEFAULT_TARGET_BYTES,
    AppendResult,
    CompactResult,
    sum_rows_by_topic,
)

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_LAST_COMMIT_SETTING = "spark.databricks.delta.lastCommitVersionInSession"


class DeltaSparkTable:
    """Table at `path`, any URI Spark can write to."""

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

    def append(self, app_id: str, batch_id: int, rows: "DataFrame | Unread") -> AppendResult:
        if isinstance(rows, Unread):
            rows = by_day(rows.messages())
        order = [name for name in SORT_COLUMNS if name in rows.columns]
        rows.sparkSession.conf.unset(_LAST_COMMIT_SETTING)
        (
            rows.sortWithinPartitions(*order)
            .write.format("delta")
            .mode("append")
            .partitionBy(*PARTITION_COLUMNS)
            .option("txnAppId", app_id)
            .option("txnVersion", batch_id)
            .save(self._path)
        )
        version = rows.sparkSession.conf.get(_LAST_COMMIT_SETTING, None)
        return AppendResult(already_present=True) if version is None else self._read_commit(int(version))

    def _read_commit(self, version: int) -> AppendResult:
        """Return the rows, files and bytes of a commit, read from its entry in the Delta log."""
        log = self._session.read.text(f"{self._path}/_delta_log/{version:020d}.json").collect()
        adds = [line["add"] for row in log if "add" in (line := json.loads(row[0]))]
        counts = sum_rows_by_topic(
            (add["partitionValues"]["topic"], json.loads(add["stats"])["numRecords"]) for add in adds
        )
        return AppendResult(counts, len(adds), sum(add["size"] for add in adds))

    def read(self, session: "SparkSession") -> "DataFrame":
        self._require_existing()
        return session.read.format("delta").load(self._path)

    def files(self) -> list[str]:
        if not self.exists():
            return []
        # Delta does not URL-escape these, so a local path is not a real `file:` URL despite the prefix.
        return sorted(name.removeprefix("file:") for name in self.read(self._session).inputFiles())

    def dataset(self) -> "ds.Dataset":
        """Return the rows through delta-rs, which reads the same tables and has to be installed."""
        from spark.tables.delta_rs import delta_dataset

        return delta_dataset(self._path)

    def compact(
        self, target_bytes: int = DEFAULT_TARGET_BYTES, keep_hours: float = DEFAULT_KEEP_HOURS
    ) -> CompactResult:
        from delta import DeltaTable

        if not self.exists():
            return CompactResult(0, 0)
        before = len(self.files())
        self._session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(target_bytes))
        table = DeltaTable.forPath(self._session, self._path)
        table.optimize().executeCompaction()
        table.vacuum(keep_hours)
        return CompactResult(before, len(self.files()))

    def _require_existing(self) -> None:
        if not self.exists():
            raise TableError(f"{self._path}: the table is empty, nothing has been appended")
