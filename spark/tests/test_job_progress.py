"""Totals of a streaming query's progress."""

from typing import Any

from spark.pipelines.job import QueryTotals, messages_behind


def progress(batch: int, rows: int, end: str, latest: str) -> dict[str, Any]:
    source = {"numInputRows": rows, "endOffset": end, "latestOffset": latest}
    return {"batchId": batch, "sources": [source], "durationMs": {"triggerExecution": 500}}


def test_every_batch_counts_once() -> None:
    watched = QueryTotals()
    first = progress(0, 10, '{"t":{"b":{"0":10,"1":0}}}', '{"t":{"b":{"0":15,"1":2}}}')
    second = progress(1, 5, '{"t":{"b":{"0":15,"1":0}}}', '{"t":{"b":{"0":15,"1":2}}}')
    assert watched.add_progress([first])
    assert watched.behind == 7
    assert watched.add_progress([first, second])
    assert not watched.add_progress([first, second])
    assert (watched.batches, watched.rows, watched.behind) == (2, 15, 2)
    assert watched.status_line() == "batch 1, 15 rows, 10 rows/s, 2 messages behind"


def test_rows_that_spark_does_not_see() -> None:
    watched = QueryTotals({0: 1000})
    assert watched.add_progress([progress(number, 4, "{}", "{}") for number in range(2)])
    assert (watched.batches, watched.rows) == (1, 1000)


def test_a_source_that_tells_nothing() -> None:
    assert messages_behind([{"endOffset": None, "latestOffset": None}]) is None
    assert messages_behind([{"endOffset": "x", "latestOffset": "{}"}]) is None
