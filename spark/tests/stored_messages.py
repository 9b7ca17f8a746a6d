"""Stored messages of every kind for tests, well-formed by `codec` or with malformed properties."""

import zlib

import pyarrow as pa
from hypothesis import strategies as st

from codec.batch import encode_batch
from codec.message import Message, encode_message
from codec.sysflag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    INNER_BATCH,
    NEED_UNWRAP,
)

_LZ4, _ZSTD = pa.Codec("lz4"), pa.Codec("zstd")
COMPRESSORS = {
    0: zlib.compress,
    COMPRESSION_ZLIB: zlib.compress,
    COMPRESSION_LZ4: lambda body: _LZ4.compress(body, asbytes=True),
    COMPRESSION_ZSTD: lambda body: _ZSTD.compress(body, asbytes=True),
}


def stored_message(message: Message, properties: bytes | None = None) -> bytes:
    """Return the message as in the commit log, with these encoded properties unchanged."""
    raw = encode_message(message)
    if properties is None:
        return raw
    assert not message.properties
    raw = raw[:-2] + len(properties).to_bytes(2) + properties
    return len(raw).to_bytes(4) + raw[4:]


def compressed(body: bytes, kind: int = COMPRESSION_ZLIB, **fields: object) -> Message:
    return Message("t", COMPRESSORS[kind](body), sys_flag=COMPRESSED | kind, **fields)


def inner_batch(entries: list[tuple[int, bytes, bytes]], **fields: object) -> Message:
    return Message("t", encode_batch(entries), sys_flag=INNER_BATCH | NEED_UNWRAP, **fields)


_i32 = st.integers(-(1 << 31), (1 << 31) - 1)
_i64 = st.integers(-(1 << 63), (1 << 63) - 1)
_hosts = st.tuples(
    st.sampled_from(["1.2.3.4", "255.0.0.1", "::1", "fe80::1:2"]), st.integers(0, 65535)
) | st.just(("10.0.0.1", 10911))
_topics = st.sampled_from(["t", "t", "orders", "ünï", "%RETRY%g"]) | st.text(min_size=1, max_size=140)
_names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "b", "größe"]) | st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), min_size=1, max_size=4
)
_values = st.text(
    st.characters(exclude_characters="\x02", exclude_categories=("Cs",)), min_size=1, max_size=9
)
_pieces = st.sampled_from(
    [b"\x01", b"\x02", b"TAGS", b"KEYS", b"UNIQ_KEY", b"a", b"b", b"\xff", b"\xc3", b"\xa9"]
)
_odd_properties = st.lists(_pieces, max_size=14).map(b"".join)
_bodies = st.binary(max_size=40)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Strategy for one stored message of any kind except batches."""
    kind = draw(st.sampled_from([None, None, None, *COMPRESSORS]))
    body = draw(_bodies)
    odd = draw(st.none() | st.none() | _odd_properties)
    message = Message(
        draw(_topics),
        body if kind is None else COMPRESSORS[kind](body),
        {} if odd is not None else draw(st.dictionaries(_names, _values, max_size=4)),
        flag=draw(_i32),
        sys_flag=draw(st.sampled_from([0, 4, 8, 2])) | (0 if kind is None else COMPRESSED | kind),
        queue_id=draw(_i32),
        queue_offset=draw(_i64),
        physical_offset=draw(_i64),
        born_timestamp=draw(_i64 | st.just(1_700_000_000_000)),
        born_host=draw(_hosts),
        store_timestamp=draw(_i64 | st.just(1_700_000_000_001)),
        store_host=draw(_hosts),
        reconsume_times=draw(_i32),
        prepared_transaction_offset=draw(_i64),
    )
    return stored_message(message, odd)


entries = st.lists(st.tuples(_i32, _bodies, _odd_properties), max_size=3)
