"""Reduce messages of either side to narrow rows: identity, position, and digests of their content.

Bodies and property values become 64-bit hashes in the task that reads them, so that they never travel.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from codec import expected_differences, topics
from codec import properties as names
from codec.sysflag import COMPRESSED, COMPRESSION_MASK, TRANSACTION_COMMIT, TRANSACTION_MASK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORDERS: Final = ("auto", "shardingKey", "key", "queue")
"""Keys that define an order of messages: the sharding key, the first of the keys, or the whole queue. `auto` is the
first of these that a message has.
"""

SYS_FLAG_BITS: Final = expected_differences.COMPARED_SYS_FLAG_BITS & ~(COMPRESSED | COMPRESSION_MASK)
"""Bits of the system flag that are compared. Compression is not, as it does not change the message."""

DELAY_PROPERTIES: Final = (
    names.REAL_TOPIC,
    names.TIMER_OUT_MS,
    names.TIMER_ENQUEUE_MS,
    names.TIMER_DELAY_MS,
    names.TIMER_DELAY_SEC,
    names.TIMER_DELIVER_MS,
    names.DELAY_TIME_LEVEL,
)
"""Properties of messages that waited elsewhere before they reached their queue; their order there is arbitrary."""

BROKER_PROPERTIES: Final = (
    names.REAL_TOPIC,
    names.REAL_QUEUE_ID,
    names.TRANSACTION_ID,
    names.TRANSACTION_PREPARED,
    names.TIMER_OUT_MS,
)
"""Properties that brokers add or remove before storing a message. A capture has the message as the client sent it."""


def ignored_properties(offsets_preserved: bool, captured: bool, extra: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the properties that are not compared. With preserved offsets, the target stores the primary's properties
    unchanged, so more of them are compared.
    """
    names_ignored = {
        *expected_differences.EXPECTED_PROPERTY_NAMES[offsets_preserved and not captured],
        names.UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
        *extra,
    }
    if captured:
        names_ignored |= {*BROKER_PROPERTIES}
    return tuple(sorted(names_ignored))


def user_topics(messages: "DataFrame", retries: bool = False) -> "DataFrame":
    """Drop messages of the brokers' own topics, and of retry and dead-letter topics unless `retries`."""
    from pyspark.sql import functions as f

    topic = f.col("topic")
    is_excluded = topic.isin(*sorted(topics.SYSTEM_TOPICS)) | f.lower(topic).startswith(topics.SYSTEM_PREFIX)
    if not retries:
        is_excluded |= topic.startswith(topics.RETRY_PREFIX) | topic.startswith(topics.DLQ_PREFIX)
    return messages.where(~is_excluded)


def digest_messages(
    messages: "DataFrame", ignored: Iterable[str], order: str, *, offsets_preserved: bool
) -> "DataFrame":
    """Return one narrow row per message. `messages` have the source's columns.

    `id` is the unique key, or a hash of the content if there is none. `inOrder` is false where the position in the
    queue is arbitrary. Times are ms since 1970. A body that was not read (null) is not compared.
    """
    from pyspark.sql import functions as f

    properties, body = f.col("properties"), f.col("body")
    compared = f.filter(f.map_entries(properties), lambda entry: ~entry["key"].isin(*ignored))
    hashed = f.transform(
        compared, lambda entry: f.struct(entry["key"].alias("name"), f.xxhash64(entry["value"]).alias("hash"))
    )
    none = f.lit(0)  # brokers store 0 for fields missing in the request
    head = [f.coalesce("flag", none), f.col("sysFlag").bitwiseAND(f.lit(_signed_32(SYS_FLAG_BITS)))]
    head += [
        f.col("bornTimestamp"),
        f.coalesce("reconsumeTimes", none),
        *([f.col("bornHost")] if offsets_preserved else []),
    ]
    with_digests = messages.withColumn("propertyHashes", f.array_sort(hashed))
    return with_digests.select(
        "topic",
        _message_identity(with_digests, head).alias("id"),
        "brokerName",
        "queueId",
        "queueOffset",
        _order_key(order).alias("orderKey"),
        (f.col("queueOffset").isNotNull() & ~waited_elsewhere()).alias("inOrder"),
        f.unix_millis("storeTimestamp").alias("storeMs"),
        f.when(body.isNotNull(), f.xxhash64(body)).alias("body"),
        f.col("propertyHashes").alias("properties"),
        f.xxhash64(*head).alias("head"),
    )


def _message_identity(messages: "DataFrame", head: "list[Column]") -> "Column":
    """Identify a message. Without a unique key use 128 bits of the content, as 64 could collide."""
    from pyspark.sql import functions as f

    unique = f.col("properties")[names.UNIQ_CLIENT_MESSAGE_ID_KEYIDX]
    content = f.to_json(
        f.struct(*[field.alias(f"h{number}") for number, field in enumerate(head)], "propertyHashes")
    )
    hashed = f.md5(f.concat(content.cast("binary"), f.coalesce("body", f.lit(b""))))
    return (
        f.when(f.col("properties").isNull(), f.col("msgId"))
        .when(unique.isNotNull(), unique)
        .otherwise(f.concat(f.lit("content:"), hashed))
    )


def _order_key(order: str) -> "Column":
    """Return the order key, prefixed with its kind, so that a sharding key never equals a queue."""
    from pyspark.sql import functions as f

    properties = f.col("properties")
    sharding = f.concat(f.lit("sharding key "), properties[names.SHARDING_KEY])
    first = f.substring_index(f.trim(f.coalesce("keys", properties[names.KEYS])), " ", 1)
    key = f.concat(f.lit("key "), f.when(first != "", first))
    queue = f.lit("queue")
    chosen = {"auto": [sharding, key], "shardingKey": [sharding], "key": [key], "queue": []}[order]
    return f.coalesce(*chosen, queue)


def waited_elsewhere() -> "Column":
    """Tell whether a message waited elsewhere before it reached its queue: delayed, or in a transaction."""
    from pyspark.sql import functions as f

    committed = f.col("sysFlag").bitwiseAND(f.lit(TRANSACTION_MASK)) == TRANSACTION_COMMIT
    properties = f.col("properties")
    waited = committed
    for name in DELAY_PROPERTIES:
        waited |= f.coalesce(f.map_contains_key(properties, f.lit(name)), f.lit(False))
    return waited


def _signed_32(bits: int) -> int:
    """Convert to a signed 32-bit number, as Spark has no unsigned ones."""
    return bits - (1 << 32) if bits >= 1 << 31 else bits
