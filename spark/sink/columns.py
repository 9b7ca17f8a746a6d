"""Columns that the sink understands: names, types and aliases, checked before anything is sent.

Names are those of the source. Columns that only a broker can fill are ignored, so that rows that were read can be
written back. Like Spark, this module ignores the case of names.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from spark.errors import ColumnError

_INTEGER_TYPES: Final = ("tinyint", "smallint", "int", "bigint")
_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True, slots=True)
class SinkColumn:
    """One column: its permitted Spark types, and its other names."""

    name: str
    types: tuple[str, ...]
    doc: str
    aliases: tuple[str, ...] = ()

    @property
    def ddl(self) -> str:
        """The permitted types as shown in documentation."""
        return " or ".join(self.types)


COLUMNS: Final = (
    SinkColumn(
        "body",
        ("binary", "string"),
        "Message body; a string is sent as UTF-8. Required. Also: `value`.",
        ("value",),
    ),
    SinkColumn("topic", ("string",), "Destination topic. The option `topic` takes precedence."),
    SinkColumn("tags", ("string",), "Message tag."),
    SinkColumn(
        "keys",
        ("string", "binary", "array<string>"),
        "Keys for finding the message, separated by blanks or as an array. Also: `key`.",
        ("key",),
    ),
    SinkColumn(
        "properties",
        ("map<string,string>", _HEADERS_TYPE),
        "User properties. Names reserved by the protocol are left out. Also: `headers`.",
        ("headers",),
    ),
    SinkColumn(
        "delayLevel", _INTEGER_TYPES, "Delay level, 1 to 18 at a broker with default settings; 0: no delay."
    ),
    SinkColumn("delayMs", _INTEGER_TYPES, "Delay in ms after the broker receives the message."),
    SinkColumn("deliverAt", ("timestamp",), "Delivery time; a time in the past means immediately."),
    SinkColumn(
        "shardingKey",
        ("string", "int", "bigint"),
        "Rows with the same key go to the same queue, the one that SelectMessageQueueByHash selects.",
    ),
    SinkColumn(
        "queueId",
        _INTEGER_TYPES,
        "Destination queue, never replaced by another. Also: `partition`.",
        ("partition",),
    ),
    SinkColumn("brokerName", ("string",), "Broker of the queue `queueId`. Default: the first that has it."),
    SinkColumn("flag", _INTEGER_TYPES, "Producer's flag, 32 bits."),
)

IGNORED_COLUMNS: Final = frozenset(
    {
        "queueoffset",
        "msgid",
        "borntimestamp",
        "storetimestamp",
        "bornhost",
        "storehost",
        "sysflag",
        "reconsumetimes",
        "preparedtransactionoffset",
        "commitlogoffset",
        "offset",
        "timestamp",
        "timestamptype",
    }
)
"""Columns of the source that no producer can set, in lower case."""

_COLUMNS_BY_NAME: Final = {
    name.lower(): column for column in COLUMNS for name in (column.name, *column.aliases)
}


def check_columns(fields: Iterable[tuple[str, str]], topic: str | None) -> dict[str, int]:
    """Return the position of each column among a frame's fields (name and Spark type), by its canonical name.

    `topic` is the option of that name. Raises ColumnError.
    """
    table = [(name, kind.lower()) for name, kind in fields]
    positions: dict[str, int] = {}
    for position, (name, kind) in enumerate(table):
        column = _COLUMNS_BY_NAME.get(name.lower())
        if column is None:
            if name.lower() not in IGNORED_COLUMNS:
                raise ColumnError(_unknown_column_text(name))
            continue
        if column.name in positions:
            raise ColumnError(
                f"columns {table[positions[column.name]][0]} and {name} are the same column: use only one of them"
            )
        if kind not in column.types:
            raise ColumnError(f"column {name} must be {' or '.join(column.types)}, it is {kind}")
        positions[column.name] = position
    _check_combinations(positions, topic)
    return positions


def _check_combinations(positions: dict[str, int], topic: str | None) -> None:
    if "body" not in positions:
        raise ColumnError("there is no column body (or value) to send")
    if "topic" not in positions and topic is None:
        raise ColumnError("there is neither an option topic nor a column topic")
    if "brokerName" in positions and "queueId" not in positions:
        raise ColumnError("column brokerName requires column queueId")
    if "shardingKey" in positions and "queueId" in positions:
        raise ColumnError("columns shardingKey and queueId both choose the queue: use only one of them")


def _unknown_column_text(name: str) -> str:
    spelled = {
        spelling.lower(): spelling for column in COLUMNS for spelling in (column.name, *column.aliases)
    }
    near = difflib.get_close_matches(name.lower(), spelled, 1, 0.6)
    hint = f"did you mean {spelled[near[0]]}?" if near else f"columns: {', '.join(spelled.values())}"
    return f"the sink has no column {name}; {hint}"
