"""Rows of capture files equal what codec.capture, codec.command and codec.message decode."""

import os
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.batch import split_batch
from codec.capture import FATES, CaptureRecord, read_block
from codec.command import Command, decode_frame, encode_command
from codec.errors import FrameError
from codec.message import iter_messages
from codec.properties import decode_properties
from codec.sysflag import COMPRESSED, COMPRESSION_ZLIB
from spark.capture.datasource import CapturePartition, CaptureReader
from spark.capture.exchange_rows import ExchangeRows, split_by_weight
from spark.capture.frame_decoding import int_field
from spark.capture.options import CaptureFilter, CaptureSpec
from spark.capture.record_block import RecordBlock
from spark.errors import DamageError, DataLossError
from spark.pull.row_decoder import MAX_TIME_MS, MIN_TIME_MS
from spark.tests.captures import EPOCH_MS, batch_send, block_of, file_of, frame, pull, send, stored

U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=6)
VALUES = st.sampled_from(["0", "7", "-1", "true", "false", "x", "99999999999999999999", "4294967296"]) | TEXT
PROPERTIES = st.dictionaries(
    st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "__SHARDINGKEY", "DELAY", "TRAN_MSG", "own"]),
    st.sampled_from(["true", "3", "0", "a b", "größer"]),
).map(lambda found: "".join(f"{name}\x01{value}\x02" for name, value in found.items()))
FIELDS = st.dictionaries(
    st.sampled_from([*"abefghjm", "topic", "queueId", "queueOffset", "msgId", "sysFlag"]), VALUES
)
COMMANDS = st.builds(
    lambda code, ext, properties, body, remark, flag, binary: encode_command(
        Command(
            code, 1, flag, {**ext, "i": properties, "properties": properties}, body, remark, binary=binary
        )
    ),
    code=st.sampled_from([0, 1, 10, 11, 310]),
    ext=FIELDS,
    properties=PROPERTIES,
    body=st.binary(max_size=20),
    remark=st.none() | TEXT,
    flag=st.integers(0, 3),
    binary=st.booleans(),
)
FRAMES = COMMANDS | st.binary(max_size=40)
RECORDS = st.builds(
    CaptureRecord,
    code=st.sampled_from([10, 310, 320, 324, 11, 36, 105, 999_999, -3]),
    request=FRAMES,
    answer=st.none() | FRAMES,
    target=st.none() | FRAMES,
    wall_ms=st.integers(-(10**12), 10**13) | I64,
    asked_us=I64,
    forwarded_us=U32,
    answered_us=U32,
    target_us=U32,
    connection=st.integers(0, 2**63 - 1),
    client=st.sampled_from(["", "10.0.0.1:50000"]),
    upstream=st.sampled_from(["", "10.0.0.9:10911"]),
    broker=st.sampled_from(["", "broker-a"]),
    topic=st.sampled_from(["", "orders", "größer"]),
    group=st.text(st.characters(codec="utf-8"), max_size=4),
    fate=st.sampled_from(FATES),
    reverse=st.booleans(),
    by_target=st.booleans(),
    redacted=st.booleans(),
)


def rows_of(records, spec=None, record_filter=None):
    spec = spec or CaptureSpec((), include_bodies=True, include_frames=True)
    data, block = block_of(records, 0)
    found = RecordBlock(data, block, record_filter or CaptureFilter())
    batches = list(ExchangeRows(spec).build_batches(found, "a.rmqcap"))
    assert all(batch.schema == spec.arrow_schema() for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    table = pa.Table.from_batches(batches, spec.arrow_schema())
    at = [column for column, name in enumerate(table.column_names) if name == "time"]
    return (
        table.set_column(at[0], "time", table["time"].cast(pa.int64())).to_pylist()
        if at
        else table.to_pylist()
    )


def command(data):
    try:
        return decode_frame(data, 4, len(data)) if data else None
    except FrameError:
        return None


def clean(text):
    return None if text is None else text.encode("utf-8", "replace").decode()


@settings(max_examples=100, deadline=None)
@given(records=st.lists(RECORDS, min_size=1, max_size=5))
def test_columns_are_what_the_codec_reads(records):
    data, block = block_of(records, 0)
    for place, (row, record) in enumerate(zip(rows_of(records), read_block(data, block), strict=True)):
        asked, answer, target = map(command, (record.request, record.answer, record.target))
        for name in ("topic", "group", "client", "upstream", "fate"):
            assert row[name] == (getattr(record, name) or None)
        for name in ("code", "connection", "reverse", "redacted"):
            assert row[name] == getattr(record, name)
        in_range = MIN_TIME_MS <= record.wall_ms <= MAX_TIME_MS
        assert row["time"] == (record.wall_ms * 1000 if in_range else None)
        assert (row["brokerName"], row["byTarget"]) == (record.broker or None, record.by_target)
        assert row["gatewayUs"] == record.forwarded_us
        assert row["primaryUs"] == (None if record.by_target else record.answered_us)
        took = record.answered_us if record.by_target else record.target_us
        has_target = record.by_target or record.target is not None or took
        assert row["targetUs"] == (took if has_target else None)
        assert (row["request"], row["answer"], row["target"]) == (
            record.request,
            record.answer,
            record.target,
        )
        assert row["requestBytes"] == len(record.request)
        assert row["answerBytes"] == (None if record.answer is None else len(record.answer))
        assert row["fields"] == (
            None if asked is None else [(clean(k), clean(v)) for k, v in asked.ext.items()]
        )
        assert row["oneway"] == (None if asked is None else asked.is_oneway)
        assert row["language"] == (None if asked is None else asked.language)
        assert row["bodyBytes"] == (None if asked is None else len(asked.body))
        for side, got in (("answer", answer), ("target", target)):
            assert row[f"{side}Code"] == (None if got is None else got.code)
            assert row[f"{side}Remark"] == (None if got is None else clean(got.remark))
        unreadable = [asked is None, record.answer is not None and answer is None]
        assert row["unreadable"] == any([*unreadable, record.target is not None and target is None])
        assert (row["position"], row["record"], row["file"]) == (0, place, "a.rmqcap")
        check_send(row, record, asked, answer)


def check_send(row, record, asked, answer):
    if record.code not in (10, 310, 320, 324, 325) or asked is None:
        assert (row["msgId"], row["keys"]) == (None, None)
        return
    long = record.code in (10, 324)
    found = decode_properties(asked.ext["properties" if long else "i"])
    batch = record.code == 320 or asked.ext.get("batch" if long else "m", "").lower() == "true"
    if not batch:
        assert (row["keys"], row["tags"]) == (clean(found.get("KEYS")), clean(found.get("TAGS")))
        assert row["shardingKey"] == found.get("__SHARDINGKEY")
        assert row["messages"] == 1
    waits = found.get("TRAN_MSG") == "true" or found.get("DELAY") == "3"
    stored_ = answer is not None and answer.code in (0, 10, 11, 12)
    if not batch:
        stored_offset = int_field(answer.ext, "queueOffset", 2**63 - 1) if stored_ and not waits else None
        assert row["queueOffset"] == stored_offset
        assert row["msgId"] == (
            found.get("UNIQ_KEY") or (stored_ and clean(answer.ext.get("msgId", "").split(",")[0])) or None
        )


@settings(max_examples=30, deadline=None)
@given(records=st.lists(RECORDS, min_size=1, max_size=5), data=st.data())
def test_what_is_wanted_is_what_is_left(records, data):
    start = data.draw(st.none() | st.sampled_from([each.wall_ms for each in records]))
    topics = data.draw(st.none() | st.frozensets(st.sampled_from(["", "orders", "none"])))
    codes = data.draw(st.none() | st.frozensets(st.sampled_from([10, 320, 999_999])))
    expected = [
        place
        for place, each in enumerate(records)
        if (start is None or each.wall_ms >= start)
        and (topics is None or each.topic in topics)
        and (codes is None or each.code in codes)
    ]
    rows = rows_of(records, record_filter=CaptureFilter(start, None, topics, codes))
    assert [row["record"] for row in rows] == expected


def test_only_asked_for_columns_and_their_order():
    spec = CaptureSpec.from_options({"path": "x", "columns": "topic, answerCode,time"})
    assert rows_of([send(1)], spec) == [{"topic": "orders", "answerCode": 0, "time": (EPOCH_MS + 1) * 1000}]


def test_batches_are_as_large_as_wanted_and_no_larger():
    assert split_by_weight([5, 5, 5, 20, 1], 10) == [0, 2, 3, 4]
    assert split_by_weight([], 10) == []


# -- files --------------------------------------------------------------------------------------------------------


def read(spec):
    reader = CaptureReader(spec)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches, spec.arrow_schema()).to_pylist()


def spec_of(path, **options):
    return CaptureSpec.from_options({"path": str(path), **options})


def written(folder, groups, name="capture-20260101T000000000Z-000001.rmqcap", **more):
    data, blocks = file_of(groups, **more)
    (folder / name).write_bytes(data)
    return blocks


def test_messages_of_sends_batches_and_pulls(tmp_path):
    records = [
        send(5, queue=2),
        batch_send(10),
        send(6, properties={"DELAY": "3"}),
        send(7, answer=14),
        pull(8, [stored(8), stored(9)]),
    ]
    written(tmp_path, [records])
    rows = read(spec_of(tmp_path, rows="messages"))
    names = (
        "how",
        "topic",
        "brokerName",
        "queueId",
        "queueOffset",
        "msgId",
        "waits",
        "answerCode",
        "batchIndex",
    )
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("sent", "orders", "broker-a", 2, 5, "ID000005", None, 0, 0),
        ("sent", "orders", "broker-a", 1, 10, "B10-0", None, 0, 0),
        ("sent", "orders", "broker-a", 1, 11, "B10-1", None, 0, 1),
        ("sent", "orders", "broker-a", 1, 12, "B10-2", None, 0, 2),
        ("sent", "orders", "broker-a", 0, None, "ID000006", "delayed", 0, 0),
        ("sent", "orders", "broker-a", 0, None, "ID000007", None, 14, 0),
        ("read", "orders", "broker-a", 0, 8, "S8", None, 0, 0),
        ("read", "orders", "broker-a", 0, 9, "S9", None, 0, 1),
    ]
    assert [row["body"] for row in rows[:3]] == [b"body 5", b"part 0", b"part 1"]
    assert (rows[0]["targetQueueId"], rows[0]["targetQueueOffset"], rows[0]["flag"]) == (2, 105, 3)
    assert rows[0]["properties"] == [("UNIQ_KEY", "ID000005"), ("KEYS", "key-0"), ("TAGS", "a")]
    assert rows[6]["storeTimestamp"] == datetime.fromtimestamp(EPOCH_MS / 1000, UTC) + timedelta(
        milliseconds=5
    )
    assert (rows[6]["bornHost"], rows[6]["storeHost"]) == ("10.0.0.1:50000", "10.0.0.9:10911")


@settings(max_examples=30, deadline=None)
@given(
    bodies=st.lists(st.binary(max_size=30), min_size=1, max_size=4),
    properties=st.dictionaries(
        st.sampled_from(["KEYS", "TAGS", "own"]), st.text("abc", min_size=1), max_size=3
    ),
)
def test_messages_are_what_the_codec_reads(bodies, properties, tmp_path_factory):
    messages = [stored(place, body=body, properties=properties) for place, body in enumerate(bodies)]
    folder = tmp_path_factory.mktemp("captures")
    records = [pull(3, messages), batch_send(4, len(bodies))]
    written(folder, [records])
    rows = read(spec_of(folder, rows="messages"))
    decoded = list(iter_messages(decode_frame(records[0].answer, 4, len(records[0].answer)).body))
    for row, message in zip(rows, decoded, strict=False):
        assert (row["body"], dict(row["properties"])) == (message.body, message.properties)
        assert (row["queueOffset"], row["commitLogOffset"]) == (message.queue_offset, message.physical_offset)
        assert row["msgId"] == (message.unique_key or message.msg_id)
    parts = split_batch(decode_frame(records[1].request, 4, len(records[1].request)).body)
    assert [row["body"] for row in rows[len(decoded) :]] == [body for _, body, _ in parts]


def test_compressed_bodies(tmp_path):
    import zlib

    def compressed(body):
        plain = send(1)
        ext = decode_frame(plain.request, 4, len(plain.request)).ext
        return plain._replace(request=frame(310, {**ext, "f": str(COMPRESSED | COMPRESSION_ZLIB)}, body))

    written(tmp_path, [[compressed(zlib.compress(b"plain" * 50)), compressed(b"not compressed")]])
    rows = read(spec_of(tmp_path, includeBodies="true", columns="body,bodyBytes"))
    assert [row["body"] for row in rows] == [b"plain" * 50, None]
    with pytest.raises(DamageError, match="record 1: compressed body is damaged"):
        read(spec_of(tmp_path, rows="messages"))
    expected = read(spec_of(tmp_path, rows="messages", failOnDamage="false", columns="body"))
    assert expected == [{"body": b"plain" * 50}]


def test_partitions_by_count_and_by_what_is_wanted(tmp_path):
    groups = [[send(number, ("orders", "bills")[number % 2])] for number in range(12)]
    written(tmp_path, groups)
    for low, high in ((1, 1), (4, None), (12, None), (50, None), (None, 3)):
        options = {"minPartitions": low, "maxPartitions": high, "partitionBytes": 100 if high else None}
        spec = spec_of(tmp_path, **{name: str(value) for name, value in options.items() if value})
        parts = CaptureReader(spec).partitions()
        assert len(parts) == min(low or high or 0, 12)
        assert sorted(row["record"] + row["connection"] for row in read(spec)) == sorted(
            1 + n % 3 for n in range(12)
        )
    assert {row["topic"] for row in read(spec_of(tmp_path, topics="bills"))} == {"bills"}
    start = spec_of(tmp_path, startingTimestamp=str(EPOCH_MS + 8), endingTimestamp=str(EPOCH_MS + 10))
    assert [row["topic"] for row in read(start)] == ["orders", "bills"]
    assert CaptureReader(spec_of(tmp_path, topics="none")).partitions() == []


def test_blocks_that_are_not_wanted_are_not_read(tmp_path):
    blocks = written(tmp_path, [[send(0, "orders")], [send(1, "bills")]])
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[blocks[0].position + 60] ^= 1
    path.write_bytes(data)
    assert [row["topic"] for row in read(spec_of(tmp_path, topics="bills"))] == ["bills"]
    with pytest.raises(DamageError, match=r"damage at byte \d+, \d+ bytes: the block does not match its CRC"):
        read(spec_of(tmp_path))
    assert [row["topic"] for row in read(spec_of(tmp_path, failOnDamage="false"))] == ["bills"]
    damage = read(spec_of(tmp_path, rows="damage"))
    assert [(row["file"], row["position"], row["bytes"]) for row in damage] == [(str(path), *blocks[0][:2])]


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 10_000), closed=st.booleans())
def test_a_cut_file_is_read_up_to_the_cut_and_is_no_damage(cut, closed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captures")
    data, blocks = file_of([[send(number)] for number in range(4)], closed=closed)
    cut = cut % len(data)
    (folder / "a.rmqcap").write_bytes(data[:cut])
    whole = sum(block.position + block.size <= cut for block in blocks)
    assert len(read(spec_of(folder))) == whole


@settings(max_examples=40, deadline=None)
@given(at=st.integers(0, 10_000), closed=st.booleans(), bit=st.integers(0, 7))
def test_a_damaged_file_gives_rows_or_says_that_it_is_damaged(at, closed, bit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("captures")
    data, blocks = file_of([[send(number)] for number in range(4)], closed=closed)
    broken = bytearray(data)
    broken[at % len(data)] ^= 1 << bit
    (folder / "a.rmqcap").write_bytes(broken)
    rows = read(spec_of(folder, failOnDamage="false", columns="msgId"))
    ids = [row["msgId"] for row in rows]
    assert set(ids) <= {f"ID{number:06d}" for number in range(4)}
    if len(ids) < 4 and at % len(data) < blocks[3].position:
        assert read(spec_of(folder, rows="damage"))


def test_a_file_that_is_gone(tmp_path):
    written(tmp_path, [[send(1)]])
    reader = CaptureReader(spec_of(tmp_path))
    (part,) = reader.partitions()
    assert isinstance(part, CapturePartition)
    os.unlink(part.ranges[0].path)
    with pytest.raises(DataLossError, match="removed before it was read"):
        list(reader.read(part))
    assert list(CaptureReader(spec_of(tmp_path, failOnDataLoss="false")).read(part)) == []
