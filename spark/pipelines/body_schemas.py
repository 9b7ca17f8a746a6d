"""Parse bodies by schema: JSON by a Spark schema, Avro by its own.

No body is lost: a row whose body does not match stays unchanged, and gets a reason.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spark.errors import OptionError
from spark.options import Option, boolean, integer, text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BODY_OPTIONS: Final = (
    Option(
        "json",
        text,
        None,
        "Spark schema of bodies that are JSON objects: `id bigint not null, amount decimal(9,2)`.",
    ),
    Option(
        "avro", text, None, "Avro schema of bodies in Avro's binary form: a file's path, or the JSON itself."
    ),
    Option(
        "skipBytes",
        integer(0),
        0,
        "Bytes to skip before the Avro value: 5 for schema registries, 10 for single-object encoding.",
    ),
    Option("table", text, None, "Name of the topic's table. Default: the topic's name."),
    Option("keepBody", boolean, True, "Keep the column `body` in addition to `value`."),
)
_MALFORMED: Final = "_malformed"
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class BodySchema:
    """Schema of a topic's bodies, and their table. One of `json` and `avro` is set."""

    topic: str
    table: str
    json: str | None = None
    avro: str | None = None
    skip_bytes: int = 0
    keep_body: bool = True

    @property
    def value_column(self) -> str:
        """Column of the parsed values before the rows are split by table."""
        return f"_value of {self.topic}"

    def check_schema(self) -> None:
        """Raise OptionError for an invalid schema. Needs a running Spark, which parses it."""
        from pyspark.errors import PySparkException
        from pyspark.sql.types import StructType

        try:
            if self.json is not None:
                StructType.fromDDL(self.json)
            else:
                from spark.pipelines.avro_bodies import plain_schema, spark_type

                spark_type(plain_schema(self.avro or ""))
        except (PySparkException, OptionError) as error:
            raise OptionError(f"[bodies.{self.topic}]: {error}") from error


def schema_from_options(topic: str, values: Mapping[str, Any]) -> BodySchema:
    """Build the schema from the typed values of `[bodies.<topic>]`. Raises OptionError."""
    where = f"[bodies.{topic}]"
    if (values["json"] is None) == (values["avro"] is None):
        raise OptionError(f"{where}: one of json and avro is required")
    table = values["table"] or re.sub(r"[^\w.-]", "_", topic)
    if not _NAME.fullmatch(table):
        raise OptionError(f"{where}: {table} is not a valid table name: set table")
    avro = None if values["avro"] is None else read_avro_schema(values["avro"], where)
    return BodySchema(topic, table, values["json"], avro, values["skipBytes"], values["keepBody"])


def read_avro_schema(schema: str, where: str) -> str:
    """Return the schema's JSON, from a file if a path is given. Raises OptionError."""
    from pathlib import Path

    if schema.lstrip().startswith(("{", "[", '"')):
        return schema
    try:
        return Path(schema).read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{where}: {schema}: {error.strerror}") from error


def parse_bodies(rows: "DataFrame", bodies: Mapping[str, BodySchema]) -> "DataFrame":
    """Add a value column per schema, null for other topics, and `reason`, null if the body matches its schema."""
    from pyspark.sql import functions as f

    reason = f.lit(None).cast("string")
    values = {}
    for body in bodies.values():
        has_topic = f.col("topic") == body.topic
        value, mismatch = (_parse_json if body.json is not None else _parse_avro)(
            body, f.when(has_topic, f.col("body"))
        )
        values[body.value_column] = f.when(has_topic & mismatch.isNull(), value)
        reason = f.when(has_topic, mismatch).otherwise(reason)
    return rows.withColumns({**values, "reason": reason})


def _parse_json(body: BodySchema, raw_body: "Column") -> tuple["Column", "Column"]:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(body.json or "")
    assert isinstance(schema, StructType)
    body_text = raw_body.cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED}
    parsed = f.from_json(body_text, StructType([*schema.fields]).add(_MALFORMED, "string"), options)
    mismatch = (
        f.when(raw_body.isNull(), f.lit("no body"))
        .when(~f.is_valid_utf8(raw_body), f.lit("not UTF-8"))
        .when(~_is_one_json_value(body_text), f.lit("not JSON"))
        .when(parsed.isNull() | parsed[_MALFORMED].isNotNull(), f.lit("does not fit the schema"))
    )
    for field in schema.fields:
        if not field.nullable:
            mismatch = mismatch.when(parsed[field.name].isNull(), f.lit(f"{field.name} is missing"))
    return parsed.dropFields(_MALFORMED), mismatch


def _is_one_json_value(body_text: "Column") -> "Column":
    """Tell whether a text is a single JSON value. Spark's parsers ignore anything after the first value.

    So the text is parsed as the only element of an array and as a member of an object. A text that closes the array
    early (`1] [2`) breaks the object, and vice versa.
    """
    from pyspark.sql import functions as f

    is_only_element = f.json_array_length(f.concat(f.lit("["), body_text, f.lit("]"))) == 1
    is_member = f.try_parse_json(f.concat(f.lit('{"v":'), body_text, f.lit("}"))).isNotNull()
    return f.coalesce(is_only_element, f.lit(False)) & is_member


def _parse_avro(body: BodySchema, raw_body: "Column") -> tuple["Column", "Column"]:
    from spark.pipelines.avro_bodies import make_decoder

    assert body.avro is not None
    decoded = make_decoder(body.avro, body.skip_bytes)(raw_body)
    return decoded["value"], decoded["reason"]
