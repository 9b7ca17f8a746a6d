"""Ordered pops: the unacked messages that block a queue for other consumers, stored in consumerOrderInfo.json.

Source: QueueLevelConsumerManager, 5.4.0.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from codec.java_numbers import I32, I64, JavaInteger, quoted, read_json_integer
from gateway.broker.pop.checkpoint import parse_pop_integers
from gateway.broker.pop.receipts import retry_kind
from gateway.runtime.config_file import ChangingTable, ConfigFile
from gateway.runtime.saved_tables import dump_table, load_table, parse_entries, parse_name
from storage.clock import Clock

log = logging.getLogger(__name__)

NOTHING_TO_COMMIT: Final = -2
NOT_POPPED: Final = -1
POPS_PER_SLICE: Final = 200
"""Pops encoded at once, which takes about a millisecond."""
RETENTION_MS: Final = 24 * 3600 * 1000
"""Shortest time for which an ordered pop is remembered. Source: CLEAN_SPAN_FROM_LAST."""


@dataclass(slots=True)
class OrderedPopInfo:
    """The messages that one pop took from a queue. Times are in ms; the bits of acked messages are set."""

    attempt_id: str | None
    pop_time: int
    invisible_time: int
    offsets: list[int]
    last_consumed: int
    bits: int = 0
    visible_at: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def unacked_offsets(self) -> list[int]:
        """Return the offsets of messages that are not acked."""
        return [offset for number, offset in enumerate(self.offsets) if not self.bits >> number & 1]

    def blocked_until_ms(self, now_ms: int) -> int | None:
        """Return the time at which the first unacked message becomes visible again;

        None when the queue is not blocked.
        """
        for offset in self.unacked_offsets():
            at_ms = self.visible_at.get(offset, self.pop_time + self.invisible_time)
            if now_ms < at_ms:
                return at_ms
        return None

    def next_offset(self) -> int:
        """Return the offset of the first unacked message, or the one after the last."""
        out = self.unacked_offsets()
        return out[0] if out else self.offsets[-1] + 1

    def count_redeliveries(self, before: "OrderedPopInfo") -> None:
        """Set the redelivery counts of messages that an earlier pop took as well. Pops of one attempt count once."""
        if before.attempt_id is not None and before.attempt_id == self.attempt_id:
            self.counts = before.counts
            return
        again = set(before.offsets).intersection(self.offsets)
        self.counts = {offset: before.counts.get(offset, 0) + 1 for offset in self.offsets if offset in again}

    def to_value(self) -> dict[str, Any]:
        """Return the object in the file, in which all offsets but the first are relative to the first."""
        first = self.offsets[0]
        value: dict[str, Any] = {"a": self.attempt_id} if self.attempt_id is not None else {}
        value |= {"cm": self.bits, "i": self.invisible_time, "l": self.last_consumed}
        value |= {"o": [first, *(offset - first for offset in self.offsets[1:])], "popTime": self.pop_time}
        value["oc"] = self.counts
        if self.visible_at:
            value["ot"] = self.visible_at
        return value


class OrderedPopTable(ChangingTable):
    """Ordered pops by ``topic@group`` and queue."""

    def __init__(self, file: ConfigFile, clock: Clock) -> None:
        super().__init__(file)
        self._clock = clock
        self.table: dict[str, dict[int, OrderedPopInfo]] = file.load(_parse_file) or {}

    def _find(self, topic: str, group: str, queue_id: int) -> OrderedPopInfo | None:
        return self.table.get(f"{topic}@{group}", {}).get(queue_id)

    def is_blocked(
        self, attempt_id: str | None, topic: str, group: str, queue_id: int, invisible_time: int
    ) -> bool:
        """Tell whether unacked messages block a queue for attempts other than the one that popped them."""
        info = self._find(topic, group, queue_id)
        if info is None or (info.attempt_id is not None and info.attempt_id == attempt_id):
            return False
        if info.invisible_time <= 0:
            info.invisible_time = invisible_time
        return info.blocked_until_ms(self._clock.now_ms()) is not None

    def record_pop(
        self,
        attempt_id: str | None,
        topic: str,
        group: str,
        queue_id: int,
        pop_time: int,
        invisible_time: int,
        offsets: Sequence[int],
    ) -> list[str]:
        """Record a pop. Return the entries of its answer's ``orderCountInfo``: how often each was delivered before."""
        info = OrderedPopInfo(attempt_id, pop_time, invisible_time, list(offsets), self._clock.now_ms())
        before = self._find(topic, group, queue_id)
        if before is not None:
            info.count_redeliveries(before)
        self.table.setdefault(f"{topic}@{group}", {})[queue_id] = info
        self._dirty = True
        kind = retry_kind(topic)
        counts = [f"{kind} qo{queue_id}%{offset} {count}" for offset, count in info.counts.items()]
        least = min(info.counts.values()) if len(info.counts) == len(info.offsets) else 0
        return [*counts, f"{kind} {queue_id} {least}"]

    def record_ack(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int) -> int:
        """Record an ack.

        Return the offset to commit, or NOTHING_TO_COMMIT, or NOT_POPPED for a message that is not held.
        """
        info = self._find(topic, group, queue_id)
        if info is None:
            return offset + 1
        if pop_time != info.pop_time:
            return NOTHING_TO_COMMIT
        if offset not in info.offsets:
            return NOT_POPPED
        info.bits |= 1 << info.offsets.index(offset)
        self._dirty = True
        return info.next_offset()

    def change_visible_time(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, until_ms: int
    ) -> None:
        """Change the time at which a message becomes visible again. Ignore one that is not of this pop, or was popped
        again since.
        """
        info = self._find(topic, group, queue_id)
        if info is not None and info.pop_time == pop_time and offset in info.offsets:
            info.visible_at[offset] = min(until_ms, I64.high)
            self._dirty = True

    def blocked_until_ms(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the wall time (ms) at which a blocked queue can be popped again; None when it is not blocked."""
        info = self._find(topic, group, queue_id)
        return None if info is None else info.blocked_until_ms(self._clock.now_ms())

    def forget_queue(self, topic: str, group: str, queue_id: int) -> None:
        """Forget the pop of a queue whose offset was reset."""
        if self.table.get(f"{topic}@{group}", {}).pop(queue_id, None) is not None:
            self._dirty = True

    def forget_group(self, topic: str, group: str) -> None:
        """Forget the pops of a group in a topic, one of which is deleted."""
        if self.table.pop(f"{topic}@{group}", None) is not None:
            self._dirty = True

    def forget_topic(self, topic: str) -> None:
        """Forget the pops of all groups in a deleted topic."""
        for key in [key for key in self.table if key.rpartition("@")[0] == topic]:
            del self.table[key]
            self._dirty = True

    def adopt(self, content: bytes) -> None:
        """Take over all pops of this broker's master, from its consumerOrderInfo.json. Raises ValueError."""
        table = _parse_file(content)
        if table != self.table:
            self.table = table
            self._dirty = True

    def blocked_queues(self) -> list[tuple[str, str, int]]:
        """Return (topic, group, queue id) of every blocked queue."""
        keys = [(key.rpartition("@"), queue) for key, queues in self.table.items() for queue in queues]
        queue_keys = [(topic, group, queue_id) for (topic, _, group), queue_id in keys]
        return [key for key in queue_keys if self.blocked_until_ms(*key) is not None]

    # -- the file -------------------------------------------------------------------------------------------

    def encode_slices(self) -> Iterator[bytes]:
        """Yield the content of consumerOrderInfo.json; expired pops are removed."""
        yield b'{"orderedConsumptionLevel":"QUEUE","table":{'
        oldest_ms, comma, part, count = self._clock.now_ms() - RETENTION_MS, b"", b"", 0
        for key in list(self.table):
            queues = self.table.get(key, {})
            for queue_id in [old_id for old_id, info in queues.items() if info.last_consumed < oldest_ms]:
                del queues[queue_id]
            if not queues:
                self.table.pop(key, None)
                continue
            value = {key: {queue_id: info.to_value() for queue_id, info in queues.items()}}
            member = dump_table("consumerOrderInfo.json", value)[1:-1]
            if member:
                part, comma, count = part + comma + member, b",", count + len(queues)
            if count >= POPS_PER_SLICE:
                yield part
                part, count = b"", 0
        yield part + b"}}"


def _parse_file(content: bytes) -> dict[str, dict[int, OrderedPopInfo]]:
    """Parse consumerOrderInfo.json. A queue whose pop cannot be read is left out. Raises ValueError."""
    return parse_entries("consumerOrderInfo.json", load_table(content).get("table"), _parse_queues)


def _parse_queues(key: object, value: object) -> tuple[str, dict[int, OrderedPopInfo]]:
    queues = parse_entries(f"ordered pops of {quoted(str(key))}", value, _parse_queue)
    return parse_name(key), {queue_id: info for queue_id, info in queues.items() if info is not None}


def _parse_queue(queue_id: object, value: dict[str, Any]) -> tuple[int, OrderedPopInfo | None]:
    """Return a queue and its pop, None for one without messages. Raises ValueError, AttributeError, KeyError."""
    return read_json_integer(queue_id, I32), _parse_info(value) if value.get("o") else None


def _parse_info(value: dict[str, Any]) -> OrderedPopInfo:
    first, *distances = parse_pop_integers(value["o"], I64)
    offsets = [first, *(first + distance for distance in distances)]
    if min(offsets) < 0 or max(offsets) > I64.high:
        raise ValueError("a message outside of any queue")
    attempt_id = value.get("a")
    if not isinstance(attempt_id, str | None):
        raise ValueError("an attempt id that is not a text")
    return OrderedPopInfo(
        attempt_id,
        read_json_integer(value.get("popTime") or 0),
        read_json_integer(value.get("i") or 0),
        offsets,
        read_json_integer(value.get("l") or 0),
        read_json_integer(value.get("cm") or 0) & (1 << len(offsets)) - 1,
        _parse_numbers(value.get("ot"), I64),
        _parse_numbers(value.get("oc"), I32),
    )


def _parse_numbers(values: dict[Any, Any] | None, limits: JavaInteger) -> dict[int, int]:
    """Return numbers by queue offset. Raises ValueError, AttributeError."""
    return {
        read_json_integer(offset): read_json_integer(number, limits)
        for offset, number in (values or {}).items()
    }
