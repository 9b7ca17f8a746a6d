"""The sources on a standalone cluster and through Spark Connect, shipped in the ways the documents name."""

import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess, run
from typing import Any, NamedTuple

import pytest

from compat_tests.clients.typed import connect, create_topic, send_many
from compat_tests.server import ServerUnderTest
from spark.session.packing import REQUIREMENTS, pack_environment
from spark.session.shipping import package_sources
from spark.tests.cases.clusters import (
    LOOPBACK,
    SPARK_HOME,
    ConnectServer,
    Shipped,
    Standalone,
    drive,
    finished,
)

pytestmark = pytest.mark.ours_only
QUEUES, PER_QUEUE = 4, 250

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

given = json.loads(sys.argv[1])
builder = SparkSession.builder
url = given["url"]
builder = builder.remote(url) if url.startswith("sc:") else builder.master(url)
for key, value in given["conf"].items():
    builder = builder.config(key, value)
session = builder.getOrCreate()
options = {"nameServer": given["nameServer"], "subscribe": given["topic"]}


def batch():
    return session.read.format("rocketmq").options(**options, minPartitions="4").load().count()


def stream(place):
    frame = session.readStream.format("rocketmq").options(
        **options, startingOffsets="earliest", maxOffsetsPerTrigger="400"
    ).load()
    writer = frame.selectExpr("queueId", "queueOffset", "crc32(body) as crc").writeStream.format("parquet")
    writer = writer.option("path", place).option("checkpointLocation", place + "-checkpoint")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    sums = "count(*)", "count(distinct queueId, queueOffset)", "sum(crc)"
    row = session.read.parquet(place).selectExpr(*sums).first()
    return [*row], sum(1 for each in query.recentProgress if each["numInputRows"])
"""

BATCH_AND_STREAM = """
if given["ship"]:
    from spark import ship

    ship(session)
counted = batch()
rows, batches = stream(given["place"])
print(json.dumps({"batch": counted, "stream": rows, "batches": batches}))
session.stop()
"""

PY_FILES = """
session.sparkContext.addPyFile(given["zip"])
from spark import register, ship

register(session)
told = {"batch": batch()}
try:
    stream(given["place"] + "-1")
except Exception as error:
    told["failed"] = str(error)
ship(session)
told["shipped"], _ = stream(given["place"] + "-2")
print(json.dumps(told))
session.stop()
"""


class Traffic(NamedTuple):
    """A topic, and the expected result of reading it."""

    namesrv: str
    topic: str
    row_count: int
    crcs: int

    @property
    def once(self) -> list[int]:
        """Rows, different places of queues, the sum of the bodies' checksums."""
        return [self.row_count, self.row_count, self.crcs]


@pytest.fixture(scope="module")
def topic(server: ServerUnderTest) -> Traffic:
    name = server.topic_name("cluster")
    create_topic(server, name, QUEUES)
    bodies = [f"message {number}".encode() for number in range(PER_QUEUE)]
    with connect(server.broker) as broker:
        for queue in range(QUEUES):
            send_many(broker, name, bodies, queue_id=queue)
    count = QUEUES * PER_QUEUE
    return Traffic(server.namesrv, name, count, QUEUES * sum(map(zlib.crc32, bodies)))


@pytest.fixture(scope="module")
def connected(
    request: pytest.FixtureRequest, shipped: Shipped, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ConnectServer, bool]]:
    """A Connect server whose Python has the package, or has not; and whether it has to be shipped."""
    python = shipped.installed if request.param == "installed" else shipped.bare
    with ConnectServer(tmp_path_factory.mktemp("connect"), python) as connected:
        yield connected, request.param != "installed"


def told(done: CompletedProcess[str]) -> Any:
    """Return the last line a driver printed."""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def given(topic: Traffic, url: str, place: Path, ship: bool = False, **more: Any) -> str:
    """A program's argument."""
    content = {"url": url, "nameServer": topic.namesrv, "topic": topic.topic, "place": str(place)}
    return json.dumps({**content, "ship": ship, "conf": {} if url.startswith("sc:") else LOOPBACK, **more})


def test_installed_as_a_wheel_on_a_standalone_cluster(
    standalone: Standalone, shipped: Shipped, topic: Traffic, tmp_path: Path
) -> None:
    argument = given(topic, standalone.url, tmp_path / "table")
    found = told(drive(shipped.installed, PROGRAM + BATCH_AND_STREAM, tmp_path, argument))
    assert found["batch"] == topic.row_count
    assert found["stream"] == topic.once
    assert found["batches"] >= 3


def test_a_pipeline_submitted_with_a_packed_environment(
    standalone: Standalone, shipped: Shipped, topic: Traffic, tmp_path: Path
) -> None:
    """Executors and driver use the packed environment; nothing else is installed."""
    archive, unpacked = tmp_path / "spark-env.tar.gz", tmp_path / "environment"
    pack_environment(archive, str(shipped.wheel), *REQUIREMENTS)
    unpacked.mkdir()
    run(["tar", "-xf", archive, "-C", unpacked], check=True)
    config = tmp_path / "peek.toml"
    config.write_text(
        f'[source]\nnameServer = "{topic.namesrv}"\nsubscribe = "{topic.topic}"\n[peek]\nrows = 7\n'
    )
    script = next(unpacked.glob("lib/*/site-packages/spark/pipelines/submit.py"))
    flags = [part for pair in LOOPBACK.items() for part in ("--conf", "=".join(pair))]
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", standalone.url, *flags]
    command += ["--archives", f"{archive}#environment", str(script), "peek", "-c", str(config), "--json"]
    python = "./environment/bin/python"
    found = told(finished(command, tmp_path, {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}))
    assert found["shown"] == 7
    assert {row["topic"] for row in found["First"]} == {topic.topic}
    assert {row["body"].split()[0] for row in found["First"]} == {"message"}


@pytest.mark.parametrize("connected", ["installed", "shipped"], indirect=True)
def test_through_spark_connect(
    connected: tuple[ConnectServer, bool], shipped: Shipped, topic: Traffic, tmp_path: Path
) -> None:
    connect_server, ship = connected
    argument = given(topic, connect_server.url, tmp_path / "table", ship)
    found = told(drive(shipped.installed, PROGRAM + BATCH_AND_STREAM, tmp_path, argument))
    assert found["batch"] == topic.row_count
    assert found["stream"] == topic.once


def test_py_files_are_for_batches_only_and_ship_is_for_both(
    shipped: Shipped, topic: Traffic, tmp_path: Path
) -> None:
    """Spark looks for py-files in a directory that does not exist when it starts a stream; a defect of 4.2 and 4.3."""
    packed = tmp_path / "package.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for place, text in package_sources().items():
            archive.writestr(place, text)
    argument = given(topic, "local[2,2]", tmp_path / "table", zip=str(packed))
    found = told(drive(shipped.bare, PROGRAM + PY_FILES, tmp_path, argument))
    assert found["batch"] == topic.row_count
    assert "ModuleNotFoundError: No module named 'spark'" in found["failed"]
    assert found["shipped"] == topic.once
