"""Tests of JSON bodies on classes made for the purpose; the real bodies are tested in test_requests."""

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.fastjson import MAX_TRUSTED_VALUES
from remoting.errors import RequestError
from remoting.fields import field, i32, i64
from remoting.json_body import JsonBody, JsonKeyBody, read_json_list, write_json_list


class Place(JsonKeyBody):
    topic: str
    queue_id: i32 = 0


class Inner(JsonBody):
    value: i64 = 0


class Outer(JsonBody):
    name: str
    size: i32 = 16
    active: bool = True
    rate: float = 0.0
    inner: Inner | None = None
    members: list[Inner] = field(factory=list)
    by_id: dict[i64, str] = field(factory=dict)
    by_place: dict[Place, Inner] = field(factory=dict)
    by_name: dict[str, list[str]] = field(factory=dict)
    anything: Any = None


def test_an_object_is_read_whole() -> None:
    text = b"""{"name":"n","size":3,"active":false,"rate":0.5,"inner":{"value":1},"members":[{"value":2}],
        "byId":{0:"a",7:"b"},"byPlace":{{"topic":"T","queueId":1}:{"value":3}},"byName":{"x":["y"]},"anything":[1]}"""
    assert Outer.from_json(text) == Outer(
        name="n",
        size=3,
        active=False,
        rate=0.5,
        inner=Inner(value=1),
        members=[Inner(value=2)],
        by_id={0: "a", 7: "b"},
        by_place={Place(topic="T", queue_id=1): Inner(value=3)},
        by_name={"x": ["y"]},
        anything=[1],
    )


def test_unknown_keys_null_and_absence_are_tolerated() -> None:
    text = b'{"name":"n","size":null,"members":null,"inner":null,"unheard":{"of":1}}'
    assert Outer.from_json(text) == Outer(name="n")


def test_numbers_and_booleans_may_be_text_as_for_fastjson() -> None:
    read = Outer.from_json(b'{"name":5,"size":"12","active":"FALSE","byId":{"3":"c"}}')
    assert (read.name, read.size, read.active, read.by_id) == ("5", 12, False, {3: "c"})


def test_none_is_left_out_and_integer_keys_are_bare() -> None:
    written = Outer(name="n", by_id={1: "a"}).to_json()
    assert b'"inner"' not in written
    assert b'"byId":{1:"a"}' in written


def test_standard_json_has_text_keys_only_and_is_read_back() -> None:
    body = Outer(name="n", by_id={1: "a"}, by_place={Place(topic="T"): Inner()})
    written = body.to_json(standard=True)
    assert b'"byId":{"1":"a"}' in written
    assert Outer.from_json(written) == body


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "expected a JSON object for Outer, not list"),
        (b"{}", "the field <name> of the body Outer is null"),
        (b'{"name":"n","size":2147483648}', "<size> .* outside"),
        (b'{"name":"n","size":"many"}', "<size>"),
        (b'{"name":"n","members":{}}', "<members> .* expected a JSON array"),
        (b'{"name":"n","members":[1]}', "expected a JSON object for Inner"),
        (b'{"name":"n","byId":[]}', "<byId> .* expected a JSON object"),
        (b'{"name":"n","byId":{"x":"a"}}', "<byId>"),
        (b'{"name":"n","byPlace":{3:{}}}', "expected a JSON object for Place, not int"),
        (b'{"name":"n","byPlace":{"{":{}}}', "not JSON of a Place"),
        (b'{"name":"n","byPlace":{"[1]":{}}}', "expected a JSON object for Place, not list"),
        (b'{"name":"n","byPlace":{"' + b" " * 4100 + b'":{}}}', "<byPlace> .* a key of 4100 characters"),
        (b'{"name":"n","byPlace":{{"topic":"t","queueId":4294967296}:{}}}', "<queueId> .* outside"),
        (b'{"name":"n","members":[null]}', "expected a JSON object for Inner, not NoneType"),
        (b'{"name":"n","byId":{"1":null}}', "<byId> .* expected a text, not null"),
        (b'{"name":"n","byPlace":{{"topic":"t"}:null}}', "expected a JSON object for Inner, not NoneType"),
        (b'{"name":"n","byName":{"x":null}}', "<byName> .* expected a JSON array"),
        (b'{"name":"n","byName":{"x":[null]}}', "<byName> .* expected a text, not null"),
        (b'{"name":"n","byId":{null:"a"}}', "<byId> .* For input string"),
        (b'{"name":"n","size":1e99}', "<size> .* outside"),
        (b'{"name":"n","size":1e400}', "not JSON"),
        (b'{"name":"n","size":[]}', "<size> .* expected a number, not list"),
        (b'{"name":"n","size":"1_0"}', "<size> .* For input string"),
        (b'{"name":"n","size":"%b"}' % (b"9" * 400), "<size> .* For input string"),
        (b'{"name":"n","size":%b}' % (b"9" * 40), "<size> .* outside"),
        (b'{"name":"n","active":{}}', "<active> .* expected true or false, not dict"),
        (b'{"name":"n","rate":"NaN"}', "<rate> .* For input string"),
        (b'{"name":"n","rate":"1e400"}', "<rate> .* For input string"),
        (b'{"name":"n","rate":[1]}', "<rate> .* expected a finite number, not list"),
        (b'{"name":"n","inner":{"value":18446744073709551616}}', "<value> .* outside"),
        (b'\xef\xbb\xbf{"name":"n"}', "not JSON"),
        (b'{"name":"\xff"}', "not JSON of a Outer: body is not UTF-8"),
    ],
)
def test_an_unreadable_field_is_refused_by_name(text: bytes, remark: str) -> None:
    with pytest.raises(RequestError, match=remark) as caught:
        Outer.from_json(text)
    assert caught.value.code == 1


def test_null_elements_are_read_where_the_type_is_optional() -> None:
    class Holey(JsonBody):
        names: list[str | None] = field(factory=list)
        ranks: dict[str, i32 | None] = field(factory=dict)

    read = Holey.from_json(b'{"names":["a",null],"ranks":{"a":null,"b":1}}')
    assert read == Holey(names=["a", None], ranks={"a": None, "b": 1})


def test_objects_are_text_where_text_is_declared_as_for_fastjson() -> None:
    assert Outer.from_json(b'{"name":{"a":[1,null]}}').name == '{"a":[1,null]}'
    assert Outer.from_json(b'{"name":true}').name == "true"
    with pytest.raises(RequestError, match="nested too deeply"):
        Outer.from_json(b'{"name":' + b"[" * 900 + b"]" * 900 + b"}")


def test_numbers_of_another_form_are_converted_as_for_fastjson() -> None:
    read = Outer.from_json(
        b'{"name":"n","size":-1.9,"active":0,"rate":"0.5","inner":{"value":true},"byId":{"1":"a"}}'
    )
    assert (read.size, read.active, read.rate, read.inner, read.by_id) == (
        -1,
        False,
        0.5,
        Inner(value=1),
        {1: "a"},
    )
    assert type(read.inner.value) is int


@pytest.mark.parametrize("kind", [int, set[str], tuple[str, ...], bytes, list[int], dict[str, int]])
def test_types_without_a_java_range_cannot_be_declared(kind: Any) -> None:
    with pytest.raises(TypeError, match="i16, i32 or i64"):
        type("Wrong", (JsonBody,), {"__annotations__": {"count": kind}, "count": 0})


def test_a_subclass_reads_its_own_fields_after_its_base_was_used() -> None:
    class Base(JsonBody):
        one: i32 = 0

    assert Base.from_json(b'{"one":1,"two":2}') == Base(one=1)

    class Derived(Base):
        two: i32 = 0

    assert Derived.from_json(b'{"one":1,"two":2}') == Derived(one=1, two=2)
    assert Base.from_json(b'{"one":3}') == Base(one=3)


def test_values_are_limited_and_trusted_tables_may_be_larger() -> None:
    table = b'{"name":"n","members":[' + b"{}," * 100_000 + b"{}]}"
    with pytest.raises(RequestError, match=r"more than 100000 values.* maxJsonValues"):
        Outer.from_json(table)
    with pytest.raises(RequestError, match="more than 100000"):
        read_json_list(Inner, b"[" + b"{}," * 100_000 + b"{}]")
    assert len(Outer.from_json(table, MAX_TRUSTED_VALUES).members) == 100_001
    assert len(Outer.from_json(b'{"name":"n","members":[{},{}]}', 6).members) == 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "size", "topic", "value", "0", ""]), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.sampled_from([item.wire for item in Outer.FIELDS]), VALUES)


@given(FIELDS)
def test_whatever_is_read_has_the_declared_types(value: dict[str, Any]) -> None:
    with suppress(RequestError):
        read = Outer.from_value({"name": "n", **value})
        assert type(read.name) is str
        assert type(read.size) is int
        assert -(1 << 31) <= read.size < 1 << 31
        assert type(read.active) is bool
        assert type(read.rate) is float
        assert math.isfinite(read.rate)
        assert all(type(each) is Inner and type(each.value) is int for each in read.members)
        assert all(type(key) is int and type(text) is str for key, text in read.by_id.items())
        assert all(type(key) is Place and type(each) is Inner for key, each in read.by_place.items())
        assert all(type(text) is str for texts in read.by_name.values() for text in texts)


def test_keys_are_equal_by_value() -> None:
    table = {Place(topic="T", queue_id=1): "x"}
    assert table[Place(topic="T", queue_id=1)] == "x"
    assert Place(topic="T", queue_id=2) not in table


def test_bodies_that_are_arrays_are_read_back() -> None:
    items = [Inner(value=1), Inner(value=2)]
    assert write_json_list(items) == b'[{"value":1},{"value":2}]'
    assert read_json_list(Inner, write_json_list(items)) == items


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]"])
def test_a_body_that_is_no_array_of_objects_is_refused(text: bytes) -> None:
    with pytest.raises(RequestError):
        read_json_list(Inner, text)
