"""The source `rocketmq` as a stream in a real Spark."""

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from compat_tests.clients.typed import connect, create_group, create_topic, send_many, topic_request
from compat_tests.endpoints.process import ChildProcess
from compat_tests.server import ServerUnderTest, eventually, split_address
from remoting.requests.topics import DeleteTopicInBroker
from spark import register
from spark.cluster import ClusterClient
from spark.endpoint import ClusterEndpoint
from spark.source.watch import Lag, LagListener, observe
from spark.tests.cases.sessions import PYTHON_PATH

LONG_S = 900.0
"""Generous timeout for busy machines."""


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def stream(spark: SparkSession, server: ServerUnderTest, **options: Any) -> DataFrame:
    reader = spark.readStream.format("rocketmq").option("nameServer", server.namesrv)
    return reader.options(**{key: str(value) for key, value in options.items()}).load()


def fill(server: ServerUnderTest, topic: str, queue: int, bodies: list[bytes]) -> None:
    with connect(server.broker) as broker:
        send_many(broker, topic, bodies, queue_id=queue)


class Seen:
    """Return the rows of each batch of a query as (topic, queue, offset, body)."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, int, int, bytes]]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame.select("topic", "queueId", "queueOffset", "body").collect()
        self.batches[batch] = [(row.topic, row.queueId, row.queueOffset, bytes(row.body)) for row in rows]

    @property
    def rows(self) -> list[tuple[str, int, int, bytes]]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    def bodies(self) -> list[bytes]:
        return sorted(row[3] for row in self.rows)


def drain(frame: DataFrame, seen: Seen, checkpoint: Path) -> Any:
    """Read what is available, retrying if a busy machine does not start Python within Spark's 10 s."""
    while True:
        writer = frame.writeStream.foreachBatch(seen).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            assert query.awaitTermination(LONG_S)
        except PySparkException as failed:
            if "failed to connect back" not in str(failed):
                raise
        else:
            return query


def test_available_now_with_all_limits_and_what_is_told_about_it(
    spark: SparkSession, server: ServerUnderTest, tmp_path: Path
) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    create_topic(server, topic, 3)
    with connect(server.broker) as broker:
        create_group(broker, group)
    sent = {queue: [b"%d/%d" % (queue, number) * 300 for number in range(40 * queue)] for queue in range(3)}
    for queue, bodies in sent.items():
        fill(server, topic, queue, bodies)
    told: list[Lag] = []
    listener = LagListener(told.append)
    spark.streams.addListener(listener)
    frame = observe(
        stream(
            spark,
            server,
            subscribe=topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=50,
            maxBytesPerTrigger=60_000,
            minOffsetsPerTrigger=45,
            consumerGroup=group,
            commitOffsetsToBroker="true",
        )
    )
    seen = Seen()
    try:
        query = drain(frame, seen, tmp_path)
        eventually(lambda: told and told[-1].batch == max(seen.batches), LONG_S)
    finally:
        spark.streams.removeListener(listener)
    assert seen.batches[0] == []
    sizes = [sum(len(row[3]) for row in rows) for batch, rows in seen.batches.items() if batch]
    assert all(1 <= len(rows) <= 50 for batch, rows in seen.batches.items() if batch)
    assert max(sizes) <= 60_000
    assert len(sizes) <= 5  # 120 rows of 900 to 1500 bytes
    assert seen.bodies() == sorted(body for bodies in sent.values() for body in bodies)
    last = query.lastProgress["observedMetrics"]["rocketmq"]
    assert last["rows"] == len(seen.batches[max(seen.batches)])
    assert [lag.metrics["maxOffsetsBehindLatest"] for lag in told][:: max(1, len(told) - 1)] == [80, 0]
    assert {(queue.topic, queue.queue_id) for queue in told[0].behind} == {
        (topic, queue) for queue in range(3)
    }
    cluster = ClusterClient(ClusterEndpoint((split_address(server.namesrv),)))
    queues = cluster.find_queues([topic])
    committed = cluster.fetch_committed(group, queues)
    cluster.close()
    assert {queue.queue_id: at for queue, at in committed.items()} == {0: 0, 1: 40, 2: 80}
    fill(server, topic, 0, [b"later"])
    drain(frame, seen, tmp_path)
    assert seen.rows[-1] == (topic, 0, 0, b"later")
    assert len(seen.rows) == 121


def test_new_queues_and_topics_are_read_while_a_stream_runs(
    spark: SparkSession, server: ServerUnderTest, tmp_path: Path
) -> None:
    first = server.topic_name("growing1")
    create_topic(server, first, 1)
    fill(server, first, 0, [b"before"])
    seen = Seen()
    query = (
        stream(spark, server, subscribePattern=f"{server.prefix}.*growing.", metadataMaxAgeMs=100)
        .writeStream.foreachBatch(seen)
        .trigger(processingTime="200 milliseconds")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        eventually(lambda: 0 in seen.batches, LONG_S)
        fill(server, first, 0, [b"same queue"])
        with connect(server.broker) as broker:
            broker.ask(topic_request(first, 2))
        fill(server, first, 1, [b"new queue"])
        second = server.topic_name("growing2")
        create_topic(server, second, 1)
        fill(server, second, 0, [b"new topic"])
        # a broker tells the name server about more queues in its own time
        eventually(lambda: len(seen.rows) == 3 or query.exception(), LONG_S)
    finally:
        query.stop()
    assert query.exception() is None
    assert sorted((topic, queue, body) for topic, queue, _, body in seen.rows) == [
        (first, 0, b"same queue"),
        (first, 1, b"new queue"),
        (second, 0, b"new topic"),
    ]


def test_a_topic_made_anew_is_a_loss(spark: SparkSession, server: ServerUnderTest, tmp_path: Path) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    fill(server, topic, 0, [b"old"] * 5)
    seen = Seen()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    drain(stream(spark, server, **options), seen, tmp_path)
    assert len(seen.rows) == 5
    with connect(server.broker) as broker:
        broker.ask(DeleteTopicInBroker(topic=topic))
    create_topic(server, topic, 1)
    fill(server, topic, 0, [b"new"] * 2)
    with pytest.raises(PySparkException, match="was read up to 5 and ends at 2 now"):
        drain(stream(spark, server, **options), seen, tmp_path)
    drain(stream(spark, server, **options, failOnDataLoss="false"), seen, tmp_path)
    fill(server, topic, 0, [b"newer"])
    drain(stream(spark, server, **options, failOnDataLoss="false"), seen, tmp_path)
    assert seen.bodies() == [b"newer"] + [b"old"] * 5


def test_a_topic_made_anew_and_longer_is_a_loss(
    spark: SparkSession, server: ServerUnderTest, tmp_path: Path
) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    fill(server, topic, 0, [b"old"] * 5)
    seen = Seen()
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    drain(stream(spark, server, **options), seen, tmp_path)
    with connect(server.broker) as broker:
        broker.ask(DeleteTopicInBroker(topic=topic))
    create_topic(server, topic, 1)
    fill(server, topic, 0, [b"new"] * 8)
    with pytest.raises(PySparkException, match="was read up to 5 and has other messages now"):
        drain(stream(spark, server, **options), seen, tmp_path)
    drain(stream(spark, server, **options, failOnDataLoss="false"), seen, tmp_path)
    assert seen.bodies() == [b"new"] * 3 + [b"old"] * 5


KILLED = """
import sys
from pathlib import Path
from threading import Event
from spark import register
from spark.tests.cases.sessions import new_session

directory, namesrv, topic = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
session = new_session(directory / "killed", "local[1]")
register(session)

def hold(frame, batch):
    (directory / f"batch-{batch}").touch()
    Event().wait()

frame = session.readStream.format("rocketmq").options(nameServer=namesrv, subscribe=topic).load()
while True:
    query = frame.writeStream.foreachBatch(hold).option("checkpointLocation", str(directory / "checkpoint")).start()
    try:
        query.awaitTermination()
    except Exception as failed:
        if "failed to connect back" not in str(failed):  # this machine was too busy for Spark's 10 s
            raise
"""


def test_latest_loses_nothing_when_killed_in_the_first_batch(
    spark: SparkSession, server: ServerUnderTest, tmp_path: Path
) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 2)
    fill(server, topic, 0, [b"before"])
    command = [sys.executable, "-c", KILLED, str(tmp_path), server.namesrv, topic]
    log = tmp_path / "killed.log"
    child = ChildProcess("killed", command, log, {"PYTHONPATH": PYTHON_PATH})
    try:

        def in_batch() -> bool:
            assert child.exit_code() is None, log.read_text()
            return (tmp_path / "batch-0").exists()

        eventually(in_batch, LONG_S)
        fill(server, topic, 0, [b"during"])
        fill(server, topic, 1, [b"during too"])
    finally:
        child.kill()
    fill(server, topic, 1, [b"while nobody ran"])
    assert sorted(path.name for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")) == ["0"]
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    seen = Seen()
    drain(stream(spark, server, subscribe=topic), seen, tmp_path / "checkpoint")
    assert seen.bodies() == [b"during", b"during too", b"while nobody ran"]
