"""The vectorised decoder equals the row decoder, which equals `codec.message`."""

from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.errors import MessageFormatError
from codec.message import Message, iter_messages
from codec.properties import decode_properties
from codec.sysflag import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from spark.endpoint import ClusterEndpoint
from spark.pull import packed_properties
from spark.pull.column_decoder import _time_array, decode_columns
from spark.pull.read_spec import ReadSpec
from spark.pull.row_decoder import _time_us, decode_rows
from spark.pull.stored_messages import locate_messages
from spark.schema import COLUMNS, KAFKA_COLUMNS
from spark.tests.stored_messages import compressed, messages, stored_message

ENDPOINT = ClusterEndpoint((("127.0.0.1", 9876),))


def spec(**fields: Any) -> ReadSpec:
    return ReadSpec(ENDPOINT, **fields)


def fast(raw: bytes, how: ReadSpec) -> pa.Table:
    return pa.Table.from_batches(decode_columns(locate_messages(raw), "broker-a", how), how.arrow_schema())


def slow(raw: bytes, how: ReadSpec) -> pa.Table:
    return pa.Table.from_batches([decode_rows(raw, "broker-a", how)], how.arrow_schema())


@st.composite
def specs(draw: st.DrawFn) -> ReadSpec:
    schema = draw(st.sampled_from(["rocketmq", "kafka"]))
    names = [column.name for column in (KAFKA_COLUMNS if schema == "kafka" else COLUMNS)]
    columns = draw(st.none() | st.lists(st.sampled_from(names), unique=True, min_size=1).map(tuple))
    return spec(
        schema=schema,
        columns=columns,
        include_body=draw(st.booleans()),
        include_properties=draw(st.booleans()),
        arrow_batch_bytes=draw(st.sampled_from([1, 64, 4 << 20])),
    )


@given(st.lists(messages(), max_size=12).map(b"".join), specs())
def test_every_column_is_what_the_plain_decoder_gives(raw: bytes, how: ReadSpec) -> None:
    batches = fast(raw, how)
    batches.validate(full=True)
    assert batches.equals(slow(raw, how))


@given(st.lists(messages(), min_size=1, max_size=5).map(b"".join))
def test_columns_are_fields_of_the_codec(raw: bytes) -> None:
    # Python's own times do not reach as far as a message's.
    columns = tuple(column.name for column in COLUMNS if not column.name.endswith("Timestamp"))
    for row, message in zip(
        fast(raw, spec(columns=columns)).to_pylist(maps_as_pydicts="strict"), iter_messages(raw), strict=True
    ):
        assert row["properties"] == message.properties
        assert (row["tags"], row["keys"]) == (message.tags, message.properties.get("KEYS"))
        assert row["msgId"] == (message.unique_key or message.msg_id)
        assert row["topic"] == message.topic
        assert row["queueOffset"] == message.queue_offset
        assert row["commitLogOffset"] == message.physical_offset
        assert (row["queueId"], row["flag"], row["sysFlag"]) == (
            message.queue_id,
            message.flag,
            message.sys_flag,
        )
        assert row["reconsumeTimes"] == message.reconsume_times
        assert row["preparedTransactionOffset"] == message.prepared_transaction_offset
        if not message.sys_flag & COMPRESSED:
            assert row["body"] == message.body


@given(raw=st.lists(messages(), max_size=6).map(b"".join))
def test_many_names_take_another_way_to_the_same(raw: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_properties, "MAX_TABLE_CELLS", 0)
        assert fast(raw, spec()).equals(slow(raw, spec()))


def refusal(decode: Any, raw: bytes) -> str:
    try:
        decode(raw, spec())
    except MessageFormatError as error:
        return str(error)
    return ""


def test_store_port_beyond_31_bits_is_refused_by_both_decoders() -> None:
    raw = bytearray(stored_message(Message("t", b"body")))
    store_port_at = 68  # behind the store host's four bytes of address
    raw[store_port_at] |= 0x80
    with pytest.raises(MessageFormatError, match="not a port"):
        slow(bytes(raw), spec())
    with pytest.raises(MessageFormatError, match="not a port"):
        fast(bytes(raw), spec())


@given(st.lists(messages(), min_size=1, max_size=3).map(b"".join), st.data())
def test_damage_is_refused_where_the_codec_refuses_it(raw: bytes, data: st.DataObject) -> None:
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(max(0, len(raw) - 5), len(raw)) | st.just(len(raw)))])
    said, wanted = refusal(fast, cut), refusal(slow, cut)
    assert bool(said) == bool(wanted), (said, wanted)
    if not said:
        assert fast(cut, spec()).equals(slow(cut, spec()))


def test_bodies_of_all_kinds_are_decompressed_in_order() -> None:
    kinds = [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD, 0]
    plain = [b"%d" % number * 1000 for number in range(40)]
    raw = b"".join(
        stored_message(compressed(body, kinds[at % 4]) if at % 3 else Message("t", body))
        for at, body in enumerate(plain)
    )
    assert fast(raw, spec())["body"].to_pylist() == plain


def test_batches_stay_small_however_much_bodies_grow() -> None:
    raw = b"".join(stored_message(compressed(bytes(100_000), queue_offset=at)) for at in range(50))
    batches = list(decode_columns(locate_messages(raw), "b", spec(arrow_batch_bytes=1_000_000)))
    assert len(batches) == 5
    offsets = [offset for batch in batches for offset in batch["queueOffset"].to_pylist()]
    assert offsets == list(range(50))


@pytest.mark.parametrize("kind", [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD])
def test_damaged_and_cut_bodies_are_refused(kind: int) -> None:
    whole = compressed(b"x" * 1000 + bytes(range(256)), kind)
    for body in (whole.body[:-5], b"nonsense", b""):
        whole.body = body
        with pytest.raises(MessageFormatError, match="compressed body"):
            fast(stored_message(whole), spec())


def test_unknown_compression_is_refused() -> None:
    with pytest.raises(MessageFormatError, match="unknown compression type"):
        fast(stored_message(Message("t", b"x", sys_flag=COMPRESSED | 0x700)), spec())


def test_crc_of_bodies_is_checked_unless_told_otherwise() -> None:
    raw = stored_message(Message("t", b"body"))
    wrong = raw[:8] + (crc32(b"other") & 0x7FFFFFFF).to_bytes(4) + raw[12:]
    with pytest.raises(MessageFormatError, match="CRC"):
        fast(wrong, spec())
    assert fast(wrong, spec(verify_body_crc=False))["body"].to_pylist() == [b"body"]


def test_no_columns_still_count() -> None:
    raw = stored_message(Message("t", b"body")) * 3
    assert [batch.num_rows for batch in decode_columns(locate_messages(raw), "b", spec(columns=()))] == [3]
    assert decode_rows(raw, "b", spec(columns=())).num_rows == 3


def test_nothing_is_no_rows() -> None:
    assert fast(b"", spec()).num_rows == 0


@pytest.mark.parametrize(
    "texts",
    [
        [b"a\x01x\x02b\x01y\x02a\x01z\x02", b"b\x01w\x02"],
        [b"a\x01x\x02b\x01y\x02", b"b\x01z\x02a\x01w\x02"],
        [b"a\x01x\x02b\x01y\x02", b"a\x01z\x02b\x01w\x02"],
        [b"a\x01x\x02", b"", b"a\x01y\x02"],
    ],
)
def test_messages_with_the_same_names_and_almost(texts: list[bytes]) -> None:
    found = packed_properties.unpack_properties(pa.array(texts, pa.binary()))
    plain = [decode_properties(text) for text in texts]
    assert [dict(each) for each in found.map_column().to_pylist()] == plain
    assert found.value_column("a").to_pylist() == [each.get("a") for each in plain]
    assert found.value_column("b").to_pylist() == [each.get("b") for each in plain]


@pytest.mark.parametrize("born_ms", [1_764_000_000_000_000, -70_000_000_000_000, 253_402_300_799_999])
def test_a_birth_that_python_cannot_represent_is_null(born_ms: int) -> None:
    assert _time_us(born_ms) is None
    times = _time_array(np.array([born_ms, 1_764_000_000_000], ">i8"))
    assert [value is None for value in times.to_pylist()] == [True, False]
