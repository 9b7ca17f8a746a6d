import gzip

import pytest

from gateway.grpc_front.framing import (
    GrpcError,
    GrpcStatus,
    MessageReader,
    encode_status_text,
    frame_message,
    parse_timeout,
)
from gateway.grpc_front.sending import consistent_hash


def compressed(message):
    packed = gzip.compress(message, mtime=0)
    return b"\1" + len(packed).to_bytes(4, "big") + packed


def test_messages_are_cut_off_whatever_the_parts():
    data = frame_message(b"first") + frame_message(b"") + frame_message(b"third")
    for step in range(1, len(data) + 1):
        reader, found = MessageReader("identity", 100), []
        for at in range(0, len(data), step):
            found += reader.feed(data[at : at + step])
        assert found == [b"first", b"", b"third"]
        assert reader.held_bytes == 0


def test_an_unfinished_message_is_held():
    reader = MessageReader("identity", 100)
    assert reader.feed(frame_message(b"hello")[:-2]) == []
    assert reader.held_bytes == 8
    assert reader.feed(b"lo") == [b"hello"]


def test_gzip_is_unpacked():
    assert MessageReader("gzip", 1000).feed(compressed(b"hello")) == [b"hello"]


@pytest.mark.parametrize(
    ("encoding", "data", "status"),
    [
        ("identity", frame_message(b"x" * 101), GrpcStatus.RESOURCE_EXHAUSTED),
        ("identity", b"\0\xff\xff\xff\xff", GrpcStatus.RESOURCE_EXHAUSTED),
        ("gzip", compressed(b"\0" * 1_000_000), GrpcStatus.RESOURCE_EXHAUSTED),
        ("gzip", b"\1\0\0\0\3abc", GrpcStatus.INTERNAL),
        ("gzip", b"\1\0\0\0\x0f" + gzip.compress(b"hello", mtime=0)[:15], GrpcStatus.INTERNAL),
        ("identity", compressed(b"hello"), GrpcStatus.UNIMPLEMENTED),
        ("snappy", compressed(b"hello"), GrpcStatus.UNIMPLEMENTED),
    ],
)
def test_messages_that_cannot_be_taken(encoding, data, status):
    with pytest.raises(GrpcError) as refused:
        MessageReader(encoding, 100).feed(data)
    assert refused.value.status is status


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3S", 3), ("500m", 0.5), ("2M", 120), ("1H", 3600), ("7u", 7e-6), ("99999999n", 0.099999999)],
)
def test_timeouts(text, seconds):
    assert parse_timeout(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "S", "3", "3s", "-3S", "123456789S", "3 S"])
def test_texts_that_are_no_timeout(text):
    with pytest.raises(GrpcError, match="grpc-timeout"):
        parse_timeout(text)


def test_status_texts_are_percent_encoded():
    assert encode_status_text("a b%\nö") == "a b%25%0A%C3%B6"


def test_consistent_hash_has_the_values_of_guava():
    golden = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
    assert [consistent_hash(each, 100) for each in range(20)] == golden
    assert consistent_hash(10863919174838991, 11) == 6
    assert consistent_hash(2, 100001) == 80343


def test_consistent_hash_moves_only_to_the_new_bucket():
    for hashed in range(-500, 500, 7):
        for buckets in range(1, 20):
            before, after = consistent_hash(hashed, buckets), consistent_hash(hashed, buckets + 1)
            assert after in (before, buckets)
