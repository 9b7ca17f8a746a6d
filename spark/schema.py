"""Columns of a message in Spark: name, Arrow type and Spark type of each.

Names are those of rocketmq-spark where it has them. Every record batch is built with one constant Arrow schema,
because Spark checks only the first batch. Importing this module imports pyarrow.
"""

from typing import Final, NamedTuple

import pyarrow as pa


class Column(NamedTuple):
    """One column; `ddl` is its Spark type. Every column is declared nullable."""

    name: str
    arrow: pa.DataType
    ddl: str
    doc: str


_TIME: Final = pa.timestamp("us", tz="UTC")
_TEXTS: Final = pa.map_(pa.string(), pa.string())

COLUMNS: Final = (
    Column("topic", pa.string(), "string", "The topic."),
    Column("brokerName", pa.string(), "string", "Broker name, as in the topic route."),
    Column("queueId", pa.int32(), "int", "Queue of the topic at that broker."),
    Column("queueOffset", pa.int64(), "bigint", "Offset in the queue."),
    Column(
        "msgId",
        pa.string(),
        "string",
        "Message id set by the producer (UNIQ_KEY), or the offset message id if there is none.",
    ),
    Column("tags", pa.string(), "string", "The tag; null without one."),
    Column("keys", pa.string(), "string", "The keys, separated by blanks; null without any."),
    Column("body", pa.binary(), "binary", "The body that the producer sent, decompressed."),
    Column("properties", _TEXTS, "map<string,string>", "All properties, TAGS, KEYS and UNIQ_KEY included."),
    Column("bornTimestamp", _TIME, "timestamp", "Time when the producer created the message, to the ms."),
    Column("storeTimestamp", _TIME, "timestamp", "Time when the broker stored the message, to the ms."),
    Column("bornHost", pa.string(), "string", "The producer, `host:port`; an IPv6 host in brackets."),
    Column("storeHost", pa.string(), "string", "The broker, `host:port`."),
    Column("sysFlag", pa.int32(), "int", "System flag as stored (compression, transaction, IPv6)."),
    Column("flag", pa.int32(), "int", "The producer's flag."),
    Column("reconsumeTimes", pa.int32(), "int", "Number of times a consumer sent it back."),
    Column(
        "preparedTransactionOffset",
        pa.int64(),
        "bigint",
        "Physical offset of its half message; 0 without one.",
    ),
    Column("commitLogOffset", pa.int64(), "bigint", "Physical offset in the broker's commit log, bytes."),
)

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

KAFKA_COLUMNS: Final = (
    Column("key", pa.binary(), "binary", "keys"),
    Column("value", pa.binary(), "binary", "body"),
    Column("topic", pa.string(), "string", "topic"),
    Column("partition", pa.int32(), "int", "queueId"),
    Column("offset", pa.int64(), "bigint", "queueOffset"),
    Column("timestamp", _TIME, "timestamp", "storeTimestamp"),
    Column("timestampType", pa.int32(), "int", "Always 1: the time is that of the broker's log."),
    Column(
        "headers", _HEADERS, "array<struct<key:string,value:binary>>", "properties, if they are included."
    ),
)

RANGE_COLUMNS: Final = (
    Column("topic", pa.string(), "string", "The topic."),
    Column("brokerName", pa.string(), "string", "Broker name, as in the topic route."),
    Column("host", pa.string(), "string", "Host of that broker."),
    Column("port", pa.int32(), "int", "Port of that broker."),
    Column("queueId", pa.int32(), "int", "Queue of the topic at that broker."),
    Column("startOffset", pa.int64(), "bigint", "Queue offset of the first message."),
    Column("endOffset", pa.int64(), "bigint", "Queue offset after the last message."),
)
"""Columns of `schema=ranges`: the positions of messages, for tasks that fetch the messages themselves."""


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the Arrow schema of every record batch with these columns."""
    return pa.schema([(column.name, column.arrow) for column in columns])


def spark_ddl(columns: tuple[Column, ...]) -> str:
    """Return the schema of these columns in Spark's syntax."""
    return ", ".join(f"`{column.name}` {column.ddl}" for column in columns)
