"""Decode Avro bodies with fastavro in Spark's Python workers, and map Avro schemas to Spark types.

Spark's own `from_avro` needs a jar of exactly Spark's version, and does not say why a body cannot be decoded. Schema
registries are not contacted: the header that they put before the value is skipped.
"""

import json
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import types as t

from spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import Column

MAX_REASON_CHARS: Final = 200
"""Maximum length of a stored reason; longer ones are truncated."""

_PRIMITIVE_TYPES: Final[dict[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
}
_LOGICAL_TYPES: Final[dict[str, t.DataType]] = {
    "date": t.DateType(),
    "timestamp-millis": t.TimestampType(),
    "timestamp-micros": t.TimestampType(),
}


def make_decoder(schema_json: str, skip_bytes: int) -> "Callable[[Column], Column]":
    """Return a function that maps a column of bodies to `struct<value, reason>`.

    Raises OptionError for a schema without a Spark type.
    """
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_type

    schema = plain_schema(schema_json)
    value = spark_type(schema)
    result = t.StructType().add("value", value).add("reason", t.StringType())
    arrow = to_arrow_type(result, timezone="UTC")

    def decode(bodies: pa.Array) -> pa.Array:
        return decode_bodies(bodies, schema, skip_bytes, arrow)

    create_udf: Any = arrow_udf
    udf: Callable[[Column], Column] = create_udf(decode, result)
    return udf


def decode_bodies(bodies: pa.Array, schema: Any, skip_bytes: int, arrow: pa.DataType) -> pa.Array:
    """Return each body's value, or the reason why there is none; null for a null body."""
    from fastavro import parse_schema

    parsed = parse_schema(schema)
    decoded = [
        None if body is None else _decode_body(body, parsed, skip_bytes) for body in bodies.to_pylist()
    ]
    values, reasons = _to_arrow(
        [row and row[0] for row in decoded], [row and row[1] for row in decoded], arrow
    )
    return pa.StructArray.from_arrays([values, reasons], fields=list(arrow))


def _decode_body(body: bytes, parsed: Any, skip_bytes: int) -> tuple[Any, str | None]:
    from fastavro import schemaless_reader

    stream = BytesIO(body)
    stream.seek(skip_bytes)
    try:
        value = schemaless_reader(stream, parsed, None)
    except Exception as error:  # noqa: BLE001 - arbitrary bytes may raise anything
        return None, f"not Avro of the schema: {type(error).__name__} {error}"[:MAX_REASON_CHARS]
    extra_bytes = len(body) - stream.tell()
    return (value, None) if extra_bytes == 0 else (None, f"{extra_bytes} bytes follow the value")


def _to_arrow(values: list[Any], reasons: list[str | None], arrow: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Return Arrow arrays. A value out of the Arrow type's range (a decimal's digits, a year) becomes a reason, too."""
    kind = arrow.field("value").type
    try:
        return pa.array(values, kind), pa.array(reasons, pa.string())
    except (pa.ArrowException, ValueError, OverflowError):
        for row, value in enumerate(values):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, ValueError, OverflowError) as error:
                values[row] = None
                reasons[row] = f"does not fit the column: {error}"[:MAX_REASON_CHARS]
        return pa.array(values, kind), pa.array(reasons, pa.string())


def plain_schema(schema_json: str) -> Any:
    """Return the schema as fastavro needs it, with full names. Raises OptionError."""
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        parsed = parse_schema(_drop_unknown_logical(json.loads(schema_json)))
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError) as error:
        raise OptionError(f"not an Avro schema: {type(error).__name__} {error}") from error
    return json.loads(json.dumps(_drop_parser_marks(parsed)))


def _drop_unknown_logical(node: Any) -> Any:
    """Drop logical types that Spark has no column for, so that their plain values remain."""
    if isinstance(node, list):
        return [_drop_unknown_logical(child) for child in node]
    if not isinstance(node, dict):
        return node
    is_supported = node.get("logicalType") in (*_LOGICAL_TYPES, "decimal")
    return {
        key: _drop_unknown_logical(value)
        for key, value in node.items()
        if key != "logicalType" or is_supported
    }


def _drop_parser_marks(node: Any) -> Any:
    if isinstance(node, list):
        return [_drop_parser_marks(child) for child in node]
    if not isinstance(node, dict):
        return node
    return {key: _drop_parser_marks(value) for key, value in node.items() if not key.startswith("__")}


def spark_type(schema: Any) -> t.DataType:
    """Return the Spark type of a schema's values. Raises OptionError if there is none."""
    return _SchemaTypes().type_of(schema)


class _SchemaTypes:
    """Maps schemas to types. A named type can be used after its definition."""

    def __init__(self) -> None:
        self.named: dict[str, t.DataType] = {}
        self.open: set[str] = set()

    def type_of(self, schema: Any) -> t.DataType:
        if isinstance(schema, list):
            return self._union_type(schema)
        if isinstance(schema, str):
            return self._by_name(schema)
        logical = self._logical_type(schema)
        kind = schema["type"]
        if logical is not None:
            return self._remember_type(schema, logical)
        if kind == "record":
            return self._remember_type(schema, self._record_type(schema))
        if kind == "array":
            return t.ArrayType(self.type_of(schema["items"]), _has_null(schema["items"]))
        if kind == "map":
            return t.MapType(t.StringType(), self.type_of(schema["values"]), _has_null(schema["values"]))
        if kind in ("enum", "fixed"):
            return self._remember_type(schema, t.StringType() if kind == "enum" else t.BinaryType())
        return self.type_of(kind)

    def _by_name(self, name: str) -> t.DataType:
        data_type = _PRIMITIVE_TYPES.get(name) or self.named.get(name)
        if data_type is None:
            problem = "contains itself" if name in self.open else "has no type in Spark"
            raise OptionError(f"Avro: {name} {problem}")
        return data_type

    def _logical_type(self, schema: Any) -> t.DataType | None:
        logical = schema.get("logicalType")
        if logical == "decimal":
            return t.DecimalType(schema["precision"], schema.get("scale", 0))
        return _LOGICAL_TYPES.get(logical)

    def _record_type(self, schema: Any) -> t.DataType:
        self.open.add(schema["name"])
        fields = [
            t.StructField(field["name"], self.type_of(field["type"]), _has_null(field["type"]))
            for field in schema["fields"]
        ]
        return t.StructType(fields)

    def _remember_type(self, schema: Any, data_type: t.DataType) -> t.DataType:
        if "name" in schema:
            self.named[schema["name"]] = data_type
        return data_type

    def _union_type(self, schema: list[Any]) -> t.DataType:
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise OptionError(f"Avro: a union of {len(branches)} types besides null has no type in Spark")
        return self.type_of(branches[0])


def _has_null(schema: Any) -> bool:
    return isinstance(schema, list) and "null" in schema
