"""Offset ranges pass through Spark, and tasks fetch their messages."""

import datetime
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from codec.message import Message
from spark.pull.read_spec import OffsetRange, ReadSpec
from spark.pull.unread import Unread, batch_from_ranges, ranges_from_batch
from spark.schema import RANGE_COLUMNS, arrow_schema
from spark.tables.layout import add_day_columns
from spark.tests.fake_broker import FakeBroker
from spark.tests.stored_messages import stored_message

names = st.text(min_size=1, max_size=9)
offsets = st.integers(0, 2**62)
ranges = st.builds(
    OffsetRange,
    names,
    names,
    st.tuples(names, st.integers(1, 65535)),
    st.integers(0, 2**31 - 1),
    offsets,
    offsets,
)


@given(st.lists(ranges, max_size=5))
def test_ranges_come_back_as_they_were(given: list[OffsetRange]) -> None:
    batch = batch_from_ranges(given)
    assert batch.schema == arrow_schema(RANGE_COLUMNS)
    assert ranges_from_batch(batch) == given


def test_messages_are_fetched_range_by_range() -> None:
    stored = {
        offset: stored_message(Message("t", b"%d" % offset, queue_offset=offset)) for offset in range(40)
    }
    with FakeBroker(stored).serving() as broker:
        spec = ReadSpec(broker.endpoint())
        batches = [
            batch_from_ranges([broker.range(30, 40), broker.range(5, 7)]),
            batch_from_ranges([broker.range(0, 1)]),
        ]
        nowhere: list[pa.RecordBatch] = []
        frame: Any = None
        unread = Unread(frame, spec)
        found = pa.Table.from_batches(unread.fetch(batches), spec.arrow_schema())
        assert list(unread.fetch(nowhere)) == []
    assert found["queueOffset"].to_pylist() == [*range(30, 40), 5, 6, 0]


@given(st.lists(st.none() | st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1))))
def test_days_and_hours_are_those_of_the_time_in_utc(times: list[datetime.datetime | None]) -> None:
    batch = pa.RecordBatch.from_pydict({"storeTimestamp": pa.array(times, pa.timestamp("us", tz="UTC"))})
    found = add_day_columns(batch)
    assert found["dt"].to_pylist() == [time and time.date() for time in times]
    assert found["hour"].to_pylist() == [None if time is None else time.hour for time in times]
