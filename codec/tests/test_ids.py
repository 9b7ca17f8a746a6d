import ipaddress
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec import layouts
from codec.errors import MessageFormatError
from codec.ids import (
    UniqueKey,
    decode_message_id,
    decode_unique_key,
    encode_message_id,
    make_unique_key,
    message_id_prefix,
    unique_key_time_ms,
)
from codec.tests.vectors import VECTORS

ADDRESS = st.ip_addresses().map(str)


@pytest.mark.parametrize(("message_id", "host", "port", "offset"), VECTORS["message_ids"])
def test_message_ids_are_the_official_ones(message_id, host, port, offset):
    assert encode_message_id(host, port, offset) == message_id
    assert decode_message_id(message_id) == (str(ipaddress.ip_address(host)), port, offset)


@given(ADDRESS, st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_message_ids_follow_the_declared_layout(host, port, offset):
    message_id = encode_message_id(host, port, offset)
    layout = layouts.MESSAGE_ID_V6 if ":" in host else layouts.MESSAGE_ID_V4
    packed = {"host": {"address": ipaddress.ip_address(host).packed, "port": port}, "physical_offset": offset}
    assert layout.build(packed).hex().upper() == message_id
    assert decode_message_id(message_id.lower()) == (host, port, offset)
    assert f"{message_id_prefix(host, port)}{offset:016X}" == message_id


@pytest.mark.parametrize(("key", "address", "process_id"), VECTORS["unique_keys"])
def test_unique_keys_decode_as_in_the_official_code(key, address, process_id):
    parts = decode_unique_key(key)
    assert (parts.address, parts.process_id) == (str(ipaddress.ip_address(address)), process_id)
    assert make_unique_key(*parts) == key


@given(ADDRESS, *[st.integers(0, 2**bits - 1) for bits in (16, 32, 32, 16)])
def test_unique_keys_follow_the_declared_layout(address, process_id, loader_hash, elapsed_ms, counter):
    parts = UniqueKey(address, process_id, loader_hash, elapsed_ms, counter)
    key = make_unique_key(*parts)
    tail = layouts.UNIQUE_KEY_TAIL.build(parts._asdict())
    assert bytes.fromhex(key) == ipaddress.ip_address(address).packed + tail
    assert decode_unique_key(key) == parts


def test_the_time_of_a_unique_key_lies_in_the_past():
    key = make_unique_key("10.0.0.1", 1, 2, 5_000, 3)
    assert (
        unique_key_time_ms(key, month_start_ms=100_000, previous_month_start_ms=0, now_ms=105_001) == 105_000
    )
    assert unique_key_time_ms(key, month_start_ms=100_000, previous_month_start_ms=0, now_ms=105_000) == 5_000


@pytest.mark.parametrize(
    "text", ["", "xyz", "0A", "0" * 31, "0" * 33, "0" * 40, "00 " * 16, "é" * 32, "0" * 57]
)
def test_refuses_text_that_is_no_id(text):
    with pytest.raises(MessageFormatError):
        decode_message_id(text)
    with pytest.raises(MessageFormatError):
        decode_unique_key(text)


@given(st.text(max_size=60) | st.text("0123456789abcdefABCDEF \ud800", max_size=60))
def test_any_text_is_an_id_or_refused(text):
    for decode in (decode_message_id, decode_unique_key):
        with suppress(MessageFormatError):
            decode(text)
