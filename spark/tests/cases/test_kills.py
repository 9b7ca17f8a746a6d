"""Exactly once into tables, whoever gets a SIGKILL: driver JVM, driver Python, both, executors, the broker."""

import random
import signal
import threading
import time
from os import kill, urandom
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compat_tests.endpoints import Endpoint
from compat_tests.server import Server, eventually
from spark import register
from spark.tables import open_table
from spark.tests.cases.clusters import Standalone
from spark.tests.cases.kills import START_S, Checkpoint, Ingesting, Producer, look, random_moment
from spark.tests.cases.lake import assert_all_readers, run, stored, tables, write_toml
from spark.tests.cases.sessions import SMALL

OF_DRIVERS = ["jvm", "python", "both"] * 2
OF_EXECUTORS = 4
"""For each of two formats: twenty kills in all."""

CONF = {**SMALL, "spark.driver.memory": "512m", "spark.sql.streaming.minBatchesToRetain": "1000"}


def conf(**more: str) -> list[str]:
    return [part for key, value in {**CONF, **more}.items() for part in ("--conf", f"{key}={value}")]


def pick(chance: random.Random, cluster: Standalone) -> int:
    """An executor that runs now."""
    return chance.choice(eventually(lambda: sorted(cluster.executors()), START_S))


@pytest.mark.ours_only
@pytest.mark.parametrize("format", ["directory", "delta"])
def test_every_message_once_whoever_is_killed(
    spark: SparkSession, server: Server, tmp_path: Path, standalone: Standalone, format: str
) -> None:
    seed = int.from_bytes(urandom(4))
    print(f"\nseed {seed}")
    chance = random.Random(seed)
    queues = {server.topic_name(): 3, server.topic_name(): 1}
    config = tables(server, tmp_path / "lake", ",".join(queues), availableNow=False, every="200 milliseconds")
    config["table"]["format"] = format
    config["source"] |= {"maxOffsetsPerTrigger": 1500, "minPartitions": 2}
    file = write_toml(tmp_path / "ingest.toml", config)
    table = open_table(str(tmp_path / "lake"), "messages", format)
    checkpoint = Checkpoint(tmp_path / "lake" / "_checkpoint")
    kinds = chance.sample(OF_DRIVERS, len(OF_DRIVERS))
    seen = [0]
    with Producer(server, queues) as producer:
        local = Ingesting(file, *conf(), "--master", "local[2,4]")
        for kind in kinds:
            random_moment(chance, checkpoint, local.start())
            local.kill(kind)
            print(f"killed {kind}: batch {checkpoint.planned()} planned, {checkpoint.done()} done")
            seen.append(look(table))
        spread = Ingesting(file, *conf(), "--master", standalone.url, PYTHONPATH=str(Path.cwd()))
        child = spread.start("--conf", f"spark.executorEnv.PYTHONPATH={Path.cwd()}")
        for _ in range(OF_EXECUTORS):
            random_moment(chance, checkpoint, child)
            kill(pick(chance, standalone), signal.SIGKILL)
            print(f"killed an executor: batch {checkpoint.planned()} planned, {checkpoint.done()} done")
            seen.append(look(table))
        random_moment(chance, checkpoint, child)
        spread.kill("both")
        producer.stop()
    assert seen == sorted(seen)
    drain = Ingesting(file, *conf(), "--master", "local[2,4]", "--set", "run.availableNow=true")
    drain.start("--set", "source.maxOffsetsPerTrigger=100000")
    summary = drain.summary(START_S)
    expected = stored(server, queues)
    print(
        f"{len(kinds) + OF_EXECUTORS + 1} kills, {len(expected)} messages, {checkpoint.done() + 1} batches; {summary}"
    )
    assert producer.acknowledged == expected
    assert summary["behind"] == 0
    assert_all_readers(spark, table, expected)
    assert not list((tmp_path / "lake" / "_staging").rglob("*.parquet"))


def test_every_message_once_when_the_broker_is_killed(
    spark: SparkSession, server: Server, endpoint: Endpoint, tmp_path: Path
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
