"""Messages from lines, delimiters and JSON, and their batches."""

import io

import pytest

from gateway.admin.producing import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    InputError,
    ProducedMessage,
    parse_json_line,
    parse_line,
    read_records,
    split_batches,
)

EMPTY = ProducedMessage(b"", ("all",), "tag", {"p": "1"})


@pytest.mark.parametrize(
    ("data", "delimiter", "expected"),
    [
        (b"a\nb\n", b"\n", [b"a", b"b"]),
        (b"a\nb", b"\n", [b"a", b"b"]),
        (b"a\n\nb", b"\n", [b"a", b"", b"b"]),
        (b"a||b||", b"||", [b"a", b"b"]),
        (b"a\0b", b"\0", [b"a", b"b"]),
        (b"", b"\n", []),
    ],
)
def test_records(data: bytes, delimiter: bytes, expected: list[bytes]) -> None:
    assert list(read_records(io.BytesIO(data), delimiter)) == expected


def test_a_delimiter_between_two_reads() -> None:
    class Slow(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return super().read(3)

    assert list(read_records(Slow(b"ab||cd||e"), b"||")) == [b"ab", b"cd", b"e"]


def test_keys_before_a_delimiter() -> None:
    message = parse_line(b"k1 k2:va:lue", EMPTY, b":")
    assert (message.keys, message.value, message.tag) == (("all", "k1", "k2"), b"va:lue", "tag")
    assert parse_line(b"no key", EMPTY, b":").value == b"no key"
    assert parse_line(b"k:v", EMPTY, None).value == b"k:v"


def test_json_lines() -> None:
    line = b'{"value":"v","keys":["a","b"],"tag":"t","properties":{"q":2},"delayMs":5,"offset":9}'
    message = parse_json_line(line, EMPTY, 1)
    assert (message.value, message.keys, message.tag, message.delay_ms) == (b"v", ("a", "b"), "t", 5)
    assert message.properties == {"p": "1", "q": "2"}
    assert parse_json_line(b'{"key":"one"}', EMPTY, 1).keys == ("one",)
    assert parse_json_line(b'{"value":{"id":1}}', EMPTY, 1).value == b'{"id":1}'
    assert parse_json_line(b'{"valueBase64":"/wA="}', EMPTY, 1).value == b"\xff\x00"
    assert parse_json_line(b'{"value":"v"}', EMPTY, 1).keys == ("all",)


@pytest.mark.parametrize(
    "line",
    [
        b"text",
        b"[1]",
        b"{}",
        b'{"valueBase64":"?"}',
        b'{"value":"v","properties":[1]}',
        b'{"value":"v","keys":3}',
        b'{"value":"v","delayMs":"5"}',
    ],
)
def test_json_lines_that_are_no_messages(line: bytes) -> None:
    with pytest.raises(InputError, match="line 7 of the input is not a message"):
        parse_json_line(line, EMPTY, 7)


def test_properties_on_the_wire() -> None:
    message = ProducedMessage(
        b"", ("a", "b"), "t", {"p": "1"}, delay_ms=5, deliver_at_ms=6, delay_level=7, sharding_key="s"
    )
    assert message.all_properties("U") == {
        "p": "1",
        "UNIQ_KEY": "U",
        "WAIT": "true",
        "KEYS": "a b",
        "TAGS": "t",
        "TIMER_DELAY_MS": "5",
        "TIMER_DELIVER_MS": "6",
        "DELAY": "7",
        "__SHARDINGKEY": "s",
    }


@pytest.mark.parametrize("properties", [{"KEYS": "x"}, {"a": "b\x01c"}, {"a\x02": "b"}])
def test_properties_that_would_be_misread(properties: dict[str, str]) -> None:
    with pytest.raises(InputError, match="property"):
        ProducedMessage(b"", properties=properties).all_properties("U")


@pytest.mark.parametrize("separator", ["\x01", "\x02"])
@pytest.mark.parametrize(
    "make",
    [
        lambda text: ProducedMessage(b"", keys=(text,)),
        lambda text: ProducedMessage(b"", tag=text),
        lambda text: ProducedMessage(b"", sharding_key=text),
    ],
)
def test_keys_tags_and_sharding_keys_inject_no_properties(make, separator: str) -> None:
    with pytest.raises(InputError, match="which separate properties"):
        make(f"a{separator}DELAY").all_properties("U")


def test_batches_are_bounded_in_number_and_bytes() -> None:
    small = [ProducedMessage(b"x")] * (MAX_BATCH_MESSAGES + 1)
    assert [len(batch) for batch in split_batches(small)] == [MAX_BATCH_MESSAGES, 1]
    large = [ProducedMessage(bytes(MAX_BATCH_BYTES // 2))] * 3
    assert [len(batch) for batch in split_batches(large)] == [2, 1]
    assert list(split_batches([])) == []
