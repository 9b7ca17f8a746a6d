"""Counts of findings by topic and hour, and one row per finding."""

from typing import TYPE_CHECKING, Final

from spark.reconciling.pairs import CONTENT_KINDS, KINDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNTED: Final = (
    "primary",
    "target",
    "same",
    "missing",
    "extra",
    "duplicated",
    "reordered",
    "misplaced",
    "changed",
    *CONTENT_KINDS,
    "late",
    "unsettled",
)
"""Counts: primary = same + changed + missing, target = same + changed + extra + duplicated.

A message that changed in several ways counts once in `changed` and once in each kind. `unsettled` messages are too
new to be judged, and count in none of the others.
"""


def count_findings(judged: "DataFrame", out_of_order: "DataFrame") -> "DataFrame":
    """Return `topic`, `hour` (UTC, of the primary's store time) and COUNTED."""
    from pyspark.sql import functions as f

    settled = f.col("settled")
    both = f.col("p").isNotNull() & f.col("t").isNotNull()
    changed = f.arrays_overlap("kinds", f.array(*map(f.lit, CONTENT_KINDS)))
    conditions = {
        "primary": settled & f.col("p").isNotNull(),
        "target": settled & f.col("t").isNotNull(),
        "same": settled & both & ~changed,
        "changed": settled & both & changed,
        "unsettled": ~settled,
        **{kind: f.array_contains("kinds", kind) for kind in KINDS if kind != "reordered"},
    }
    sums = [f.sum(condition.cast("long")).alias(name) for name, condition in conditions.items()]
    times = [
        f.min(f.when(settled, f.col("p.storeMs"))).alias("firstMs"),
        f.max(f.when(settled, f.col("p.storeMs"))).alias("lastMs"),
    ]
    counted = judged.groupBy("topic", "hour").agg(*sums, *times)
    moved = out_of_order.groupBy("topic", "hour").agg(f.count("*").alias("reordered"))
    joined = counted.join(moved, ["topic", "hour"], "left").fillna(0, ["reordered"])
    return joined.select("topic", "hour", *COUNTED, "firstMs", "lastMs")


def list_findings(judged: "DataFrame", out_of_order: "DataFrame") -> "DataFrame":
    """Return one row per finding: its kind, the message, and the message's position on both sides."""
    from pyspark.sql import functions as f

    single = judged.withColumn("kind", f.explode("kinds"))
    both = single.unionByName(out_of_order.withColumn("kind", f.lit("reordered")))
    key = f.coalesce("p.orderKey", "t.orderKey")
    positions = [
        column
        for side, name in (("p", "primary"), ("t", "target"))
        for column in (
            f.col(f"{side}.brokerName").alias(f"{name}Broker"),
            f.col(f"{side}.queueId").alias(f"{name}QueueId"),
            f.col(f"{side}.queueOffset").alias(f"{name}Offset"),
            f.timestamp_millis(f"{side}.storeMs").alias(f"{name}Time"),
        )
    ]
    detail = f.when(f.col("kind") == "changedProperties", f.col("detail"))
    return both.select(
        "topic",
        "hour",
        "kind",
        f.col("id").alias("msgId"),
        key.alias("orderKey"),
        *positions,
        detail.alias("detail"),
    )


def sample_findings(findings: "DataFrame", max_samples: int) -> "DataFrame":
    """Return at most `each` findings of each topic, hour and kind."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    queue = (f.coalesce("primaryBroker", "targetBroker"), f.coalesce("primaryQueueId", "targetQueueId"))
    order = (*queue, f.coalesce("primaryOffset", "targetOffset"), "msgId")
    number = f.row_number().over(Window.partitionBy("topic", "hour", "kind").orderBy(*order))
    return findings.withColumn("number", number).where(f.col("number") <= max_samples).drop("number")
