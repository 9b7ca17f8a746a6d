"""Messages as text and as JSON."""

import base64
import zlib

import pytest

from codec.message import Message
from codec.sysflag import COMPRESSED
from gateway.admin.formats import (
    PARTS,
    describe_format,
    parse_delimiter,
    parse_format,
    plain_body,
    to_json_value,
)

MESSAGE = Message(
    "orders",
    "grün".encode(),
    {"KEYS": "k1 k2", "TAGS": "new", "UNIQ_KEY": "U1", "b": "2", "a": "1", "WAIT": "true"},
    queue_id=3,
    queue_offset=42,
    store_timestamp=1_700_000_000_123,
    store_host=("10.0.0.1", 10911),
    physical_offset=255,
    reconsume_times=2,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t %p %o %k %s\\n", b"orders 3 42 k1 k2 gr\xc3\xbcn\n"),
        ("%b/%g/%i/%r", b"broker-a/new/U1/2"),
        ("%S %T %D", b"5 1700000000123 2023-11-14T22:13:20.123Z"),
        ("%h", b"a=1,b=2"),
        ("%I", b"0A00000100002A9F00000000000000FF"),
        ("100%%\\t\\0\\x41\\\\", b"100%\t\0A\\"),
        ("\\q", b"\\q"),
        ("ü", "ü".encode()),
    ],
)
def test_formats(text: str, expected: bytes) -> None:
    assert parse_format(text)(MESSAGE, "broker-a") == expected


def test_on_a_terminal_messages_are_escaped_and_the_format_is_not() -> None:
    message = Message("orders", b"a\n\x1b]0;x\x07\xff\xc2\x9b", {"KEYS": "k\x1b", "p\x00": "1"})
    render = parse_format("\x1b[1m%s\\n%k %h\\0", for_terminal=True)
    assert render(message, "b") == b"\x1b[1ma\n\\x1b]0;x\\x07\\xff\\x9b\nk\\x1b p\\x00=1\0"
    assert parse_format("%s")(message, "b") == message.body


@pytest.mark.parametrize("text", ["%", "%z", "\\x4", "\\xzz", "\\x"])
def test_formats_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a part|hex digits"):
        parse_format(text)


def test_every_part_is_described() -> None:
    assert all(f"%{name} " in describe_format() for name in PARTS)


def test_delimiters() -> None:
    assert [parse_delimiter(text) for text in (",", "\\t", "%", "\\x00", "||")] == [
        b",",
        b"\t",
        b"%",
        b"\0",
        b"||",
    ]
    with pytest.raises(ValueError, match="empty"):
        parse_delimiter("")


def test_json() -> None:
    value = to_json_value(MESSAGE, "broker-a")
    assert (value["value"], value["keys"], value["tag"]) == ("grün", ["k1", "k2"], "new")
    assert (value["properties"], value["systemProperties"]) == (
        {"a": "1", "b": "2"},
        {"UNIQ_KEY": "U1", "WAIT": "true"},
    )
    assert (value["broker"], value["queue"], value["offset"]) == ("broker-a", 3, 42)


def test_a_value_that_is_no_text() -> None:
    value = to_json_value(Message("t", b"\xff\x00"))
    assert base64.b64decode(value["valueBase64"]) == b"\xff\x00"
    assert "value" not in value


def test_compressed_values_are_shown_plain() -> None:
    assert plain_body(Message("t", zlib.compress(b"plain"), sys_flag=COMPRESSED)) == b"plain"
    assert plain_body(Message("t", b"damaged", sys_flag=COMPRESSED)) == b"damaged"
