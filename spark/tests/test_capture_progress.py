"""Streams over files that appear, grow, are closed and are removed read every record once."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.capture import encode_header, encode_index
from spark.capture.datasource import CaptureStreamReader, combine_filters
from spark.capture.options import CaptureFilter, CaptureSpec
from spark.capture.stream_progress import DONE, flatten_offset
from spark.errors import DataLossError
from spark.tests.captures import EPOCH_MS, block_of, send

LIMIT = None  # What Spark hands over; the reader has limits of its own.


class Writer:
    """Writes capture files to a folder as a gateway does."""

    def __init__(self, folder, gateway="gw"):
        self.folder = folder
        self.gateway = gateway
        self.count = 0
        self.sent = 0
        self.new()

    def new(self):
        self.count += 1
        self.path = self.folder / f"capture-20260101T000000{self.count:03d}Z-{self.count:06d}.rmqcap"
        self.path.write_bytes(encode_header(EPOCH_MS, self.gateway, 7))
        self.blocks = []

    def block(self, records=2, torn=0):
        """Append a block, or only its first bytes."""
        data, block = block_of([send(self.sent + each) for each in range(records)], self.path.stat().st_size)
        with self.path.open("ab") as file:
            file.write(data[:torn] if torn else data)
        if not torn:
            self.blocks.append(block)
            self.sent += records

    def close(self):
        with self.path.open("ab") as file:
            file.write(encode_index(file.tell(), self.blocks))


def reader_of(folder, **options):
    return CaptureStreamReader(CaptureSpec.from_options({"path": str(folder), "columns": "msgId", **options}))


def ids(reader, start, end):
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return pa.Table.from_batches(batches, reader.spec.arrow_schema())["msgId"].to_pylist()


def sent(count, start=0):
    return [f"ID{number:06d}" for number in range(start, count)]


def step(reader, start):
    end = json.loads(json.dumps(reader.latestOffset(start, LIMIT)))
    return end, ids(reader, start, end)


def test_blocks_as_they_come_and_a_block_that_is_half_there(tmp_path):
    writer, reader = Writer(tmp_path), reader_of(tmp_path)
    start, got = step(reader, reader.initialOffset())
    assert (start, got) == ({}, [])
    writer.block()
    writer.block(torn=100)
    start, got = step(reader, start)
    assert got == sent(2)
    assert step(reader, start) == (start, [])
    with writer.path.open("r+b") as file:
        file.truncate(next(iter(start[str(tmp_path)].values())))
    writer.block(1)
    start, got = step(reader, start)
    assert got == sent(3, 2)
    writer.close()
    writer.new()
    writer.block(1)
    start, got = step(reader, start)
    assert got == sent(4, 3)
    assert sorted(flatten_offset(start).values())[0] == DONE


def test_a_file_without_index_is_over_when_its_gateway_has_a_newer_one(tmp_path):
    writer, reader = Writer(tmp_path), reader_of(tmp_path)
    writer.block(torn=100)
    first = writer.path
    start, got = step(reader, {})
    assert (start, got) == ({}, [])
    (tmp_path / "capture-2027.rmqcap").write_bytes(encode_header(EPOCH_MS, "another", 9))
    start, _ = step(reader, start)
    assert str(first) not in flatten_offset(start)
    writer.new()
    start, _ = step(reader, start)
    assert flatten_offset(start)[str(first)] == DONE


def test_limits_are_whole_blocks_and_at_least_one(tmp_path):
    writer = Writer(tmp_path)
    for _ in range(3):
        writer.block(2)
    writer.close()
    writer.new()
    writer.block(5)
    size = writer.blocks[0].size
    for options, steps in (
        ({"maxRecordsPerTrigger": "4"}, [4, 2, 5, 0]),
        ({"maxRecordsPerTrigger": "1"}, [2, 2, 2, 5, 0]),
        ({"maxBytesPerTrigger": "1"}, [2, 2, 2, 5, 0]),
        ({"maxRecordsPerTrigger": "100", "maxBytesPerTrigger": str(size * 100)}, [11, 0]),
    ):
        reader, start, got = reader_of(tmp_path, **options), {}, []
        for expected in steps:
            start, rows = step(reader, start)
            assert len(rows) == expected
            got += rows
        assert got == sent(11)


def test_available_now_ends_where_it_began(tmp_path):
    writer = Writer(tmp_path)
    writer.block(3)
    writer.block(3)
    reader = reader_of(tmp_path, maxRecordsPerTrigger="3")
    reader.prepareForTriggerAvailableNow()
    writer.block(3)
    writer.close()
    writer.new()
    writer.block(3)
    start, got = {}, []
    for _ in range(4):
        start, rows = step(reader, start)
        got += rows
    assert got == sent(6)
    assert step(reader_of(tmp_path), start)[1] == sent(12, 6)


def test_removed_files(tmp_path):
    writer = Writer(tmp_path)
    writer.block(2)
    writer.close()
    done = writer.path
    writer.new()
    writer.block(2)
    unread = writer.path
    reader = reader_of(tmp_path, maxRecordsPerTrigger="2")
    start, _ = step(reader, {})
    done.unlink()
    start, got = step(reader, start)
    assert (got, list(flatten_offset(start))) == (sent(4, 2), [str(unread)])
    writer.block(2)
    writer.new()
    unread.unlink()
    with pytest.raises(DataLossError, match="removed before it was read to its end"):
        reader_of(tmp_path).latestOffset(start, LIMIT)
    end = reader_of(tmp_path, failOnDataLoss="false").latestOffset(start, LIMIT)
    assert str(unread) not in flatten_offset(end)


def test_a_batch_is_planned_again_from_its_offsets_alone(tmp_path):
    writer = Writer(tmp_path)
    for _ in range(4):
        writer.block(1)
    first = reader_of(tmp_path, maxRecordsPerTrigger="2")
    start, _ = step(first, {})
    end = first.latestOffset(start, LIMIT)
    writer.close()
    assert ids(reader_of(tmp_path), start, end) == sent(4, 2)


@settings(max_examples=40, deadline=None)
@given(
    actions=st.lists(st.sampled_from(["block", "torn", "close", "crash", "read", "again"]), max_size=12),
    most=st.integers(1, 5),
)
def test_every_record_once_whatever_happens(actions, most, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captures")
    writer, reader = Writer(folder), reader_of(folder, maxRecordsPerTrigger=str(most))
    start, got, torn = {}, [], False

    def mend():
        if torn:
            with writer.path.open("r+b") as file:
                file.truncate(torn)

    for action in [*actions, *["read"] * 30]:
        if action == "read":
            start, rows = step(reader, start)
            got += rows
        elif action == "again":
            reader = reader_of(folder, maxRecordsPerTrigger=str(most))
        elif action == "torn":
            mend()
            torn = writer.path.stat().st_size
            writer.block(torn=80)
        elif action == "crash":
            writer.new()
            torn = False
        else:
            mend()
            torn = False
            writer.block(1 + most % 3)
            if action == "close":
                writer.close()
                writer.new()
    assert got == sent(writer.sent)


def test_offsets_always_read_the_same(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        Writer(tmp_path / name).block()
    spec = CaptureSpec.from_options({"path": json.dumps([str(tmp_path / "b"), str(tmp_path / "a")])})
    texts = {json.dumps(CaptureStreamReader(spec).latestOffset({}, LIMIT)) for _ in range(3)}
    assert len(texts) == 1
    assert list(json.loads(texts.pop())) == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_filters_narrow_but_never_too_much():
    from datetime import UTC, datetime

    from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThan, Not, StringContains

    at = datetime(2026, 1, 1, 0, 0, 0, 1500, UTC)
    at_ms = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000) + 1
    assert combine_filters([GreaterThan(("time",), at)]) == CaptureFilter(from_ms=at_ms)
    assert combine_filters([LessThan(("time",), at)]) == CaptureFilter(until_ms=at_ms + 1)
    assert combine_filters([EqualTo(("time",), at)]) == CaptureFilter(at_ms, at_ms + 1)
    assert combine_filters([In(("topic",), ("a", "b")), EqualTo(("topic",), "b")]) == CaptureFilter(
        topics=frozenset("b")
    )
    assert combine_filters([EqualTo(("code",), 310)]) == CaptureFilter(codes=frozenset([310]))
    untranslated = [IsNotNull(("time",)), Not(EqualTo(("topic",), "a")), StringContains(("topic",), "x")]
    assert (
        combine_filters([*untranslated, EqualTo(("group",), "g"), EqualTo(("fields", "a"), "g")])
        == CaptureFilter()
    )
