import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec import properties
from codec.java_numbers import I32
from codec.properties import (
    decode_properties,
    encode_properties,
    find_integer,
    find_property,
    properties_text,
)
from codec.tests.vectors import VECTORS

MESSY = st.text(st.sampled_from("ab\x01\x02é"), max_size=30)


@pytest.mark.parametrize(("text", "official"), VECTORS["properties"])
def test_properties_are_read_as_in_the_official_code(text, official):
    assert decode_properties(text) == official
    assert decode_properties(text.encode()) == official


@given(st.dictionaries(st.text("abcé漢", min_size=1), st.text("xyz\x01😀", min_size=1)))
def test_round_trip(pairs):
    assert decode_properties(memoryview(encode_properties(pairs))) == pairs
    assert properties_text(pairs).encode() == encode_properties(pairs)


def test_every_pair_ends_with_a_separator_and_none_is_left_out():
    assert encode_properties({"a": "b", "gone": None, "c": "d"}) == b"a\x01b\x02c\x01d\x02"
    assert encode_properties({}) == b""


@given(MESSY, st.sampled_from(["a", "b", "ab", "é"]))
def test_find_property_agrees_with_decoding(text, name):
    value = decode_properties(text).get(name)
    assert find_property(text.encode(), name.encode()) == (None if value is None else value.encode())


def test_find_property_is_not_fooled_by_names_that_end_alike():
    packed = encode_properties({"XTAGS": "no", "v": "TAGS\x01no", "TAGS": "yes"})
    assert find_property(packed, b"TAGS") == b"yes"
    assert find_property(b"XTAGS\x01no\x02", b"TAGS") is None


def test_an_integer_is_found_or_its_default():
    packed = encode_properties({"n": "-5", "text": "5s", "long": str(1 << 31)}) + b"odd\x01\xff\x02"
    names = (b"n", b"text", b"long", b"odd", b"absent")
    assert [find_integer(packed, name, 7, I32) for name in names] == [-5, 7, 7, 7, 7]
    assert find_integer(packed, b"long", 7) == 1 << 31


def test_bytes_that_are_not_utf8_are_replaced():
    assert decode_properties(b"a\x01\xff\x02") == {"a": "\ufffd"}


def test_reserved_names_are_the_protocol_s():
    assert {"TAGS", "KEYS", "UNIQ_KEY", "__CRC32#"} <= properties.RESERVED
    assert "__SHARDINGKEY" not in properties.RESERVED
    assert properties.UNIQ_CLIENT_MESSAGE_ID_KEYIDX == "UNIQ_KEY"
