"""Find the messages that are out of order: the smallest set whose moves explain the target's order.

Messages of one topic, primary queue and order key (`digests.py`) form a sequence. Messages that both sides have in
the same queue are numbered on each side. At a position before which both sides have the same messages, no message was
swapped with one after it. So the messages between two such positions, a disordered run, are examined on their own, and
a queue of any length never has to be in memory.
"""

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from toolkit.subsequences import find_moved

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MAX_RUN_MESSAGES: Final = 1_000_000
"""Longest run that a worker holds in memory, messages (about 200 bytes each). Of a longer run, either all messages that
come too late or all that come too early are reported, whichever are fewer; that may be more than the minimum.
"""

_SEQUENCE: Final = ("topic", "broker", "queue", "orderKey")


def find_reordered(judged: "DataFrame", max_run_messages: int = MAX_RUN_MESSAGES) -> "DataFrame":
    """Return the rows of `judged` that are out of order, with the same columns."""
    from pyspark.sql import functions as f

    runs = _disordered_runs(judged)
    short = runs.where(f.col("size") <= max_run_messages)
    fewest = short.groupBy(*_SEQUENCE, "run").applyInArrow(_filter_moved, short.schema)
    long = runs.where((f.col("size") > max_run_messages) & _is_in_smaller_part())
    return fewest.unionByName(long).select(*judged.columns)


def _disordered_runs(judged: "DataFrame") -> "DataFrame":
    """Return messages in disordered runs, with the numbers of both sides and the size of the run."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    p, t = f.col("p"), f.col("t")
    sequence = Window.partitionBy(*_SEQUENCE)
    by_primary = sequence.orderBy("primaryNumber")
    so_far = by_primary.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    to_come = by_primary.rowsBetween(1, Window.unboundedFollowing)
    numbered = (
        judged.where(f.col("settled") & p.inOrder & t.inOrder & (p.queueId == t.queueId))
        .withColumn("broker", p.brokerName)
        .withColumn("queue", p.queueId)
        .withColumn("orderKey", p.orderKey)
        .withColumn("primaryNumber", f.row_number().over(sequence.orderBy("p.queueOffset", "id")))
        .withColumn("targetNumber", f.row_number().over(sequence.orderBy("t.queueOffset", "id")))
        .withColumn("highest", f.max("targetNumber").over(so_far))
    )
    # Both numberings are permutations of 1..n. If the highest target number so far equals the primary number, the first
    # n messages are the same on both sides: a run ends here, and the next message begins one.
    ended = f.coalesce(f.lag(f.col("highest") == f.col("primaryNumber")).over(by_primary), f.lit(True))
    with_begins = numbered.withColumn("begins", ended)
    # A run of a single message is in order.
    single = f.col("begins") & (f.col("highest") == f.col("primaryNumber"))
    with_runs = with_begins.withColumn("run", f.sum(f.col("begins").cast("long")).over(so_far))
    # Late: at the target, a message that the primary has later comes before it. Early: one it has earlier comes after.
    lowest = f.coalesce(f.min("targetNumber").over(to_come), f.lit(2**31 - 1))
    disordered = with_runs.withColumn("lowest", lowest).where(~single)
    run = Window.partitionBy(*_SEQUENCE, "run")
    return (
        disordered.withColumn("size", f.count("*").over(run))
        .withColumn("isLate", f.col("targetNumber") > f.col("lowest"))
        .withColumn("isEarly", f.col("targetNumber") < f.col("highest"))
        .withColumn("lates", f.sum(f.col("isLate").cast("long")).over(run))
        .withColumn("earlies", f.sum(f.col("isEarly").cast("long")).over(run))
    )


def _is_in_smaller_part() -> "Column":
    from pyspark.sql import functions as f

    return f.when(f.col("lates") <= f.col("earlies"), f.col("isLate")).otherwise(f.col("isEarly"))


def _filter_moved(run: pa.Table) -> pa.Table:
    """Return the rows of one run that have to move."""
    ordered = run.sort_by("primaryNumber")
    return ordered.filter(pa.array(find_moved(ordered.column("targetNumber").to_pylist())))
