"""Find the messages that are out of order: the fewest whose move explains the target's order.

Messages of one topic, primary queue and order key (`digests.py`) form a sequence. Messages that both sides have in
the same queue are numbered on each side. Where the numbers agree up to a position, nothing before it was swapped with
anything after it. So the messages between two such positions, a disordered run, are examined on their own, and a
queue of any length never has to be in memory.
"""

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from toolkit.subsequences import find_moved

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_RUN_MESSAGES: Final = 1_000_000
"""Longest run a worker holds in memory, messages (about 200 bytes each). In a longer one all that come too late, or all
that come too early, are reported, whichever are fewer; that may be more than the minimum.
"""

_SEQUENCE: Final = ("topic", "broker", "queue", "orderKey")


def find_reordered(judged: "DataFrame", max_run_messages: int = MAX_RUN_MESSAGES) -> "DataFrame":
    """Return the rows of `judged` that are out of order, with the same columns."""
    from pyspark.sql import functions as f

    stretches = _disordered_runs(judged)
    short = stretches.where(f.col("size") <= max_run_messages)
    fewest = short.groupBy(*_SEQUENCE, "stretch").applyInArrow(_filter_moved, short.schema)
    long = stretches.where((f.col("size") > max_run_messages) & _is_in_smaller_part())
    return fewest.unionByName(long).select(*judged.columns)


def _disordered_runs(judged: "DataFrame") -> "DataFrame":
    """Return messages in disordered runs, with the numbers of both sides and the size of the run."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    p, t = f.col("p"), f.col("t")
    sequence = Window.partitionBy(*_SEQUENCE)
    here = sequence.orderBy("ours")
    so_far = here.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    to_come = here.rowsBetween(1, Window.unboundedFollowing)
    numbered = (
        judged.where(f.col("settled") & p.inOrder & t.inOrder & (p.queueId == t.queueId))
        .withColumn("broker", p.brokerName)
        .withColumn("queue", p.queueId)
        .withColumn("orderKey", p.orderKey)
        .withColumn("ours", f.row_number().over(sequence.orderBy("p.queueOffset", "id")))
        .withColumn("theirs", f.row_number().over(sequence.orderBy("t.queueOffset", "id")))
        .withColumn("highest", f.max("theirs").over(so_far))
    )
    ended = f.coalesce(f.lag(f.col("highest") == f.col("ours")).over(here), f.lit(True))
    apart = numbered.withColumn("begins", ended)
    alone = f.col("begins") & (f.col("highest") == f.col("ours"))
    counted = apart.withColumn("stretch", f.sum(f.col("begins").cast("long")).over(so_far))
    inside = counted.withColumn("lowest", f.coalesce(f.min("theirs").over(to_come), f.lit(2**31 - 1))).where(
        ~alone
    )
    stretch = Window.partitionBy(*_SEQUENCE, "stretch")
    return (
        inside.withColumn("size", f.count("*").over(stretch))
        .withColumn("isLate", f.col("theirs") > f.col("lowest"))
        .withColumn("isEarly", f.col("theirs") < f.col("highest"))
        .withColumn("lates", f.sum(f.col("isLate").cast("long")).over(stretch))
        .withColumn("earlies", f.sum(f.col("isEarly").cast("long")).over(stretch))
    )


def _is_in_smaller_part() -> "Column":
    from pyspark.sql import functions as f

    return f.when(f.col("lates") <= f.col("earlies"), f.col("isLate")).otherwise(f.col("isEarly"))


def _filter_moved(stretch: pa.Table) -> pa.Table:
    """Return the rows of one run that have to move."""
    ordered = stretch.sort_by("ours")
    return ordered.filter(pa.array(find_moved(ordered.column("theirs").to_pylist())))
