"""Records of the revive topic in the official JSON: checkpoints of pops, and acks."""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import orjson

CK_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"


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
        """Wall time (ms) from which other consumers may have the messages."""
        return self.key.pop_time + self.invisible_time

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
    def from_value(cls, value: dict[str, Any]) -> Self:
        """Parse the official object. Raises ValueError, KeyError or TypeError."""
        count = int(value.get("n", 0))
        diffs = [int(diff) for diff in value.get("d") or range(count)][:count]
        bits = int(value.get("bm", 0)) & (1 << len(diffs)) - 1
        re_puts = str(value.get("rp") or "0")
        times = int(re_puts) if re_puts.isdecimal() else 127
        return cls(_key_from_value(value), int(value.get("it", 0)), diffs, bits, times)


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
    def from_value(cls, value: dict[str, Any]) -> Self:
        """Parse either official object. Raises ValueError, KeyError or TypeError."""
        offsets = value.get("aol", value.get("ackOffsetList"))
        if offsets is None:
            offsets = [value.get("ao", value.get("ackOffset"))]
        return cls(_key_from_value(value), [int(offset) for offset in offsets])


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


def _key_from_value(value: dict[str, Any]) -> PopKey:
    """Return the key of an official object. Older objects have long field names."""
    found = [value.get(short, value.get(long)) for short, long in _LONG_NAMES.items()]
    topic, group, queue_id, start_offset, pop_time, broker_name = found
    if not topic or not group:
        raise ValueError("neither topic nor group")
    return PopKey(
        topic, group, int(queue_id or 0), int(start_offset or 0), int(pop_time or 0), broker_name or ""
    )


def _to_java_int(bits: int) -> int:
    """Return thirty-two bits as a Java int."""
    return bits - (1 << 32) if bits >> 31 & 1 else bits
