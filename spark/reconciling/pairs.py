"""Match both sides' messages, and classify the differences of each pair.

A message matches the one with the same topic and id on the other side. A side may have several copies, since producers
that retry store a message twice. Then copies in the same queue match first, in their order, and then the other copies.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CONTENT_KINDS: Final = ("changedBody", "changedProperties", "changedHeader")
KINDS: Final = ("missing", "extra", "duplicated", "reordered", "misplaced", *CONTENT_KINDS, "late")
"""Kinds of findings."""

_FIELDS: Final = (
    "brokerName",
    "queueId",
    "queueOffset",
    "orderKey",
    "inOrder",
    "storeMs",
    "body",
    "properties",
    "head",
)


@dataclass(frozen=True, slots=True)
class ComparisonRules:
    """Rules of a comparison. Times are ms since 1970; messages the primary stored in [from_ms, until_ms) are judged.

    With `offsets_preserved` the target has the primary's offsets and store times, which leaves no way to judge
    lateness. `late_after_ms` None: lateness is not judged.
    """

    until_ms: int
    from_ms: int = 0
    offsets_preserved: bool = False
    late_after_ms: int | None = None


def pair_messages(primary: "DataFrame", target: "DataFrame") -> "DataFrame":
    """Return one row per message and copy: topic, id, p, t (one may be null), and copies (at the primary).

    Takes one shuffle, by topic and id. A message with very many copies is handled by one task, but not in its memory.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    sides = primary.withColumn("side", f.lit("p")).unionByName(target.withColumn("side", f.lit("t")))
    messages = sides.repartition("topic", "id")
    queue_order = ("brokerName", "queueOffset", "storeMs")
    same = Window.partitionBy("topic", "id")
    in_queue = messages.withColumn(
        "nth", f.row_number().over(Window.partitionBy("topic", "id", "side", "queueId").orderBy(*queue_order))
    )
    # First the nth copy in a queue with the nth copy in the same queue of the other side.
    partners = Window.partitionBy("topic", "id", "queueId", "nth")
    matched = in_queue.withColumn("together", f.min("side").over(partners) != f.max("side").over(partners))
    # Then the copies without such a partner, in order, whatever their queues.
    unmatched = Window.partitionBy("topic", "id", "together", "side").orderBy("queueId", *queue_order)
    numbered = matched.withColumn(
        "number", f.when(f.col("together"), f.col("nth")).otherwise(f.row_number().over(unmatched))
    ).withColumn("queue", f.when(f.col("together"), f.col("queueId")))
    counted = numbered.withColumn("copies", f.sum((f.col("side") == "p").cast("int")).over(same))
    message = f.struct(*_FIELDS)
    return counted.groupBy("topic", "id", "queue", "number").agg(
        f.first(f.when(f.col("side") == "p", message), ignorenulls=True).alias("p"),
        f.first(f.when(f.col("side") == "t", message), ignorenulls=True).alias("t"),
        f.first("copies").alias("copies"),
    )


def classify_pairs(pairs: "DataFrame", rules: ComparisonRules) -> "DataFrame":
    """Add `kinds` (of KINDS, without reordered), `detail`, and `hour` (UTC) of the primary's store time.

    Rows outside the judged time are dropped, except those that are too new, which have `settled` false.
    """
    from pyspark.sql import functions as f

    both = f.col("p").isNotNull() & f.col("t").isNotNull()
    when_ms = f.coalesce("p.storeMs", "t.storeMs")
    kinds = f.filter(f.array(*_finding_kinds(both, rules)), lambda kind: kind.isNotNull())
    return (
        pairs.where(when_ms >= rules.from_ms)
        .withColumn("settled", when_ms < rules.until_ms)
        .withColumn("kinds", f.when(f.col("settled"), kinds).otherwise(f.array().cast("array<string>")))
        .withColumn("detail", f.when(both, _changed_names()))
        .withColumn("hour", f.timestamp_seconds(f.floor(when_ms / 3_600_000) * 3600))
    )


def _finding_kinds(both: "Column", rules: ComparisonRules) -> "list[Column]":
    from pyspark.sql import functions as f

    p, t = f.col("p"), f.col("t")
    is_misplaced = p.queueId != t.queueId
    if rules.offsets_preserved:
        is_misplaced |= p.queueOffset != t.queueOffset
    conditions = {
        "missing": t.isNull(),
        "extra": p.isNull() & (f.col("copies") == 0),
        "duplicated": p.isNull() & (f.col("copies") > 0),
        "misplaced": both & is_misplaced,
        "changedBody": both & (p.body != t.body),
        "changedProperties": both & (p.properties != t.properties),
        "changedHeader": both & (p.head != t.head),
    }
    if rules.late_after_ms is not None:
        conditions["late"] = both & (t.storeMs - p.storeMs > rules.late_after_ms)
    return [f.when(condition, f.lit(name)) for name, condition in conditions.items()]


def _changed_names() -> "Column":
    """Return the names of differing properties, separated by commas."""
    from pyspark.sql import functions as f

    primary, target = f.col("p.properties"), f.col("t.properties")
    changed = f.concat(
        f.array_except(primary, target),
        f.array_except(target, primary),
    )
    names = f.array_sort(f.array_distinct(f.transform(changed, lambda entry: entry["name"])))
    return f.when(f.size(names) > 0, f.concat_ws(",", names))


def drop_expired(judged: "DataFrame") -> "DataFrame":
    """Drop messages that only the target has because the primary deleted them, or was not read from its start.

    These are messages before the first pair of a queue, in topics of which not every queue of the primary was read from
    offset 0.
    """
    from pyspark.sql import functions as f

    begins = judged.where(f.col("p.queueOffset").isNotNull())
    begins = begins.groupBy("topic", "p.brokerName", "p.queueId").agg(f.min("p.queueOffset").alias("begin"))
    cut = begins.groupBy("topic").agg((f.max("begin") > 0).alias("cut"))
    both = judged.where(f.col("p").isNotNull() & f.col("t.queueOffset").isNotNull())
    firsts = both.groupBy(
        "topic", f.col("t.brokerName").alias("atBroker"), f.col("t.queueId").alias("atQueue")
    ).agg(f.min("t.queueOffset").alias("firstPair"))
    located = judged.withColumn("atBroker", f.col("t.brokerName")).withColumn("atQueue", f.col("t.queueId"))
    located = located.join(f.broadcast(cut), "topic", "left")
    located = located.join(f.broadcast(firsts), ["topic", "atBroker", "atQueue"], "left")
    older = f.col("p").isNull() & f.col("cut") & (f.col("t.queueOffset") < f.col("firstPair"))
    return located.where(~f.coalesce(older, f.lit(False))).drop("cut", "firstPair", "atBroker", "atQueue")
