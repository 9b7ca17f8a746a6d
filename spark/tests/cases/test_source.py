"""The source `rocketmq` in a real Spark reads what was sent, between the configured positions."""

import datetime
import socket
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from compat_tests.clients.typed import connect, consumer_ids, create_topic, heartbeat_request, send
from compat_tests.server import ServerUnderTest
from spark import register
from spark.pull.unread import Unread
from spark.source.options import read_spec, source_options


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def frame(spark: SparkSession, server: ServerUnderTest, **options: Any) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameServer", server.namesrv)
    return reader.options(**{key: str(value) for key, value in options.items()}).load()


def offsets(topic: str, broker: str, **by_queue: int) -> str:
    inner = ", ".join(f'"{queue[1:]}": {offset}' for queue, offset in by_queue.items())
    return f'{{"{topic}": {{"{broker}": {{{inner}}}}}}}'


class Filled:
    """A topic of three queues with 100, 50 and no messages; those with an even number have the tag even."""

    def __init__(self, server: ServerUnderTest) -> None:
        self.topic = server.topic_name()
        create_topic(server, self.topic, 3)
        with connect(server.broker) as broker:
            for queue, count in ((0, 100), (1, 50)):
                for number in range(count):
                    parity = "odd" if number % 2 else "even"
                    properties = {"TAGS": parity, "KEYS": f"k{number}", "number": str(number)}
                    send(
                        broker, self.topic, b"%d/%d" % (queue, number), queue_id=queue, properties=properties
                    )


@pytest.fixture(scope="module")
def filled(server: ServerUnderTest) -> Filled:
    return Filled(server)


@pytest.fixture(scope="module")
def rows(spark: SparkSession, server: ServerUnderTest, filled: Filled) -> list[Any]:
    found = frame(spark, server, subscribe=filled.topic).collect()
    return sorted(found, key=lambda row: (row.queueId, row.queueOffset))


def test_everything_is_read_once(rows: list[Any], filled: Filled) -> None:
    assert [(row.queueId, row.queueOffset) for row in rows] == [
        (queue, offset) for queue, count in ((0, 100), (1, 50)) for offset in range(count)
    ]
    assert all(bytes(row.body) == f"{row.queueId}/{row.queueOffset}".encode() for row in rows)
    assert {row.topic for row in rows} == {filled.topic}
    assert all(row.properties["number"] == str(row.queueOffset) for row in rows)
    assert {row.tags for row in rows} == {"even", "odd"}


def test_positions_queues_and_columns_may_be_chosen(
    spark: SparkSession, server: ServerUnderTest, filled: Filled, rows: list[Any]
) -> None:
    broker = rows[0].brokerName
    chosen = frame(
        spark,
        server,
        subscribe=filled.topic,
        startingOffsets=offsets(filled.topic, broker, q0=90, q1=-2, q2=0),
        endingOffsets=offsets(filled.topic, broker, q0=-1, q1=10, q2=-1),
        columns="queueOffset,queueId",
        maxRecordsPerPartition=5,
    )
    assert chosen.columns == ["queueOffset", "queueId"]
    assert chosen.rdd.getNumPartitions() == 4
    found = sorted((row.queueId, row.queueOffset) for row in chosen.collect())
    assert found == [(0, offset) for offset in range(90, 100)] + [(1, offset) for offset in range(10)]
    assigned = frame(
        spark,
        server,
        assign=f'{{"{filled.topic}": {{"{broker}": [1, 2]}}}}',
        schema="kafka",
        includeHeaders="true",
        endingTimestamp=int(rows[-1].storeTimestamp.timestamp() * 1000) + 3_600_000,
    )
    kafka = assigned.orderBy("offset").collect()
    assert [row.offset for row in kafka] == list(range(50))
    assert (bytes(kafka[7].key), bytes(kafka[7].value), kafka[7].partition) == (b"k7", b"1/7", 1)
    assert {header.key: bytes(header.value) for header in kafka[7].headers}["number"] == b"7"


def test_tasks_may_fetch_messages_by_themselves(
    spark: SparkSession, server: ServerUnderTest, filled: Filled, rows: list[Any]
) -> None:
    """Run the example of docs/explanation/spark-performance.md."""

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"messages": pa.array([batch.num_rows], pa.int64())})

    options = {"nameServer": server.namesrv, "subscribe": filled.topic}
    ranges = frame(spark, server, subscribe=filled.topic, schema="ranges", maxRecordsPerPartition=30)
    assert sorted((row.queueId, row.startOffset, row.endOffset) for row in ranges.collect()) == [
        (0, 0, 25), (0, 25, 50), (0, 50, 75), (0, 75, 100), (1, 0, 25), (1, 25, 50)
    ]  # fmt: skip
    unread = Unread(ranges, read_spec(source_options(options)))
    fetch = unread.fetch
    counts = ranges.mapInArrow(lambda batches: map(count, fetch(batches)), "messages bigint")
    assert [row.messages for row in counts.collect()] == [25] * 6
    assert sorted(unread.messages().collect(), key=lambda row: (row.queueId, row.queueOffset)) == rows


def test_positions_by_time(
    spark: SparkSession, server: ServerUnderTest, filled: Filled, rows: list[Any]
) -> None:
    middle = next(row for row in rows if (row.queueId, row.queueOffset) == (0, 60))
    at_ms = round(middle.storeTimestamp.timestamp() * 1000)
    late = frame(
        spark,
        server,
        subscribe=filled.topic,
        startingTimestamp=at_ms,
        startingOffsetsByTimestampStrategy="latest",
        includeBody="false",
    ).collect()
    early = frame(spark, server, subscribe=filled.topic, endingTimestamp=at_ms).select(
        "queueId", "queueOffset"
    )
    found = {(row.queueId, row.queueOffset) for row in late}
    assert found == {
        (row.queueId, row.queueOffset) for row in rows if row.storeTimestamp >= middle.storeTimestamp
    }
    assert all(row.body is None for row in late)
    assert {tuple(row) for row in early.collect()} == {
        (row.queueId, row.queueOffset) for row in rows if row.storeTimestamp < middle.storeTimestamp
    }
    with pytest.raises(PySparkException, match=r"nothing was stored in .*:2 from that time on"):
        frame(spark, server, subscribe=filled.topic, startingTimestamp=at_ms).collect()


def test_the_broker_filters_by_tag_and_by_expression(
    spark: SparkSession, server: ServerUnderTest, filled: Filled, rows: list[Any]
) -> None:
    tagged = frame(spark, server, subscribe=filled.topic, subExpression="even || none", columns="tags")
    assert [row.tags for row in tagged.collect()] == ["even"] * 75
    where = "number BETWEEN 10 AND 19 AND TAGS = 'odd'"
    selected = frame(spark, server, subscribe=filled.topic, subExpression=where, subExpressionType="SQL92")
    assert sorted((row.queueId, row.queueOffset) for row in selected.collect()) == [
        (queue, offset) for queue in (0, 1) for offset in range(11, 20, 2)
    ]
    with pytest.raises(PySparkException, match="refuses SQL92 'number BETWEEN'"):
        frame(
            spark, server, subscribe=filled.topic, subExpression="number BETWEEN", subExpressionType="SQL92"
        ).collect()


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_filters_of_spark_choose_what_is_read(
    spark: SparkSession, server: ServerUnderTest, filled: Filled, rows: list[Any], pushing: None
) -> None:

    def pushed() -> DataFrame:
        # a new one each time: what its last filtered query read is kept with a frame, also for one without a filter
        return frame(spark, server, subscribe=filled.topic, pushFilters="true", maxRecordsPerPartition=50)

    after = rows[39].storeTimestamp
    for condition, expected in (
        (
            (F.col("queueId") == 0) & (F.col("queueOffset") >= 10) & (F.col("queueOffset") < 20),
            [row for row in rows if row.queueId == 0 and 10 <= row.queueOffset < 20],
        ),
        (
            (F.col("storeTimestamp") <= after) & (F.col("queueId") < 1),
            [row for row in rows if row.storeTimestamp <= after and row.queueId < 1],
        ),
        (
            F.col("topic").isin(filled.topic, "other") & (F.col("tags") == "odd"),
            [row for row in rows if row.tags == "odd"],
        ),
        (F.col("brokerName") == "nowhere", []),
    ):
        narrowed = pushed().where(condition)
        assert sorted(narrowed.collect(), key=lambda row: (row.queueId, row.queueOffset)) == expected
    # what is not read at all has no partitions
    assert pushed().rdd.getNumPartitions() == 3
    assert pushed().where("queueId = 0 and queueOffset < 50").rdd.getNumPartitions() == 1


def test_wrong_options_topics_and_offsets_are_said_clearly(
    spark: SparkSession, server: ServerUnderTest, filled: Filled, rows: list[Any]
) -> None:
    def failure(**options: Any) -> str:
        with pytest.raises(PySparkException) as failed:
            frame(spark, server, **options).collect()
        return str(failed.value)

    said = failure(subscribe=filled.topic, startingOffset="earliest")
    assert 'unknown option "startingoffset"; did you mean "startingOffsets"?' in said
    said = failure(subscribe=filled.topic[:-1] + "x")
    assert f"there is no topic {filled.topic[:-1]}x; did you mean {filled.topic}?" in said
    broker = rows[0].brokerName
    wrong = offsets(filled.topic, broker, q0=0, q1=51, q2=0)
    said = failure(subscribe=filled.topic, startingOffsets=wrong)
    assert "holds [0, 50), 51 is outside" in said
    ignored = frame(spark, server, subscribe=filled.topic, startingOffsets=wrong, failOnDataLoss="false")
    assert ignored.where("queueId = 1").count() == 0
    said = failure(subscribe=filled.topic, startingOffsets=offsets(filled.topic, broker, q0=0))
    assert "must name every queue" in said


def test_an_endpoint_that_is_gone_is_said_and_secrets_are_not(spark: SparkSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = {
        "nameServer": f"127.0.0.1:{port}",
        "subscribe": "t",
        "accessKey": "who",
        "secretKey": "s3cret-of-mine",
        "securityToken": "t0ken-of-mine",
        "fetchOffset.numRetries": "1",
        "fetchOffset.retryIntervalMs": "1",
    }
    unreachable = spark.read.format("rocketmq").options(**options).load()
    with pytest.raises(PySparkException) as failed:
        unreachable.collect()
    assert f"127.0.0.1:{port} cannot be reached" in str(failed.value)
    assert "after 2 attempts" in str(failed.value)
    plans = unreachable._jdf.queryExecution()
    for text in (
        str(failed.value),
        repr(unreachable),
        plans.logical().toString(),
        plans.analyzed().toString(),
    ):
        assert "of-mine" not in text


def test_a_reader_leaves_a_live_group_alone(
    spark: SparkSession, server: ServerUnderTest, filled: Filled, rows: list[Any]
) -> None:
    group = server.unique_name("group")
    with connect(server.broker) as live:
        live.ask(heartbeat_request("somebody", group, filled.topic))
        assert frame(spark, server, subscribe=filled.topic, consumerGroup=group).count() == 150
        assert consumer_ids(live, group) == {"somebody"}
        stream = (
            spark.readStream.format("rocketmq")
            .options(nameServer=server.namesrv, subscribe=filled.topic, consumerGroup=group)
            .option("commitOffsetsToBroker", "true")
            .load()
        )
        query = stream.writeStream.format("noop").trigger(availableNow=True).start()
        with pytest.raises(PySparkException, match="has live consumers"):
            query.awaitTermination(300)
        assert consumer_ids(live, group) == {"somebody"}


def test_times_are_in_utc_to_the_millisecond(rows: list[Any]) -> None:
    now = datetime.datetime.fromtimestamp(time.time())
    assert all(abs((now - row.storeTimestamp).total_seconds()) < 86_400 for row in rows)
    assert all(row.storeTimestamp.microsecond % 1000 == 0 for row in rows)
