"""Mutations of JSON bodies: of the values, and of the text that spells them.

A value may contain `RawJson`, text that stands for itself, so that the generator can write what no JSON library
writes: duplicate keys, numbers of 400 digits, bare keys, references.
"""

import json
import re
from copy import deepcopy
from typing import Any, Final

import orjson

from tools.fuzz.values import INTEGERS, ODD_NUMBERS, Chance, extreme_text

MAX_PLACES: Final = 60
"""Number of places of one value among which a mutation draws."""


class RawJson(str):
    """Text that is written into JSON as it is."""

    __slots__ = ()


REFERENCES: Final = tuple(
    RawJson(f'{{"$ref":"{path}"}}')
    for path in (
        "$",
        "@",
        "..",
        "../..",
        "$.",
        "$..",
        "#",
        "",
        "$.consumerDataSet[0]",
        "$.consumerDataSet[0].subscriptionDataSet",
        "$.producerDataSet",
        "$.mqSet[0]",
        "$.topicConfigSerializeWrapper",
        "$.topicConfigSerializeWrapper.topicConfigTable",
        "$.table",
        "$[0]",
        "$[99999999999999999999]",
        "$.a.b.c",
        "$['a']",
        "$." + "a." * 200,
    )
)
ODD_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    "",
    "x",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": None},
    {"a": {"a": {"a": {}}}},
    *(RawJson(text) for text in INTEGERS),
    *(
        RawJson(text)
        for text in ("1e999", "-1e999", "1E400", "-0", "-0.0", "0.1", "9" * 400, "1L", "1.5F", "NaN")
    ),
    *(
        RawJson(text)
        for text in ("Infinity", "undefined", "new Date()", "x'41'", "'x'", "nul", "+1", ".5", "01")
    ),
    *REFERENCES,
    *ODD_NUMBERS,
)
"""Values in place of any other."""


def odd_value(chance: Chance) -> Any:
    """Return a value to put in place of any other; a container is a new one, since later mutations change it."""
    value = chance.pick(ODD_VALUES)
    return deepcopy(value) if type(value) in (list, dict) else value


def mutate_value(chance: Chance, value: Any) -> Any:
    """Return the value with one to three of its places changed; containers are changed in place."""
    for _ in range(1 + chance.below(3)):
        places: list[tuple[Any, Any]] = []
        _collect_places(value, places)
        if not places:
            return odd_value(chance)
        container, key = chance.pick(places)
        _mutate_place(chance, container, key)
    return value


def _collect_places(value: Any, places: list[tuple[Any, Any]]) -> None:
    """Append the (container, key) pairs below a value, breadth first within each container."""
    if len(places) > MAX_PLACES or not isinstance(value, dict | list):
        return
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 8))
    places.extend((value, key) for key in keys)
    for key in keys:
        _collect_places(value[key], places)


def _mutate_place(chance: Chance, container: Any, key: Any) -> None:
    kind = chance.random()
    if kind < 0.35:
        container[key] = odd_value(chance)
    elif kind < 0.6:
        container[key] = extreme_text(chance)
    elif kind < 0.75:
        del container[key]
    elif isinstance(container, list):
        _mutate_list(chance, container, key)
    elif kind < 0.83:
        container[extreme_text(chance)] = container.pop(key)
    elif kind < 0.9:
        container[chance.pick(("0", "-1", "a", "$ref", "@type", "", "class"))] = deepcopy(container[key])
    elif kind < 0.95:
        container[key] = [deepcopy(container[key]) for _ in range(chance.pick((0, 1, 2, 20)))]
    else:
        container[key] = {"a": container[key]}


def _mutate_list(chance: Chance, container: list[Any], key: int) -> None:
    if chance.happens(0.02):
        container.extend([container[key]] * 5000)
    elif chance.happens(0.5):
        container.extend([container[key]] * chance.pick((1, 2, 30)))
    else:
        container.insert(key, odd_value(chance))


def write_json(value: Any) -> bytes:
    """Encode a value; `RawJson` stands for itself, and lone surrogates become escapes."""
    if type(value) is int:
        return b"%d" % value
    try:
        if not _contains_raw(value):
            return orjson.dumps(value)
    except TypeError:
        pass
    return "".join(_parts(value)).encode("utf-8", "surrogatepass")


def _contains_raw(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_contains_raw, value.values()))
    if isinstance(value, list):
        return any(map(_contains_raw, value[:8])) or any(type(item) is RawJson for item in value)
    return type(value) is RawJson


def _parts(value: Any) -> list[str]:
    if isinstance(value, dict):
        inner = [f"{_key(key)}:{''.join(_parts(item))}" for key, item in value.items()]
        return ["{", ",".join(inner), "}"]
    if isinstance(value, list):
        return ["[", ",".join("".join(_parts(item)) for item in value), "]"]
    return [str(value) if type(value) is RawJson else json.dumps(value)]


def _key(key: Any) -> str:
    """Return a key in the official dialect, in which integers and objects are keys as well."""
    if hasattr(key, "to_json_key"):
        return "".join(_parts(key.to_json_key()))
    return str(key) if isinstance(key, int) or type(key) is RawJson else json.dumps(str(key))


# -- the text ---------------------------------------------------------------------------------------------------------

_QUOTED_NAME = re.compile(rb'"([A-Za-z_]\w*)":')
WHOLE_BODIES: Final = (
    b"",
    b" ",
    b"null",
    b"{}",
    b"[]",
    b"0",
    b'""',
    b"true",
    b"{",
    b"}",
    b"[",
    b'{"a"',
    b'{"a":',
    b'{"a":1,}',
    b"[1,]",
    b"{,}",
    b"\x00",
    b"\xff\xfe{\x00}\x00",
    b"\xef\xbb\xbf{}",
    b"\xff" * 100,
    b'"\\ud800"',
    b'"\\u12',
    b'"\\',
    b"[" * 5000,
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"[" * 99 + b"]" * 99,
    b"{{}:1}",
    b"{{{}:1}:1}",
    b'{{"a":1}:2,{"a":1}:3}',
    b"{[1]:2}",
    b"{1:2,3:4}",
    b"{-1:2,99999999999999999999:4}",
    b"{'a':'b'}",
    b"/* x */{}",
    b"// x\n{}",
    b'{"$ref":"$"}',
    b'[{"$ref":"$[0]"}]',
    b'{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
    b"[" + b"1," * 100_000 + b"1]",
    b"[" + b"'a'," * 30_000 + b"1]",
    b"1" * 5000,
    b"-" * 1000,
    b"'" + b"x" * 100_000,
    b'{"a":1}' * 2,
    b"{}" + b" " * 10_000,
)
"""Bodies that replace a whole one."""


def mutate_json_text(chance: Chance, body: bytes) -> bytes:
    """Return a body that spells the same value otherwise, or is no longer JSON."""
    kind = chance.below(8)
    if kind == 0:
        return chance.pick(WHOLE_BODIES)
    if kind == 1:
        return _QUOTED_NAME.sub(rb"\1:", body)
    if kind == 2:
        return body.replace(b'"', b"'")
    if kind == 3:
        return body.replace(b"}", b",}").replace(b"]", b",]")
    if kind == 4:
        return body.replace(b":", b" :\n\t", 50)
    if kind == 5 and body.startswith(b"{"):
        return body[:-1] + b"," + body[1:]  # every key twice
    return mutate_bytes(chance, body)


def mutate_bytes(chance: Chance, data: bytes) -> bytes:
    """Return data with bytes flipped, cut, doubled or inserted."""
    if not data:
        return chance.pick((b"\0", b"\xff" * 8, b"x"))
    changed = bytearray(data)
    for _ in range(1 + chance.below(3)):
        at = chance.below(len(changed)) if changed else 0
        kind = chance.below(6)
        if kind == 0 and changed:
            changed[at] ^= 1 << chance.below(8)
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            changed[at:at] = chance.pick(
                (b"\0", b"\xff", b'"', b"\\", b"{", b"\x01", b"\x02", b"\xed\xa0\x80")
            )
        elif kind == 3:
            changed[at:at] = changed[at : at + 1 + chance.below(64)]
        elif kind == 4:
            del changed[at : at + 1 + chance.below(16)]
        elif len(changed) >= at + 4:
            changed[at : at + 4] = chance.pick(
                (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0")
            )
    return bytes(changed)
