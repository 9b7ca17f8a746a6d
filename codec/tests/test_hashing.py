import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.hashing import crc32, index_hash, java_hash, tags_code
from codec.tests.vectors import VECTORS


def by_definition(text):
    total = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        total = total * 31 + int.from_bytes(units[at : at + 2]) & 0xFFFFFFFF
    return total - (1 << 32) if total >= 1 << 31 else total


@pytest.mark.parametrize(("text", "hashed", "tags"), [v for v in VECTORS["hashes"] if "?" not in v[0]])
def test_hashes_are_java_s(text, hashed, tags):
    assert java_hash(text) == hashed
    assert tags_code(text) == tags


def test_a_lone_surrogate_is_hashed_as_the_code_unit_it_is():
    [(_, hashed, _)] = [v for v in VECTORS["hashes"] if v[0].startswith("a\U0001f600b")]
    assert java_hash("a\U0001f600b\ud83d") == hashed


@given(st.text(st.characters(), max_size=600))
def test_hash_follows_its_definition(text):
    assert java_hash(text) == by_definition(text)


@pytest.mark.parametrize("length", [255, 256, 257, 512, 513, 5000])
@pytest.mark.parametrize("letter", ["z", "漢"])
def test_long_texts_are_hashed_in_pieces(length, letter):
    assert java_hash(letter * length) == by_definition(letter * length)


def test_no_tags_have_code_zero():
    assert tags_code(None) == tags_code("") == 0


def test_long_tags_are_hashed_too():
    assert tags_code("t" * 65) == java_hash("t" * 65)


def test_index_hash_is_never_negative():
    assert java_hash("polygenelubricants") == -(2**31)
    assert index_hash("polygenelubricants") == 0
    assert index_hash("TopicTest#a") == abs(java_hash("TopicTest#a"))


@given(st.binary())
def test_crc_lacks_its_top_bit(body):
    assert crc32(body) == zlib.crc32(body) % (1 << 31)
