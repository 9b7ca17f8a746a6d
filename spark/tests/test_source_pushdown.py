"""What filters of a batch leave to be read, and which Spark has to apply again."""

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
from spark.source.pushdown import Wanted

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
    wanted = Wanted()
    assert wanted.take(condition)
    assert (wanted.offsets.low, wanted.offsets.high) == (low, high)


def test_offsets_in_a_list_narrow_and_are_left_to_spark() -> None:
    wanted = Wanted()
    assert not wanted.take(In(("queueOffset",), (9, 3)))
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
    wanted = Wanted()
    assert not wanted.take(condition)
    assert (wanted.times_ms.low, wanted.times_ms.high) == (low, high)


def test_queues() -> None:
    wanted = Wanted()
    assert wanted.take(In(("topic",), ("a", "b")))
    assert wanted.take(EqualTo(("brokerName",), "x"))
    assert wanted.take(GreaterThanOrEqual(("queueId",), 1))
    assert wanted.take(In(("queueId",), (0, 1, 3)))
    assert wanted.take(IsNotNull(("queueId",)))
    queues = [Queue(topic, broker, number) for topic in "abc" for broker in "xy" for number in range(4)]
    assert [queue for queue in queues if wanted.has(queue)] == [
        Queue(topic, "x", number) for topic in "ab" for number in (1, 3)
    ]


def test_contradictions_leave_nothing() -> None:
    wanted = Wanted()
    assert wanted.take(EqualTo(("topic",), "a"))
    assert wanted.take(EqualTo(("topic",), "b"))
    assert not wanted.has(Queue("a", "x", 0))
    assert not wanted.has(Queue("b", "x", 0))


def test_tags_become_the_brokers_filter_and_are_left_to_spark() -> None:
    wanted = Wanted()
    assert wanted.expression() is None
    assert not wanted.take(In(("tags",), ("a", "b")))
    assert wanted.expression() == "a || b"
    assert not wanted.take(EqualTo(("tags",), "b"))
    assert wanted.expression() == "b"
    for odd in ("*", "", "a||b", " a"):
        other = Wanted()
        assert not other.take(EqualTo(("tags",), odd))
        assert other.expression() is None


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
    wanted = Wanted()
    assert not wanted.take(condition)
    assert wanted == Wanted()


def test_kafkas_columns_have_other_names() -> None:
    wanted = Wanted("kafka")
    assert wanted.take(EqualTo(("partition",), 2))
    assert wanted.take(GreaterThan(("offset",), 2))
    assert not wanted.take(EqualTo(("queueId",), 2))
    assert wanted.has(Queue("t", "x", 2))
    assert not wanted.has(Queue("t", "x", 1))
