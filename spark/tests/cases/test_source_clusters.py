"""The source against endpoints of particular kinds: several brokers, messages that have expired, ACL and TLS."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from acceptance.test_shadow_secure import SECRET, SETTINGS, USER, dial
from compat_tests.clients.typed import connect, create_topic, send, send_many, topic_request
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import QUICK_START_WITH_TLS, OfficialEndpoint
from compat_tests.plugin import skip_or_fail
from compat_tests.server import ServerUnderTest, eventually
from remoting.requests.admin import DeleteExpiredCommitlog
from remoting.requests.offsets import GetMinOffset
from spark import register
from spark.tests.cases.sessions import PYTHON_PATH
from tools.processes import Gateway

pytestmark = pytest.mark.ours_only
TOTAL = 100


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def frame(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(**options).load()


# -- several brokers ----------------------------------------------------------------------------------------------


def test_brokers_that_come_later_are_read_from_their_beginning(spark: SparkSession, tmp_path: Path) -> None:
    rows: list[tuple[str, int]] = []

    def take(batch: DataFrame, _: int) -> None:
        rows.extend((row.brokerName, row.queueOffset) for row in batch.collect())

    def fill(where: str) -> None:
        with connect(where) as broker:
            broker.ask(topic_request("spread", 2))
            for queue in range(2):
                send_many(broker, "spread", [b"x"] * 10, queue_id=queue)

    first, second = tmp_path / "first", tmp_path / "second"
    with Gateway(first, "--store", str(first / "store")) as one:
        fill(one.broker)
        options = {"nameServer": one.namesrv, "subscribe": "spread", "startingOffsets": "earliest"}
        stream = spark.readStream.format("rocketmq").options(**options).load()
        query = stream.writeStream.foreachBatch(take).trigger(processingTime="200 milliseconds").start()
        try:
            eventually(lambda: len(rows) >= 20, 300)
            more = ("-n", one.namesrv, "--store", str(second / "store"), "--set", "brokerName=broker-b")
            with Gateway(second, *more, command="broker") as other:
                fill(other.broker)
                eventually(lambda: len(rows) >= 40, 300)
                assert frame(spark, **options).count() == 40
                progress = query.lastProgress
                assert progress is not None
                (state,) = progress["sources"]
                assert set(json.loads(state["endOffset"])["spread"]) == {"broker-a", "broker-b"}
        finally:
            query.stop()
    assert sorted(rows) == sorted([(name, at) for name in ("broker-a", "broker-b") for at in range(10)] * 2)


# -- messages that have expired -----------------------------------------------------------------------------------


def test_messages_that_have_expired(spark: SparkSession, tmp_path: Path) -> None:
    """An in-memory server retains 64 MiB."""
    with Gateway(tmp_path / "server", "--memory") as endpoint:
        server = ServerUnderTest("ours", "ours", endpoint.namesrv, endpoint.broker)
        topic = server.topic_name()
        options = {"nameServer": server.namesrv, "subscribe": topic}
        create_topic(server, topic, 1)
        stream = spark.readStream.format("rocketmq").options(**options, maxOffsetsPerTrigger="4").load()
        writer = stream.writeStream.format("noop").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.start().awaitTermination(300)
        with connect(endpoint.broker) as broker:
            for _ in range(TOTAL):
                send(broker, topic, bytes(1 << 20))
            broker.ask(DeleteExpiredCommitlog())
            begin = eventually(lambda: broker.ask(GetMinOffset(topic=topic, queue_id=0)).offset)
        assert 0 < begin < TOTAL
        from_the_start = {**options, "startingOffsets": json.dumps({topic: {"broker-a": {"0": 0}}})}
        with pytest.raises(PySparkException, match=rf"holds \[{begin}, {TOTAL}\), 0 is outside"):
            frame(spark, **from_the_start).collect()
        tolerant = frame(spark, **from_the_start, failOnDataLoss="false")
        assert [row.queueOffset for row in tolerant.collect()] == list(range(begin, TOTAL))
        assert frame(spark, **options).count() == TOTAL - begin
        with pytest.raises(
            PySparkException, match=rf"messages are missing: of \[0, 4\) .* only \[{begin}, {TOTAL}\)"
        ):
            writer.start().awaitTermination(300)
        again = spark.readStream.format("rocketmq").options(**options, failOnDataLoss="false").load()
        rows: list[int] = []
        query = again.writeStream.foreachBatch(
            lambda batch, _: rows.extend(row.queueOffset for row in batch.collect())
        )
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert query.start().awaitTermination(300)
        assert rows == list(range(begin, TOTAL))


# -- ACL and TLS --------------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
from pathlib import Path
from spark import register
from spark.tests.cases.lake import run, write_toml
from spark.tests.cases.sessions import new_session

given = json.loads(sys.argv[1])
here = Path(given["dir"])
session = new_session(here, **given["conf"])
register(session)
options = given["options"]
rows = session.range(20).selectExpr("cast(id as string) as body", "'tag' as tags")
rows.write.format("rocketmq").options(**options, topic="secure").mode("append").save()
read = session.read.format("rocketmq").options(**options, subscribe="secure").load()
read.explain("extended")
stream = session.readStream.format("rocketmq").options(
    **options, subscribe="secure", startingOffsets="earliest"
).load()
query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
query.awaitTermination()
query.explain(True)
print(query.lastProgress.json)
source = {**options, "subscribe": "secure", "startingOffsets": "earliest"}
tables = {"path": str(here / "lake"), "format": "directory"}
config = {"source": source, "table": tables, "run": {"availableNow": True}}
ingested = run(session, write_toml(here / "ingest.toml", config)).figures["rows"]
bodies = lambda frame: sorted(int(bytes(row.body)) for row in frame.collect())
print(json.dumps([ingested, bodies(read), bodies(session.table("seen"))]))
session.stop()
"""


@pytest.fixture(scope="module")
def secured() -> Iterator[OfficialEndpoint]:
    """An official broker that knows one user, and takes TLS with a certificate that nobody signed."""
    try:
        official = OfficialEndpoint(SETTINGS, jvm=QUICK_START_WITH_TLS)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with official:
        with dial(official.broker) as broker:
            broker.ask(topic_request("secure", 2))
        yield official


def secure_options(official: OfficialEndpoint, secret: str = SECRET) -> dict[str, str]:
    options = {"nameServer": official.namesrv, "accessKey": USER, "secretKey": secret}
    return {**options, "tls.enable": "true", "tls.verify": "false"}


def test_acl_and_tls_and_no_secret_in_anything_spark_writes(
    secured: OfficialEndpoint, tmp_path: Path
) -> None:
    """Sink, batch, stream and ingest, on an official broker; plans, progress, logs and event logs are looked at."""
    events = tmp_path / "events"
    events.mkdir()
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
    conf |= {"spark.eventLog.dir": events.as_uri()}
    given = {"dir": str(tmp_path / "spark"), "options": secure_options(secured), "conf": conf}
    command = [sys.executable, "-c", PROGRAM, json.dumps(given)]
    env = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [20, [*range(20)], [*range(20)]]
    written = [done.stdout, done.stderr]
    written += [path.read_text(errors="replace") for path in events.rglob("*") if path.is_file()]
    assert any("SparkListenerSQLExecutionStart" in text for text in written[2:])
    assert [text for text in written if SECRET in text] == []


def test_wrong_secrets_are_refused_clearly(spark: SparkSession, secured: OfficialEndpoint) -> None:
    for options in (secure_options(secured, "wr0ng-secret"), {"nameServer": secured.namesrv}):
        with pytest.raises(PySparkException) as failed:
            frame(spark, **options, subscribe="secure").collect()
        assert "CODE: 16" in str(failed.value)
        assert "wr0ng" not in str(failed.value)
