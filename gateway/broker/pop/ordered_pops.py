"""Queues popped in order: which messages of a queue are out, so that nobody gets the next ones before they are done.

Kept in consumerOrderInfo.json. Not responsible for consumer offsets, nor for waking who waits.
Source: QueueLevelConsumerManager, 5.4.0.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from codec import fastjson
from gateway.broker.pop.receipts import retry_kind
from gateway.runtime.config_file import ChangingTable, ConfigFile
from storage.clock import Clock

log = logging.getLogger(__name__)

NOTHING_TO_COMMIT: Final = -2
NOT_POPPED: Final = -1
RETENTION_MS: Final = 24 * 3600 * 1000
"""How long what was popped in order is remembered at least. Source: CLEAN_SPAN_FROM_LAST."""


@dataclass(slots=True)
class OrderedPopInfo:
    """The messages one pop took from a queue; times in ms, ``bits`` has one for each that is done."""

    attempt_id: str | None
    pop_time: int
    invisible_time: int
    offsets: list[int]
    last_consumed: int
    bits: int = 0
    visible_at: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def unacked_offsets(self) -> list[int]:
        """Offsets of messages that are not done."""
        return [offset for number, offset in enumerate(self.offsets) if not self.bits >> number & 1]

    def blocked_until_ms(self, now_ms: int) -> int | None:
        """When the first message that keeps others back is visible again; None when none does."""
        for offset in self.unacked_offsets():
            at_ms = self.visible_at.get(offset, self.pop_time + self.invisible_time)
            if now_ms < at_ms:
                return at_ms
        return None

    def next_offset(self) -> int:
        """The first message that is not done, or the one after the last."""
        out = self.unacked_offsets()
        return out[0] if out else self.offsets[-1] + 1

    def count_redeliveries(self, before: "OrderedPopInfo") -> None:
        """Counts the messages that an earlier pop took as well; the same attempt counts for one."""
        if before.attempt_id is not None and before.attempt_id == self.attempt_id:
            self.counts = before.counts
            return
        again = set(before.offsets).intersection(self.offsets)
        self.counts = {offset: before.counts.get(offset, 0) + 1 for offset in self.offsets if offset in again}

    def to_value(self) -> dict[str, Any]:
        """As it stands in the file: all offsets but the first are counted from that."""
        first = self.offsets[0]
        value: dict[str, Any] = {"a": self.attempt_id} if self.attempt_id is not None else {}
        value |= {"cm": self.bits, "i": self.invisible_time, "l": self.last_consumed}
        value |= {"o": [first, *(offset - first for offset in self.offsets[1:])], "popTime": self.pop_time}
        value["oc"] = self.counts
        if self.visible_at:
            value["ot"] = self.visible_at
        return value


def _parse_info(value: dict[str, Any]) -> OrderedPopInfo:
    first, *others = (int(each) for each in value["o"])
    return OrderedPopInfo(
        value.get("a"),
        int(value.get("popTime", 0)),
        int(value.get("i") or 0),
        [first, *(first + each for each in others)],
        int(value.get("l", 0)),
        int(value.get("cm", 0)),
        {int(offset): int(at_ms) for offset, at_ms in (value.get("ot") or {}).items()},
        {int(offset): int(count) for offset, count in (value.get("oc") or {}).items()},
    )


class OrderedPopTable(ChangingTable):
    """What is out, by ``topic@group`` and queue."""

    def __init__(self, file: ConfigFile, clock: Clock) -> None:
        super().__init__(file)
        self._clock = clock
        self.table: dict[str, dict[int, OrderedPopInfo]] = file.load(_parse_file) or {}

    def _find(self, topic: str, group: str, queue_id: int) -> OrderedPopInfo | None:
        return self.table.get(f"{topic}@{group}", {}).get(queue_id)

    def is_blocked(
        self, attempt_id: str | None, topic: str, group: str, queue_id: int, invisible_time: int
    ) -> bool:
        """Whether messages are out that others than this attempt have to wait for."""
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
        """Notes a pop; what the answer says of how often its messages were taken before."""
        info = OrderedPopInfo(attempt_id, pop_time, invisible_time, list(offsets), self._clock.now_ms())
        before = self._find(topic, group, queue_id)
        if before is not None:
            info.count_redeliveries(before)
        self.table.setdefault(f"{topic}@{group}", {})[queue_id] = info
        self._dirty = True
        kind = retry_kind(topic)
        told = [f"{kind} qo{queue_id}%{offset} {count}" for offset, count in info.counts.items()]
        least = min(info.counts.values()) if len(info.counts) == len(info.offsets) else 0
        return [*told, f"{kind} {queue_id} {least}"]

    def record_ack(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int) -> int:
        """Notes a message as done; the offset to commit, NOTHING_TO_COMMIT, or NOT_OUT for a wrong one."""
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
        """Changes when a message becomes visible again; nothing happens when another pop took it since."""
        info = self._find(topic, group, queue_id)
        if info is not None and info.pop_time == pop_time:
            info.visible_at[offset] = until_ms
            self._dirty = True

    def blocked_until_ms(self, topic: str, group: str, queue_id: int) -> int | None:
        """When a queue that is blocked may be popped again (wall time in ms); None when it is not."""
        info = self._find(topic, group, queue_id)
        return None if info is None else info.blocked_until_ms(self._clock.now_ms())

    def forget_queue(self, topic: str, group: str, queue_id: int) -> None:
        """Forgets what is out of a queue whose offset was reset."""
        if self.table.get(f"{topic}@{group}", {}).pop(queue_id, None) is not None:
            self._dirty = True

    def blocked_queues(self) -> list[tuple[str, str, int]]:
        """(topic, group, queue id) of every queue that is blocked now."""
        keys = [(key.rpartition("@"), queue) for key, queues in self.table.items() for queue in queues]
        found = [(topic, group, queue_id) for (topic, _, group), queue_id in keys]
        return [key for key in found if self.blocked_until_ms(*key) is not None]

    # -- the file -------------------------------------------------------------------------------------------

    def _remove_expired(self) -> None:
        oldest_ms = self._clock.now_ms() - RETENTION_MS
        for key, queues in list(self.table.items()):
            for queue_id in [each for each, info in queues.items() if info.last_consumed < oldest_ms]:
                del queues[queue_id]
            if not queues:
                del self.table[key]

    def to_json(self) -> bytes:
        """The content of consumerOrderInfo.json, without what was long ago."""
        self._remove_expired()
        table = {
            key: {queue_id: info.to_value() for queue_id, info in queues.items()}
            for key, queues in self.table.items()
        }
        return fastjson.dumps({"orderedConsumptionLevel": "QUEUE", "table": table})


def _parse_file(content: bytes) -> dict[str, dict[int, OrderedPopInfo]]:
    try:
        saved = fastjson.loads(content).get("table") or {}
        return {
            key: {int(queue_id): _parse_info(value) for queue_id, value in queues.items() if value.get("o")}
            for key, queues in saved.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no table of pops in order: {error!r}") from error
