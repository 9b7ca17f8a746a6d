"""Tables get each message once under SIGKILL of driver JVM, driver Python, both, executors, or broker."""

import random
import signal
import threading
import time
from os import kill, urandom
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compat_tests.endpoints import Endpoint
from compat_tests.server import ServerUnderTest, eventually
from spark import register
from spark.tables import open_table
from spark.tests.cases.clusters import Standalone
from spark.tests.cases.kills import START_S, Checkpoint, Ingesting, Producer, look, random_moment
from spark.tests.cases.lake import assert_all_readers, run, stored, tables, write_toml
from spark.tests.cases.sessions import PYTHON_PATH, SMALL

OF_DRIVERS = ["jvm", "python", "both"] * 2
OF_EXECUTORS = 4
"""Kills for each of two formats, twenty in all."""

CONF = {**SMALL, "spark.driver.memory": "512m", "spark.sql.streaming.minBatchesToRetain": "1000"}
FORMATS = ["directory", "delta"]


def conf(**more: str) -> list[str]:
    return [part for key, value in {**CONF, **more}.items() for part in ("--conf", f"{key}={value}")]


class Lake:
    """An ingest of two topics into a table with repeated kills, and checks of the table."""

    def __init__(self, server: ServerUnderTest, directory: Path, format: str) -> None:
        self.server = server
        self.chance = random.Random(seed := int.from_bytes(urandom(4)))
        print(f"\nseed {seed}")
        self.queues = {server.topic_name(): 3, server.topic_name(): 1}
        config = tables(server, directory / "lake", ",".join(self.queues), every="200 milliseconds")
        config["table"]["format"] = format
        config["source"] |= {"maxOffsetsPerTrigger": 1500, "minPartitions": 2}
        self.file = write_toml(directory / "ingest.toml", config)
        self.table = open_table(str(directory / "lake"), "messages", format)
        self.checkpoint = Checkpoint(directory / "lake" / "_checkpoint")
        self.seen = 0
        self.kills = 0

    def ingesting(self, master: str, *more: str) -> Ingesting:
        """The ingest as a process, with these options of `rmq-gateway spark`."""
        return Ingesting(self.file, *conf(), "--master", master, *more)

    def look(self, what: str) -> None:
        """Check after a kill that readers see no fewer messages than before, and no duplicates or gaps."""
        self.kills += 1
        before, self.seen = self.seen, look(self.table)
        planned, done = self.checkpoint.planned(), self.checkpoint.done()
        print(f"killed {what}: batch {planned} planned, {done} done, {self.seen} rows")
        assert self.seen >= before

    def finish(self, producer: Producer, spark: SparkSession) -> None:
        """Ingest the rest with AvailableNow; every reader then sees each message once."""
        producer.stop()
        drain = self.ingesting("local[2,4]", "--set", "source.maxOffsetsPerTrigger=100000")
        drain.start()
        summary = drain.summary(START_S)
        expected = stored(self.server, self.queues)
        batches = self.checkpoint.done() + 1
        print(f"{self.kills} kills, {len(expected)} messages, {batches} batches; {summary}")
        assert producer.acknowledged == expected
        assert summary["behind"] == 0
        assert_all_readers(spark, self.table, expected)
        assert not list(Path(self.table.path).parent.joinpath("_staging").rglob("*.parquet"))


STREAM = ["--set", "run.availableNow=false"]


@pytest.mark.ours_only
@pytest.mark.parametrize("format", FORMATS)
def test_every_message_once_when_drivers_are_killed(
    server: ServerUnderTest, tmp_path: Path, format: str, request: pytest.FixtureRequest
) -> None:
    lake = Lake(server, tmp_path, format)
    with Producer(server, lake.queues) as producer:
        ingesting = lake.ingesting("local[2,4]", *STREAM)
        for kind in lake.chance.sample(OF_DRIVERS, len(OF_DRIVERS)):
            random_moment(lake.chance, lake.checkpoint, ingesting.start())
            ingesting.kill(kind)
            lake.look(kind)
        lake.finish(producer, request.getfixturevalue("spark"))


@pytest.mark.ours_only
@pytest.mark.parametrize("format", FORMATS)
def test_every_message_once_when_executors_are_killed(
    spark: SparkSession, server: ServerUnderTest, tmp_path: Path, standalone: Standalone, format: str
) -> None:
    lake = Lake(server, tmp_path, format)
    path = f"spark.executorEnv.PYTHONPATH={PYTHON_PATH}"
    with Producer(server, lake.queues) as producer:
        ingesting = lake.ingesting(standalone.url, *STREAM, "--conf", path)
        ingesting.start()
        for _ in range(OF_EXECUTORS):
            random_moment(lake.chance, lake.checkpoint, ingesting)
            kill(lake.chance.choice(eventually(standalone.executors, START_S)), signal.SIGKILL)
            lake.look("an executor")
        random_moment(lake.chance, lake.checkpoint, ingesting)
        ingesting.kill("both")
        lake.look("both")
        lake.finish(producer, spark)


def test_every_message_once_when_the_broker_is_killed(
    spark: SparkSession, server: ServerUnderTest, endpoint: Endpoint, tmp_path: Path
) -> None:
    """The broker comes back after a while, in the middle of a stream and in the middle of an AvailableNow."""
    register(spark)
    chance = random.Random(seed := int.from_bytes(urandom(4)))
    print(f"\nseed {seed}")
    queues = {server.topic_name(): 3}
    config = tables(server, tmp_path / "lake", ",".join(queues), every="200 milliseconds")
    config["source"] |= {"maxOffsetsPerTrigger": 600, "fetchOffset.numRetries": 9, "requestTimeoutMs": 5000}
    file = write_toml(tmp_path / "ingest.toml", config)
    checkpoint = Checkpoint(tmp_path / "lake" / "_checkpoint")
    table = open_table(str(tmp_path / "lake"), "messages", session=spark)

    def restart() -> None:
        time.sleep(chance.random())  # the random moment itself
        endpoint.crash()
        time.sleep(chance.random())
        endpoint.start()

    with Producer(server, queues) as producer:
        stream = threading.Thread(target=lambda: run(spark, file, "run.availableNow=false"))
        stream.start()
        for _ in range(2):
            checkpoint.wait_done(checkpoint.done(), stream.is_alive)
            restart()
        checkpoint.wait_done(checkpoint.done(), stream.is_alive)
        (query,) = spark.streams.active
        query.stop()
        stream.join()
        look(table)
        rest = threading.Thread(target=lambda: run(spark, file))
        rest.start()
        checkpoint.wait_planned(checkpoint.done(), rest.is_alive)
        restart()
        rest.join()
        producer.stop()
    run(spark, file)
    expected = stored(server, queues)
    print(f"3 kills of the broker, {len(expected)} messages, {checkpoint.done() + 1} batches")
    assert producer.acknowledged.items() <= expected.items()
    assert_all_readers(spark, table, expected)
