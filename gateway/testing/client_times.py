"""Converts the absolute times in requests from the clients' clock to that of servers whose clock was moved ahead.

Without it a message for "in ten seconds" would be late at once after `advance(60)`, and every pop request would look
like one whose client has given up long ago.
"""

from typing import Final

from codec.command import Command
from codec.java_numbers import parse_integer_or
from codec.properties import TIMER_DELIVER_MS, decode_properties, encode_properties
from remoting.requests.pop import Notification, PeekMessage, PopMessage
from remoting.requests.send import SendBatchMessage, SendMessage, SendMessageV2

TIME_FIELDS: Final = {
    SendMessage.code: "bornTimestamp",
    SendMessageV2.code: "g",
    SendBatchMessage.code: "g",
    PopMessage.code: "bornTime",
    PeekMessage.code: "bornTime",
    Notification.code: "bornTime",
}
"""The header field with the client's time, by request code."""
PROPERTIES_FIELDS: Final = {SendMessage.code: "properties", SendMessageV2.code: "i"}
"""The header field with the properties of a message, which may name its delivery time, by request code."""


def shift_client_times(command: Command, ahead_ms: int) -> None:
    """Move the absolute times of a request ahead, in place. Requests without any stay as they are."""
    field = TIME_FIELDS.get(command.code)
    if field is None:
        return
    ext = command.ext
    _shift(ext, field, ahead_ms)
    properties_field = PROPERTIES_FIELDS.get(command.code)
    if properties_field is not None and TIMER_DELIVER_MS in ext.get(properties_field, ""):
        properties = decode_properties(ext[properties_field].encode())
        _shift(properties, TIMER_DELIVER_MS, ahead_ms)
        ext[properties_field] = encode_properties(properties).decode()


def _shift(fields: dict[str, str], name: str, ahead_ms: int) -> None:
    """Add to a field that is a time; 0 and -1 stand for no time."""
    sent_ms = parse_integer_or(fields.get(name), 0)
    if sent_ms > 0:
        fields[name] = str(sent_ms + ahead_ms)
