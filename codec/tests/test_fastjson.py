import gc
import json
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec import fastjson
from codec.errors import JsonError, JsonSizeError
from codec.fastjson import ObjectKey, dumps, dumps_standard, loads
from codec.tests.vectors import VECTORS

BODIES = VECTORS["bodies"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
I64 = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.none() | st.booleans() | I64 | st.floats(allow_nan=False, allow_infinity=False) | TEXT
OBJECT_KEYS = st.dictionaries(TEXT, I64 | TEXT, min_size=1, max_size=3).map(ObjectKey.from_fields)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT | I64 | OBJECT_KEYS, inner, max_size=4),
    max_leaves=20,
)


def has_reference(value):
    if isinstance(value, dict):
        return "$ref" in value or any(map(has_reference, value.values()))
    return isinstance(value, list) and any(map(has_reference, value))


@pytest.mark.parametrize("name", ["route", "route1"])
def test_official_routes_have_integer_keys(name):
    value = loads(BODIES[name].encode())
    assert value["brokerDatas"][0]["brokerAddrs"] == {0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}
    assert dumps(value).decode() == BODIES[name]
    assert dumps_standard(value).decode() == BODIES["route_standard"] == BODIES["route_standard2"]


def test_unusual_keys_leave_nothing_to_the_garbage_collector():
    """A namesrv encodes them for every route that is asked for."""
    gc.collect()
    gc.disable()
    try:
        assert dumps({"a": [{0: "x"}], 1: {2: 3}}) == b'{"a":[{0:"x"}],1:{2:3}}'
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["stats", "stats1"])
def test_official_maps_of_queues_have_object_keys(name):
    value = loads(BODIES[name])
    [key] = value["offsetTable"]
    assert key.fields == {"brokerName": "broker-a", "queueId": 1, "topic": "t"}
    assert dumps(value).decode() == BODIES[name]
    [standard_key] = loads(dumps_standard(value))["offsetTable"]
    assert loads(standard_key) == key.fields


@pytest.mark.parametrize("name", ["mix", "mix1"])
def test_official_scalars(name):
    value = loads(BODIES[name].encode())
    assert value == {
        -1: "a",
        2: 1.5,
        's\x01"é😀\x7f\u2028': [True, None, 1e10, 0.1, 100.0, 2**63 - 1, "c"],
        "o": {},
    }


def test_references_of_older_servers_are_resolved():
    first, second = loads(BODIES["twice1"])
    assert first == second == loads(BODIES["twice2"])[1]


def test_a_document_has_at_most_the_allowed_number_of_values():
    assert loads(b"[" + b"0," * 99 + b"0]", 100) == [0] * 100
    for text in (
        b"[" + b"0," * 200 + b"0]",
        b"[" + b"[]," * 200 + b"0]",
        b"[" * 101 + b"]" * 101,
        b"{" + b'"a":0,' * 200 + b'"b":0}',
        b"{" + b"0:0," * 200 + b"1:0}",
        b"{" + b"{}:0," * 200 + b"1:0}",
    ):
        for data in (text, memoryview(text), text.decode()):
            with pytest.raises(JsonError, match="more than 100"):
                loads(data, 100)
    for commas_in_text in (b'"' + b"," * 250 + b'"', b"'" + b"," * 250 + b"'"):
        with pytest.raises(JsonError, match="more than 100"):
            loads(commas_in_text, 100)


def test_the_dialect_is_limited_in_bytes_and_standard_json_is_not():
    text = "x" * 2000
    assert loads(f'{{"a":"{text}"}}', 100) == {"a": text}
    assert loads(f'{{a:"{text[:1500]}"}}', 100) == {"a": text[:1500]}
    with pytest.raises(JsonSizeError, match="bytes that are not standard JSON"):
        loads(f'{{a:"{text}"}}', 100)


def test_by_default_a_document_of_16_mib_is_refused_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr(fastjson, "orjson", None)
    monkeypatch.setattr(fastjson, "parse_lenient", None)
    with pytest.raises(JsonError, match="more than 100000"):
        loads(b"[" + b"[]," * (16 << 18) + b"0]")


@pytest.mark.parametrize("text", ["{0:" + "\\x41".join("''") + "}", "{0:'" + "\\x41" * 100 + "'}"])
def test_escapes_that_standard_json_does_not_have_are_limited(text):
    assert set(loads(text, 100)[0]) <= {"A"}
    with pytest.raises(JsonError, match="too many escapes"):
        loads("{0:'" + "\\x41" * 101 + "'}", 100)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"[18446744073709551615,-9223372036854775808]", [2**64 - 1, -(2**63)]),
        (b"{0:18446744073709551615,1:-9223372036854775808}", {0: 2**64 - 1, 1: -(2**63)}),
        (b"[18446744073709551616,-9223372036854775809]", [2.0**64, -(2.0**63)]),
        (b"{0:18446744073709551616,1:-9223372036854775809}", {0: 2.0**64, 1: -(2.0**63)}),
    ],
)
def test_integers_beyond_64_bits_become_fractions_in_both_parsers(text, value):
    read = loads(text)
    assert read == value
    pairs = zip(read.values(), value.values()) if isinstance(value, dict) else zip(read, value)  # noqa: B905
    assert all(type(value) is type(other) for value, other in pairs)


@given(VALUES.filter(lambda value: not has_reference(value)))
def test_round_trip(value):
    assert loads(dumps(value)) == value


@given(VALUES)
def test_the_standard_form_is_standard(value):
    json.loads(dumps_standard(value))


@given(st.text("{}[]\":,'\\ue01-.$ref@a\x01", max_size=40))
def test_garbage_raises_nothing_but_json_error(text):
    for data in (text, text.encode(), "{0:" + text):
        with suppress(JsonError):
            loads(data)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:'it''s'}", None),
        ("{0:'a\\'b',}", {0: "a'b"}),
        ('{0:"\\ud83d\\ude00 \\u00e9 \\x41 \\n\\v\\/"}', {0: "😀 é A \n\v/"}),
        ('{0:"\\ud83d"}', {0: "\ufffd"}),
        ("{ name : 5L , 1:-2.5e1, true:null }", {"name": 5, 1: -25.0, "true": None}),
        ('{{"a":1,"b":"x"}:[1,2,]}', {ObjectKey.from_fields({"b": "x", "a": 1}): [1, 2]}),
        ("{0:NaN}", {0: None}),
    ],
)
def test_accepted_documents(text, value):
    if value is None:
        with pytest.raises(JsonError):
            loads(text)
    else:
        assert loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{0:1",
        "{0:1}x",
        "{0 1}",
        "{[1]:2}",
        "{1.5:2}",
        '{{"a":[1]}:2}',
        "[1 2",
        "{0:nope}",
        '{0:"a',
        '{0:"\\u12"}',
        '{0:"\\uzzzz"}',
        "[" * 5000 + "0x",
        "{" * 5000,
        "{0:-}",
        "{0:" + "9" * 1000 + "}",
        "{0:" + "9" * 401 + "}",
        "{0:1e999}",
        "[-1e400]",
        "[1" + "0" * 400 + "]",
        "{18446744073709551616:1}",
        "\ufeff{}",
        "{0:Infinity}",
        b'{"a":"\xed\xa0\x80"}',
        b"\xff\xfe{\x00}\x00",
        '{0:"' + "\\x" + '"}',
        "{0:'\\",
        "{0:+1}",
        b"{0:'\xff'}",
        '{"a":' * 900 + '{"$ref":"$"}' + "}" * 900,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_refused_documents(text):
    with pytest.raises(JsonError):
        loads(text)


def test_keys_may_tell_their_own_object():
    queue = SimpleNamespace(to_json_key=lambda: {"topic": "t", "queueId": 1})
    assert (
        dumps({"table": [{(("topic", "t"), ("queueId", 1)): 0}]})
        == b'{"table":[{{"topic":"t","queueId":1}:0}]}'
    )

    class Key:
        def to_json_key(self):
            return queue.to_json_key()

    assert dumps({Key(): 1}) == b'{{"topic":"t","queueId":1}:1}'
    assert json.loads(dumps_standard({Key(): 1})) == {'{"topic":"t","queueId":1}': 1}


@pytest.mark.parametrize("value", [{1: object()}, {object(): 1}, {1.5: 1}, {None: 1}, {1: 1 << 70}, b"x"])
def test_values_that_are_not_json_are_refused(value):
    with pytest.raises(JsonError):
        dumps(value)


def test_refuses_to_write_endless_nesting():
    value: dict[object, object] = {}
    value[1] = value
    with pytest.raises(JsonError):
        dumps(value)
    with pytest.raises(JsonError):
        dumps_standard(value)


def test_lone_surrogates_become_question_marks_as_in_java():
    assert dumps({"k": "a\ud83db"}).decode() == BODIES["lone"]
    assert fastjson.dumps_standard({"k": "a\ud83db"}).decode() == BODIES["lone"]
