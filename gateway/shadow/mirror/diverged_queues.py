"""The queues of which the target lacks messages: since when, how many, from which offset on, and why.

The mirror marks a queue when a message is not delivered. Offset-preserving replication clears the mark once it has
copied the missing messages.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class DivergedQueue:
    """One queue of the target with missing messages.

    `since_ms` and `last_ms` are wall clock times of the first and the latest missing message, `offset` is the first
    offset at the primary (-1: unknown), `reason` that of the first message. The field names are JSON keys.
    """

    broker: str
    topic: str
    queue_id: int
    since_ms: int
    reason: str
    offset: int = -1
    last_ms: int = 0
    count: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


class DivergedQueues:
    """Marks by broker, topic and queue. Messages of queues beyond ``max_queues`` are only counted, in `unlisted`."""

    def __init__(self, max_queues: int) -> None:
        self._max_queues = max_queues
        self._marks: dict[tuple[str, str, int], DivergedQueue] = {}
        self.unlisted = 0

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
        """Note that ``count`` messages of a queue did not reach the target."""
        queue = broker, topic, queue_id
        mark = self._marks.get(queue)
        if mark is None:
            if len(self._marks) >= self._max_queues:
                self.unlisted += count
                return
            mark = self._marks[queue] = DivergedQueue(broker, topic, queue_id, now_ms, reason, offset)
        mark.count += count
        mark.last_ms = now_ms
        if offset >= 0 and not 0 <= mark.offset <= offset:
            mark.offset = offset

    def clear_marks(self, topic: str, broker: str | None = None, queue_id: int | None = None) -> int:
        """Clear the marks of a topic, or only of a broker or queue; return how many there were."""
        if broker is not None and queue_id is not None:
            return int(self._marks.pop((broker, topic, queue_id), None) is not None)
        healed = [
            queue
            for queue in self._marks
            if queue[1] == topic and broker in (None, queue[0]) and queue_id in (None, queue[2])
        ]
        for queue in healed:
            del self._marks[queue]
        return len(healed)

    def marks_of_topic(self, topic: str) -> list[DivergedQueue]:
        """Return the marks of a topic's queues."""
        return [mark for mark in self._marks.values() if mark.topic == topic]

    def __iter__(self) -> Iterator[DivergedQueue]:
        return iter(self._marks.values())

    def __len__(self) -> int:
        return len(self._marks)
