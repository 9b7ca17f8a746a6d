import json

import pytest

from codec.errors import JsonError
from codec.fastjson import loads
from codec.tests.vectors import VECTORS


def reference(path):
    return {"$ref": path}


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("$.a[1].b", "x"),
        ("$['a'][1]", {"b": "x"}),
        ("$.7", "seven"),
        ("$.no.such", None),
        ("$.a[9]", None),
        ("$.a.b", None),
        ("$.a[1].b.c", None),
        ("$.a[999999999]", None),
    ],
)
def test_paths(path, target):
    assert loads(json.dumps({"a": [0, {"b": "x"}], "7": "seven", "r": reference(path)}))["r"] == target


def test_bare_integer_keys_are_found_by_path():
    assert loads('{0:{7:"x"},"r":{"$ref":"$.0.7"},"s":{"$ref":"$[0][7]"}}') == {
        0: {7: "x"},
        "r": "x",
        "s": "x",
    }


@pytest.mark.parametrize(
    "path",
    ["x", "$x", "$.a[", "$..a", "$.a[9999999999]", "$.a[\u00b2]", "$.a[" + "9" * 5000 + "]", "$[" * 5000],
)
def test_unknown_paths_are_refused(path):
    with pytest.raises(JsonError, match="reference"):
        loads(json.dumps({"r": reference(path)}))


def test_a_name_of_many_digits_leads_nowhere():
    assert loads(json.dumps({"r": reference("$." + "9" * 5000)})) == {"r": None}
    assert loads(json.dumps({"r": reference("$.\u00b2")})) == {"r": None}


@pytest.mark.parametrize(
    "document",
    [
        {"a": {"b": reference("$")}},
        {"a": {"b": reference("$.a")}},
        {"a": {"b": reference("@")}},
        {"a": {"b": {"c": reference("..")}}},
        [[reference("$[1]")], [reference("$[0]")]],
        {"a": [reference("$.b")], "b": {"c": reference("$.a")}},
    ],
)
def test_references_to_ancestors_are_refused(document):
    with pytest.raises(JsonError, match="ancestors"):
        loads(json.dumps(document))


def test_the_official_writer_of_references_to_ancestors_is_refused():
    with pytest.raises(JsonError, match="ancestors"):
        loads(VECTORS["bodies"]["self1"])


@pytest.mark.parametrize("length", [2, 30, 90])
def test_references_that_double_are_refused_by_the_number_of_their_values(length):
    """1.3 kB of these were 4.1 GB once they were read; each level doubles what the one before stands for."""
    levels = [[0]] + [[reference(f"$[{at}]"), reference(f"$[{at}]")] for at in range(length - 1)]
    data = json.dumps(levels).encode()
    if length == 2:
        assert loads(data) == [[0], [[0], [0]]]
    else:
        with pytest.raises(JsonError, match="more than 1000 values"):
            loads(data, 1000)


def test_wide_references_are_counted_as_often_as_they_are_used():
    table = {"a": list(range(100)), "r": [reference("$.a")] * 9}
    assert loads(json.dumps(table), 2000)["r"] == [list(range(100))] * 9
    table["r"] = [reference("$.a")] * 20
    with pytest.raises(JsonError, match="more than 2000 values"):
        loads(json.dumps(table), 2000)


def test_a_chain_of_references_does_not_nest_deeper_than_a_document_may():
    deep = [[0]] + [[reference(f"$[{at}]")] for at in range(200)]
    with pytest.raises(JsonError, match="nested too deeply"):
        loads(json.dumps(deep))
    with pytest.raises(JsonError, match="nested too deeply"):
        loads(json.dumps(reference("$")).join(["[" * 200, "]" * 200]))


def test_a_reference_to_another_reference_is_refused():
    with pytest.raises(JsonError, match="another reference"):
        loads(json.dumps({"a": reference("$.b"), "b": reference("$.c"), "c": 1}))
