"""The subject of an exchange: its topic, group and queue, and for sends the place of the message at the primary."""

from dataclasses import dataclass
from typing import Final
from zlib import crc32

import orjson

from codec import properties as keys
from codec.batch import split_batch
from codec.command import Command
from codec.constants import STORED_CODES
from codec.errors import MessageFormatError
from codec.java_numbers import I64, parse_integer_or, parse_java_integer
from codec.properties import decode_properties
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.request_policy import END_TRANSACTION, SEND_CODES, UPDATE_CONSUMER_OFFSET

SEND_BATCH: Final = 320
_SHORT_FIELD_NAMES: Final = {
    "producerGroup": "a",
    "topic": "b",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "properties": "i",
    "brokerName": "n",
}
_GROUP_FIELDS: Final = ("producerGroup", "consumerGroup", "group", "groupName")
_LONG_NAMES: Final = "topic", "producerGroup", "queueId", "properties"
_SHORT_NAMES: Final = tuple(_SHORT_FIELD_NAMES[name] for name in _LONG_NAMES)
_NUMBER_FIELDS: Final = {END_TRANSACTION: "commitOrRollback", UPDATE_CONSUMER_OFFSET: "commitOffset"}
"""The header field of `Subject.number`, by request code."""
MAX_NAME_CHARS: Final = 1_024
"""Longest topic, group or unique key: they are kept in tables, and brokers refuse longer ones."""
MAX_NAMING_BODY_BYTES: Final = 64 * 1024
"""Largest body that is searched for the group it names."""
_BODY_NAMES_GROUP: Final = {200: "groupName", 401: "consumerGroup"}


def header_field_name(code: int, name: str) -> str:
    """Return the name of a send's field in the header of a request code."""
    return name if code == 10 else _SHORT_FIELD_NAMES[name]


@dataclass(slots=True)
class Subject:
    """The subject of an exchange. Treat it as immutable; enforcing that would make each one slower to create.

    `topic` and `group` are "" and `queue_id` is -1 if the request names none. For a stored send `offset` is the first
    queue offset and `count` the number of messages; `offset` is -1 if the answer's offset is not in the topic's own
    queue, because the message waits elsewhere first (`delayed`, `half`). `unique_key` is that of the (first) message,
    or of the half message that ends. `number` is the offset that a group commits, or how a transaction ends; -1 if
    the request names none.
    """

    topic: str = ""
    group: str = ""
    queue_id: int = -1
    offset: int = -1
    count: int = 1
    key: str = ""
    unique_key: str = ""
    half: bool = False
    delayed: bool = False
    number: int = -1

    @property
    def queue(self) -> tuple[str, int]:
        """Topic and queue id."""
        return self.topic, self.queue_id


def subject_of(exchange: Exchange) -> Subject:
    """Return the subject of an exchange; it is derived once and cached.

    Raises ValueError, KeyError, TypeError or AttributeError for an exchange that clients and brokers would not write.
    """
    subject = exchange.subject
    if subject is None:
        subject = exchange.subject = _derive_subject(exchange)
    return subject


def _derive_subject(exchange: Exchange) -> Subject:
    request = exchange.request_command
    if exchange.code in SEND_CODES:
        return _send_subject(exchange, request)
    ext = request.ext
    queue_id = _parse_number(ext.get("queueId"))
    number = _parse_number(ext.get(_NUMBER_FIELDS.get(exchange.code, "")))
    unique_key = ext.get("transactionId") or ext.get("msgId") or ""
    group, topic = _group_of(request), ext.get("topic", "")
    _require_short(group, topic, unique_key)
    return Subject(topic, group, queue_id, unique_key=unique_key, number=number)


def _parse_number(text: str | None) -> int:
    """Return a number, -1 for an absent one. Raises ValueError if it does not fit into 64 bits."""
    return parse_java_integer(text, I64) if text else -1


def _require_short(*names: str) -> None:
    if max(map(len, names)) > MAX_NAME_CHARS:
        raise ValueError("a name is longer than any broker accepts")


def _group_of(request: Command) -> str:
    named = _BODY_NAMES_GROUP.get(request.code)
    if named is not None:
        # Parsed in the event loop, so a client must not be able to make it large.
        if len(request.body) > MAX_NAMING_BODY_BYTES:
            raise ValueError("the body is larger than any that names a group")
        value = orjson.loads(request.body)
        return str(value.get(named) or "") if isinstance(value, dict) else ""
    return next((request.ext[name] for name in _GROUP_FIELDS if name in request.ext), "")


def _send_subject(exchange: Exchange, request: Command) -> Subject:
    ext = request.ext
    topic_name, group_name, queue_name, properties_name = _LONG_NAMES if exchange.code == 10 else _SHORT_NAMES
    topic, group, text = ext[topic_name], ext.get(group_name, ""), ext.get(properties_name) or ""
    properties = decode_properties(text) if text else {}
    if exchange.code == SEND_BATCH:
        properties |= decode_properties(_first_batch_properties(request))
    # A search of the text is enough to rule it out for nearly every message.
    waits = "DELAY" in text or "TIMER_" in text or "TRAN_MSG" in text
    # A batch is stored as it is, whatever its properties say: brokers look for half messages in single sends only.
    single = exchange.code != SEND_BATCH
    half = single and waits and properties.get(keys.TRANSACTION_PREPARED, "").lower() == "true"
    delayed = waits and _is_delayed(properties)
    key = (
        properties.get(keys.SHARDING_KEY)
        or properties.get(keys.KEYS)
        or properties.get(keys.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
        or ""
    )
    queue_id, offset, count = _parse_number(ext[queue_name]), -1, 1
    answer = exchange.answer_command
    if answer is not None and answer.code in STORED_CODES:
        queue_id = _parse_number(answer.ext["queueId"])
        offset = -1 if half or delayed else _parse_number(answer.ext["queueOffset"])
        # The answer to a batch has one message id per message.
        count = answer.ext["msgId"].count(",") + 1
    unique_key = properties.get(keys.UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "")
    _require_short(topic, group, unique_key)
    return Subject(topic, group, queue_id, offset, count, key, unique_key, half, delayed)


def _first_batch_properties(request: Command) -> bytes:
    try:
        return next(split_batch(request.body))[2]
    except (StopIteration, MessageFormatError):
        return b""


def _is_delayed(properties: dict[str, str]) -> bool:
    level = properties.get(keys.DELAY_TIME_LEVEL, "0")
    if level.isdecimal() and parse_integer_or(level, 1) > 0:
        return True
    return any(
        name in properties for name in (keys.TIMER_DELAY_SEC, keys.TIMER_DELAY_MS, keys.TIMER_DELIVER_MS)
    )


def stable_share(*parts: str) -> float:
    """Return a number in [0, 1) for some texts, which is the same in every process and on every machine."""
    return crc32("\0".join(parts).encode("utf-8", "replace")) / 0x1_0000_0000
