"""The broker's name in what clients give back of popped messages: they know the primary's, the target its own.

Source: AckMessageProcessor, ChangeInvisibleTimeProcessor, PopCheckPoint, 5.4.0: an acknowledgement belongs to a check
point by the names of both; one with another name is forgotten, and the message comes again.
Not responsible for where such a request goes.
"""

from typing import Any, Final

from codec import fastjson
from codec.command import Command, decode_frame, encode_command
from codec.errors import FrameError
from remoting.requests.pop import AckMessage, BatchAckMessage, ChangeMessageInvisibletime

HANDLED: Final = frozenset({AckMessage.code, ChangeMessageInvisibletime.code, BatchAckMessage.code})
_NAME_AT: Final = 5
"""Of the parts of a handle: offset, pop time, invisible time, revive queue, kind of topic, broker, queue, offset."""


def with_broker(frame: bytes, name: str) -> bytes:
    """A whole frame of one of the codes `HANDLED` with another broker's name; what cannot be read stays."""
    try:
        command = decode_frame(frame, 4, len(frame))
        changed = _body(command, name) if command.code == BatchAckMessage.code else _handle(command, name)
    except (FrameError, ValueError):
        return frame
    return encode_command(command) if changed else frame


def _handle(command: Command, name: str) -> bool:
    parts = command.ext.get("extraInfo", "").split(" ")
    if len(parts) <= _NAME_AT or parts[_NAME_AT] == name:
        return False
    command.ext["extraInfo"] = " ".join([*parts[:_NAME_AT], name, *parts[_NAME_AT + 1 :]])
    return True


def _body(command: Command, name: str) -> bool:
    value: Any = fastjson.loads(bytes(command.body))
    if not isinstance(value, dict) or value.get("brokerName") == name:
        return False
    command.body = fastjson.dumps({**value, "brokerName": name})
    return True
