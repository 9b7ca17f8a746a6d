"""Topics to tables by the pipeline `ingest`, in one process: each message once, and what does not fit."""

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.sql import SparkSession

from compat_tests.clients.typed import connect, create_topic, send_many
from compat_tests.server import ServerUnderTest
from spark import register
from spark.errors import OptionError
from spark.tables import open_table
from spark.tests.cases.lake import assert_all_readers, run, run_compact, stored, tables, write_toml


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


def send(server: ServerUnderTest, topic: str, queue: int, bodies: list[bytes]) -> None:
    with connect(server.broker) as broker:
        send_many(broker, topic, bodies, queue_id=queue)


@pytest.mark.parametrize("format", ["delta", "directory"])
def test_messages_are_there_once_run_after_run(
    spark: SparkSession, server: ServerUnderTest, tmp_path: Path, format: str
) -> None:
    queues = {server.topic_name(): 2, f"%RETRY%{server.unique_name('group')}": 1}
    for topic, count in queues.items():
        create_topic(server, topic, count)
        for queue in range(count):
            send(server, topic, queue, [b"%d %d" % (queue, n) for n in range(50)])
    config = tables(server, tmp_path / "lake", ",".join(queues))
    config["table"]["format"] = format
    config["source"]["maxOffsetsPerTrigger"] = 60
    file = write_toml(tmp_path / "ingest.toml", config)

    first = run(spark, file)
    assert (first.exit_code, first.figures["rows"], first.figures["batches"]) == (0, 150, 3)
    assert [row[:2] for row in first.sections[0].rows] == sorted((t, 50 * n) for t, n in queues.items())
    assert first.figures["behind"] == 0
    table = open_table(str(tmp_path / "lake"), "messages", session=spark)
    assert table.format == format
    assert_all_readers(spark, table, stored(server, queues))

    # The last batch was appended, but Spark was killed before it knew: it is made again, and is there already.
    newest = max((tmp_path / "lake/_checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    topic = next(iter(queues))
    send(server, topic, 0, [b"later"])
    second = run(spark, file)
    assert (second.figures["rows"], second.figures["already in the table"]) == (1, 1)
    expected = stored(server, queues)
    assert len(expected) == 151
    assert_all_readers(spark, table, expected)

    done = run_compact(spark, file)
    assert done.figures["files after"] < done.figures["files before"]
    assert_all_readers(spark, table, expected)
    days = {row["storeTimestamp"].astimezone().date() for row in table.read(spark).collect()}
    assert {row["dt"] for row in table.read(spark).collect()} == days


AVRO = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
    ],
}
AT = datetime(2026, 1, 31, 12, 30, 15, 250_000, UTC)


def avro(value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(AVRO), value)
    return stream.getvalue()


def test_bodies_by_schema(spark: SparkSession, server: ServerUnderTest, tmp_path: Path) -> None:
    orders, payments, raw = (server.topic_name(name) for name in ("orders", "payments", "raw"))
    for topic in (orders, payments, raw):
        create_topic(server, topic, 1)
    bad_orders = {
        b"not json": "not JSON",
        b'{"id": "x"}': "does not fit the schema",
        b'{"id": 1}{"id": 2}': "not JSON",
        b"[1, 2]": "does not fit the schema",
        b'{"lines": []}': "id is missing",
        b'{"id": 7, "lines": [\xff]}': "not UTF-8",
    }
    good_order = {"id": 1, "lines": [{"sku": "a", "n": 2}], "more": True}
    send(server, orders, 0, [json.dumps(good_order).encode(), *bad_orders, b'{"id": 2}'])
    payment = {"id": 5, "note": None, "amount": Decimal("12.50"), "at": AT, "lines": [{"a": 1}, {}]}
    framed = b"\0\0\0\0\1" + avro(payment)
    send(server, payments, 0, [framed, framed[:-1], framed + b"?", b"\0\0\0\0\1garbage"])
    send(server, raw, 0, [b"anything"])
    config = tables(server, tmp_path / "lake", ",".join((orders, payments, raw)), failOnBadBodies=True)
    config[f"bodies.{json.dumps(orders)}"] = {
        "json": "id bigint not null, lines array<struct<sku: string, n: int>>",
        "table": "orders",
    }
    config[f"bodies.{json.dumps(payments)}"] = {
        "avro": json.dumps(AVRO),
        "skipBytes": 5,
        "table": "payments",
        "keepBody": False,
    }
    summary = run(spark, write_toml(tmp_path / "ingest.toml", config))

    assert summary.exit_code == 3
    assert (summary.figures["rows"], summary.figures["quarantined"]) == (13, 9)
    assert {row[0]: row[1] for row in summary.sections[1].rows} == {
        "messages": 1,
        "orders": 2,
        "payments": 1,
        "quarantine": 9,
    }
    found = {
        name: open_table(str(tmp_path / "lake"), name, session=spark)
        .read(spark)
        .orderBy("queueOffset")
        .collect()
        for name in ("messages", "orders", "payments", "quarantine")
    }
    assert [bytes(row["body"]) for row in found["messages"]] == [b"anything"]
    values = [row["value"].asDict(recursive=True) for row in found["orders"]]
    assert values == [{"id": 1, "lines": [{"sku": "a", "n": 2}]}, {"id": 2, "lines": None}]
    paid = found["payments"][0]
    assert "body" not in paid
    value = paid["value"].asDict(recursive=True)
    assert (value["id"], value["amount"], value["lines"]) == (5, Decimal("12.50"), [{"a": 1}, {}])
    assert value["at"].astimezone(UTC) == AT
    reasons = {bytes(row["body"]): row["reason"] for row in found["quarantine"]}
    assert {body: reasons[body] for body in bad_orders} == bad_orders
    assert reasons[framed + b"?"] == "1 bytes follow the value"
    assert reasons[framed[:-1]].startswith("not Avro of the schema: ")
    assert len(reasons) == 9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"table": {"path": None}}, "path is required"),
        ({"bodies.a": {}}, "one of json and avro is required"),
        (
            {"bodies.a": {"json": "id int", "table": "messages"}},
            "more than one table is named messages",
        ),
        ({"bodies.a": {"avro": '["int", "string"]'}}, "union of 2 types"),
        ({"source": {"columns": "topic,body"}}, "the table requires the columns"),
    ],
)
def test_mistakes_are_named(
    spark: SparkSession, server: ServerUnderTest, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    config = tables(server, tmp_path / "lake", server.topic_name())
    for table, values in change.items():
        config[table] = {**config.get(table, {}), **values}
        config[table] = {key: value for key, value in config[table].items() if value is not None}
    file = write_toml(tmp_path / "ingest.toml", config)
    with pytest.raises(OptionError, match=said):
        run(spark, file)
    assert not (tmp_path / "lake").exists()
