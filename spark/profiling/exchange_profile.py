"""Profile of captured exchanges: latencies over time, answers, outcomes at the target, clients, send-backs."""

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import remoting.requests  # noqa: F401 - declares them all
from codec.constants import STORED_CODES, ResponseCode
from remoting.declare import REQUESTS
from spark.capture.frame_decoding import SEND_CODES
from spark.profiling.message_profile import ProfileLimits, TimeAxis, quantile_columns, quantiles_of

SEND_BACK: Final = 36
SIDES: Final = ("primary", "target", "gateway")
"""Parts of the latency, with columns `<side>Us`."""
_MAX_CODES: Final = 60
_MAX_ANSWERS: Final = 100


def profile_exchanges(
    frame: DataFrame, bounds: ProfileLimits, axis: TimeAxis | None
) -> dict[str, Any] | None:
    """Return the part `exchanges` of a profile, on the messages' time axis if there is one; None without exchanges."""
    requests = frame.where("not reverse and time is not null")
    row = requests.agg(
        f.count("*").alias("exchanges"),
        f.unix_millis(f.min("time")).alias("from_ms"),
        f.unix_millis(f.max("time")).alias("until_ms"),
    ).first()
    if row is None or not row["exchanges"]:
        return None
    axis = axis or TimeAxis.for_range(row["from_ms"], row["until_ms"], bounds.points)
    sends = requests.where(f.col("code").isin(*SEND_CODES) & ~f.coalesce("oneway", f.lit(False)))
    return {
        "exchanges": row["exchanges"],
        "from_ms": row["from_ms"],
        "until_ms": row["until_ms"],
        "step_s": axis.step_s,
        "times_ms": axis.times_ms,
        "sends": _send_profile(sends, axis),
        "requests": _request_profiles(requests),
        "answers": _unusual_answers(requests),
        "fates": {
            row["fate"]: row["count"] for row in sends.groupBy("fate").count().collect() if row["fate"]
        },
        "send_backs": _send_backs(requests, bounds),
        "clients": _busiest_hosts(requests, bounds),
    }


def _latency_columns() -> list[Any]:
    return [column for side in SIDES for column in quantile_columns(f"{side}Us", side)]


def _send_profile(sends: DataFrame, axis: TimeAxis) -> dict[str, Any]:
    """Return latencies and refusals of sends, in total and over time."""
    refused = f.sum((~f.col("answerCode").isin(*map(int, STORED_CODES))).cast("long")).alias("refused")
    counts = (f.count("*").alias("count"), refused)
    row = sends.agg(*counts, *_latency_columns()).first()
    assert row is not None, "an aggregate without groups has one row"
    rows = sends.groupBy(axis.point_number("time").alias("point")).agg(*counts, *_latency_columns()).collect()
    names = [f"{side}_{name}" for side in SIDES for name in ("p50", "p90", "p99", "max")]
    series = axis.build_series(rows, ("count", "refused", *names))
    return {
        "count": row["count"],
        "refused": row["refused"] or 0,
        "latency_us": {side: quantiles_of(row, side) for side in SIDES},
        "series": {
            "per_s": [(count or 0) / axis.step_s for count in series["count"]],
            "refused_per_s": [(count or 0) / axis.step_s for count in series["refused"]],
            "latency_us": {
                side: {name: series[f"{side}_{name}"] for name in ("p50", "p90", "p99")} for side in SIDES
            },
        },
    }


def _request_profiles(requests: DataFrame) -> list[dict[str, Any]]:
    """Return counts, sizes and latencies by request code, the most frequent first."""
    sums = (
        f.count("*").alias("count"),
        f.sum("requestBytes").alias("request_bytes"),
        f.sum("answerBytes").alias("answer_bytes"),
    )
    rows = requests.groupBy("code", "name").agg(*sums, *_latency_columns()).orderBy(f.desc("count"), "code")
    return [
        {
            "code": row["code"],
            "name": row["name"],
            "count": row["count"],
            "request_bytes": row["request_bytes"],
            "answer_bytes": row["answer_bytes"],
            "latency_us": {side: quantiles_of(row, side) for side in SIDES},
        }
        for row in rows.limit(_MAX_CODES).collect()
    ]


def _unusual_answers(requests: DataFrame) -> list[dict[str, Any]]:
    """Return answers that are neither success nor "nothing new", by request and code, for client and target."""
    answers = []
    for side, column in (("client", "answerCode"), ("target", "targetCode")):
        rows = (
            requests.where(f.col(column) != 0)
            .groupBy("code", "name", f.col(column).alias("answer"))
            .agg(f.count("*").alias("count"))
            .orderBy(f.desc("count"), "code", "answer")
        )
        answers += [
            {
                "side": side,
                "request": row["name"] or str(row["code"]),
                "code": row["answer"],
                "name": answer_name(row["answer"]),
                "count": row["count"],
            }
            for row in rows.limit(_MAX_ANSWERS).collect()
            if not is_normal(row["code"], row["answer"])
        ]
    return answers


def is_normal(code: int, answer: int) -> bool:
    """Tell whether an answer is an expected one for the request."""
    declared = REQUESTS.get(code)
    accepted = (0,) if declared is None else declared.ACCEPT_CODES
    return answer == 0 or answer in accepted


def answer_name(answer: int) -> str:
    """Return the official name of an answer's code."""
    try:
        return ResponseCode(answer).name
    except ValueError:
        return str(answer)


def _send_backs(requests: DataFrame, bounds: ProfileLimits) -> dict[str, Any]:
    """Return counts by group of messages that consumers sent back after they failed to process them."""
    rows = (
        requests.where(f.col("code") == SEND_BACK).groupBy("group").count().orderBy(f.desc("count"), "group")
    )
    groups = [{"group": row["group"], "count": row["count"]} for row in rows.limit(bounds.clients).collect()]
    total = requests.where(f.col("code") == SEND_BACK).count()
    return {"count": total, "by_group": groups}


def _busiest_hosts(requests: DataFrame, bounds: ProfileLimits) -> list[dict[str, Any]]:
    """Return the busiest hosts with their requests, sends, language and groups."""
    host = f.regexp_replace("client", r":\d+$", "").alias("client")
    rows = (
        requests.groupBy(host)
        .agg(
            f.count("*").alias("requests"),
            f.sum(f.col("code").isin(*SEND_CODES).cast("long")).alias("sends"),
            f.countDistinct("group").alias("groups"),
            f.max("language").alias("language"),
            f.max("time").alias("last"),
        )
        .orderBy(f.desc("requests"), "client")
    )
    hosts = rows.withColumn("last_ms", f.unix_millis("last")).drop("last")
    return [row.asDict() for row in hosts.limit(bounds.clients).collect()]
