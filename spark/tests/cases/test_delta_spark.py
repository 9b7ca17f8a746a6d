"""Tables of delta-spark, on the version of Spark it supports: `make spark-delta`."""

import random
from collections.abc import Iterator
from os import urandom
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compat_tests.clients.typed import connect, create_topic, send_many
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest
from spark import register
from spark.tables import open_table
from spark.tests.cases.delta_jars import settings
from spark.tests.cases.kills import START_S, Checkpoint, Ingesting, Producer, look, random_moment
from spark.tests.cases.lake import assert_all_readers, run, run_compact, stored, tables, write_toml
from spark.tests.cases.sessions import SMALL, new_session

delta = pytest.importorskip("delta", reason="needs an environment of its own: make spark-delta")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        found = new_session(tmp_path_factory.mktemp("delta"), **settings())
    except Unavailable as missing:
        skip_or_fail(str(missing))
    register(found)
    yield found
    found.stop()


def test_batches_are_appended_once(session: SparkSession, server: ServerUnderTest, tmp_path: Path) -> None:
    queues = {server.topic_name(): 2, f"%RETRY%{server.unique_name('group')}": 1}
    for topic, count in queues.items():
        create_topic(server, topic, count)
        with connect(server.broker) as broker:
            for queue in range(count):
                send_many(broker, topic, [b"%d %d" % (queue, n) for n in range(40)], queue_id=queue)
    config = tables(server, tmp_path / "lake", ",".join(queues))
    config["source"]["maxOffsetsPerTrigger"] = 50
    file = write_toml(tmp_path / "ingest.toml", config)
    first = run(session, file)
    assert (first.figures["rows"], first.figures["batches"]) == (120, 3)
    assert [row[:2] for row in first.sections[0].rows] == sorted((t, 40 * n) for t, n in queues.items())
    table = open_table(str(tmp_path / "lake"), "messages", session=session)
    assert type(table).__name__ == "DeltaSparkTable"
    expected = stored(server, queues)
    assert_all_readers(session, table, expected)

    # The last batch was appended, but Spark was killed before it knew.
    newest = max((tmp_path / "lake/_checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    again = run(session, file)
    assert (again.figures["rows"], again.figures["already in the table"]) == (0, 1)
    done = run_compact(session, file, "compact.tables=messages")
    assert done.figures["files after"] < done.figures["files before"]
    assert_all_readers(session, table, expected)


def test_every_message_once_when_drivers_are_killed(
    session: SparkSession, server: ServerUnderTest, tmp_path: Path
) -> None:
    chance = random.Random(seed := int.from_bytes(urandom(4)))
    print(f"\nseed {seed}")
    queues = {server.topic_name(): 2}
    config = tables(server, tmp_path / "lake", ",".join(queues), every="200 milliseconds")
    config["source"] |= {"maxOffsetsPerTrigger": 1500}
    file = write_toml(tmp_path / "ingest.toml", config)
    conf = {**SMALL, **settings(), "spark.driver.memory": "700m"}
    flags = [part for pair in conf.items() for part in ("--conf", "=".join(pair))]
    checkpoint = Checkpoint(tmp_path / "lake" / "_checkpoint")
    table = open_table(str(tmp_path / "lake"), "messages", session=session)
    ingesting = Ingesting(file, *flags, "--master", "local[2,4]")
    with Producer(server, queues) as producer:
        for kind in chance.sample(["jvm", "python", "both"], 3):
            random_moment(chance, checkpoint, ingesting.start("--set", "run.availableNow=false"))
            ingesting.kill(kind)
            print(f"killed {kind}: batch {checkpoint.planned()} planned, {checkpoint.done()} done")
            look(table)
        producer.stop()
    ingesting.start()
    summary = ingesting.summary(START_S)
    expected = stored(server, queues)
    print(f"3 kills, {len(expected)} messages; {summary}")
    assert producer.acknowledged == expected
    assert_all_readers(session, table, expected)
