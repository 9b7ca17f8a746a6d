"""The C extension decodes a frame as Python does, or leaves it to Python."""

import random

import pytest

from codec import command as command_module
from codec.command import Command, decode_frame, encode_command
from codec.constants import LANGUAGE_NAMES
from codec.errors import FrameError
from codec.native import native_module

pytestmark = pytest.mark.skipif(
    native_module() is None, reason="the C extension is not built: there is nothing to compare"
)
TEXTS = (
    "",
    "a",
    "topic",
    "0",
    "UNIQ_KEY\x01A\x02TAGS\x01b\x02",
    'a"b\\c/\n\t\r\b\f\x7f',
    "ключ",
    "\ud83d\ude00",
    "x" * 300,
)
INSERTS = (
    b" ",
    b'"',
    b"\\",
    b"\\u0041",
    b"\\u00e9",
    b"\\x",
    b"{",
    b"}",
    b",",
    b":",
    b"null",
    b"-1",
    b"007",
    b"1e3",
    b"\x80",
    b"\0",
)


def native(
    frame: bytes | bytearray | memoryview, start: int, end: int, max_header: int = 1 << 20
) -> Command | None:
    assert command_module._decode_natively is not None
    return command_module._decode_natively(frame, start, end, max_header)


def by_python(frame: bytes, start: int, end: int, max_header: int = 1 << 20) -> Command | None:
    """Return the command that the Python code reads, None for a FrameError."""
    decoder, command_module._decode_natively = command_module._decode_natively, None
    try:
        return decode_frame(frame, start, end, max_header)
    except FrameError:
        return None
    finally:
        command_module._decode_natively = decoder


def parts(command: Command) -> list[object]:
    """Return the members of a command with their types, which `==` cannot tell apart, and the order of its fields."""
    values = [getattr(command, name) for name in Command.__slots__]
    return [*((type(value), value) for value in values), list(command.ext.items())]


def random_command(source: random.Random) -> Command:
    ext = {
        source.choice(("a", "b", "topic", "queueId", "n" * 50, "é", "i"))
        + source.choice(("", "1")): source.choice(TEXTS)
        for _ in range(source.choice((0, 1, 3, 13)))
    }
    number = source.choice((0, 1, 310, 32767))
    return Command(
        number,
        source.choice((0, 7, 2**31 - 1, -1)),
        source.choice((0, 1, 2, 3)),
        ext,
        source.randbytes(source.choice((0, 1, 30, 5000))),
        source.choice((None, None, "", "remark", "größer")),
        source.choice((*LANGUAGE_NAMES, "KLINGON")),
        source.choice((0, 475)),
        source.random() < 0.5,
    )


def compare(frame: bytes, start: int, end: int, max_header: int = 1 << 20) -> bool:
    """Check one frame; return True if the extension decoded it."""
    command = native(frame, start, end, max_header)
    if command is not None:
        expected = by_python(frame, start, end, max_header)
        assert expected is not None, frame
        assert parts(command) == parts(expected), frame
    return command is not None


@pytest.mark.parametrize("seed", range(4))
def test_frames_and_their_mutations(seed):
    source, decoded = random.Random(seed), 0
    for _ in range(1500):
        whole = encode_command(random_command(source))
        decoded += compare(whole, 4, len(whole))
        frame = bytearray(whole)
        for _ in range(source.choice((1, 1, 2, 4))):
            at = source.choice((source.randrange(4, len(frame)), source.randrange(4, min(60, len(frame)))))
            kind = source.random()
            if kind < 0.4:
                frame[at] = source.choice((0, 1, 0x20, 0x22, 0x5C, 0x7F, 0x80, 0xFF, source.randrange(256)))
            elif kind < 0.7:
                del frame[at : at + source.choice((1, 2, 8))]
            else:
                frame[at:at] = source.choice(INSERTS)
            if len(frame) < 9:
                break
        if source.random() < 0.5 and len(frame) >= 8:  # a header that ends where it did before the change
            size = int.from_bytes(whole[5:8], "big") + len(frame) - len(whole)
            frame[5:8] = max(0, size).to_bytes(3, "big")
        # Exactly these bytes, so that sanitizers notice a read beyond them.
        decoded += compare(bytes(frame), 4, len(frame))
        decoded += compare(bytes(frame), 4, source.randrange(4, len(frame) + 1))
    assert decoded > 700


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("ext", [{}, {"topic": "t", "queueId": "3"}, {"i": "KEYS\x01k\x02", "a": "g"}])
def test_usual_frames_are_not_left_to_python(binary, ext):
    for language in LANGUAGE_NAMES:
        frame = encode_command(Command(11, 7, 2, ext, b"body", None, language, 475, binary))
        assert compare(frame, 4, len(frame))
    answer = encode_command(Command(0, 7, 1, ext, b"", "remark", "JAVA", 475, binary))
    assert compare(answer, 4, len(answer))


def test_heartbeat_without_fields():
    header = (
        b'{"code":34,"flag":0,"language":"JAVA","opaque":9,"serializeTypeCurrentRPC":"JSON","version":475}'
    )
    frame = len(header).to_bytes(4, "big") + header + b"{}"
    assert compare(frame, 0, len(frame))
    decoded = decode_frame(frame, 0, len(frame))
    assert (decoded.code, decoded.opaque, decoded.ext, decoded.body) == (34, 9, {}, b"{}")


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":34,"code":35,"flag":0,"language":"JAVA","opaque":9,"version":475}',
        b'{"code":34,"flag":0,"language":"JAVA","opaque":9,"version":475} ',
        b'{"code":34,"flag":0,"language":"JAVA","opaque":9}',
        b'{"code":2147483648,"flag":0,"language":"JAVA","opaque":9,"version":475}',
        b'{"code":99999999999999999999,"flag":0,"language":"JAVA","opaque":9,"version":475}',
        b'{"code":034,"flag":0,"language":"JAVA","opaque":9,"version":475}',
        b'{"code":,"flag":0,"language":"JAVA","opaque":9,"version":475}',
        b'{"code":34,"flag":0,"language":"KLINGON","opaque":9,"version":475}',
        b'{"code":34,"flag":0,"language":"JAVA","opaque":9,"version":475,"other":"x"}',
        b'{"code":34,"flag":0,"language":"JAVA","opaque":9,"version":475,"extFields":{"a":1}}',
        b'{"code":34,"flag":0,"language":"JAVA","opaque":9,"version":475,"extFields":null}',
        b'{"code":34,"flag":0,"language":"JAVA","opaque":9,"version":475,"extFields":{"a":"b",}}',
        b'{"code":34,"flag":0,"language":"JAVA","opaque":9,"version":475,"extFields":{"a":"\\u00e9"}}',
        b'{"code":34,"flag":0,"language":"JAVA","opaque":9,"version":475,"extFields":{"a":"\\',
        b'{"code":34,"flag":0,"language":"JAVA","opaque":9,"version":475,"extFields":{"a":"\xc3\xa9"}}',
        b"",
        b"[]",
    ],
)
def test_rare_headers_are_left_to_python(header):
    frame = len(header).to_bytes(4, "big") + header
    assert native(frame, 0, len(frame)) is None


def test_repeated_field_counts_once_more():
    header = (
        b'{"code":1,"flag":0,"language":"GO","opaque":9,"version":1,"extFields":{"a":"1","b":"2","a":"3"}}'
    )
    frame = len(header).to_bytes(4, "big") + header
    assert compare(frame, 0, len(frame))
    assert decode_frame(frame, 0, len(frame)).ext == {"a": "3", "b": "2"}


@pytest.mark.parametrize(("start", "end"), [(-1, 10), (0, 1000), (9, 8), (0, 3), (1 << 40, 1 << 41)])
def test_places_outside_of_the_buffer(start, end):
    assert native(bytes(100), start, end) is None
    with pytest.raises(FrameError):
        decode_frame(bytes(100), start, end)


def test_largest_header_is_kept_to():
    frame = encode_command(Command(11, 7, 0, {"topic": "t" * 50}, b""))
    size = int.from_bytes(frame[5:8], "big")
    assert compare(frame, 4, len(frame), size)
    assert native(frame, 4, len(frame), size - 1) is None


def test_many_names_do_not_disturb_each_other():
    for number in range(3000):
        frame = encode_command(Command(1, 2, 0, {f"name{number}": "x", "topic": str(number)}, b""))
        assert decode_frame(frame, 4, len(frame)).ext == {f"name{number}": "x", "topic": str(number)}


def test_buffers_of_all_kinds_stay_free():
    frame = bytearray(encode_command(Command(11, 7, 0, {"topic": "t"}, b"body")))
    for buffer in (bytes(frame), frame, memoryview(frame)):
        assert native(buffer, 4, len(frame)) == decode_frame(bytes(frame), 4, len(frame))
    del buffer
    frame += b"more"  # a buffer that is still borrowed could not grow


def test_wrong_arguments_are_refused():
    module = native_module()
    assert module is not None
    for arguments in ((b"",), (b"", 0, 0, 0, 0), ("text", 0, 0, 1), (b"", "0", 0, 1), (b"", 0, 1 << 70, 1)):
        with pytest.raises((TypeError, OverflowError)):
            module.decode_frame(*arguments)
    with pytest.raises(ValueError, match="languages"):
        module.prepare_decode_frame(Command, ("x",) * 33, "OTHER")
