"""Stock clients and our own read what Spark writes: each row, in order where requested, with its ids."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from codec.message import Message
from compat_tests.cases.conftest import new_driver
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import connect, create_topic, iter_queue
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.server import ServerUnderTest, eventually
from remoting.requests.offsets import GetMaxOffset
from spark import register
from spark.tests.cases.sessions import ROOT

QUEUES = 4


@pytest.fixture(scope="module")
def java5(server: ServerUnderTest) -> Iterator[JavaClient]:
    driver = new_driver(server, "5.4.0")
    yield JavaClient(driver, "5.4.0")
    driver.close()


@pytest.fixture
def topic(server: ServerUnderTest) -> str:
    name = server.topic_name()
    create_topic(server, name, QUEUES)
    return name


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


def write(rows: DataFrame, server: ServerUnderTest, topic: str | None = None, **options: str) -> None:
    if topic is not None:
        options["topic"] = topic
    rows.write.format("rocketmq").mode("append").options(nameServer=server.namesrv, **options).save()


def stored(server: ServerUnderTest, topic: str) -> list[Message]:
    with connect(server.broker) as broker:
        return [message for queue in range(QUEUES) for message in iter_queue(broker, topic, queue)]


def refusal(rows: DataFrame, server: ServerUnderTest, topic: str | None = None, **options: str) -> str:
    with pytest.raises(Exception) as refused:  # noqa: PT011 - Spark's class depends on where it fails
        write(rows, server, topic, **options)
    return str(refused.value)


def test_a_stock_consumer_gets_every_row_as_it_was_written(
    spark: SparkSession, server: ServerUnderTest, topic: str, java5: JavaClient
) -> None:
    rows = spark.range(500).selectExpr(
        "cast(id as string) as value",
        "if(id % 2 = 0, 'even', null) as tags",
        "concat('k', id, ' shared') as key",
        "map('colour', if(id % 3 = 0, 'red', 'blue'), 'TAGS', 'ignored') as properties",
        "concat('key', id % 7) as shardingKey",
        "cast(id as int) as flag",
    )
    write(rows.repartition(2, "shardingKey").sortWithinPartitions("flag"), server, topic)
    with java5.push(server.unique_name("group"), topic, orderly=True) as consumer:
        found = consumer.received(500, 60)
    by_body = {int(message["body"]): message for message in found}
    assert sorted(by_body) == list(range(500))
    for number, message in by_body.items():
        properties = message["properties"]
        assert message["tags"] == ("even" if number % 2 == 0 else None)
        assert (message["keys"], message["flag"]) == (f"k{number} shared", number)
        assert properties["colour"] == ("red" if number % 3 == 0 else "blue")
        assert properties["__SHARDINGKEY"] == f"key{number % 7}"
        assert message["msg_id"] == properties["UNIQ_KEY"]
    queues_of_keys = defaultdict(set)
    for key in range(7):
        mine = sorted((m for n, m in by_body.items() if n % 7 == key), key=lambda m: m["offset"])
        assert [int(m["body"]) for m in mine] == list(range(key, 500, 7))
        queues_of_keys[key] = {m["queue"] for m in mine}
    with java5.producer(server.unique_name("producer")) as producer:
        for key, queues in queues_of_keys.items():
            (sent,) = producer.send({"topic": topic, "body": "x"}, mode="hash", arg=f"key{key}")
            assert {sent["queue"]} == queues
        (by_key,) = producer.query(topic, "k123")
        assert by_key["body"] == "123"


def test_delayed_rows_come_when_they_are_due(
    spark: SparkSession, server: ServerUnderTest, java5: JavaClient
) -> None:
    topic = server.topic_name()
    create_topic(server, topic, QUEUES)
    begin_ms = int(time.time() * 1000)
    due_ms = begin_ms + 6_000
    schema = "body string, topic string, delayLevel int, delayMs bigint, deliverAt timestamp"
    deliver_at = datetime.fromtimestamp(due_ms / 1000, UTC)
    rows = [
        ("now", topic, 0, None, None),
        ("level", topic, 2, None, None),
        ("delay", topic, None, 3_000, None),
        ("at", topic, None, None, deliver_at),
        ("past", topic, None, None, datetime.fromtimestamp(0, UTC)),
    ]
    write(spark.createDataFrame(rows, schema).coalesce(1), server)
    with java5.push(server.unique_name("group"), topic) as consumer:
        found = {message["body"]: message["stored"] for message in consumer.received(5, 60)}
    assert set(found) == {"now", "level", "delay", "at", "past"}
    assert found["level"] >= begin_ms + 5_000
    assert found["delay"] >= begin_ms + 3_000
    # the official wheel has slots of a second, and may be early by less than one
    assert found["at"] > due_ms - 1_000


def test_rows_choose_topic_and_queue(spark: SparkSession, server: ServerUnderTest, topic: str) -> None:
    other = server.topic_name()
    create_topic(server, other, QUEUES)
    rows = spark.range(200).selectExpr(
        "unhex(lpad(hex(id), 4, '0')) as body",
        f"if(id % 2 = 0, '{topic}', '{other}') as topic",
        "if(id < 100, cast(id % 4 as int), null) as queueId",
        "id as queueOffset",
    )
    write(rows, server)
    for name, rest in ((topic, 0), (other, 1)):
        found = {int.from_bytes(message.body): message.queue_id for message in stored(server, name)}
        assert sorted(found) == list(range(rest, 200, 2))
        assert {number: found[number] for number in found if number < 100} == {
            number: number % 4 for number in range(rest, 100, 2)
        }


def test_large_bodies_arrive(spark: SparkSession, server: ServerUnderTest, topic: str) -> None:
    sizes = [1, 4 * 1024 * 1024, 300_000, 600_000, 10]
    rows = spark.createDataFrame([(n, s) for n, s in enumerate(sizes)], "n int, size int")
    made = rows.selectExpr("repeat(cast(n as string), size) as body").coalesce(1)
    write(made, server, topic)
    write(made, server, topic, compressBodyAbove="4096", sendBatchBytes="0")
    found = stored(server, topic)
    bodies = sorted(message.decompressed_body() for message in found)
    assert bodies == sorted(b"%d" % n * size for n, size in enumerate(sizes) for _ in range(2))
    assert sum(message.sys_flag & 1 for message in found) == 3


def test_what_cannot_be_written_is_named(spark: SparkSession, server: ServerUnderTest, topic: str) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) as body")
    assert 'unknown option "tpic"; did you mean "topic"?' in refusal(rows, server, tpic="x")
    assert "neither an option topic nor a column topic" in refusal(rows, server)
    assert "No route info of this topic: no-such-topic" in refusal(rows, server, "no-such-topic")
    renamed = rows.withColumnRenamed("body", "bdy")
    assert "the sink has no column bdy; did you mean body?" in refusal(renamed, server, topic)
    null = rows.selectExpr("if(body = '1', null, body) as body").coalesce(1)
    assert "row 1: the message body is null" in refusal(null, server, topic)
    illegal = rows.selectExpr("body", "if(body = '2', 'a b', null) as topic").coalesce(1)
    assert "The specified topic is blank" in refusal(illegal, server)
    secret = refusal(rows, server, topic, accessKey="who", secretKey="hush-hush", tpic="x")
    assert "hush-hush" not in secret
    with pytest.raises(Exception, match="mode overwrite is not supported"):
        rows.write.format("rocketmq").mode("overwrite").options(nameServer=server.namesrv, topic=topic).save()
    assert stored(server, topic) == []


def by_body(messages: list[Message]) -> dict[int, list[tuple[str | None, str]]]:
    """Return the ids under which each number was stored."""
    found = defaultdict(list)
    for message in messages:
        found[int(message.body)].append((message.unique_key, message.properties["SPARK_DEDUP_ID"]))
    return found


def assert_duplicates_have_one_id(found: dict[int, list[tuple[str | None, str]]]) -> None:
    assert {number for number, ids in found.items() if len(set(ids)) > 1} == set()
    assert len({ids[0] for ids in found.values()}) == len(found)
    assert len({ids[0][0] for ids in found.values()}) == len(found)


def test_a_task_that_failed_leaves_duplicates_with_the_same_ids(
    spark: SparkSession, server: ServerUnderTest, topic: str, tmp_path: Path
) -> None:
    flag = str(tmp_path / "failed")

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The last row has no body in the first attempt."""
        for batch in batches:
            bodies = batch.column(0).to_pylist()
            if bodies[-1] == "999" and not os.path.exists(flag):
                Path(flag).touch()
                bodies[-1] = ""
            yield pa.RecordBatch.from_arrays([pa.array(bodies, pa.string())], ["body"])

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        rows = spark.range(0, 1000, 1, 1).selectExpr("cast(id as string) as body")
        write(rows.mapInArrow(fail_once, "body string"), server, topic, sendBatchBytes="1000")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    found = by_body(stored(server, topic))
    assert os.path.exists(flag)
    assert sorted(found) == list(range(1000))
    assert_duplicates_have_one_id(found)
    assert any(len(ids) > 1 for ids in found.values())


ROWS = 1000

# -- a driver that is killed --------------------------------------------------------------------------------------


def end(server: ServerUnderTest, topic: str) -> int:
    """Return the number of messages the queues have had."""
    with connect(server.broker) as broker:
        asked = [GetMaxOffset(topic=topic, queue_id=queue) for queue in range(QUEUES)]
        return sum(reply.offset for reply in broker.pipeline(asked))


def start_query(
    directory: Path, server: ServerUnderTest, topic: str, **options: str
) -> subprocess.Popen[bytes]:
    given = {
        "dir": str(directory),
        "namesrv": server.namesrv,
        "topic": topic,
        "options": options,
        "rows": ROWS,
    }
    command = [sys.executable, "-m", "spark.tests.cases.sink_query", json.dumps(given)]
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the driver, its JVM and its workers without warning."""
    os.killpg(process.pid, 9)
    process.wait()


def run_until(directory: Path, server: ServerUnderTest, topic: str, count: int, **options: str) -> None:
    """Run the query until this many messages are stored, and kill it during the next batch."""
    process = start_query(directory, server, topic, **options)
    try:

        def enough() -> bool:
            assert process.poll() is None, (directory / "log").read_text()[-3000:]
            return end(server, topic) >= count

        eventually(enough, 300, every_s=0.2)
    finally:
        kill(process)


def test_a_killed_driver_loses_nothing_and_duplicates_have_the_same_ids(
    server: ServerUnderTest, topic: str, tmp_path: Path
) -> None:
    for _ in range(3):
        run_until(tmp_path, server, topic, end(server, topic) + ROWS * 3 // 2)
    found = by_body(stored(server, topic))
    # all but the batch that was under way is whole
    whole = max(found) // ROWS * ROWS
    assert whole >= 2 * ROWS
    assert set(range(whole)) <= set(found)
    assert_duplicates_have_one_id(found)


# -- delivery = staged --------------------------------------------------------------------------------------------


def test_staged_delivery_is_refused_where_it_is_not_possible(
    spark: SparkSession, server: ServerUnderTest, topic: str
) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) as body")
    words = "delivery=staged needs an rmq-gateway with stagedPublish=true"
    assert words in refusal(rows, server, topic, delivery="staged")
    timed = rows.selectExpr("body", "1 as delayLevel")
    assert "column delayLevel cannot be used with delivery=staged" in refusal(
        timed, server, topic, delivery="staged"
    )
    assert stored(server, topic) == []


@pytest.fixture
def staging() -> Iterator[OursEndpoint]:
    """One of our brokers, which may be killed."""
    with OursEndpoint({"stagedPublish": "true"}) as endpoint:
        yield endpoint


def server_of(endpoint: OursEndpoint) -> ServerUnderTest:
    return ServerUnderTest("ours", "ours", endpoint.namesrv, endpoint.broker)


@pytest.mark.ours_only
def test_staged_drivers_and_brokers_are_killed_and_every_row_is_there_once(
    spark: SparkSession, staging: OursEndpoint, tmp_path: Path
) -> None:
    server = server_of(staging)
    topic = server.topic_name()
    create_topic(server, topic, QUEUES)
    randomness = random.Random(3)
    for kills in ("driver", "both", "broker, driver", ""):
        run_staged(tmp_path, staging, topic, kills, randomness)
    numbers = Counter(int(message.body) for message in stored(server, topic))
    assert set(numbers.values()) == {1}
    assert sorted(numbers) == list(range(len(numbers)))
    assert len(numbers) % ROWS == 0
    assert len(numbers) >= 4 * ROWS
    ids = {message.unique_key for message in stored(server, topic)}
    assert len(ids) == len(numbers)


def run_staged(
    directory: Path, staging: OursEndpoint, topic: str, kills: str, randomness: random.Random
) -> None:
    """Run the query over some batches and kill the named process while another is staged or published."""
    server = server_of(staging)
    begin = end(server, topic)
    process = start_query(directory, server, topic, delivery="staged", retryTimes="8")

    def grown(by: int) -> bool:
        assert process.poll() is None, (directory / "log").read_text()[-3000:]
        return end(server, topic) >= begin + by

    try:
        eventually(lambda: grown(ROWS), 300, every_s=0.2)
        eventually(lambda: list(staging.store.glob("staged/*/pieces/*")), 300, every_s=0.002)
        time.sleep(randomness.random() * 0.3)
        if "broker" in kills or "both" in kills:
            staging.crash()
        if "broker" in kills:
            staging.start()
            eventually(lambda: grown(2 * ROWS), 300, every_s=0.2)
    finally:
        kill(process)
    if not staging.children:
        staging.start()


@pytest.mark.ours_only
def test_staged_batch_writes_of_one_job_appear_once(
    spark: SparkSession, staging: OursEndpoint, tmp_path: Path
) -> None:
    server = server_of(staging)
    topic = server.topic_name()
    create_topic(server, topic, QUEUES)
    rows = spark.range(0, 1000, 1, 2).selectExpr("cast(id as string) as body", "id % 5 as shardingKey")
    for _ in range(2):
        write(rows, server, topic, delivery="staged", dedupPrefix="job-1", sendBatchBytes="2000")
    assert Counter(int(message.body) for message in stored(server, topic)) == Counter(range(1000))
    for key in range(5):
        mine = [message for message in stored(server, topic) if int(message.body) % 5 == key]
        assert len({message.queue_id for message in mine}) == 1
    bad = rows.selectExpr("if(body = '777', '', body) as body", "shardingKey")
    assert "row 277: the message body length is zero" in refusal(bad, server, topic, delivery="staged")
    assert len(stored(server, topic)) == 1000
