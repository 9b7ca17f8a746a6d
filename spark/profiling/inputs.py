"""Inputs of a profile in one form: the same few narrow columns, whatever the source."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from codec import properties as names
from codec.constants import STORED_CODES

EXCHANGE_COLUMNS: Final = (
    "time", "code", "name", "topic", "group", "client", "language", "oneway", "reverse", "byTarget", "answerCode",
    "targetCode", "fate", "gatewayUs", "primaryUs", "targetUs", "requestBytes", "answerBytes",
)  # fmt: skip
"""Columns that are read of captured exchanges."""
MESSAGE_COLUMNS: Final = (
    "topic", "brokerName", "queueId", "keys", "properties", "bornTimestamp", "bornHost", "reconsumeTimes", "how",
    "time", "code", "answerCode", "bodyBytes",
)  # fmt: skip
"""Columns that are read of captured messages."""


def stored_messages(frame: DataFrame, key: str) -> DataFrame:
    """Return messages of the source `rocketmq`, or of an ingested table. `key` is the option `[profile] key`."""
    born, stored = f.col("bornTimestamp"), f.col("storeTimestamp")
    return frame.select(
        "topic",
        "brokerName",
        "queueId",
        stored.alias("at"),
        f.length("body").cast("long").alias("size"),
        _key_column(key),
        f.col("reconsumeTimes").alias("reconsumed"),
        (f.unix_millis(stored) - f.unix_millis(born)).alias("delayMs"),
        _host_column("bornHost").alias("client"),
    )


def captured_messages(frame: DataFrame, key: str) -> DataFrame:
    """Return messages that clients sent and the primary stored, of `rocketmq-capture` with rows=messages."""
    sent = (f.col("how") == "sent") & f.col("answerCode").isin(*map(int, STORED_CODES))
    return frame.where(sent).select(
        "topic",
        "brokerName",
        "queueId",
        f.col("time").alias("at"),
        f.col("bodyBytes").cast("long").alias("size"),
        _key_column(key),
        f.col("reconsumeTimes").alias("reconsumed"),
        (f.unix_millis("time") - f.unix_millis("bornTimestamp")).alias("delayMs"),
        _host_column("bornHost").alias("client"),
    )


def _key_column(key: str) -> Column:
    """Return the key by which messages are ordered or found."""
    properties = f.col("properties")
    sharding = properties[names.SHARDING_KEY]
    if key == "auto":
        return f.coalesce(sharding, f.col("keys")).alias("key")
    if key == "keys":
        return f.col("keys").alias("key")
    return (sharding if key == "shardingKey" else properties[key]).alias("key")


def _host_column(column: str) -> Column:
    return f.regexp_replace(column, r":\d+$", "")
