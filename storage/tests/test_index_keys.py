"""The fast way to index keys agrees with the careful one, for any message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.hashing import index_hash
from codec.message import Message, encode_message
from codec.properties import encode_properties, find_property
from storage.index_keys import key_hashes, parse_common_message
from storage.log_scan import ScannedMessage, check_message

text = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x01\x02"), max_size=40)
names = st.one_of(st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "MY_UNIQ_KEY", "XTAGS"]), text.filter(bool))
properties = st.dictionaries(names, text, max_size=6)


def careful_hashes(topic: str, data: bytes) -> list[int]:
    unique, keys, tags = (find_property(data, name) for name in (b"UNIQ_KEY", b"KEYS", b"TAGS"))
    texts = [unique.decode()] if unique else []
    texts += [key for key in dict.fromkeys((keys or b"").decode().split(" ")) if key]
    texts += [f"T#{tags.decode()}"] if tags else []
    return [index_hash(f"{topic}#{key}") for key in texts]


@given(st.text("abcdefgh_%", min_size=1, max_size=30), properties, st.binary(max_size=60), st.booleans())
def test_the_fast_path_agrees_with_the_careful_one(
    topic: str, given_properties: dict[str, str], body: bytes, wide: bool
) -> None:
    host = ("::1", 5) if wide else ("10.0.0.1", 5)
    stored = encode_message(
        Message(topic=topic, body=body, properties=given_properties, born_host=host, store_timestamp=77)
    )
    view = memoryview(stored + bytes(64))
    texts = check_message(view, 0, 0, False)
    assert isinstance(texts, ScannedMessage)
    expected = (texts.size, texts.sys_flag, texts.store_timestamp, texts.topic, texts.properties)
    assert parse_common_message(view, 0, 0, len(view)) == (None if wide else expected)
    assert key_hashes(texts.topic, texts.properties, 1000) == careful_hashes(topic, texts.properties)


@pytest.mark.parametrize("size", [19, 20, 21, 275, 276, 277, 4096, 32_000])
@pytest.mark.parametrize("name", ["UNIQ_KEY", "KEYS", "TAGS"])
def test_keys_of_any_length_are_hashed(name: str, size: int) -> None:
    """One message whose unique key had more than 276 characters ended each build of the index from then on."""
    data = encode_properties({name: "A" * size})
    assert key_hashes(b"topic", data, 1000) == careful_hashes("topic", data)


@given(st.binary(min_size=0, max_size=200))
def test_other_bytes_are_not_a_common_message(data: bytes) -> None:
    assert parse_common_message(memoryview(data), 0, 0, len(data)) is None


def test_only_the_first_keys_are_hashed() -> None:
    keys = [f"k{number}" for number in range(6000)]
    data = encode_properties({"UNIQ_KEY": "u", "KEYS": "  ".join(keys), "TAGS": "T"})
    expected = [index_hash(f"t#{key}") for key in ("u", *keys[:256], "T#T")]
    assert key_hashes(b"t", data, 256) == expected


def test_a_repeated_key_counts_once():
    properties = b"KEYS\x01" + b"a " * 300 + b"b\x02"
    assert key_hashes(b"t", properties, 2) == key_hashes(b"t", b"KEYS\x01a b\x02", 2)
