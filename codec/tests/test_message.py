import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec import layouts, sysflag
from codec.constants import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from codec.errors import MessageFormatError
from codec.message import HEADERS, Message, decode_message, encode_message, iter_messages
from codec.properties import encode_properties
from codec.tests.vectors import VECTORS

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
PORT = st.integers(0, 65535)
HOST = st.tuples(st.ip_addresses().map(str), PORT)
NAME = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=9
)
VALUE = st.text(st.characters(exclude_characters="\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
V6_BITS = sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6
MESSAGES = st.builds(
    Message,
    st.text(st.characters(exclude_categories=["Cs"]), max_size=150),
    st.binary(max_size=60),
    st.dictionaries(NAME, VALUE, max_size=4),
    flag=I32,
    sys_flag=I32.map(lambda flag: flag & ~V6_BITS),
    queue_id=I32,
    queue_offset=I64,
    physical_offset=I64,
    born_timestamp=I64,
    born_host=HOST,
    store_timestamp=I64,
    store_host=HOST,
    reconsume_times=I32,
    prepared_transaction_offset=I64,
    magic=st.sampled_from([MAGIC_V1, MAGIC_V2]),
)
PLAIN = [
    "flag",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "born_timestamp",
    "store_timestamp",
    "reconsume_times",
    "prepared_transaction_offset",
]


@pytest.mark.parametrize("vector", VECTORS["messages"], ids=lambda v: v["msg_id"])
def test_messages_of_the_official_code_are_read(vector):
    stored = bytes.fromhex(vector["hex"])
    message = decode_message(stored)
    assert message.topic == vector["topic"]
    assert message.decompressed_body() == bytes.fromhex(vector["body"])
    assert message.properties == vector["properties"]
    for name in [*PLAIN, "sys_flag", "body_crc", "msg_id"]:
        assert getattr(message, name) == vector[name], name
    assert message.born_host[1] == vector["born_port"]
    assert message.store_host[1] == vector["store_port"]
    assert message.size == len(stored)
    assert encode_message(message) == stored


@given(MESSAGES)
def test_round_trip(message):
    decoded = decode_message(b"xx" + encode_message(message) + b"yy", 2)
    for name in [*PLAIN, "topic", "body", "properties", "born_host", "store_host"]:
        assert getattr(decoded, name) == getattr(message, name), name
    assert decoded.sys_flag & ~V6_BITS == message.sys_flag


@given(MESSAGES)
def test_follows_the_declared_layout(message):
    stored = encode_message(message)
    parsed = layouts.MESSAGE.parse(stored)
    for name in PLAIN:
        assert parsed[name] == getattr(message, name), name
    assert parsed.size == len(stored)
    assert parsed.body == message.body
    assert parsed.topic.decode() == message.topic
    assert parsed.properties == encode_properties(message.properties)
    assert parsed.born_host.port == message.born_host[1]
    assert len(parsed.store_host.address) == (16 if ":" in message.store_host[0] else 4)
    assert layouts.MESSAGE.build(parsed) == stored


def test_every_header_struct_has_its_size():
    assert [header.size for header in HEADERS] == [88, 100, 100, 112]


@given(st.lists(MESSAGES, max_size=3), st.booleans())
def test_iterates_a_pull_body_up_to_a_blank(messages, blank):
    stored = b"".join(map(encode_message, messages))
    tail = layouts.BLANK.build({"size": 8}) if blank else b""
    assert [m.topic for m in iter_messages(stored + tail)] == [m.topic for m in messages]
    assert MAGIC_BLANK.to_bytes(4) in layouts.BLANK.build({"size": 8})


@given(MESSAGES, st.data())
def test_damage_raises_nothing_but_message_format_error(message, data):
    stored = bytearray(encode_message(message))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    piece = stored[: data.draw(st.integers(0, len(stored)))]
    try:
        messages = list(iter_messages(piece))
    except MessageFormatError:
        return
    assert len(messages) <= 1


@given(st.binary(max_size=300))
def test_garbage_raises_nothing_but_message_format_error(data):
    start = MAGIC_V1.to_bytes(4)
    for piece in (data, len(data).to_bytes(4) + start + data[8:]):
        if piece:
            with pytest.raises(MessageFormatError):
                list(iter_messages(piece))


def test_a_truncated_message_is_refused():
    stored = encode_message(Message("T", b"body", {"a": "b"}))
    for end in range(1, len(stored)):
        with pytest.raises(MessageFormatError):
            decode_message(stored[:end])


def test_the_crc_is_checked_by_default():
    stored = encode_message(Message("T", b"body")).replace(b"body", b"bodi")
    with pytest.raises(MessageFormatError, match="CRC"):
        decode_message(stored)
    assert decode_message(stored, check_crc=False).body == b"bodi"


def test_a_long_topic_makes_it_version_2():
    assert decode_message(encode_message(Message("t" * 127))).magic == MAGIC_V1
    assert decode_message(encode_message(Message("t" * 128))).magic == MAGIC_V2


@pytest.mark.parametrize(
    "message",
    [
        Message("t" * 40_000),
        Message("t", properties={"a": "b" * 40_000}),
        Message("t", queue_id=2**31),
        Message("t", store_host=("localhost", 1)),
        Message("t", born_host=("1.2.3.4", -1)),
        Message("t", magic=7),
    ],
    ids=["topic", "properties", "number", "name", "port", "magic"],
)
def test_values_that_do_not_fit_are_refused(message):
    with pytest.raises(MessageFormatError):
        encode_message(message)


def test_bodies_are_decompressed_when_zlib_did_it():
    packed = zlib.compress(b"x" * 1000)
    for flag in (sysflag.COMPRESSED, sysflag.COMPRESSED | sysflag.COMPRESSION_ZLIB):
        assert Message("T", packed, sys_flag=flag).decompressed_body() == b"x" * 1000
    assert Message("T", packed).decompressed_body() == packed


@pytest.mark.parametrize(
    ("body", "flag", "reason"),
    [
        (zlib.compress(b"x" * 1001), 0, "longer than allowed"),
        (zlib.compress(b"x" * 99)[:-1], 0, "ends early"),
        (b"no zlib", 0, "damaged"),
        (b"", sysflag.COMPRESSION_LZ4, "not with zlib"),
    ],
)
def test_refuses_bodies_it_cannot_decompress(body, flag, reason):
    with pytest.raises(MessageFormatError, match=reason):
        Message("T", body, sys_flag=flag | sysflag.COMPRESSED).decompressed_body(max_bytes=1000)


def test_a_body_of_exactly_the_limit_is_decompressed():
    message = Message("T", zlib.compress(b"x" * 1000), sys_flag=sysflag.COMPRESSED)
    assert len(message.decompressed_body(max_bytes=1000)) == 1000


def test_named_properties():
    message = Message("T", properties={"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "u"})
    assert (message.tags, message.keys, message.unique_key) == ("a", ["k1", "k2"], "u")
    assert (Message("T").tags, Message("T").keys, Message("T").unique_key) == (None, [], None)
