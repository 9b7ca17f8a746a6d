"""Bounds that pushed filters give, and the filters that Spark has to apply again."""

import datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from spark.cluster import Queue
from spark.source.filter_pushdown import PushedFilters

T = datetime.datetime(2026, 1, 1, 0, 0, 0, 1500, tzinfo=datetime.UTC)  # 1.5 ms past
MS = 1767225600000
NO_END = (1 << 63) - 1


@pytest.mark.parametrize(
    ("condition", "low", "high"),
    [
        (EqualTo(("queueOffset",), 5), 5, 6),
        (EqualNullSafe(("queueOffset",), 5), 5, 6),
        (GreaterThan(("queueOffset",), 5), 6, NO_END),
        (GreaterThanOrEqual(("queueOffset",), 5), 5, NO_END),
        (LessThan(("queueOffset",), 5), 0, 5),
        (LessThanOrEqual(("queueOffset",), 5), 0, 6),
    ],
)
def test_offsets(condition: Filter, low: int, high: int) -> None:
    wanted = PushedFilters()
    assert wanted.apply_filter(condition)
    assert (wanted.offsets.low, wanted.offsets.high) == (low, high)


def test_offsets_in_a_list_narrow_and_are_left_to_spark() -> None:
    wanted = PushedFilters()
    assert not wanted.apply_filter(In(("queueOffset",), (9, 3)))
    assert (wanted.offsets.low, wanted.offsets.high) == (3, 10)


@pytest.mark.parametrize(
    ("condition", "low", "high"),
    [
        (GreaterThan(("storeTimestamp",), T), MS + 2, NO_END),
        (GreaterThanOrEqual(("storeTimestamp",), T), MS + 2, NO_END),
        (LessThan(("storeTimestamp",), T), 0, MS + 2),
        (LessThanOrEqual(("storeTimestamp",), T), 0, MS + 2),
        (GreaterThanOrEqual(("storeTimestamp",), T.replace(microsecond=1000)), MS + 1, NO_END),
        (GreaterThan(("storeTimestamp",), T.replace(microsecond=1000)), MS + 2, NO_END),
        (EqualTo(("storeTimestamp",), T.replace(microsecond=1000)), MS + 1, MS + 2),
        (GreaterThan(("storeTimestamp",), T.replace(tzinfo=None)), 0, NO_END),
    ],
)
def test_times_narrow_and_are_left_to_spark(condition: Filter, low: int, high: int) -> None:
    wanted = PushedFilters()
    assert not wanted.apply_filter(condition)
    assert (wanted.times_ms.low, wanted.times_ms.high) == (low, high)


def test_queues() -> None:
    wanted = PushedFilters()
    assert wanted.apply_filter(In(("topic",), ("a", "b")))
    assert wanted.apply_filter(EqualTo(("brokerName",), "x"))
    assert wanted.apply_filter(GreaterThanOrEqual(("queueId",), 1))
    assert wanted.apply_filter(In(("queueId",), (0, 1, 3)))
    assert wanted.apply_filter(IsNotNull(("queueId",)))
    queues = [Queue(topic, broker, number) for topic in "abc" for broker in "xy" for number in range(4)]
    assert [queue for queue in queues if wanted.includes_queue(queue)] == [
        Queue(topic, "x", number) for topic in "ab" for number in (1, 3)
    ]


def test_contradictions_leave_nothing() -> None:
    wanted = PushedFilters()
    assert wanted.apply_filter(EqualTo(("topic",), "a"))
    assert wanted.apply_filter(EqualTo(("topic",), "b"))
    assert not wanted.includes_queue(Queue("a", "x", 0))
    assert not wanted.includes_queue(Queue("b", "x", 0))


def test_tags_become_the_brokers_filter_and_are_left_to_spark() -> None:
    wanted = PushedFilters()
    assert wanted.tag_expression() is None
    assert not wanted.apply_filter(In(("tags",), ("a", "b")))
    assert wanted.tag_expression() == "a || b"
    assert not wanted.apply_filter(EqualTo(("tags",), "b"))
    assert wanted.tag_expression() == "b"
    for odd in ("*", "", "a||b", " a"):
        other = PushedFilters()
        assert not other.apply_filter(EqualTo(("tags",), odd))
        assert other.tag_expression() is None


@pytest.mark.parametrize(
    "condition",
    [
        Not(EqualTo(("topic",), "a")),
        EqualTo(("body",), b"x"),
        EqualTo(("properties", "TAGS"), "x"),
        StringStartsWith(("topic",), "a"),
        EqualTo(("queueId",), None),
        EqualTo(("queueOffset",), 5.5),
        In(("queueId",), (1, None)),
        IsNotNull(("tags",)),
    ],
)
def test_what_is_left_alone(condition: Filter) -> None:
    wanted = PushedFilters()
    assert not wanted.apply_filter(condition)
    assert wanted == PushedFilters()


def test_kafkas_columns_have_other_names() -> None:
    wanted = PushedFilters("kafka")
    assert wanted.apply_filter(EqualTo(("partition",), 2))
    assert wanted.apply_filter(GreaterThan(("offset",), 2))
    assert not wanted.apply_filter(EqualTo(("queueId",), 2))
    assert wanted.includes_queue(Queue("t", "x", 2))
    assert not wanted.includes_queue(Queue("t", "x", 1))
