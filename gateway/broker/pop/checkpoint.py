"""Records of the revive topic in the official JSON: checkpoints of pops, and acks."""

from contextlib import suppress
from dataclasses import dataclass, field
from sys import intern
from typing import Any, Final, NamedTuple, Self

import orjson

from codec.java_numbers import I32, I64, JavaInteger, read_json_integer

CK_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"
MAX_POP_MESSAGES: Final = 32
"""Maximum number of messages of one pop: a bit of a Java int stands for each. Source: PopCheckPoint.bitMap, 5.4.0."""
MAX_NAME_CHARS: Final = 255
"""Maximum length of the name of a topic, a group or a broker. Longer ones cannot be created."""
I8_MAX: Final = 127


class PopKey(NamedTuple):
    """Identifies one pop from one queue. Its acks carry the same key."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time: int
    broker_name: str


@dataclass(slots=True)
class PopCheckpoint:
    """One pop from one queue: its messages, their invisible time, and a bit for each acked message.

    ``offset_diffs`` are the messages' queue offsets, relative to ``key.start_offset``. Source: PopCheckPoint, 5.4.0.
    """

    key: PopKey
    invisible_time: int
    offset_diffs: list[int]
    acked_bits: int = 0
    postponements: int = 0

    @property
    def revive_time(self) -> int:
        """Wall time (ms) from which other consumers may get the messages; at most Java's largest long."""
        return min(self.key.pop_time + self.invisible_time, I64.high)

    @property
    def is_done(self) -> bool:
        """True when every message is acked."""
        return self.acked_bits == (1 << len(self.offset_diffs)) - 1

    def mark_acked(self, offset: int) -> bool:
        """Mark a message as acked. Return False when it is not of this pop, or was acked before."""
        try:
            bit = 1 << self.offset_diffs.index(offset - self.key.start_offset)
        except ValueError:
            return False
        fresh = not self.acked_bits & bit
        self.acked_bits |= bit
        return fresh

    def unacked_offsets(self) -> list[int]:
        """Return the queue offsets of messages that are not acked."""
        start = self.key.start_offset
        return [
            start + diff for number, diff in enumerate(self.offset_diffs) if not self.acked_bits >> number & 1
        ]

    @property
    def end_offset(self) -> int:
        """Queue offset after the last message."""
        return self.key.start_offset + max(self.offset_diffs, default=-1) + 1

    def to_json(self) -> bytes:
        """Return the official body."""
        value = _key_to_value(self.key)
        value |= {"bm": _to_java_int(self.acked_bits), "d": self.offset_diffs, "it": self.invisible_time}
        value |= {"n": len(self.offset_diffs), "reviveTime": self.revive_time, "ro": 0}
        if self.postponements:
            value["rp"] = str(self.postponements)
        return orjson.dumps(value)

    @classmethod
    def from_value(cls, value: object) -> Self:
        """Parse the official object, in which nothing is trusted. Raises ValueError."""
        fields = _require_fields(value)
        key = _parse_key(fields)
        count = _parse_integer(fields, "n", I32)
        if not 0 <= count <= MAX_POP_MESSAGES:
            raise ValueError(f"a pop of {count} messages")
        diffs = parse_pop_integers(fields.get("d") or list(range(count)), I32)[:count]
        if diffs and (min(diffs) < 0 or key.start_offset + max(diffs) > I64.high):
            raise ValueError("a message outside of any queue")
        bits = _parse_integer(fields, "bm", I32) & (1 << len(diffs)) - 1
        return cls(
            key, _parse_integer(fields, "it", I64), diffs, bits, _parse_postponements(fields.get("rp"))
        )


@dataclass(slots=True)
class AckRecord:
    """Acked messages of one pop. Source: AckMsg and BatchAckMsg, 5.4.0."""

    key: PopKey
    offsets: list[int] = field(default_factory=list)

    @property
    def tag(self) -> str:
        """Tag of the record: a single ack has a form of its own."""
        return ACK_TAG if len(self.offsets) == 1 else BATCH_ACK_TAG

    def to_json(self) -> bytes:
        """Return the official body."""
        value = _key_to_value(self.key)
        if len(self.offsets) == 1:
            value["ao"] = self.offsets[0]
        else:
            value |= {"ao": -1, "aol": self.offsets}
        return orjson.dumps(value)

    @classmethod
    def from_value(cls, value: object) -> Self:
        """Parse either official object, in which nothing is trusted. Raises ValueError."""
        fields = _require_fields(value)
        offsets = fields.get("aol", fields.get("ackOffsetList"))
        if offsets is None:
            offsets = [fields.get("ao", fields.get("ackOffset"))]
        return cls(_parse_key(fields), parse_pop_integers(offsets, I64))


def _key_to_value(key: PopKey) -> dict[str, Any]:
    return {
        "bn": key.broker_name,
        "c": key.group,
        "pt": key.pop_time,
        "q": key.queue_id,
        "so": key.start_offset,
        "t": key.topic,
    }


_LONG_NAMES: Final = {
    "t": "topic",
    "c": "consumerGroup",
    "q": "queueId",
    "so": "startOffset",
    "pt": "popTime",
    "bn": "brokerName",
}


def _require_fields(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"not an object but {type(value).__name__}")
    return value


def _parse_key(fields: dict[str, Any]) -> PopKey:
    """Return the key of an official object. Older objects have long field names. Raises ValueError."""
    values = {short: fields.get(short, fields.get(long)) for short, long in _LONG_NAMES.items()}
    topic, group = _parse_name(values["t"]), _parse_name(values["c"])
    if not topic or not group:
        raise ValueError("neither topic nor group")
    queue_id, start_offset = _parse_integer(values, "q", I32), _parse_integer(values, "so", I64)
    pop_time = _parse_integer(values, "pt", I64)
    if min(queue_id, start_offset, pop_time) < 0:
        raise ValueError("a queue, an offset or a time below 0")
    return PopKey(topic, group, queue_id, start_offset, pop_time, _parse_name(values["bn"]))


def _parse_name(value: object) -> str:
    """Return a name, empty for null. Names are interned, because thousands of pops share a few of them."""
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
        raise ValueError("a name that is too long, or no text")
    return intern(value)


def _parse_integer(fields: dict[str, Any], name: str, limits: JavaInteger) -> int:
    """Return a number, 0 for null. Raises ValueError."""
    value = fields.get(name)
    return 0 if value is None else read_json_integer(value, limits)


def parse_pop_integers(values: object, limits: JavaInteger) -> list[int]:
    """Return one number for each message of a pop. Raises ValueError for more than a pop can have."""
    if not isinstance(values, list) or len(values) > MAX_POP_MESSAGES:
        raise ValueError("not a list of the messages of one pop")
    return [read_json_integer(value, limits) for value in values]


def _parse_postponements(value: object) -> int:
    """Return how often a pop was postponed. Source: PopCheckPoint.parseRePutTimes, 5.4.0."""
    times = I8_MAX if value is not None else 0
    with suppress(ValueError):
        times = read_json_integer(value, I32)
    return min(max(times, 0), I8_MAX)


def _to_java_int(bits: int) -> int:
    """Return thirty-two bits as a Java int."""
    return bits - (1 << 32) if bits >> 31 & 1 else bits
