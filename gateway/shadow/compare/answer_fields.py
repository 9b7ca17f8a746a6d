"""An answer as a flat list of leaves: field, exact place, value. Values are equal when a client cannot tell them apart.

An absent field takes the default that the official class declares for it; without one it is `ABSENT`, which is neither
empty text nor 0. JSON null is absent. Numbers are equal however they are spelled.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

from codec import fastjson, properties
from codec.errors import JsonError
from codec.expected_differences import COMPARED_SYS_FLAG_BITS, EXPECTED_PROPERTY_NAMES
from codec.java_numbers import MAX_NUMBER_TEXT_CHARS, parse_java_integer
from codec.message import Message
from gateway.shadow.compare.expected_differences import SECRET_WORDS, UNORDERED_LISTS
from remoting.declare import REQUESTS, Header
from remoting.errors import RequestError
from remoting.fields import Field
from remoting.json_body import JsonBody

MAX_VALUE_CHARS: Final = 160
MAX_SHOWN_BITS: Final = 1_000


class _Marker:
    """A value that is equal to nothing but itself, shown as a word."""

    def __init__(self, word: str) -> None:
        self._word = word

    def __repr__(self) -> str:
        return self._word


ABSENT: Final = _Marker("absent")
EMPTY: Final = _Marker("empty")
"""An empty list or table. Only the elements that the other side has in its place are reported as differences."""


class OpaqueBytes(NamedTuple):
    """Bytes that are compared but never shown."""

    size_bytes: int
    digest: bytes

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> "OpaqueBytes":
        """Return size and digest of the bytes."""
        return cls(len(data), hashlib.blake2b(data, digest_size=8).digest())

    def __repr__(self) -> str:
        return f"<{self.size_bytes} bytes, digest {self.digest.hex()}>"


class Leaf(NamedTuple):
    """One value. `path` names the field for counting (`body.table{}.perm`), `at` the exact place (`…{orders}…`)."""

    path: str
    at: str
    value: Any


BrokerNames = Mapping[str, str]
"""The target's broker names by the primary's."""


def header_leaves(code: int, ext: Mapping[str, str]) -> Iterator[Leaf]:
    """Yield the header fields of an answer: declared ones by type and default, others as text."""
    reply = _reply_class(code)
    declared = () if reply is None else reply.WIRE_FIELDS
    for item in declared:
        yield Leaf(item.wire, item.wire, _parse_header_value(item, ext.get(item.wire)))
    wires = {item.wire for item in declared}
    for wire, text in ext.items():
        if wire not in wires:
            yield Leaf(wire, wire, text)


def body_leaves(code: int, body: bytes | memoryview, broker_names: BrokerNames) -> Iterator[Leaf]:
    """Yield all fields of a JSON body; a body that is not JSON is one opaque value.

    Bodies that hold messages go to `message_leaves`.
    """
    reply = _reply_class(code)
    kind = None if reply is None else reply.BODY
    if not body:
        yield Leaf("body", "body", ABSENT)
        return
    try:
        value = fastjson.loads(body, fastjson.MAX_TRUSTED_VALUES)
        typed = value if kind is None else kind.from_value(value)
    except (JsonError, ValueError, RequestError):
        yield Leaf("body", "body", OpaqueBytes.from_bytes(body))
        return
    yield from _walk_value(_FieldPath("body", "body"), typed, value, broker_names)


def message_leaves(message: Message, name: str, *, same_offsets: bool) -> Iterator[Leaf]:
    """Yield the fields of one message; ``name`` distinguishes it from the other messages of its answer."""
    path, at = "messages[].", f"messages[{name}]."
    for field, get_value in _MESSAGE_FIELDS.items():
        yield Leaf(path + field, at + field, get_value(message))
    masked = EXPECTED_PROPERTY_NAMES[same_offsets]
    for key, value in message.properties.items():
        if key not in masked:
            reserved = key in properties.RESERVED
            shown = value if reserved else OpaqueBytes.from_bytes(value.encode("utf-8", "replace"))
            yield Leaf(path + "properties." + (key if reserved else "*"), f"{at}properties.{key}", shown)


_MESSAGE_FIELDS: Final[dict[str, Callable[[Message], Any]]] = {
    "topic": lambda message: message.topic,
    "queueId": lambda message: message.queue_id,
    "queueOffset": lambda message: message.queue_offset,
    "physicalOffset": lambda message: message.physical_offset,
    "flag": lambda message: message.flag,
    "sysFlag": lambda message: message.sys_flag & COMPARED_SYS_FLAG_BITS,
    "bornTimestamp": lambda message: message.born_timestamp,
    "bornHost": lambda message: message.born_host,
    "storeTimestamp": lambda message: message.store_timestamp,
    "storeHost": lambda message: message.store_host,
    "reconsumeTimes": lambda message: message.reconsume_times,
    "preparedTransactionOffset": lambda message: message.prepared_transaction_offset,
    "body": lambda message: OpaqueBytes.from_bytes(message.body),
}


def format_value(path: str, value: Any) -> str:
    """Return a value as bounded text for people; fields that may hold secrets are not shown."""
    if any(word in path.lower() for word in SECRET_WORDS) and value is not ABSENT:
        return "<secret>"
    text = value if isinstance(value, str) else _shown(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}… ({len(text)} characters)"


def _shown(value: Any) -> str:
    # The decimal digits of a number beyond all ranges take long, and Python refuses them.
    is_huge = isinstance(value, int) and value.bit_length() > MAX_SHOWN_BITS
    return f"a number of {value.bit_length()} bits" if is_huge else repr(value)


def _reply_class(code: int) -> type[Header] | None:
    declared = REQUESTS.get(code)
    return None if declared is None else declared.REPLY


def _parse_header_value(item: Field, text: str | None) -> Any:
    if text is None:
        return ABSENT if item.required or item.default is None else item.default
    kind = next((option for option in get_args(item.type) if option is not type(None)), item.type)
    kind = item.type if get_origin(item.type) is Annotated else kind
    try:
        if get_origin(kind) is Annotated:
            return parse_java_integer(text)
        if kind is float:
            return float(text) if len(text) <= MAX_NUMBER_TEXT_CHARS else text
    except ValueError:
        return text
    return text.lower() == "true" if kind is bool else text


class _FieldPath(NamedTuple):
    path: str
    at: str

    def in_field(self, name: str) -> "_FieldPath":
        name = name[:MAX_VALUE_CHARS]
        return _FieldPath(f"{self.path}.{name}", f"{self.at}.{name}")

    def in_key(self, key: str) -> "_FieldPath":
        return _FieldPath(f"{self.path}{{}}", f"{self.at}{{{key[:MAX_VALUE_CHARS]}}}")

    def in_element(self, name: str) -> "_FieldPath":
        return _FieldPath(f"{self.path}[]", f"{self.at}[{name[:MAX_VALUE_CHARS]}]")


def _walk_value(path: _FieldPath, value: Any, raw: Any, broker_names: BrokerNames) -> Iterator[Leaf]:
    """Yield the leaves of a value; ``raw`` is the JSON value that the declared type was decoded from.

    Where nothing is declared, both are the same.
    """
    if isinstance(value, JsonBody):
        yield from _walk_object(path, value, raw, broker_names)
    elif isinstance(value, Mapping | list) and not value:
        yield Leaf(*path, EMPTY)
    elif isinstance(value, Mapping):
        raws = (
            list(raw.values()) if isinstance(raw, Mapping) and len(raw) == len(value) else [*value.values()]
        )
        for (key, item), raw_item in zip(value.items(), raws, strict=True):
            yield from _walk_value(path.in_key(_key_text(key, broker_names)), item, raw_item, broker_names)
    elif isinstance(value, list):
        yield from _walk_list(path, value, raw, broker_names)
    else:
        yield Leaf(*path, _scalar_value(value, broker_names))


def _walk_object(path: _FieldPath, value: JsonBody, raw: Any, broker_names: BrokerNames) -> Iterator[Leaf]:
    raw_fields: Mapping[Any, Any] = raw if isinstance(raw, Mapping) else {}
    for item in value.FIELDS:
        yield from _walk_value(
            path.in_field(item.wire), getattr(value, item.name), raw_fields.get(item.wire), broker_names
        )
    declared = {item.wire for item in value.FIELDS}
    for key, undeclared in raw_fields.items():
        if key not in declared and undeclared is not None:
            yield from _walk_value(path.in_field(str(key)), undeclared, undeclared, broker_names)


def _walk_list(path: _FieldPath, value: list[Any], raw: Any, broker_names: BrokerNames) -> Iterator[Leaf]:
    raws = raw if isinstance(raw, list) and len(raw) == len(value) else value
    names = UNORDERED_LISTS.get(path.path)
    for index, (item, raw_item) in enumerate(zip(value, raws, strict=True)):
        if names is None:
            yield from _walk_value(path.in_element(str(index)), item, raw_item, broker_names)
        elif not names:
            yield Leaf(*path.in_element(_key_text(item, broker_names)), True)
        else:
            fields = raw_item if isinstance(raw_item, Mapping) else {}
            name = " ".join(_key_text(fields.get(field_name), broker_names) for field_name in names)
            yield from _walk_value(path.in_element(name), item, raw_item, broker_names)


def _scalar_value(value: Any, broker_names: BrokerNames) -> Any:
    if value is None:
        return ABSENT
    return broker_names.get(value, value) if isinstance(value, str) else value


def _key_text(key: Any, broker_names: BrokerNames) -> str:
    if isinstance(key, str):
        return broker_names.get(key, key)
    fields = (
        key.to_value()
        if isinstance(key, JsonBody)
        else key.fields
        if isinstance(key, fastjson.ObjectKey)
        else key
    )
    if isinstance(fields, Mapping):
        return ",".join(f"{name}={_key_text(fields[name], broker_names)}" for name in sorted(fields))
    return str(fields)
