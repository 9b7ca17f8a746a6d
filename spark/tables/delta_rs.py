"""Delta tables with delta-rs (`deltalake`): executors write Parquet files, the driver commits them with the batch's id.

Works with any version of Spark, and readers need no Java. Files of an uncommitted batch remain beside the table's
files until `compact` removes the files that no version needs.
"""

import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction

from spark.errors import TableError
from spark.tables.layout import PARTITION_COLUMNS
from spark.tables.parquet_files import WrittenFile, table_schema, write_parquet
from spark.tables.table import (
    DEFAULT_KEEP_HOURS,
    DEFAULT_TARGET_BYTES,
    AppendResult,
    CompactResult,
    sum_rows_by_topic,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from spark.pull.unread import Unread


_TABLE_PROPERTIES: Final = {"delta.checkpointInterval": "20"}
"""Frequent checkpoints, since each append reads the log file by file from the last one."""


class DeltaRsTable:
    """Table at `path`, a path or URI that delta-rs and pyarrow support (`s3://…`)."""

    format = "delta"

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def exists(self) -> bool:
        return bool(DeltaTable.is_deltatable(self._path))

    def append(self, app_id: str, batch_id: int, rows: "DataFrame | Unread") -> AppendResult:
        schema = table_schema(rows)
        table = self._create_table(schema)
        if batch_id <= _last_batch_id(table, app_id):
            return AppendResult(already_present=True)
        written = write_parquet(rows, self._path, f"part-{batch_id:012d}")
        if written:
            _commit_files(table, schema, written, Transaction(app_id, batch_id))
        counts = sum_rows_by_topic((file.topic, file.rows) for file in written)
        return AppendResult(counts, len(written), sum(file.size_bytes for file in written))

    def _create_table(self, schema: "pa.Schema") -> DeltaTable:
        expected = Schema.from_arrow(schema)
        table = DeltaTable.create(
            self._path,
            expected,
            mode="ignore",
            partition_by=list(PARTITION_COLUMNS),
            configuration=_TABLE_PROPERTIES,
        )
        if _column_types(table.schema()) != _column_types(expected):
            raise TableError(
                f"{self._path}: the table has different columns: {table.schema()}, not {expected}"
            )
        return table

    def read(self, session: "SparkSession") -> "DataFrame":
        """Return the rows of the newest version, which Spark reads as Parquet; `format("delta")` works too if it has
        Delta.
        """
        import json

        from pyspark.sql.types import StructType

        table = self._open_table()
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
        reader = session.read.schema(schema)
        files = table.file_uris()
        if not files:
            return session.createDataFrame([], schema)
        return reader.option("basePath", self._path).parquet(*files)

    def files(self) -> list[str]:
        return sorted(self._open_table().file_uris()) if self.exists() else []

    def dataset(self) -> ds.Dataset:
        return delta_dataset(self._path)

    def compact(
        self, target_bytes: int = DEFAULT_TARGET_BYTES, keep_hours: float = DEFAULT_KEEP_HOURS
    ) -> CompactResult:
        if not self.exists():
            return CompactResult(0, 0)
        table = self._open_table()
        before = len(table.file_uris())
        table.optimize.compact(target_size=target_bytes)
        table.create_checkpoint()
        table.vacuum(int(keep_hours), dry_run=False, enforce_retention_duration=False)
        return CompactResult(before, len(table.file_uris()))

    def _open_table(self) -> DeltaTable:
        return open_delta(self._path)


def open_delta(path: str) -> DeltaTable:
    """Return the newest version. Raises TableError if there is no table."""
    if not DeltaTable.is_deltatable(path):
        raise TableError(f"{path}: the table is empty, nothing has been appended")
    return DeltaTable(path)


def delta_dataset(path: str) -> ds.Dataset:
    """Return the newest version of any Delta table, for pyarrow and DuckDB."""
    dataset: ds.Dataset = open_delta(path).to_pyarrow_dataset()
    return dataset


def _column_types(schema: Schema) -> dict[str, str]:
    """Return the types by column."""
    return {field.name: str(field.type) for field in schema.fields}


def _last_batch_id(table: DeltaTable, app_id: str) -> int:
    version = table.transaction_version(app_id)
    return -1 if version is None else int(version)


def _commit_files(
    table: DeltaTable, schema: "pa.Schema", written: list[WrittenFile], batch: Transaction
) -> None:
    now_ms = int(time.time() * 1000)
    actions: list[Any] = [
        AddAction(file.path, file.size_bytes, {"topic": file.topic, "dt": file.day}, now_ms, True, file.stats)
        for file in written
    ]
    table.create_write_transaction(
        actions,
        "append",
        Schema.from_arrow(schema),
        list(PARTITION_COLUMNS),
        commit_properties=CommitProperties(app_transactions=[batch]),
    )
