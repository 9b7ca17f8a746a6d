"""Avro bodies without Spark: types, values, and reasons for what does not fit."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as some
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructType

from spark.errors import OptionError
from spark.pipelines.avro_bodies import decode_bodies, plain_schema, spark_type

SCHEMA = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "before", "type": ["null", "Kind"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "key", "type": {"type": "fixed", "name": "Key", "size": 4}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": ["null", "double"]}}},
    ],
}
VALUE = {
    "id": 7,
    "note": None,
    "kind": "NEW",
    "before": "OLD",
    "price": Decimal("12.50"),
    "at": datetime(2026, 1, 31, 1, 2, 3, 456_789, UTC),
    "day": date(2026, 1, 31),
    "clock": 3_600_000,
    "key": b"abcd",
    "lines": [{"a": 1.5, "b": None}, {}],
}
DDL = (
    "struct<id:bigint,note:string,kind:string,before:string,price:decimal(6,2),at:timestamp,day:date,clock:int,"
    "key:binary,lines:array<map<string,double>>>"
)


def write(value: Any, schema: Any = SCHEMA) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(plain_schema(json.dumps(schema))), value)
    return stream.getvalue()


def read(bodies: list[bytes | None], schema: Any = SCHEMA, skip_bytes: int = 0) -> list[dict[str, Any]]:
    parsed = plain_schema(json.dumps(schema))
    result = StructType().add("value", spark_type(parsed)).add("reason", StringType())
    arrow = to_arrow_type(result, timezone="UTC")
    decoded = decode_bodies(pa.array(bodies, pa.binary()), parsed, skip_bytes, arrow)
    decoded.validate(full=True)
    assert decoded.type == arrow
    return decoded.to_pylist()


def test_types_and_values() -> None:
    assert spark_type(plain_schema(json.dumps(SCHEMA))).simpleString() == DDL
    (row,) = read([write(VALUE)])
    assert row["reason"] is None
    assert row["value"] == {**VALUE, "lines": [[("a", 1.5), ("b", None)], []]}


def test_what_is_no_value_has_a_reason() -> None:
    good = write(VALUE)
    rows = read([good, None, b"", good[:-1], good + b"xy", good])
    assert [row["reason"] for row in rows][:2] == [None, None]
    assert [row["value"] is not None for row in rows] == [True, False, False, False, False, True]
    assert rows[4]["reason"] == "2 bytes follow the value"
    assert all(row["reason"].startswith("not Avro of the schema: ") for row in rows[2:4])


def test_what_no_column_can_hold_has_a_reason() -> None:
    big = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0}
    plain = {"type": "record", "name": "R", "fields": [{"name": "n", "type": big}]}
    # Written as bytes, since fastavro's own writer refuses what does not fit.
    rows = read([b"\x02\x05", b"\x06\x7f\xff\xff", b"\x02\x06"], plain)
    assert [row["value"] and row["value"]["n"] for row in rows] == [Decimal(5), None, Decimal(6)]
    assert rows[1]["reason"].startswith("does not fit the column: ")


def test_what_stands_before_the_value_is_skipped() -> None:
    assert read([b"\0\0\0\0\1" + write(VALUE)], skip_bytes=5)[0]["value"]["id"] == 7
    assert read([b"\0\0"], skip_bytes=5)[0]["reason"] is not None


@given(some.binary(max_size=60))
def test_any_bytes_are_a_value_or_have_a_reason(body: bytes) -> None:
    (row,) = read([body])
    assert (row["value"] is None) == (row["reason"] is not None)


@given(some.integers(0, 60))
def test_no_beginning_of_a_value_is_one(length: int) -> None:
    whole = write(VALUE)
    if length < len(whole):
        assert read([whole[:length]])[0]["value"] is None


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "record"}, "not an Avro schema"),
        ("nothing", "not an Avro schema"),
        (["int", "string"], "union of 2 types"),
        ("null", "null has no type in Spark"),
        (
            {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]},
            "L contains itself",
        ),
    ],
)
def test_schemas_without_a_type_are_refused(schema: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        spark_type(plain_schema(json.dumps(schema)))
