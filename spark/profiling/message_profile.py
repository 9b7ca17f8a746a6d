"""Profile of messages: rates over time, sizes, keys, queues, retries. Only sums and quantiles reach the driver.

Every collected table is bounded: topics, keys, queues and points in time are limited. Whatever exceeds a limit is
summed up or left out, and the result says so.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f

from codec.topics import DLQ_PREFIX, RETRY_PREFIX
from toolkit.plots import ROUND_S

OTHERS: Final = "(others)"
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
ACCURACY: Final = 1000
"""Accuracy of approximate quantiles: the rank is off by at most a thousandth."""


@dataclass(frozen=True, slots=True)
class ProfileLimits:
    """Maximum numbers shown: topics by name, keys and queues of each topic, clients, points in time."""

    topics: int = 20
    keys: int = 10
    queues: int = 64
    clients: int = 20
    points: int = 120


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Time range of a profile, ms since 1970, divided into points of `step_s`."""

    from_ms: int
    until_ms: int
    step_s: int

    @classmethod
    def for_range(cls, from_ms: int, until_ms: int, points: int) -> "TimeAxis":
        """Return an axis with at most `points` points. Their length is round: one of `ROUND_S`, or whole days."""
        min_step_s = max(1, (until_ms - from_ms) / 1000 / max(points - 1, 1))
        step_s = next(
            (seconds for seconds in ROUND_S if seconds >= min_step_s), -(-int(min_step_s) // 86400) * 86400
        )
        return cls(from_ms, until_ms, step_s)

    @property
    def times_ms(self) -> list[int]:
        """Begin of each point."""
        step_ms = self.step_s * 1000
        return list(range(self.from_ms // step_ms * step_ms, self.until_ms + 1, step_ms))

    def point_number(self, column: str) -> Column:
        """Return the number of the point that a time falls into, counted from 1970."""
        return f.floor(f.unix_millis(column) / (self.step_s * 1000))

    def build_series(self, rows: Iterable[Row], values: Sequence[str]) -> dict[str, list[Any]]:
        """Return columns over time from rows with a `point`; None where a point has no row."""
        first = self.times_ms[0] // (self.step_s * 1000)
        series: dict[str, list[Any]] = {name: [None] * len(self.times_ms) for name in values}
        for row in rows:
            at = row["point"] - first
            if 0 <= at < len(self.times_ms):
                for name in values:
                    series[name][at] = row[name]
        return series


def quantile_columns(column: str, prefix: str) -> list[Column]:
    """Return approximate p50, p90, p99 and max of a column, as columns `<prefix>_p50`, …"""
    quantiles = f.percentile_approx(column, list(QUANTILES.values()), ACCURACY)
    return [
        *(quantiles[index].alias(f"{prefix}_{name}") for index, name in enumerate(QUANTILES)),
        f.max(column).alias(f"{prefix}_max"),
    ]


def quantiles_of(row: Row, prefix: str) -> dict[str, Any]:
    """Return the quantiles of a row, without the prefix."""
    return {name: row[f"{prefix}_{name}"] for name in (*QUANTILES, "max")}


CountQueues = Callable[[Sequence[str]], Mapping[str, int]]
"""Returns the number of queues by topic; topics without a known number are left out."""


def profile_messages(
    frame: DataFrame, bounds: ProfileLimits, count_queues: CountQueues = lambda _: {}
) -> dict[str, Any] | None:
    """Return the part `messages` of a profile, None without messages. `frame` is read several times: persist it.

    ``count_queues`` returns the number of queues, including empty ones; without it, they are counted up to the highest
    queue id that has messages.
    """
    row = frame.agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.unix_millis(f.min("at")).alias("from_ms"),
        f.unix_millis(f.max("at")).alias("until_ms"),
        f.countDistinct("topic").alias("topics"),
    ).first()
    if row is None or not row["messages"] or row["from_ms"] is None:
        return None
    axis = TimeAxis.for_range(row["from_ms"], row["until_ms"], bounds.points)
    # All further topics share one name, so that every table below has at most `bounds.topics` + 1 groups.
    busiest = _busiest_topics(frame, bounds.topics)
    labelled = frame.withColumn(
        "label", f.when(f.col("topic").isin(busiest), f.col("topic")).otherwise(OTHERS)
    )
    topics = _topic_profiles(labelled, bounds, count_queues(busiest))
    for name, rates in _topic_rates(labelled, axis).items():
        topics[name]["rates"] = rates
    return {
        "messages": row["messages"],
        "bytes": row["bytes"],
        "topics_seen": row["topics"],
        "from_ms": axis.from_ms,
        "until_ms": axis.until_ms,
        "step_s": axis.step_s,
        "times_ms": axis.times_ms,
        "topics": [topics[name] for name in [*busiest, OTHERS] if name in topics],
        "sizes": _size_histogram(frame),
        "retries": _retry_profile(frame, row["messages"], bounds),
        "clients": _busiest_clients(frame, bounds),
    }


def _busiest_topics(frame: DataFrame, max_topics: int) -> list[str]:
    counts = frame.groupBy("topic").count().orderBy(f.desc("count"), "topic")
    return [row["topic"] for row in counts.limit(max_topics).collect()]


def _topic_profiles(
    labelled: DataFrame, bounds: ProfileLimits, queue_counts: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    rows = (
        labelled.groupBy("label")
        .agg(
            f.count("*").alias("messages"),
            f.sum("size").alias("bytes"),
            *quantile_columns("size", "size"),
            *quantile_columns("delayMs", "delay"),
            f.sum((f.col("reconsumed") > 0).cast("long")).alias("reconsumed"),
            f.count("key").alias("keyed"),
        )
        .collect()
    )
    topics = {row["label"]: _topic_profile(row) for row in rows}
    for name, skew in _key_skew(labelled, bounds).items():
        topics[name]["keys"] |= skew
    for name, skew in _queue_skew(labelled, bounds, queue_counts).items():
        topics[name]["queues"] = skew
    return topics


def _topic_profile(row: Row) -> dict[str, Any]:
    return {
        "topic": row["label"],
        "messages": row["messages"],
        "bytes": row["bytes"],
        "size_bytes": quantiles_of(row, "size"),
        "delay_ms": quantiles_of(row, "delay"),
        "reconsumed": row["reconsumed"] or 0,
        "keys": {"messages": row["keyed"], "distinct": 0, "gini": None, "top_share": None, "top": []},
        "queues": None,
        "rates": None,
    }


def _topic_rates(labelled: DataFrame, axis: TimeAxis) -> dict[str, dict[str, list[float]]]:
    """Return messages and bytes per second of each topic over time."""
    rows = (
        labelled.groupBy("label", axis.point_number("at").alias("point"))
        .agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"))
        .collect()
    )
    rates_by_topic = {}
    for name in {row["label"] for row in rows}:
        series = axis.build_series([row for row in rows if row["label"] == name], ("messages", "bytes"))
        rates_by_topic[name] = {
            f"{value}_per_s": [(count or 0) / axis.step_s for count in counts]
            for value, counts in series.items()
        }
    return rates_by_topic


def gini_coefficient(counts: DataFrame, by: str, count: str) -> DataFrame:
    """Return how unevenly `count` is spread in each group `by`: 0 if evenly, near 1 if one has all.

    Computed over the distinct counts, which are few however many keys there are: G = 1 - sum n (S' + S) / (N M),
    where n keys have the count, S' and S are the sums before and after them, N is the number of keys, M the sum of
    all counts.
    """
    alike = counts.groupBy(by, count).agg(f.count("*").alias("n"))
    sums = Window.partitionBy(by).orderBy(count)
    with_sums = alike.withColumn("upTo", f.sum(f.col("n") * f.col(count)).over(sums))
    before = f.col("upTo") - f.col("n") * f.col(count)
    area = f.sum(f.col("n").cast("double") * (before + f.col("upTo")))
    return with_sums.groupBy(by).agg(
        f.greatest(f.lit(0.0), 1 - area / (f.sum("n") * f.max("upTo"))).alias("gini"),
        f.sum("n").alias("distinct"),
        f.max(count).alias("most"),
        f.max("upTo").alias("all"),
    )


def _key_skew(labelled: DataFrame, bounds: ProfileLimits) -> dict[str, dict[str, Any]]:
    counts = labelled.where("key is not null").groupBy("label", "key").agg(f.count("*").alias("messages"))
    skew_by_topic = {
        row["label"]: {
            "distinct": row["distinct"],
            "gini": row["gini"],
            "top_share": row["most"] / row["all"],
            "top": [],
        }
        for row in gini_coefficient(counts, "label", "messages").collect()
    }
    for row in _largest_of_each(counts, "label", "messages", ("key",), bounds.keys).collect():
        skew_by_topic[row["label"]]["top"].append({"key": row["key"], "messages": row["messages"]})
    return skew_by_topic


def skew_of_queues(nonempty: int, busiest: int, total: int, gini: float, queues: int) -> dict[str, Any]:
    """Return the skew of ``queues`` queues, of which ``nonempty`` have messages, ``total`` together.

    ``gini`` is that of the nonempty queues. Empty queues add nothing to the area below the curve of sums, so that area
    only has to be divided by more queues.
    """
    queues = max(queues, nonempty)
    return {
        "queues": queues,
        "seen": nonempty,
        "gini": 1 - (1 - gini) * nonempty / queues,
        "max_over_mean": busiest * queues / total,
        "busiest": [],
    }


def _queue_skew(
    labelled: DataFrame, bounds: ProfileLimits, queue_counts: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Return the skew of queues of topics listed by name; topics summed up as (others) would mix up their queues."""
    counts = (
        labelled.where(f.col("label") != OTHERS)
        .groupBy("label", "brokerName", "queueId")
        .agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"))
    )
    highest = counts.groupBy("label", "brokerName").agg((f.max("queueId") + 1).alias("queues"))
    sums = highest.groupBy("label").agg(f.sum("queues").alias("queues")).collect()
    inferred = {row["label"]: row["queues"] or 0 for row in sums}
    skew_by_topic: dict[str, dict[str, Any]] = {
        row["label"]: skew_of_queues(
            row["distinct"],
            row["most"],
            row["all"],
            row["gini"],
            queue_counts.get(row["label"], inferred.get(row["label"], 0)),
        )
        for row in gini_coefficient(counts, "label", "messages").collect()
    }
    queue_columns = ("brokerName", "queueId")
    for row in _largest_of_each(counts, "label", "messages", queue_columns, bounds.queues).collect():
        skew_by_topic[row["label"]]["busiest"].append(
            {"broker": row["brokerName"], "queue_id": row["queueId"], "messages": row["messages"]}
        )
    return skew_by_topic


def _largest_of_each(counts: DataFrame, by: str, count: str, ties: Sequence[str], max_rows: int) -> DataFrame:
    """Return the largest of each group, in order; ties by name."""
    order = Window.partitionBy(by).orderBy(f.desc(count), *ties)
    placed = counts.withColumn("place", f.row_number().over(order)).where(f.col("place") <= max_rows)
    return placed.orderBy(by, "place")


def _size_histogram(frame: DataFrame) -> list[dict[str, int]]:
    """Return how many messages are smaller than each power of two."""
    power = f.ceil(f.log2(f.col("size") + 1)).cast("int").alias("power")
    rows = frame.where("size is not null").groupBy(power).count().orderBy("power").collect()
    return [{"below_bytes": 1 << row["power"], "messages": row["count"]} for row in rows]


def _retry_profile(frame: DataFrame, messages: int, bounds: ProfileLimits) -> dict[str, Any]:
    """Return messages in retry and dead-letter topics, by group, and messages that were redelivered."""
    kind = f.when(f.col("topic").startswith(RETRY_PREFIX), "retry").when(
        f.col("topic").startswith(DLQ_PREFIX), "dead"
    )
    parts = frame.withColumn("kind", kind)
    rows = parts.where("kind is not null").groupBy("kind", "topic").count().orderBy(f.desc("count"), "topic")
    totals = parts.agg(
        f.sum((f.col("kind") == "retry").cast("long")).alias("retry"),
        f.sum((f.col("kind") == "dead").cast("long")).alias("dead"),
        f.sum((f.col("reconsumed") > 0).cast("long")).alias("reconsumed"),
    ).first()
    counts: Mapping[str, int] = (
        {} if totals is None else {name: count or 0 for name, count in totals.asDict().items()}
    )
    return {
        **{name: {"messages": count, "share": count / messages} for name, count in counts.items()},
        "by_group": [
            {"kind": row["kind"], "group": row["topic"].split("%", 2)[2], "messages": row["count"]}
            for row in rows.limit(bounds.topics).collect()
        ],
    }


def _busiest_clients(frame: DataFrame, bounds: ProfileLimits) -> list[dict[str, Any]]:
    """Return the hosts that sent most."""
    rows = (
        frame.groupBy("client")
        .agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"))
        .orderBy(f.desc("messages"), "client")
    )
    return [row.asDict() for row in rows.limit(bounds.clients).collect()]
