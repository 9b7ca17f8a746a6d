"""The columns a sink understands: their names, types and aliases, checked before anything is sent.

Names are those of the source; columns that only a broker can fill are passed over, so that what was read can be
written. Spark compares names without regard to case, and so does this.

Not responsible for the values of rows.
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
    """One column: the types it may have, in Spark's words, and other names it may go by."""

    name: str
    types: tuple[str, ...]
    doc: str
    aliases: tuple[str, ...] = ()

    @property
    def ddl(self) -> str:
        """The types as documents show them."""
        return " or ".join(self.types)


COLUMNS: Final = (
    SinkColumn(
        "body",
        ("binary", "string"),
        "The body; a string is sent as UTF-8. Needed. Also: `value`.",
        ("value",),
    ),
    SinkColumn("topic", ("string",), "Where the row goes; the option `topic` goes before it."),
    SinkColumn("tags", ("string",), "The tag."),
    SinkColumn(
        "keys",
        ("string", "binary", "array<string>"),
        "Keys the message can be found by, between blanks or as an array. Also: `key`.",
        ("key",),
    ),
    SinkColumn(
        "properties",
        ("map<string,string>", _HEADERS_TYPE),
        "Properties of the user. Names the protocol keeps for itself are left out. Also: `headers`.",
        ("headers",),
    ),
    SinkColumn(
        "delayLevel", _INTEGER_TYPES, "Delay level, 1 to 18 at a broker with default settings; 0 for none."
    ),
    SinkColumn("delayMs", _INTEGER_TYPES, "Delay in ms from when the broker takes the message."),
    SinkColumn("deliverAt", ("timestamp",), "When it is to be delivered; at once when that is past."),
    SinkColumn(
        "shardingKey",
        ("string", "int", "bigint"),
        "Rows of one key go to one queue, the same that SelectMessageQueueByHash takes.",
    ),
    SinkColumn(
        "queueId",
        _INTEGER_TYPES,
        "The queue it goes to, whatever happens. Also: `partition`.",
        ("partition",),
    ),
    SinkColumn("brokerName", ("string",), "The broker of that queue; else the first that has it."),
    SinkColumn("flag", _INTEGER_TYPES, "The producer's flag, 32 bits."),
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
"""What the source tells and no producer can set, in lower case."""

_COLUMNS_BY_NAME: Final = {
    name.lower(): column for column in COLUMNS for name in (column.name, *column.aliases)
}


def check_columns(fields: Iterable[tuple[str, str]], topic: str | None) -> dict[str, int]:
    """Where each column stands among a frame's fields (name and type as Spark says it), by its proper name.

    `topic` is the option of that name. Raises ColumnError.
    """
    table = [(name, kind.lower()) for name, kind in fields]
    places: dict[str, int] = {}
    for place, (name, kind) in enumerate(table):
        column = _COLUMNS_BY_NAME.get(name.lower())
        if column is None:
            if name.lower() not in IGNORED_COLUMNS:
                raise ColumnError(_unknown_column_text(name))
            continue
        if column.name in places:
            raise ColumnError(f"columns {table[places[column.name]][0]} and {name} mean the same, give one")
        if kind not in column.types:
            raise ColumnError(f"column {name} must be {' or '.join(column.types)}, it is {kind}")
        places[column.name] = place
    _check_combinations(places, topic)
    return places


def _check_combinations(places: dict[str, int], topic: str | None) -> None:
    if "body" not in places:
        raise ColumnError("there is no column body (or value): it is what is sent")
    if "topic" not in places and topic is None:
        raise ColumnError("there is neither an option topic nor a column topic")
    if "brokerName" in places and "queueId" not in places:
        raise ColumnError("column brokerName is only of use with queueId: drop it or add that")
    if "shardingKey" in places and "queueId" in places:
        raise ColumnError("columns shardingKey and queueId both choose the queue, give one of them")


def _unknown_column_text(name: str) -> str:
    spelled = {each.lower(): each for column in COLUMNS for each in (column.name, *column.aliases)}
    near = difflib.get_close_matches(name.lower(), spelled, 1, 0.6)
    hint = f"did you mean {spelled[near[0]]}?" if near else f"there are {', '.join(spelled.values())}"
    return f"the sink knows no column {name}; {hint}"
