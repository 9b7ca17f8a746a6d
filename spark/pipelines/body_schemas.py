"""Parse bodies by schema: JSON by a Spark schema, Avro by its own.

Nothing is lost: a body that does not match leaves its row unchanged, with a reason.
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
    """Schema of a topic's bodies, and the table they go to. One of `json` and `avro` is given."""

    topic: str
    table: str
    json: str | None = None
    avro: str | None = None
    skip_bytes: int = 0
    keep_body: bool = True

    @property
    def value_column(self) -> str:
        """Column that holds the value until it is in its table."""
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


def read_avro_schema(given: str, where: str) -> str:
    """Return the schema's JSON, from a file if a path is given. Raises OptionError."""
    from pathlib import Path

    if given.lstrip().startswith(("{", "[", '"')):
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{where}: {given}: {error.strerror}") from error


def parse_bodies(rows: "DataFrame", bodies: Mapping[str, BodySchema]) -> "DataFrame":
    """Add a column per schema, null for other topics, and `reason`, null where the body matches."""
    from pyspark.sql import functions as f

    reason = f.lit(None).cast("string")
    values = {}
    for body in bodies.values():
        mine = f.col("topic") == body.topic
        value, why = (_parse_json if body.json is not None else _parse_avro)(
            body, f.when(mine, f.col("body"))
        )
        values[body.value_column] = f.when(mine & why.isNull(), value)
        reason = f.when(mine, why).otherwise(reason)
    return rows.withColumns({**values, "reason": reason})


def _parse_json(body: BodySchema, given: "Column") -> tuple["Column", "Column"]:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(body.json or "")
    assert isinstance(schema, StructType)
    said = given.cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED}
    parsed = f.from_json(said, StructType([*schema.fields]).add(_MALFORMED, "string"), options)
    why = (
        f.when(given.isNull(), f.lit("no body"))
        .when(~f.is_valid_utf8(given), f.lit("not UTF-8"))
        .when(~_is_one_json_value(said), f.lit("not JSON"))
        .when(parsed.isNull() | parsed[_MALFORMED].isNotNull(), f.lit("does not fit the schema"))
    )
    for field in schema.fields:
        if not field.nullable:
            why = why.when(parsed[field.name].isNull(), f.lit(f"{field.name} is missing"))
    return parsed.dropFields(_MALFORMED), why


def _is_one_json_value(said: "Column") -> "Column":
    """Tell whether a text is a single JSON value. Spark's parsers ignore what follows the first value.

    Text that could go unnoticed inside an array (a closing bracket) is noticed inside an object, and vice versa.
    """
    from pyspark.sql import functions as f

    alone = f.json_array_length(f.concat(f.lit("["), said, f.lit("]"))) == 1
    whole = f.try_parse_json(f.concat(f.lit('{"v":'), said, f.lit("}"))).isNotNull()
    return f.coalesce(alone, f.lit(False)) & whole


def _parse_avro(body: BodySchema, given: "Column") -> tuple["Column", "Column"]:
    from spark.pipelines.avro_bodies import make_decoder

    assert body.avro is not None
    decoded = make_decoder(body.avro, body.skip_bytes)(given)
    return decoded["value"], decoded["reason"]
