"""Replace the broker's name in receipt handles: clients know the primary's broker, the target knows itself.

Source: AckMessageProcessor, ChangeInvisibleTimeProcessor, PopCheckPoint, 5.4.0: the broker matches an acknowledgement
with its pop checkpoint by the broker name in both. If the names differ, the acknowledgement has no effect, and the
message is delivered again.
"""

from typing import Any, Final

from codec import fastjson
from codec.command import Command, decode_frame, encode_command
from codec.errors import FrameError
from remoting.requests.pop import AckMessage, BatchAckMessage, ChangeMessageInvisibletime

HANDLE_CODES: Final = frozenset({AckMessage.code, ChangeMessageInvisibletime.code, BatchAckMessage.code})
"""Requests that carry a receipt handle, or the broker's name from one."""
MAX_BODY_BYTES: Final = 256 * 1024
_NAME_INDEX: Final = 5
"""Index of the broker's name in a receipt handle.

Its parts are offset, pop time, invisible time, revive queue, kind of topic, broker, queue and queue offset."""


def replace_broker_name(frame: bytes, name: str) -> bytes:
    """Return a frame of one of `HANDLE_CODES` with another broker name; one that cannot be read is returned as is."""
    try:
        command = decode_frame(frame, 4, len(frame))
        is_batch = command.code == BatchAckMessage.code
        changed = _rename_in_body(command, name) if is_batch else _rename_in_handle(command, name)
    except (FrameError, ValueError):
        return frame
    return encode_command(command) if changed else frame


def _rename_in_handle(command: Command, name: str) -> bool:
    parts = command.ext.get("extraInfo", "").split(" ")
    if len(parts) <= _NAME_INDEX or parts[_NAME_INDEX] == name:
        return False
    command.ext["extraInfo"] = " ".join([*parts[:_NAME_INDEX], name, *parts[_NAME_INDEX + 1 :]])
    return True


def _rename_in_body(command: Command, name: str) -> bool:
    if len(command.body) > MAX_BODY_BYTES:
        return False
    value: Any = fastjson.loads(bytes(command.body))
    if not isinstance(value, dict) or value.get("brokerName") == name:
        return False
    command.body = fastjson.dumps({**value, "brokerName": name})
    return True
