"""Writers that Spark calls: in each task for its rows, and on the driver when all tasks are done."""

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark.endpoint import Connections
from spark.errors import OptionError, SparkRocketmqError
from spark.sink.columns import check_columns
from spark.sink.dedup_ids import DedupIds
from spark.sink.message_sender import MessageSender, SendCounts
from spark.sink.options import SINK, SinkSpec, sink_spec
from spark.sink.row_encoder import RowEncoder
from spark.sink.staged_delivery import StagingSender, check_staged, publish_batch, writer_name
from spark.sink.write_queues import PublishInfoCache

log = logging.getLogger(__name__)

_BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
_QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Everything a task needs: options, column positions, the write's id, and the staging broker, if any."""

    spec: SinkSpec
    positions: Mapping[str, int]
    write_id: str
    staging_broker: str | None = None


@dataclass
class TaskCommit(WriterCommitMessage):
    """A task's report to the driver: counts of messages, and its stage if delivery is staged and the task had rows."""

    partition: int
    counts: SendCounts
    write_id: str = ""
    stage: str = ""
    pieces: int = 0


def plan_write(options: Mapping[str, str], schema: StructType) -> WritePlan:
    """Check options, columns and topic. Raises OptionError, ColumnError; EndpointError for an unknown topic."""
    spec = sink_spec(options)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    positions = check_columns(fields, spec.topic)
    if spec.topic is not None:
        with Connections(spec.endpoint) as connections:
            PublishInfoCache(connections).publish_info(spec.topic)
    broker = check_staged(spec, positions) if spec.staged else None
    return WritePlan(spec, positions, spec.dedup_prefix or str(uuid.uuid4()), broker)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Return the writer of `df.write.format("rocketmq")`. Raises SparkRocketmqError."""
    if overwrite:
        raise OptionError(f"{SINK}: mode overwrite is not supported, as a topic only grows: use mode append")
    return BatchWriter(plan_write(options, schema))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer of `df.writeStream.format("rocketmq")`. In mode complete every batch sends all rows again."""
    return StreamWriter(plan_write(options, schema))


class BatchWriter(DataSourceArrowWriter):
    """Batch writer. Deduplication ids begin with the write's id."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send all rows of a task. Raises SparkRocketmqError."""
        return send_rows(self.plan, iterator, self.plan.write_id, 0, _partition_id())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Finish the write on the driver: publish staged messages, and log totals."""
        if self.plan.staging_broker is not None:
            publish_all(self.plan, self.plan.staging_broker, messages, 0, stream=False)
        log_totals(messages, "the write")


class StreamWriter(DataSourceStreamArrowWriter):
    """Micro-batch writer. Deduplication ids begin with the query's id, which survives restarts."""

    def __init__(self, plan: WritePlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send all rows of a task. Raises SparkRocketmqError."""
        query, batch = _query_and_batch()
        return send_rows(self.plan, iterator, self.plan.spec.dedup_prefix or query, batch, _partition_id())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Finish a batch on the driver: publish staged messages, and log totals."""
        if self.plan.staging_broker is not None:
            publish_all(self.plan, self.plan.staging_broker, messages, batchId, stream=True)
        log_totals(messages, f"batch {batchId}")


def _partition_id() -> int:
    context = TaskContext.get()
    return context.partitionId() if context else 0


def _query_and_batch() -> tuple[str, int]:
    """Return the ids of query and batch. Raises SparkRocketmqError if Spark does not provide them.

    Without them a retried task would send its rows under other ids.
    """
    context = TaskContext.get()
    query, batch = (
        context.getLocalProperty(name) if context else None
        for name in (_QUERY_ID_PROPERTY, _BATCH_ID_PROPERTY)
    )
    if not query or not batch:
        raise SparkRocketmqError(
            f"Spark provides no {_QUERY_ID_PROPERTY} and {_BATCH_ID_PROPERTY} in this task"
        )
    return query, int(batch)


def send_rows(
    plan: WritePlan, batches: Iterable[pa.RecordBatch], write_id: str, batch_id: int, partition: int
) -> TaskCommit:
    """Send the rows of a task. Raises SparkRocketmqError."""
    reader = RowEncoder(
        plan.spec, plan.positions, dedup_ids_of_task(plan.spec, write_id, batch_id, partition)
    )
    with _open_sender(plan, partition, write_id, batch_id) as sender:
        for batch in batches:
            # Encode the whole batch before sending any of it, so that a bad row leaves fewer duplicates.
            sender.send_all(list(reader.encode_rows(batch)))
        counts = sender.wait_until_stored()
        if isinstance(sender, StagingSender):
            return TaskCommit(partition, counts, write_id, sender.stage, sender.pieces)
        return TaskCommit(partition, counts, write_id)


def _open_sender(plan: WritePlan, partition: int, write_id: str, batch_id: int) -> MessageSender:
    if plan.staging_broker is None:
        return MessageSender(plan.spec, partition)
    return StagingSender(plan.spec, partition, plan.staging_broker, writer_name(write_id), batch_id)


def publish_all(
    plan: WritePlan,
    broker: str,
    messages: Sequence[WriterCommitMessage | None],
    batch_id: int,
    *,
    stream: bool,
) -> None:
    """Publish the stages of all tasks at the broker. Raises EndpointError."""
    commits = sorted(
        (commit for commit in messages if isinstance(commit, TaskCommit)), key=lambda commit: commit.partition
    )
    if not any(commit.pieces for commit in commits):
        return
    stages = [(commit.stage, commit.pieces) for commit in commits]
    count = publish_batch(
        plan.spec, broker, writer_name(commits[0].write_id), batch_id, stages, stream=stream
    )
    if not count:
        log.warning("batch %d of %s was already published", batch_id, commits[0].write_id)


def dedup_ids_of_task(spec: SinkSpec, write_id: str, batch_id: int, partition: int) -> DedupIds:
    """Return the ids for a task's rows. Without `dedupKey` they differ at each attempt."""
    return DedupIds(write_id if spec.dedup_ids else str(uuid.uuid4()), batch_id, partition)


def log_totals(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    """Log the numbers of messages and sends, as a warning if there may be duplicates."""
    counts = [message.counts for message in messages if isinstance(message, TaskCommit)]
    message_count, sends = sum(totals.messages for totals in counts), sum(totals.sends for totals in counts)
    resent = sum(totals.resent for totals in counts)
    line = f"{what}: {message_count} messages in {sends} sends"
    if resent:
        log.warning(
            "%s; %d were sent again after a failure and may be duplicates, with the same ids", line, resent
        )
    else:
        log.info(line)
