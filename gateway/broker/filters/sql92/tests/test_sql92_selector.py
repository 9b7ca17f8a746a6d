"""Selecting among many messages gives the same answers as testing each one."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codec.constants import MAGIC_V2
from codec.message import Message, encode_message, stored_properties
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6
from gateway.broker.filters.sql92.compiler import SqlFilter
from gateway.broker.filters.sql92.parser import parse

TEXTS = [
    "n > 50",
    "n BETWEEN 50 AND 99",
    "n IS NULL",
    "NOT n = '7'",
    "n = '7' OR m = 'x'",
    "n > 5 AND m IS NOT NULL",
]
# What looks like properties, what stands around them, and a whole end of a message with a property in its body.
PARTS = [
    b"n\x01",
    b"\x02n\x01",
    b"\x02",
    b"7",
    b"60",
    b"x",
    b"\x02m\x01x",
    b"\0",
    b"\x03t7x\0\x08",
    b"\x02n\x0160\x02",
]
scraps = st.lists(st.sampled_from(PARTS), max_size=6).map(b"".join)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Return a stored message of any layout, whose properties may be malformed."""
    flags = draw(st.sampled_from([0, 0, BORN_HOST_V6, STORE_HOST_V6]))
    hosts = {
        "born_host": ("::1" if flags & BORN_HOST_V6 else "10.0.0.1", 1),
        "store_host": ("::1" if flags & STORE_HOST_V6 else "10.0.0.1", 2),
    }
    more = {"magic": MAGIC_V2} if draw(st.booleans()) else {}
    body = draw(scraps) * draw(st.sampled_from([1, 1, 100]))
    message = Message(topic="t7x", body=body, sys_flag=flags, **hosts, **more)
    stored = encode_message(message)
    properties = draw(scraps)
    whole = stored[:-2] + len(properties).to_bytes(2, "big") + properties
    return len(whole).to_bytes(4, "big") + whole[4:]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(TEXTS),
    st.lists(st.lists(messages(), min_size=1, max_size=12), max_size=4),
    st.integers(1, 12),
)
def test_as_each_alone(text: str, windows: list[list[bytes]], wanted: int) -> None:
    compiled = SqlFilter(text, parse(text))
    for window in windows + windows:
        expected = [
            number
            for number, stored in enumerate(window)
            if compiled.matches(stored_properties(memoryview(stored)))
        ]
        ends = list(accumulate(map(len, window)))
        assert compiled.selector.select(b"".join(window), ends, wanted) == expected[:wanted]


def test_a_body_that_ends_like_properties() -> None:
    """The same bytes are the properties of one message, and the end of body, topic and properties of the other."""
    compiled = SqlFilter("n IS NOT NULL", parse("n IS NOT NULL"))
    other = encode_message(Message(topic="t", body=b"\x02n\x0160", properties={"m": "x"}))
    tail = other[other.index(b"\x02n\x01") :]
    message = encode_message(Message(topic="t"))
    properties = b"k\x01v" + tail
    one = message[:-2] + len(properties).to_bytes(2, "big") + properties
    for window, matching in (([one, one], [0, 1]), ([other, one], [1])):
        assert compiled.selector.select(b"".join(window), list(accumulate(map(len, window))), 9) == matching


@pytest.mark.parametrize("text", TEXTS)
def test_values_of_their_own(text: str) -> None:
    """Properties with so many different values that caching their answers is useless."""
    compiled = SqlFilter(text, parse(text))
    for first in range(0, 6000, 50):
        window = [
            encode_message(Message(topic="t", properties={"n": str(number), "m": "x", "k": f"{number:032}"}))
            for number in range(first, first + 50)
        ]
        expected = [
            number
            for number, stored in enumerate(window)
            if compiled.matches(stored_properties(memoryview(stored)))
        ]
        assert compiled.selector.select(b"".join(window), list(accumulate(map(len, window))), 99) == expected


def test_how_many_to_look_at_follows_what_was_found() -> None:
    compiled = SqlFilter("n = '7'", parse("n = '7'"))
    window = [encode_message(Message(topic="t", properties={"n": str(number % 10)})) for number in range(100)]
    ends = list(accumulate(map(len, window)))
    assert compiled.selector.estimate_scan_count(32) <= 33
    for _ in range(5):
        compiled.selector.select(b"".join(window), ends, 100)
    assert 250 < compiled.selector.estimate_scan_count(32) < 400
