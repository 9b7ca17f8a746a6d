"""Loads of the benchmark: batch reads, streams to a table, the same reads with pyarrow alone, and small triggers."""

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from codec.batch import encode_batch
from codec.properties import encode_properties
from codec.topics import DEFAULT_TOPIC
from remoting.requests.send import SendBatchMessage
from spark.cluster import ClusterClient
from spark.endpoint import Address, ClusterEndpoint, Connections
from spark.pull.range_reader import read_ranges
from spark.pull.read_spec import RANGES_SCHEMA, OffsetRange, ReadSpec
from spark.pull.unread import Unread
from spark.tables.table_formats import open_table
from spark.topics import create_topic
from tools.bench_spark.cpu_usage import CpuUsage, measure_cpu

QUEUES = 4
_BATCH, _WINDOW = 64, 16


@dataclass(frozen=True)
class FilledTopic:
    """A topic full of messages."""

    name_server: str
    topic: str
    messages: int
    body_bytes: int

    @property
    def body_bytes_total(self) -> int:
        return self.messages * self.body_bytes

    def cluster_endpoint(self) -> ClusterEndpoint:
        host, _, port = self.name_server.rpartition(":")
        return ClusterEndpoint(((host, int(port)),))

    def source_options(self, **more: Any) -> dict[str, str]:
        fixed = {"nameServer": self.name_server, "subscribe": self.topic, "startingOffsets": "earliest"}
        return {**fixed, **{name: str(value) for name, value in more.items()}}


def fill_topic(name_server: str, broker: Address, topic: str, messages: int, body_bytes: int) -> FilledTopic:
    """Create a topic with this many messages of random bodies, and the properties stock clients send."""
    filled = FilledTopic(name_server, topic, messages, body_bytes)
    create_topic(name_server, topic, QUEUES)
    with Connections(filled.cluster_endpoint()) as connections:
        client = connections.get_client(broker)
        requests = list(_send_requests(topic, messages, body_bytes))
        for at in range(0, len(requests), _WINDOW):
            client.pipeline(requests[at : at + _WINDOW], timeout_s=60)
    return filled


def _send_requests(topic: str, messages: int, body_bytes: int) -> Iterator[SendBatchMessage]:
    now = int(time.time() * 1000)
    for first in range(0, messages, _BATCH):
        entries = []
        for number in range(first, min(first + _BATCH, messages)):
            properties = {
                "UNIQ_KEY": f"7F00000100002A9F0000{number:012X}",
                "KEYS": f"key{number}",
                "TAGS": "bench",
            }
            entries.append((0, os.urandom(body_bytes), encode_properties({**properties, "WAIT": "true"})))
        yield SendBatchMessage(
            producer_group="bench",
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=QUEUES,
            queue_id=first // _BATCH % QUEUES,
            sys_flag=0,
            born_timestamp=now,
            flag=0,
            properties="",
            reconsume_times=0,
            unit_mode=False,
            batch=True,
            body=encode_batch(entries),
        )


# -- with Spark -------------------------------------------------------------------------------------------------------


def batch_to_noop(session: SparkSession, filled: FilledTopic, pids: list[int]) -> CpuUsage:
    """Read the whole topic with `spark.read` into Spark's noop sink."""

    def work() -> tuple[int, int]:
        frame = session.read.format("rocketmq").options(**filled.source_options()).load()
        frame.write.format("noop").mode("overwrite").save()
        return filled.messages, filled.body_bytes_total

    return measure_cpu(pids, work)


def stream_to_table(session: SparkSession, filled: FilledTopic, pids: list[int], directory: Path) -> CpuUsage:
    """Stream the topic into a table as the pipeline `ingest` does, in a few batches."""
    folder = Path(mkdtemp(dir=directory))
    table = open_table(str(folder / "table"), "messages", session=session)

    def append(frame: DataFrame, batch: int) -> None:
        table.append("bench", batch, Unread(frame, ReadSpec(filled.cluster_endpoint())))

    def work() -> tuple[int, int]:
        options = filled.source_options(maxOffsetsPerTrigger=filled.messages // 3, schema=RANGES_SCHEMA)
        frame = session.readStream.format("rocketmq").options(**options).load()
        writer = frame.writeStream.foreachBatch(append).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()
        return filled.messages, filled.body_bytes_total

    return measure_cpu(pids, work)


@dataclass(frozen=True)
class TriggerTimes:
    """Times of small batches: the median trigger, and the mean CPU time of the Python workers per trigger."""

    count: int
    median_ms: float
    python_ms: float


def small_triggers(
    session: SparkSession, filled: FilledTopic, pids: list[int], directory: Path, count: int
) -> TriggerTimes:
    """Stream a topic in this many batches."""
    durations: list[float] = []

    def work() -> tuple[int, int]:
        options = filled.source_options(maxOffsetsPerTrigger=max(1, filled.messages // count))
        frame = session.readStream.format("rocketmq").options(**options).load()
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()
        query.awaitTermination()
        durations.extend(
            progress["durationMs"]["triggerExecution"]
            for progress in query.recentProgress
            if progress["numInputRows"]
        )
        return filled.messages, filled.body_bytes_total

    figures = measure_cpu(pids, work)
    batches = max(1, len(durations))
    return TriggerTimes(batches, statistics.median(durations or [0]), figures.python_s * 1000 / batches)


# -- without ----------------------------------------------------------------------------------------------------------


def read_without_spark(filled: FilledTopic, pids: list[int], file: Path | None) -> CpuUsage:
    """Read the same messages with the same reader in this process, and discard them or write a Parquet file."""
    spec = ReadSpec(filled.cluster_endpoint())
    cluster = ClusterClient(spec.endpoint)
    queues = cluster.find_queues([filled.topic])
    extents = cluster.fetch_extents(queues)
    cluster.close()
    ranges = [
        OffsetRange(
            queue.topic, queue.broker, address, queue.queue_id, extents[queue].begin, extents[queue].end
        )
        for queue, address in queues.items()
    ]
    begin_s = time.process_time()

    def work() -> tuple[int, int]:
        rows = 0
        writer = pq.ParquetWriter(file, spec.arrow_schema()) if file else None
        for batch in read_ranges(spec, ranges):
            rows += batch.num_rows
            if writer:
                writer.write_batch(batch)
        if writer:
            writer.close()
        return rows, filled.body_bytes_total

    figures = measure_cpu(pids, work)
    own_s = time.process_time() - begin_s
    return CpuUsage(figures.messages, figures.bytes, figures.wall_s, figures.broker_s, own_s, 0.0)
