"""Tests of JSON bodies on classes made for the purpose; the real bodies are tested in test_requests."""

from typing import Any

import pytest

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
    ],
)
def test_an_unreadable_field_is_refused_by_name(text: bytes, remark: str) -> None:
    with pytest.raises(RequestError, match=remark) as caught:
        Outer.from_json(text)
    assert caught.value.code == 1


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
