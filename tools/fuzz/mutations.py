"""Mutations of valid requests: header fields, bodies, flags and codes.

A mutated request is still a frame that a server can split and decode, unless it says otherwise: what a server does with
its fields is the subject here. Damage to frames themselves is in `wire_faults`.
"""

import re
from typing import Any, Final

from codec.constants import LANGUAGE_NAMES
from remoting.declare import NOT_SERVED, REQUESTS
from tools.fuzz.json_mutations import (
    RawJson,
    mutate_bytes,
    mutate_json_text,
    mutate_value,
    odd_value,
    write_json,
)
from tools.fuzz.valid_requests import HARMLESS_KEYS, FuzzRequest, RequestSource
from tools.fuzz.values import (
    ADDRESSES,
    EXTREME_EXPRESSIONS,
    INTERNAL_GROUPS,
    INTERNAL_TOPICS,
    Chance,
    extreme_number,
    extreme_properties,
    extreme_text,
)

SETTINGS_CODES: Final = frozenset((25, 318, 1009))
REGISTRATION_CODES: Final = frozenset((103, 217))
"""Requests whose body names addresses that a shadow gateway may dial: their bytes are not flipped."""
FIELD_NAMES: Final = tuple(
    sorted({item.wire for request_type in REQUESTS.values() for item in request_type.WIRE_FIELDS})
)
UNDECLARED_CODES: Final = (
    *NOT_SERVED,
    *(
        -1,
        1,
        2,
        9,
        99,
        999,
        32_767,
        32_768,
        -32_768,
        65_535,
        2**31 - 1,
        -(2**31),
        200_057,
        770_000,
        770_005,
        769_999,
    ),
)
_TOPIC_FIELD: Final = re.compile(r"topic|^b$|^c$", re.IGNORECASE)
_GROUP_FIELD: Final = re.compile(r"group|^a$", re.IGNORECASE)
_ADDRESS_FIELD: Final = re.compile(r"addr", re.IGNORECASE)
_EXPRESSION_FIELD: Final = re.compile(r"^(subscription|exp|expressionType|expType)$")
_PROPERTY_FIELD: Final = re.compile(r"^(properties|i)$")
_FOREIGN_ADDRESS: Final = re.compile(rb"(?<![\d.])(?!127\.0\.0\.1)\d{1,3}(\.\d{1,3}){3}(?![\d.])")
_HEADER_EXTRAS: Final = (
    ("language", (*LANGUAGE_NAMES, "", "KLINGON", 3, None)),
    ("version", (0, -1, 505, 2**31 - 1)),
)


def mutate_request(source: RequestSource, request: FuzzRequest) -> None:
    """Change one to three aspects of a request in place."""
    chance = source.chance
    for _ in range(1 + chance.below(3)):
        kind = chance.random()
        if (request.ext and kind < 0.6) or kind < 0.05:
            _mutate_field(source, request)
        elif (request.has_json_body or request.body) and kind < 0.92:
            _mutate_body(chance, request)
        elif kind < 0.97:
            _mutate_head(chance, request)
        elif kind < 0.985:
            request.code = chance.pick(UNDECLARED_CODES)
        else:
            request.body = chance.pick((b"", b"{}", b"x", b"\0" * 100, b"[]", b"null"))
            request.has_json_body = False


def write_body(request: FuzzRequest) -> None:
    """Write the body of a request from its JSON value, if it has one and has not been written yet."""
    if request.has_json_body:
        request.body, request.has_json_body = write_json(request.json_body), False


# -- header fields ----------------------------------------------------------------------------------------------------


def _mutate_field(source: RequestSource, request: FuzzRequest) -> None:
    chance, ext = source.chance, request.ext
    name = chance.pick(tuple(ext)) if ext else chance.pick(FIELD_NAMES)
    kind = chance.random()
    if kind < 0.12:
        ext.pop(name, None)
    elif kind < 0.16:
        ext[chance.pick(FIELD_NAMES)] = chance.pick((extreme_number, extreme_text))(chance)
    elif kind < 0.19:
        ext[extreme_text(chance)] = "1"
    elif kind < 0.23:
        request.repeated.append((name, extreme_text(chance)))
    elif kind < 0.26 and not request.binary:
        # None, numbers and objects where the header has text
        ext[name] = odd_value(chance)
    elif kind < 0.3 and len(ext) > 1:
        other = chance.pick(tuple(ext))
        ext[name], ext[other] = ext.get(other), ext.get(name)
    elif kind < 0.31:
        ext.update({f"x{number}": "" for number in range(500)})
    else:
        ext[name] = _extreme_value(chance, name, str(ext.get(name, "")))
    keep_addresses_local(request)


def _extreme_value(chance: Chance, name: str, value: str) -> str:
    """Return an extreme value that suits a header field's name, or one made from its valid value."""
    if _ADDRESS_FIELD.search(name):
        return chance.pick(ADDRESSES)
    if _PROPERTY_FIELD.match(name):
        return extreme_properties(chance) if chance.happens(0.9) else extreme_text(chance)
    if _EXPRESSION_FIELD.match(name) and chance.happens(0.7):
        return chance.pick(EXTREME_EXPRESSIONS)
    if _TOPIC_FIELD.search(name) and chance.happens(0.4):
        return chance.pick(INTERNAL_TOPICS)
    if _GROUP_FIELD.search(name) and chance.happens(0.4):
        return chance.pick(INTERNAL_GROUPS)
    if " " in value and chance.happens(0.7):
        return _mutate_words(chance, value)  # receipt handles
    if value.lstrip("-").isdigit() and len(value) < 30 and chance.happens(0.85):
        return extreme_number(chance)
    return extreme_text(chance) if chance.happens(0.8) else extreme_number(chance)


def _mutate_words(chance: Chance, value: str) -> str:
    words = value.split(" ")
    index = chance.below(len(words))
    kind = chance.below(4)
    if kind == 0:
        del words[index]
    elif kind == 1:
        words.insert(index, extreme_text(chance))
    else:
        words[index] = extreme_number(chance)
    return " ".join(words)


def keep_addresses_local(request: FuzzRequest) -> None:
    """Replace addresses that a swap or a mutation has put into an address field."""
    for name in request.ext:
        if _ADDRESS_FIELD.search(name) and request.ext[name] not in ADDRESSES:
            request.ext[name] = ADDRESSES[0]


# -- bodies -----------------------------------------------------------------------------------------------------------


def _mutate_body(chance: Chance, request: FuzzRequest) -> None:
    if request.code in SETTINGS_CODES:
        key = chance.pick(HARMLESS_KEYS)
        request.body = f"{key}={extreme_text(chance)}\n".encode("utf-8", "surrogatepass")
        return
    before = request.body
    if request.has_json_body and chance.happens(0.8):
        request.json_body = mutate_value(chance, request.json_body)
        return
    if request.has_json_body:
        write_body(request)
        request.body = mutate_json_text(chance, request.body)
    elif request.code == 320 or request.code >= 770_000:
        request.body = _mutate_lengths(chance, request.body)
    else:
        request.body = mutate_bytes(chance, request.body)
    if request.code in REGISTRATION_CODES and has_foreign_address(request.body):
        request.body = before


def has_foreign_address(data: bytes) -> bool:
    """Tell whether data contains an IPv4 address other than 127.0.0.1."""
    return _FOREIGN_ADDRESS.search(data) is not None


def _mutate_lengths(chance: Chance, body: bytes) -> bytes:
    """Return a body of length-prefixed entries with one of its four-byte words replaced, or other damage."""
    if len(body) < 8 or chance.happens(0.3):
        return mutate_bytes(chance, body)
    at = chance.below(min(len(body) - 4, 100))
    changed = bytearray(body)
    word = int.from_bytes(changed[at : at + 4])
    changed[at : at + 4] = (
        chance.pick((word + 1, word - 1, 0, 2**31 - 1, 2**31, 2**32 - 1, len(body), word << 8)) & 0xFFFFFFFF
    ).to_bytes(4)
    return bytes(changed)


# -- the head of the command ------------------------------------------------------------------------------------------


def _mutate_head(chance: Chance, request: FuzzRequest) -> None:
    kind = chance.below(5)
    if kind == 0:
        request.flag = chance.pick((1, 2, 3, 4, 8, -1, 2**31 - 1, -(2**31), 0x10000, 0))
    elif kind == 1:
        request.language = chance.pick(_HEADER_EXTRAS[0][1])
    elif kind == 2:
        request.version = chance.pick(_HEADER_EXTRAS[1][1])
    elif kind == 3:
        request.binary = not request.binary
    elif not request.binary and chance.happens(0.1):
        request.version = RawJson(chance.pick(("1.5", "null", '"5"', "[]", "99999999999", "1e2", '""')))


def mutated_answer(chance: Chance) -> tuple[int, dict[str, Any], bytes]:
    """Return code, header fields and body of an answer to a request that the server sent to its client."""
    code = chance.pick((0, 0, 1, -1, 24, 2**31 - 1))
    ext = {chance.pick(FIELD_NAMES): extreme_text(chance) for _ in range(chance.below(3))}
    body = chance.pick(
        (
            b"",
            b"{}",
            b"null",
            b'{"consumerTable":{},"messageQueueTable":{}}',
            b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"fuzz_normal"}:5}}',
            b'{"messageQueueTable":{{"brokerName":null,"queueId":"x"}:"y"}}',
            b'{"messageQueueTable":[]}',
            b'{"consumeResult":"CR_SUCCESS"}',
            b"\xff\xff",
            b"[" * 2000,
        )
    )
    return code, ext, body
