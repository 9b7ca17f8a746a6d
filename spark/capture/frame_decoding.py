"""Decode the parts of an exchange's frames that rows need: headers without bodies, and the message of a send."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import remoting.requests  # noqa: F401 - declares them all
from codec import properties as names
from codec.batch import split_batch
from codec.command import Command, decode_frame
from codec.constants import SERIALIZE_BINARY, SERIALIZE_JSON, STORED_CODES
from codec.errors import FrameError, MessageFormatError
from codec.message import message_end
from codec.properties import decode_properties
from codec.sysflag import COMPRESSED
from remoting.declare import REQUESTS
from spark.pull.decompression import decompress_body

SEND_CODES: Final = frozenset((10, 310, 320, 324, 325))
SEND_BATCH_CODE: Final = 320
PULL_CODES: Final = frozenset((11, 361, 200050))
"""Requests whose answers hold stored messages: pulls and pops."""
_LONG_FIELD_NAMES: Final = {
    "topic": "topic", "group": "producerGroup", "queueId": "queueId", "sysFlag": "sysFlag", "born": "bornTimestamp",
    "flag": "flag", "properties": "properties", "reconsumeTimes": "reconsumeTimes",
}  # fmt: skip
_SHORT_FIELD_NAMES: Final = {
    "topic": "b", "group": "a", "queueId": "e", "sysFlag": "f", "born": "g", "flag": "h", "properties": "i",
    "reconsumeTimes": "j",
}  # fmt: skip
_INT_MAX, _LONG_MAX = 0x7FFFFFFF, (1 << 63) - 1


def request_name(code: int) -> str | None:
    """Return the official name of a request code, or None if it is unknown."""
    declared = REQUESTS.get(code)
    return None if declared is None else declared.NAME


def decode_header_only(payload: bytes, start: int, end: int) -> tuple[Command | None, int]:
    """Decode a frame without its body; return the command and where the body begins, or None if it is not a command."""
    if end - start < 8:
        return None, end
    word = int.from_bytes(payload[start + 4 : start + 8])
    body_at = start + 8 + (word & 0xFFFFFF)
    if body_at > end or word >> 24 not in (SERIALIZE_JSON, SERIALIZE_BINARY):
        return None, end
    try:
        return decode_frame(payload, start + 4, body_at), body_at
    except FrameError:
        return None, end


def int_field(ext: Mapping[str, str], name: str, high: int = _INT_MAX) -> int | None:
    """Return a header field as a number, or None if it is missing, not a number, or out of range (`high`)."""
    text = ext.get(name, "")
    digits = text[1:] if text[:1] == "-" else text
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        return None
    value = int(text)
    return value if -high - 1 <= value <= high else None


def long_field(ext: Mapping[str, str], name: str) -> int | None:
    """Return a header field as a 64-bit number, or None."""
    return int_field(ext, name, _LONG_MAX)


def decompress_if_needed(body: bytes, sys_flag: int) -> bytes:
    """Return the decompressed body. Raises MessageFormatError if it cannot be decompressed."""
    return decompress_body(body, sys_flag) if sys_flag & COMPRESSED and body else body


class CapturedSend(NamedTuple):
    """The message of a send, from request and answer. None stands for what neither of them contains."""

    header_fields: Mapping[str, str]
    field_names: Mapping[str, str]
    properties: dict[str, str]
    queue_id: int | None
    queue_offset: int | None
    msg_id: str | None
    waiting_as: str | None
    is_batch: bool
    is_stored: bool

    @property
    def sys_flag(self) -> int:
        """System flag of the message."""
        return int_field(self.header_fields, self.field_names["sysFlag"]) or 0

    def int_field(self, name: str) -> int | None:
        """Return a 32-bit header field of the request."""
        return int_field(self.header_fields, self.field_names[name])


def decode_send(
    code: int, request: Command, answer: Command | None, body: Callable[[], bytes]
) -> CapturedSend:
    """Decode a send. `body` is called for batches only, whose properties are in the body."""
    field_names = _LONG_FIELD_NAMES if code in (10, 324) else _SHORT_FIELD_NAMES
    ext = request.ext
    is_batch = (
        code == SEND_BATCH_CODE
        or ext.get("batch" if field_names is _LONG_FIELD_NAMES else "m", "").lower() == "true"
    )
    properties = decode_properties(ext.get(field_names["properties"], ""))
    if is_batch:
        properties |= first_batch_properties(body())
    queue_id, offset, msg_id = int_field(ext, field_names["queueId"]), None, None
    waiting_as = _waiting_state(properties)
    is_stored = answer is not None and answer.code in STORED_CODES
    if answer is not None and is_stored:
        stored_queue_id = int_field(answer.ext, "queueId")
        queue_id = queue_id if stored_queue_id is None else stored_queue_id
        offset = None if waiting_as else long_field(answer.ext, "queueOffset")
        msg_id = answer.ext.get("msgId", "").partition(",")[0] or None
    msg_id = properties.get(names.UNIQ_CLIENT_MESSAGE_ID_KEYIDX) or msg_id
    return CapturedSend(
        ext, field_names, properties, queue_id, offset, msg_id, waiting_as, is_batch, is_stored
    )


def first_batch_properties(body: bytes) -> dict[str, str]:
    """Return the properties of a batch's first message; empty if the body is not a batch."""
    try:
        return decode_properties(next(split_batch(body))[2])
    except (StopIteration, MessageFormatError):
        return {}


def count_batch_messages(body: bytes) -> int:
    """Count the messages of a batch, as far as it can be decoded."""
    count = 0
    try:
        for _ in split_batch(body):
            count += 1
    except MessageFormatError:
        pass
    return count


def count_stored_messages(payload: bytes, start: int, end: int) -> int:
    """Count consecutive stored messages, as far as they can be decoded."""
    count, view = 0, memoryview(payload)[:end]
    while start < end:
        try:
            start = message_end(view, start)
        except MessageFormatError:
            break
        count += 1
    return count


def _waiting_state(properties: Mapping[str, str]) -> str | None:
    """Return `half` or `delayed` if the message first waits elsewhere, else None. The answer's offset is then that of
    another queue than the topic's.
    """
    if properties.get(names.TRANSACTION_PREPARED, "").lower() == "true":
        return "half"
    level = properties.get(names.DELAY_TIME_LEVEL, "0")
    timer_properties = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
    if (level.isdecimal() and int(level) > 0) or any(name in properties for name in timer_properties):
        return "delayed"
    return None
