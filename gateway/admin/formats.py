"""Messages as text: format strings in the manner of kcat, JSON objects, and rows of a table."""

import base64
from collections.abc import Callable
from typing import Any, Final

from codec import properties as names
from codec.errors import MessageFormatError
from codec.hosts import format_host
from codec.message import Message
from gateway.admin.output import TableColumn, print_rows
from toolkit.printable import printable_bytes
from toolkit.times import format_time

DEFAULT_FORMAT: Final = "%s\\n"
Part = Callable[[Message, str], bytes]
"""Renders one part of a format; the second argument is the name of the broker."""


def _text(read: Callable[[Message, str], object]) -> Part:
    return lambda message, broker: str(read(message, broker)).encode("utf-8", "replace")


PARTS: Final[dict[str, tuple[str, Part]]] = {
    "s": ("value", lambda message, broker: plain_body(message)),
    "S": ("length of the value in bytes", _text(lambda message, broker: len(plain_body(message)))),
    "t": ("topic", _text(lambda message, broker: message.topic)),
    "b": ("broker", _text(lambda message, broker: broker)),
    "p": ("queue", _text(lambda message, broker: message.queue_id)),
    "o": ("offset in the queue", _text(lambda message, broker: message.queue_offset)),
    "k": ("keys", _text(lambda message, broker: message.properties.get(names.KEYS, ""))),
    "g": ("tag", _text(lambda message, broker: message.tags or "")),
    "i": (
        "id that the producer assigned",
        _text(lambda message, broker: message.unique_key or message.msg_id),
    ),
    "I": ("offset message id", _text(lambda message, broker: message.msg_id)),
    "h": ("properties of the user, name=value,…", _text(lambda message, broker: _headers(message))),
    "T": ("store time in ms", _text(lambda message, broker: message.store_timestamp)),
    "D": ("store time", _text(lambda message, broker: format_time(message.store_timestamp))),
    "r": ("deliveries that failed before", _text(lambda message, broker: message.reconsume_times)),
    "%": ("a percent sign", lambda message, broker: b"%"),
}
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def parse_format(text: str, *, for_terminal: bool = False) -> Callable[[Message, str], bytes]:
    """Return a function that renders a message and the name of its broker. Raises ValueError for an unknown part.

    ``for_terminal`` escapes the controls in parts of messages; the text between them is the user's own.
    """
    parts: list[bytes | Part] = []
    position = 0
    while position < len(text):
        character, following = text[position], text[position + 1 : position + 2]
        if character == "%":
            if following not in PARTS:
                raise ValueError(f'"%{following}" is not a part of a format; expected {describe_format()}')
            parts.append(PARTS[following][1])
            position += 2
        elif character == "\\" and following == "x":
            digits = text[position + 2 : position + 4]
            try:
                parts.append(bytes.fromhex(digits if len(digits) == 2 else "?"))
            except ValueError:
                raise ValueError(f'"\\x{digits}" needs two hex digits') from None
            position += 4
        elif character == "\\" and following in _ESCAPES:
            parts.append(_ESCAPES[following])
            position += 2
        else:
            parts.append(character.encode("utf-8", "surrogateescape"))
            position += 1

    def render(message: Message, broker: str) -> bytes:
        return b"".join(part if isinstance(part, bytes) else prepare(part(message, broker)) for part in parts)

    prepare = printable_bytes if for_terminal else bytes
    return render


def describe_format() -> str:
    """Return the parts of a format with their meanings."""
    return ", ".join(f"%{name} {meaning}" for name, (meaning, _) in PARTS.items())


def parse_delimiter(text: str) -> bytes:
    r"""Return the bytes of a delimiter in which \n, \t, \0 and \xNN stand for others. Raises ValueError."""
    delimiter = parse_format(text.replace("%", "%%"))(Message(""), "")
    if not delimiter:
        raise ValueError("a delimiter cannot be empty")
    return delimiter


def plain_body(message: Message) -> bytes:
    """Return the body that the producer passed, or the stored one if it cannot be decompressed here."""
    try:
        return message.decompressed_body()
    except MessageFormatError:
        return message.body


def user_properties(message: Message) -> dict[str, str]:
    """Return the properties that the user set, without those of the system."""
    return {
        name: value
        for name, value in message.properties.items()
        if name not in names.RESERVED and not name.startswith(names.TRANSIENT_PREFIX)
    }


def _headers(message: Message) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(user_properties(message).items()))


def to_json_value(message: Message, broker: str | None = None) -> dict[str, Any]:
    """Return a message as a JSON object; `produce --json-lines` reads value, keys, tag and properties of it."""
    body = plain_body(message)
    try:
        value = {"value": body.decode()}
    except UnicodeDecodeError:
        value = {"valueBase64": base64.b64encode(body).decode()}
    own = user_properties(message)
    system = {name: text for name, text in message.properties.items() if name not in own}
    for name in (names.KEYS, names.TAGS):
        system.pop(name, None)
    return {
        "topic": message.topic,
        "broker": broker,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "messageId": message.msg_id,
        "uniqueKey": message.unique_key,
        "tag": message.tags,
        "keys": message.keys,
        "properties": own,
        "systemProperties": system,
        "bornMs": message.born_timestamp,
        "storedMs": message.store_timestamp,
        "bornHost": format_host(message.born_host),
        "storeHost": format_host(message.store_host),
        "deliveriesBefore": message.reconsume_times,
        **value,
    }


MAX_VALUE_CHARS: Final = 40
"""Longer values are cut in a table, and end with "…"; the formats wide and json show all of them."""


def print_messages(
    rows: list[dict[str, Any]], output: str, *, empty: str, extra_columns: tuple[TableColumn, ...] = ()
) -> None:
    """Print the rows that `to_json_value` returned. ``extra_columns`` follow the place of a message."""
    if output != "json":
        for row in rows:
            text = row.get("value", "(binary)")
            row |= {
                "stored": format_time(row["storedMs"]),
                "text": _shorten(text) if output == "table" else text,
            }
    columns = [
        TableColumn("stored", "stored", whole=True),
        TableColumn("broker", "broker"),
        TableColumn("queue", "queue"),
        TableColumn("offset", "offset"),
        *extra_columns,
        TableColumn("uniqueKey", "id", whole=True),
        TableColumn("keys", "keys"),
        TableColumn("tag", "tag"),
        TableColumn("properties", "properties", wide=True),
        TableColumn("text", "value"),
    ]
    print_rows(rows, columns, output, empty=empty)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"
