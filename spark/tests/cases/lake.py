"""Shared parts of the cases of tables: an ingest's configuration, its run in this process, and what readers see."""

import io
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console

from compat_tests.clients.typed import connect, iter_queue
from compat_tests.server import ServerUnderTest
from spark.pipelines import compact, ingest
from spark.pipelines.config import load_config
from spark.pipelines.job import Job, Pipeline, Summary
from spark.tables import Table

Place = tuple[str, int, int]
COLUMNS = ["topic", "queueId", "queueOffset", "body"]


def tables(server: ServerUnderTest, root: Path, topics: str, **run: Any) -> dict[str, dict[str, Any]]:
    """Return the TOML tables of an ingest of everything available."""
    source = {"nameServer": server.namesrv, "subscribe": topics, "startingOffsets": "earliest"}
    return {"source": source, "table": {"path": str(root)}, "run": {"availableNow": True, **run}}


def write_toml(file: Path, content: Mapping[str, Mapping[str, Any]]) -> Path:
    """Writes tables of plain values."""
    lines = []
    for table, values in content.items():
        lines.append(f"[{table}]")
        lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items()]
    file.write_text("\n".join(lines) + "\n")
    return file


def run(session: SparkSession, file: Path, *sets: str, pipeline: Pipeline = ingest.PIPELINE) -> Summary:
    """Run a pipeline in an existing session."""
    config = load_config(pipeline.tables, str(file), sets)
    return pipeline.run(Job(session, config, Console(file=io.StringIO())))


def run_compact(session: SparkSession, file: Path, *sets: str) -> Summary:
    """Compacts an ingest's tables."""
    return run(session, file, *sets, pipeline=compact.PIPELINE)


def stored(server: ServerUnderTest, queues: Mapping[str, int]) -> dict[Place, bytes]:
    """Return the broker's messages: the body by topic, queue and offset."""
    found = {}
    with connect(server.broker) as broker:
        for topic, count in queues.items():
            for queue in range(count):
                for message in iter_queue(broker, topic, queue):
                    found[(topic, queue, message.queue_offset)] = message.body
    return found


def by_arrow(table: Table) -> list[tuple[Any, ...]]:
    """All rows, read by pyarrow."""
    return [tuple(row.values()) for row in table.dataset().to_table(columns=COLUMNS).to_pylist()]


def by_duckdb(table: Table) -> list[tuple[Any, ...]]:
    """All rows, read by DuckDB: the directory itself, or what Delta's log names."""
    if table.format == "directory":
        types = "{'topic': VARCHAR, 'dt': DATE, 'app': VARCHAR, 'batch': VARCHAR}"
        where = f"read_parquet('{table.path}/**/*.parquet', hive_partitioning=true, hive_types={types})"
        return duckdb.sql(f"select {', '.join(COLUMNS)} from {where}").fetchall()
    found = table.dataset()
    assert found is not None  # DuckDB finds it by its name
    return duckdb.sql(f"select {', '.join(COLUMNS)} from found").fetchall()


def by_spark(session: SparkSession, table: Table) -> list[tuple[Any, ...]]:
    """All rows, read by Spark."""
    rows = table.read(session).select(*COLUMNS).collect()
    return [(topic, queue, offset, bytes(body)) for topic, queue, offset, body in rows]


def assert_once(expected: Mapping[Place, bytes], rows: list[tuple[Any, ...]], reader: str) -> None:
    """Check for every message exactly once, with its body."""
    times = Counter(row[:3] for row in rows)
    twice = [place for place, count in times.items() if count > 1]
    assert not twice, f"{reader}: {len(twice)} of {len(expected)} more than once, the first {min(twice)}"
    missing = sorted(expected.keys() - times.keys())
    assert not missing, f"{reader}: {len(missing)} of {len(expected)} missing, the first {missing[0]}"
    assert times.keys() == expected.keys(), reader
    wrong = [row[:3] for row in rows if expected[row[:3]] != row[3]]
    assert not wrong, f"{reader}: {len(wrong)} bodies differ, the first {wrong[0]}"


def assert_all_readers(session: SparkSession, table: Table, expected: Mapping[Place, bytes]) -> None:
    """Spark, pyarrow, DuckDB, and each file by itself."""
    assert_once(expected, by_spark(session, table), "Spark")
    assert_once(expected, by_arrow(table), "pyarrow")
    assert_once(expected, by_duckdb(table), "DuckDB")
    assert sum(pq.ParquetFile(path).read(["queueOffset"]).num_rows for path in table.files()) == len(expected)
