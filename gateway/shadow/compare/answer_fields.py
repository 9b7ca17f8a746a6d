"""An answer as leaves: which field, where exactly, which value. Values are equal when a client cannot tell them apart.

Not responsible for which of them matter (masks.py), nor for setting two answers side by side (answers.py).

What is absent is what the declared header or body makes of it: the default of the official class where it has one,
else `ABSENT`, which is neither empty text nor 0. JSON null is absent. Numbers are equal however they are spelled.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

from codec import fastjson, properties
from codec.copies import MASKED_NAMES, SYS_FLAG_BITS
from codec.errors import JsonError
from codec.message import Message
from gateway.shadow.compare.expected_differences import SECRETS, UNORDERED
from remoting.body import Body
from remoting.declare import REQUESTS, Header
from remoting.errors import RequestError
from remoting.fields import Field

SHOWN_CHARACTERS: Final = 160


class _Word:
    def __init__(self, word: str) -> None:
        self._word = word

    def __repr__(self) -> str:
        return self._word


ABSENT: Final = _Word("absent")
EMPTY: Final = _Word("empty")
"""A list or table without anything in it: what the other side has there instead is told by itself."""


class Opaque(NamedTuple):
    """Bytes that are compared and never shown."""

    size_bytes: int
    digest: bytes

    @classmethod
    def of(cls, data: bytes | memoryview) -> "Opaque":
        """Size and digest of the bytes."""
        return cls(len(data), hashlib.blake2b(data, digest_size=8).digest())

    def __repr__(self) -> str:
        return f"<{self.size_bytes} bytes, digest {self.digest.hex()}>"


class Leaf(NamedTuple):
    """One value. `path` names the field for counting (`body.table{}.perm`), `at` the very place (`…{orders}…`)."""

    path: str
    at: str
    value: Any


Rename = Mapping[str, str]
"""Names of the primary's brokers as the target has them."""


def header_leaves(code: int, ext: Mapping[str, str]) -> Iterator[Leaf]:
    """The header fields of an answer: declared ones by type and default, others as text."""
    reply = _reply(code)
    declared = () if reply is None else reply.WIRE_FIELDS
    for item in declared:
        yield Leaf(item.wire, item.wire, _header_value(item, ext.get(item.wire)))
    wires = {item.wire for item in declared}
    for wire, text in ext.items():
        if wire not in wires:
            yield Leaf(wire, wire, text)


def body_leaves(code: int, body: bytes | memoryview, rename: Rename) -> Iterator[Leaf]:
    """The body of an answer that is no list of messages, as deep as it goes; what is no JSON is one opaque value."""
    reply = _reply(code)
    kind = None if reply is None else reply.BODY
    if not body:
        yield Leaf("body", "body", ABSENT)
        return
    try:
        value = fastjson.loads(body)
        typed = value if kind is None else kind.from_value(value)
    except (JsonError, ValueError, RequestError):
        yield Leaf("body", "body", Opaque.of(body))
        return
    yield from _walk(_Place("body", "body"), typed, value, rename)


def message_leaves(message: Message, name: str, *, kept: bool) -> Iterator[Leaf]:
    """The fields of one message; ``name`` tells it from the others of its answer."""
    path, at = "messages[].", f"messages[{name}]."
    for field, read in _MESSAGE_FIELDS.items():
        yield Leaf(path + field, at + field, read(message))
    masked = MASKED_NAMES[kept]
    for key, value in message.properties.items():
        if key not in masked:
            reserved = key in properties.RESERVED
            shown = value if reserved else Opaque.of(value.encode("utf-8", "replace"))
            yield Leaf(path + "properties." + (key if reserved else "*"), f"{at}properties.{key}", shown)


_MESSAGE_FIELDS: Final[dict[str, Callable[[Message], Any]]] = {
    "topic": lambda message: message.topic,
    "queueId": lambda message: message.queue_id,
    "queueOffset": lambda message: message.queue_offset,
    "physicalOffset": lambda message: message.physical_offset,
    "flag": lambda message: message.flag,
    "sysFlag": lambda message: message.sys_flag & SYS_FLAG_BITS,
    "bornTimestamp": lambda message: message.born_timestamp,
    "bornHost": lambda message: message.born_host,
    "storeTimestamp": lambda message: message.store_timestamp,
    "storeHost": lambda message: message.store_host,
    "reconsumeTimes": lambda message: message.reconsume_times,
    "preparedTransactionOffset": lambda message: message.prepared_transaction_offset,
    "body": lambda message: Opaque.of(message.body),
}


def shown(path: str, value: Any) -> str:
    """A value for people: bounded, and nothing secret."""
    if any(word in path.lower() for word in SECRETS) and value is not ABSENT:
        return "<secret>"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}… ({len(text)} characters)"


def _reply(code: int) -> type[Header] | None:
    declared = REQUESTS.get(code)
    return None if declared is None else declared.REPLY


def _header_value(item: Field, text: str | None) -> Any:
    if text is None:
        return ABSENT if item.required or item.default is None else item.default
    kind = next((each for each in get_args(item.type) if each is not type(None)), item.type)
    kind = item.type if get_origin(item.type) is Annotated else kind
    try:
        if get_origin(kind) is Annotated:
            return int(text)
        if kind is float:
            return float(text)
    except ValueError:
        return text
    return text.lower() == "true" if kind is bool else text


class _Place(NamedTuple):
    path: str
    at: str

    def field(self, name: str) -> "_Place":
        return _Place(f"{self.path}.{name}", f"{self.at}.{name}")

    def key(self, key: str) -> "_Place":
        return _Place(f"{self.path}{{}}", f"{self.at}{{{key[:SHOWN_CHARACTERS]}}}")

    def element(self, name: str) -> "_Place":
        return _Place(f"{self.path}[]", f"{self.at}[{name[:SHOWN_CHARACTERS]}]")


def _walk(place: _Place, value: Any, raw: Any, rename: Rename) -> Iterator[Leaf]:
    """``value`` is what the declaration made of ``raw``, or the same where nothing is declared."""
    if isinstance(value, Body):
        yield from _walk_object(place, value, raw, rename)
    elif isinstance(value, Mapping | list) and not value:
        yield Leaf(*place, EMPTY)
    elif isinstance(value, Mapping):
        raws = (
            list(raw.values()) if isinstance(raw, Mapping) and len(raw) == len(value) else [*value.values()]
        )
        for (key, item), given in zip(value.items(), raws, strict=True):
            yield from _walk(place.key(_key_text(key, rename)), item, given, rename)
    elif isinstance(value, list):
        yield from _walk_list(place, value, raw, rename)
    else:
        yield Leaf(*place, _scalar(value, rename))


def _walk_object(place: _Place, value: Body, raw: Any, rename: Rename) -> Iterator[Leaf]:
    given: Mapping[Any, Any] = raw if isinstance(raw, Mapping) else {}
    for item in value.FIELDS:
        yield from _walk(place.field(item.wire), getattr(value, item.name), given.get(item.wire), rename)
    declared = {item.wire for item in value.FIELDS}
    for key, undeclared in given.items():
        if key not in declared and undeclared is not None:
            yield from _walk(place.field(str(key)), undeclared, undeclared, rename)


def _walk_list(place: _Place, value: list[Any], raw: Any, rename: Rename) -> Iterator[Leaf]:
    raws = raw if isinstance(raw, list) and len(raw) == len(value) else value
    names = UNORDERED.get(place.path)
    for index, (item, given) in enumerate(zip(value, raws, strict=True)):
        if names is None:
            yield from _walk(place.element(str(index)), item, given, rename)
        elif not names:
            yield Leaf(*place.element(_key_text(item, rename)), True)
        else:
            fields = given if isinstance(given, Mapping) else {}
            name = " ".join(_key_text(fields.get(each), rename) for each in names)
            yield from _walk(place.element(name), item, given, rename)


def _scalar(value: Any, rename: Rename) -> Any:
    if value is None:
        return ABSENT
    return rename.get(value, value) if isinstance(value, str) else value


def _key_text(key: Any, rename: Rename) -> str:
    if isinstance(key, str):
        return rename.get(key, key)
    fields = (
        key.to_value()
        if isinstance(key, Body)
        else key.fields
        if isinstance(key, fastjson.ObjectKey)
        else key
    )
    if isinstance(fields, Mapping):
        return ",".join(f"{name}={_key_text(fields[name], rename)}" for name in sorted(fields))
    return str(fields)
