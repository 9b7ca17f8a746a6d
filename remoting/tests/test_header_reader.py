from typing import Any

import pytest

from remoting.declare import Header, field, i16, i32, i64
from remoting.errors import RequestError
from remoting.header_reader import compile_header_reader
from remoting.requests.pull import PullMessage
from remoting.requests.send import SendMessage, SendMessageV2
from remoting.requests.transaction import EndTransaction

HEADERS: list[type[Header]] = [SendMessage, SendMessageV2, PullMessage, EndTransaction]
TEXTS = [
    "0", "7", "255", "256", "-1", "+5", "007", "1_0", " 5", "5 ", "", "-", "+", "0x1", "1.0", "1e3", "٣", "²",
    "abc", "null", "TRUE", "true", "True", "false", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "1" * 19, "1" * 400, "0" * 400, "\0", "a" * 5000,
]  # fmt: skip


def outcome(function: Any, ext: dict[str, str]) -> Any:
    """Return what a function returns, or the code and remark of its refusal."""
    try:
        return function(ext)
    except RequestError as refused:
        return refused.code, refused.remark


def usual(header: type[Header]) -> dict[str, str]:
    """Return a header with a value for every field that is required."""
    return {item.wire: "1" for item in header.WIRE_FIELDS if item.required}


@pytest.mark.parametrize("header", HEADERS)
def test_a_reader_returns_and_refuses_what_the_declared_header_does(header: type[Header]) -> None:
    names = [item.name for item in header.WIRE_FIELDS]
    read = compile_header_reader(header, *names)

    def parse(ext: dict[str, str]) -> tuple[Any, ...]:
        parsed = header.from_ext(ext)
        return tuple(getattr(parsed, name) for name in names)

    assert outcome(read, usual(header)) == parse(usual(header))
    for item in header.WIRE_FIELDS:
        for text in TEXTS:
            ext = {**usual(header), item.wire: text}
            assert outcome(read, ext) == outcome(parse, ext), (item.name, text[:40])
        ext = usual(header)
        ext.pop(item.wire, None)
        assert outcome(read, ext) == outcome(parse, ext), item.name


class Numbers(Header):
    small: i16 = field(wire="s")
    middle: i32
    large: i64 = 5
    name: str = "nobody"
    flag: bool | None = None


def test_numbers_are_checked_even_when_they_are_not_returned() -> None:
    read = compile_header_reader(Numbers, "name", "large")
    assert read({"s": "1", "middle": "2"}) == ("nobody", 5)
    assert read({"s": "-32768", "middle": "2", "name": "n", "large": "300"}) == ("n", 300)
    for wire, text in (("s", "32768"), ("middle", "1_0"), ("large", "9" * 400)):
        with pytest.raises(RequestError, match=rf'For input string: ".*", the custom field <{wire}>'):
            read({"s": "1", "middle": "2", wire: text})


def test_a_missing_required_field_is_named() -> None:
    with pytest.raises(RequestError, match="the custom field <middle> is null"):
        compile_header_reader(Numbers, "name")({"s": "1"})


class Ratio(Header):
    ratio: float = 0.0


def test_a_type_that_no_handler_reads_this_way_is_refused() -> None:
    with pytest.raises(TypeError, match="ratio"):
        compile_header_reader(Ratio, "ratio")
