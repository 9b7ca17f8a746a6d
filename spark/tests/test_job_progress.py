"""Totals of a streaming query's progress."""

from typing import Any

from spark.pipelines.job import QueryTotals, messages_behind


def progress(batch: int, rows: int, end: str, latest: str) -> dict[str, Any]:
    source = {"numInputRows": rows, "endOffset": end, "latestOffset": latest}
    return {"batchId": batch, "sources": [source], "durationMs": {"triggerExecution": 500}}


def test_every_batch_counts_once() -> None:
    totals = QueryTotals()
    first = progress(0, 10, '{"t":{"b":{"0":10,"1":0}}}', '{"t":{"b":{"0":15,"1":2}}}')
    second = progress(1, 5, '{"t":{"b":{"0":15,"1":0}}}', '{"t":{"b":{"0":15,"1":2}}}')
    assert totals.add_progress([first])
    assert totals.behind == 7
    assert totals.add_progress([first, second])
    assert not totals.add_progress([first, second])
    assert (totals.batches, totals.rows, totals.behind) == (2, 15, 2)
    assert totals.status_line() == "batch 1, 15 rows, 10 rows/s, 2 messages behind"


def test_rows_that_spark_does_not_see() -> None:
    totals = QueryTotals({0: 1000})
    assert totals.add_progress([progress(number, 4, "{}", "{}") for number in range(2)])
    assert (totals.batches, totals.rows) == (1, 1000)


def test_a_source_that_tells_nothing() -> None:
    assert messages_behind([{"endOffset": None, "latestOffset": None}]) is None
    assert messages_behind([{"endOffset": "x", "latestOffset": "{}"}]) is None
