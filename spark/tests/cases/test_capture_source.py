"""The source `rocketmq-capture` in Spark: files of the gateway's own writer, and those of real mirrored traffic."""

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from codec.capture import CaptureRecord, scan_records
from gateway.shadow.capture.files import DiskFolder
from gateway.shadow.capture.rotation import RotatedFiles
from gateway.shadow.capture.settings import CaptureSettings
from spark import register
from spark.tests.captures import EPOCH_MS, send
from spark.tests.cases.mirrored import Mirrored

pytestmark = pytest.mark.ours_only


class Files:
    """Capture files written by the gateway's own writer: small blocks, a few per file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent = 0
        settings = CaptureSettings(
            directory=str(folder), block_bytes=4096, file_bytes=64 * 1024, reserve_bytes=0
        )
        self.files = RotatedFiles(settings, DiskFolder(str(folder)), "gw", 7, lambda: int(time.time() * 1000))

    def send(self, count: int) -> None:
        for _ in range(count):
            self.files.add_record(
                send(self.sent, ("orders", "bills")[self.sent // 200 % 2], queue=self.sent % 4)
            )
            self.sent += 1
        self.files.flush()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    (tmp_path / "captures").mkdir()
    return Files(tmp_path / "captures")


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


def loaded(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.read.format("rocketmq-capture").options(**options).load(str(folder))


def test_exchanges_and_messages_of_a_folder(spark: SparkSession, files: Files) -> None:
    files.send(1000)
    frame = loaded(spark, files.folder, includeBodies="true", minPartitions="3")
    rows = {row.queueOffset: row for row in frame.collect()}
    assert sorted(rows) == list(range(1000))
    row = rows[42]
    assert (row.topic, row.queueOffset, row.body, row.fields["e"]) == (
        "orders",
        42,
        bytearray(b"body 42"),
        "2",
    )
    assert (row.gatewayUs, row.primaryUs, row.targetUs, row.fate) == (142, 1042, 2042, "mirrored")
    assert row.time.timestamp() * 1000 == EPOCH_MS + 42
    messages = loaded(spark, files.folder, rows="messages", topics="bills")
    found = messages.select("how", "topic", "queueOffset", "targetQueueOffset").distinct()
    assert found.count() == 400
    assert (
        found.where("targetQueueOffset = queueOffset + 100 and how = 'sent' and topic = 'bills'").count()
        == 400
    )


def test_filters_skip_blocks_when_they_are_pushed(spark: SparkSession, files: Files) -> None:
    files.send(1000)
    files.files.close()
    damaged = sorted(files.folder.iterdir())[0]
    data = bytearray(damaged.read_bytes())
    data[100:110] = bytes(10)
    damaged.write_bytes(data)
    with pytest.raises(PythonException, match=r"DamageError.*the block does not match its CRC"):
        loaded(spark, files.folder).count()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = loaded(spark, files.folder, pushFilters="true")
        # The damaged block holds no bills, and is never looked at.
        assert pushed.where("topic = 'bills' and code in (310, 320)").count() == 400
        late = f"timestamp_millis({EPOCH_MS + 900})"
        assert pushed.where(f.expr(f"time >= {late}")).count() == 100
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    damage = loaded(spark, files.folder, rows="damage").collect()
    assert [row.file for row in damage] == [str(damaged)]
    passed_over = (
        loaded(spark, files.folder, failOnDamage="false").agg(f.count("*"), f.min("queueOffset")).first()
    )
    assert passed_over is not None
    assert 900 < passed_over[0] < 1000
    assert passed_over[0] + passed_over[1] == 1000


def test_wrong_options_are_named(spark: SparkSession, files: Files) -> None:
    for options, said in (
        ({"topcs": "a"}, 'unknown option "topcs"; did you mean "topics"'),
        ({"rows": "none"}, 'rows: invalid value "none" .expected "exchanges", "messages" or "damage"'),
        ({"columns": "time,nope"}, "there is no column nope"),
        ({"startingTimestamp": "soon"}, "must be ms since 1970 or a time"),
    ):
        with pytest.raises(AnalysisException, match=said):
            loaded(spark, files.folder, **options)
    with pytest.raises(AnalysisException, match="no capture files at"):
        loaded(spark, files.folder / "nowhere").count()


def test_a_stream_reads_every_record_once(spark: SparkSession, files: Files, tmp_path: Path) -> None:
    """A stream over files that grow and are closed is stopped and continues from its checkpoint."""
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"

    def run() -> int:
        """Run once to the current end, retrying if a busy machine does not start Spark's Python in time."""
        for _ in range(4):
            try:
                return once()
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error):
                    raise
        raise AssertionError("Spark could not start its Python")

    def once() -> int:
        stream = spark.readStream.format("rocketmq-capture").option("maxRecordsPerTrigger", "300")
        frame = stream.option("columns", "queueOffset,topic,file").load(str(files.folder))
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start(str(table))
        query.awaitTermination(300)
        assert not query.isActive
        return len(query.recentProgress)

    files.send(700)
    assert run() >= 3
    files.send(250)
    files.files.close()
    oldest = sorted(files.folder.iterdir())[0]
    run()
    os.unlink(oldest)
    run()
    found = spark.read.parquet(str(table))
    assert sorted(row.queueOffset for row in found.select("queueOffset").collect()) == list(range(files.sent))


@pytest.mark.both_servers
def test_the_capture_of_mirrored_traffic(spark: SparkSession, traffic: Mirrored) -> None:
    """Captured sends have their place at the primary and their outcome at the target."""
    paths = sorted(traffic.captures.glob("*.rmqcap"))
    records = [
        each for path in paths for each in scan_records(path.read_bytes()) if isinstance(each, CaptureRecord)
    ]
    frame = loaded(spark, traffic.captures)
    codes = {row.code: row["count"] for row in frame.groupBy("code").count().collect()}
    assert codes == Counter(each.code for each in records)
    sends = frame.where("code in (310, 320)")
    assert sends.where("answerCode != 0 or unreadable or redacted or gatewayUs < 0").count() == 0
    assert sends.where("primaryUs <= 0 or fate is null").count() == 0
    columns = ("msgId", "topic", "queueId", "queueOffset", "body", "keys", "tags")
    messages = loaded(spark, traffic.captures, rows="messages").where("how = 'sent' and waits is null")
    found = [tuple(row) for row in messages.select(*columns).collect()]
    stored = [
        (
            each.unique_key,
            each.topic,
            each.queue_id,
            each.queue_offset,
            bytearray(each.decompressed_body()),
            each.properties.get("KEYS"),
            each.tags,
        )
        for topic in ("Orders", "Bills", "Mixed")
        for each in traffic.stored(traffic.primary.broker, topic)
        if "TRAN_MSG" not in each.properties and "DELAY" not in each.properties
    ]
    assert {_hashable(row) for row in found} == {_hashable(row) for row in stored}


def _hashable(row: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
