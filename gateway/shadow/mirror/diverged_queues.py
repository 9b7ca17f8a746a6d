"""Which queues of the target lack something, since when, how much and why; bounded.

Not responsible for finding out by looking (compare does) nor for healing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class DivergedQueue:
    """What one queue of the target lacks: `since_ms` is wall time, `offset` the first primary offset concerned (-1:
    not known), `reason` the first one."""

    broker: str
    topic: str
    queue_id: int
    since_ms: int
    reason: str
    offset: int = -1
    last_ms: int = 0
    count: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As a row of a table."""
        return {name: getattr(self, name) for name in self.__slots__}


class DivergedQueues:
    """Marks by broker, topic and queue; queues beyond `limit` are counted together, in `others`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._marks: dict[tuple[str, str, int], DivergedQueue] = {}
        self.others = 0

    def mark_diverged(
        self,
        broker: str,
        topic: str,
        queue_id: int,
        now_ms: int,
        reason: str,
        *,
        count: int = 1,
        offset: int = -1,
    ) -> None:
        """Notes that `count` messages of a queue did not get to the target."""
        place = broker, topic, queue_id
        known = self._marks.get(place)
        if known is None:
            if len(self._marks) >= self._limit:
                self.others += count
                return
            known = self._marks[place] = DivergedQueue(broker, topic, queue_id, now_ms, reason, offset)
        known.count += count
        known.last_ms = now_ms
        if offset >= 0 and not 0 <= known.offset <= offset:
            known.offset = offset

    def clear_marks(self, topic: str, broker: str | None = None, queue_id: int | None = None) -> int:
        """Forgets marks, of one queue or of all that match: what lacked has been brought over. Says how many."""
        healed = [
            place
            for place in self._marks
            if place[1] == topic and broker in (None, place[0]) and queue_id in (None, place[2])
        ]
        for place in healed:
            del self._marks[place]
        return len(healed)

    def marks_of_topic(self, topic: str) -> list[DivergedQueue]:
        """The marks of one topic's queues."""
        return [mark for mark in self._marks.values() if mark.topic == topic]

    def __iter__(self) -> Iterator[DivergedQueue]:
        return iter(self._marks.values())

    def __len__(self) -> int:
        return len(self._marks)
