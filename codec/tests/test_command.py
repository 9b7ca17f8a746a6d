import json
import struct
from contextlib import suppress

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec import command as command_module
from codec import layouts
from codec.command import Command, ResponseTemplate, decode_frame, encode_command, encode_response, json_text
from codec.constants import CURRENT_VERSION, LANGUAGE_NAMES, MAX_HEADER_BYTES
from codec.errors import FrameError
from codec.tests.vectors import VECTORS

I32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20) | st.sampled_from("abin")
COMMANDS = st.builds(
    Command,
    st.integers(-(2**15), 2**15 - 1),
    I32,
    st.integers(0, 3),
    st.dictionaries(NAME, TEXT, max_size=20),
    st.binary(max_size=50),
    st.none() | TEXT.filter(bool),
    language=st.sampled_from(LANGUAGE_NAMES),
    version=st.integers(0, 1000),
    binary=st.booleans(),
)


def decode(frame: bytes) -> Command:
    return decode_frame(frame, 4, len(frame))


def json_frame(header: object, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda v: f"{v['code']}-{v['binary']}")
def test_frames_of_the_official_code_are_read(vector):
    command = decode(bytes.fromhex(vector["frame"]))
    assert command.code == vector["code"]
    assert command.opaque == vector["opaque"]
    assert command.flag == vector["flag"]
    assert command.language == vector["language"]
    assert command.version == vector["version"]
    assert command.remark == vector["remark"]
    assert command.ext == (vector["ext"] or {})
    assert command.body == bytes.fromhex(vector["body"])
    assert command.binary is vector["binary"]


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda v: f"{v['code']}-{v['binary']}")
def test_writes_the_official_bytes(vector):
    """A command that was read keeps its fields in the order they came in, so the bytes can be the same."""
    frame = bytes.fromhex(vector["frame"])
    assert encode_command(decode(frame)) == frame


@given(COMMANDS)
def test_round_trip(command):
    frame = encode_command(command)
    assert decode(frame) == command
    assert struct.unpack(">I", frame[:4])[0] == len(frame) - 4


@given(COMMANDS, st.integers(0, 9), st.integers(0, 9), st.sampled_from([bytes, bytearray, memoryview]))
def test_decodes_in_the_middle_of_any_buffer(command, before, after, kind):
    frame = encode_command(command)
    buffer = kind(b"\xff" * before + frame + b"\xff" * after)
    decoded = decode_frame(buffer, before + 4, before + len(frame))
    assert decoded == command
    assert type(decoded.body) is bytes


@given(COMMANDS)
def test_binary_and_frame_follow_the_declared_layout(command):
    command.binary = True
    frame = encode_command(command)
    parsed = layouts.FRAME.parse(frame)
    header = layouts.BINARY_HEADER.parse(parsed.header)
    assert parsed.serialise_type == 1
    assert parsed.body == command.body
    assert (header.code, header.opaque, header.flag) == (command.code, command.opaque, command.flag)
    assert LANGUAGE_NAMES[header.language] == command.language
    assert header.remark.decode() == (command.remark or "")
    assert {f.name.decode(): f.value.decode() for f in header.fields} == command.ext
    assert layouts.FRAME.build(parsed) == frame
    assert layouts.BINARY_HEADER.build(header) == parsed.header


@given(st.binary(max_size=200), st.integers(-3, 210), st.integers(-3, 210))
def test_garbage_raises_nothing_but_frame_error(data, start, end):
    with suppress(FrameError):
        decode_frame(data, start, end)


@given(COMMANDS, st.data())
def test_damaged_frames_raise_nothing_but_frame_error(command, data):
    frame = bytearray(encode_command(command))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(frame)))
    with suppress(FrameError):
        decode_frame(frame, 4, end)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
HEADER_NAMES = ["code", "opaque", "flag", "language", "version", "extFields", "remark"]


def decode_json(header):
    data = header.encode()
    frame = struct.pack(">II", 4 + len(data), len(data)) + data
    return decode_frame(frame, 4, len(frame))


@given(JSON_VALUES | st.dictionaries(st.sampled_from(HEADER_NAMES), JSON_VALUES))
def test_any_json_header_gives_a_well_typed_command_or_frame_error(header):
    try:
        command = decode(json_frame(header))
    except FrameError:
        return
    assert all(type(item) is str for pair in command.ext.items() for item in pair)
    assert command.remark is None or type(command.remark) is str
    assert command.language in LANGUAGE_NAMES
    for number in (command.code, command.opaque, command.flag, command.version):
        assert -(2**31) <= number < 2**31


@pytest.mark.parametrize(
    ("spelled", "read"),
    [
        ("1", "1"),
        ("true", "true"),
        ("false", "false"),
        ("1.50", "1.50"),
        ("-7", "-7"),
        ("12345678901234567890123", "12345678901234567890123"),
        ('{"b":"x"}', '{"b":"x"}'),
    ],
)
def test_ext_values_of_other_types_become_the_text_the_official_decoder_reads(spelled, read):
    header = b'{"code":1,"opaque":2,"extFields":{"a":%s,"gone":null}}' % spelled.encode()
    assert decode(json_frame(header)).ext == {"a": read}


@pytest.mark.parametrize(
    "value", ["[" * 300 + "]" * 300, "[" * 900 + "]" * 900, '{"a":' * 300 + "1" + "}" * 300]
)
@pytest.mark.parametrize("field", ['"extFields":{"a":%s}', '"remark":%s', '"unknown":%s', '"language":%s'])
def test_values_that_are_nested_too_deeply_raise_nothing_but_frame_error(field, value):
    with suppress(FrameError):
        decode_json('{"code":1,"opaque":1,"flag":0,' + field % value + "}")


def test_an_unusual_header_is_shorter_than_a_usual_one_may_be():
    ext = '{"a":"' + "x" * (300 << 10) + '"}'
    usual = '{"code":1,"opaque":1,"flag":0,"language":"JAVA","version":1,"extFields":%s}'
    assert len(decode_json(usual % ext).ext["a"]) == 300 << 10
    with pytest.raises(FrameError, match="without all the usual fields"):
        decode_json(usual.replace("language", "tongue") % ext)


MESSY_FIELDS = st.dictionaries(
    st.sampled_from([*HEADER_NAMES, "a", "\u0000", "é"]),
    JSON_VALUES
    | st.sampled_from([True, 1e3, -1, 2**31, 2**63, {"a": None, "b": 1, "c": [{}]}, "\x00\u2028"]),
)


@given(MESSY_FIELDS, MESSY_FIELDS)
def test_whatever_was_decoded_can_be_answered_and_forwarded(header, ext):
    text = json.dumps({"code": 1, "opaque": 1, **header, "extFields": ext})
    with suppress(FrameError):
        command = decode_json(text)
        assert decode_frame(encode_command(command), 4, len(encode_command(command))).ext == command.ext
        answer = encode_response(command.opaque, command.code, command.ext, b"", str(command.ext))
        assert decode_frame(answer, 4, len(answer)).ext == command.ext


def test_missing_fields_have_the_official_defaults():
    command = decode(json_frame({"code": "310", "opaque": 7}))
    assert command == Command(310, 7, 0, {}, language="JAVA", version=0)


def test_null_in_place_of_a_field_is_as_if_it_were_missing():
    header = {"code": 310, "opaque": None, "flag": None, "version": None, "language": "JAVA"}
    assert decode(json_frame(header)) == Command(310, 0, 0, {}, language="JAVA", version=0)
    assert decode(json_frame({"code": None, "opaque": 7})).code == 0


def test_language_may_be_its_number_and_unknown_ones_are_other():
    assert decode(json_frame({"code": 1, "opaque": 1, "language": 9})).language == "GO"
    assert decode(json_frame({"code": 1, "opaque": 1, "language": "XYZ"})).language == "OTHER"
    frame = bytearray(encode_command(Command(1, binary=True)))
    frame[10] = 200
    assert decode(bytes(frame)).language == "OTHER"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"null",
        b'"code"',
        b"\xff\xfe",
        b'{"code":3000000000,"opaque":1}',
        b'{"code":1,"opaque":1,"extFields":[]}',
        b'{"code":1,"opaque":1.5}',
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=lambda header: header[:20].decode("latin-1"),
)
def test_refuses_json_headers_that_are_no_command(header):
    with pytest.raises(FrameError):
        decode(json_frame(header))


@pytest.mark.parametrize(
    ("header", "code", "opaque"),
    [
        (b"{}", 0, 0),
        (b'{"code":1}', 1, 0),
        (b'{"opaque":1}', 0, 1),
        (b'{"a":' * 900 + b"1" + b"}" * 900, 0, 0),
    ],
)
def test_code_and_opaque_may_be_missing(header, code, opaque):
    command = decode(json_frame(header))
    assert (command.code, command.opaque, command.ext) == (code, opaque, {})


def test_refuses_unknown_serialise_types_and_headers_beyond_the_frame():
    with pytest.raises(FrameError, match="serialise type 2"):
        decode(struct.pack(">II", 6, 2 << 24 | 2) + b"{}")
    with pytest.raises(FrameError, match="header of 9 bytes"):
        decode(struct.pack(">II", 6, 9) + b"{}")
    with pytest.raises(FrameError, match="binary header of 9 bytes"):
        decode(struct.pack(">II", 6, 1 << 24 | 9) + b"{}")


def test_refuses_headers_over_the_limit():
    padding = b" " * MAX_HEADER_BYTES
    with pytest.raises(FrameError, match="JSON header of"):
        decode(json_frame(b'{"code":1,"opaque":1}' + padding))
    with pytest.raises(FrameError, match="binary header of"):
        decode(encode_command(Command(1, ext={"a": padding.decode()}, binary=True)))


@pytest.mark.parametrize("at", [21, 28], ids=["remark", "value"])
def test_refuses_binary_lengths_that_reach_beyond_the_header(at):
    frame = bytearray(encode_command(Command(1, ext={"a": "b"}, binary=True)))
    for word in (0x7FFFFFFF, 0xFFFFFFFF, 1000):
        frame[at : at + 4] = word.to_bytes(4)
        with pytest.raises(FrameError):
            decode(bytes(frame))


def test_invalid_utf8_in_a_binary_value_is_replaced_as_officially():
    frame = encode_command(Command(1, ext={"a": "x"}, binary=True)).replace(b"\0\1x", b"\0\1\xff")
    assert decode(frame).ext == {"a": "\ufffd"}


@given(
    I32,
    st.integers(0, 3000),
    st.none() | st.dictionaries(NAME, TEXT),
    st.binary(max_size=9),
    st.none() | TEXT,
)
def test_encode_response_agrees_with_encode_command(opaque, code, ext, body, remark):
    for binary in (False, True):
        answer = decode(encode_response(opaque, code, ext, body, remark, binary))
        assert answer == Command(code, opaque, 1, ext, body, remark or None, binary=binary)


def test_json_answers_hold_all_the_header_keys_clients_look_for():
    frame = encode_response(5, 17, {"a": "b"}, remark='no "topic"\n')
    header = orjson.loads(frame[8:])
    assert header == {
        "code": 17,
        "extFields": {"a": "b"},
        "flag": 1,
        "language": "OTHER",
        "opaque": 5,
        "remark": 'no "topic"\n',
        "serializeTypeCurrentRPC": "JSON",
        "version": CURRENT_VERSION,
    }
    assert set(orjson.loads(encode_response(5, 0, {"a": "b"})[8:])) == set(header) - {"remark"}


@given(I32, TEXT, st.integers(-(2**63), 2**63 - 1))
def test_template_agrees_with_encode_response(opaque, text, number):
    template = ResponseTemplate({"msg%d": str, "queueOffset": int})
    expected = encode_response(opaque, 0, {"msg%d": text, "queueOffset": str(number)})
    assert decode(template(opaque, json_text(text), number)) == decode(expected)


def test_lone_surrogates_become_question_marks_as_in_java():
    for binary in (False, True):
        frame = encode_command(Command(1, ext={"a\ud800": "b\udfff"}, remark="\ud800", binary=binary))
        assert decode(frame).ext == {"a?": "b?"}
        assert decode(frame).remark == "?"


def test_values_that_do_not_fit_are_refused():
    with pytest.raises(FrameError, match="number"):
        encode_command(Command(40_000, binary=True))
    with pytest.raises(FrameError, match="name"):
        encode_command(Command(1, ext={"k" * 40_000: ""}, binary=True))
    for binary in (False, True):
        with pytest.raises(FrameError, match="does not fit a frame"):
            encode_response(1, 0, {"k": "v" * 0x1000000}, binary=binary)


def test_flags_and_repr_tell_requests_from_answers():
    assert Command(1, flag=1).is_response
    assert not Command(1, flag=2).is_response
    assert Command(1, flag=2).is_oneway
    assert repr(Command(1, 2, 2, {"secret": "s"}, b"xx")) == "<Command oneway code=1 opaque=2 body=2 bytes>"
    assert Command(1) != 1


def test_long_names_of_binary_fields_are_not_kept():
    before = command_module._cached_binary_name.cache_info().currsize
    for number in range(5):
        name = f"{number}" * 20_000
        frame = encode_command(Command(1, ext={name: "x"}, binary=True))
        assert decode_frame(frame, 4, len(frame)).ext == {name: "x"}
    assert command_module._cached_binary_name.cache_info().currsize == before
