"""Where a profile's messages and exchanges come from, made alike: few narrow columns, whatever was read.

Not responsible for what is measured.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from codec import properties as names
from codec.constants import STORED_CODES

EXCHANGE_COLUMNS: Final = (
    "time", "code", "name", "topic", "group", "client", "language", "oneway", "reverse", "byTarget", "answerCode",
    "targetCode", "fate", "gatewayUs", "primaryUs", "targetUs", "requestBytes", "answerBytes",
)  # fmt: skip
"""What of captured exchanges is looked at."""
MESSAGE_COLUMNS: Final = (
    "topic", "brokerName", "queueId", "keys", "properties", "bornTimestamp", "bornHost", "reconsumeTimes", "how",
    "time", "code", "answerCode", "bodyBytes",
)  # fmt: skip
"""What of captured messages is looked at."""


def stored_messages(frame: DataFrame, key: str) -> DataFrame:
    """Messages of the source `rocketmq`, or of a table that was ingested from it; `key` as `[profile] key` says."""
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
    """Messages that clients sent and the primary stored, of `rocketmq-capture` with rows=messages."""
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
    """What messages are ordered, or found, by."""
    properties = f.col("properties")
    sharding = properties[names.SHARDING_KEY]
    if key == "auto":
        return f.coalesce(sharding, f.col("keys")).alias("key")
    if key == "keys":
        return f.col("keys").alias("key")
    return (sharding if key == "shardingKey" else properties[key]).alias("key")


def _host_column(column: str) -> Column:
    return f.regexp_replace(column, r":\d+$", "")
