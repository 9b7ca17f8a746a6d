"""Half messages of the primary and the ones at the target that belong to them, until their end and a while longer.

Not responsible for sending anything (sent is).
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from codec.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK

FINAL_DECISIONS: Final = (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
STREAM_GRACE_S: Final = 60.0
"""So long after the target was told, without an answer, its questions are not answered: it is told again anyway."""


@dataclass(slots=True)
class HalfMessage:
    """`queue_offset` and `physical_offset` are the target's newest copy; `end` what the producer decided, 0 until then.

    `ended` says that the target was told. `group` is the producer group, `topic` and `queue_id` the real place.
    `tried_s` is when the target was told last, in seconds of this process's clock.
    """

    broker: str
    unique_key: str
    group: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    end: int = TRANSACTION_NONE
    ended: bool = False
    tried_s: float = -math.inf

    def record_decision(self, end: int, now_s: float = -math.inf) -> None:
        """Notes what the producer decided, and that the target is told now."""
        self.end = end
        self.tried_s = max(self.tried_s, now_s)

    def to_row(self) -> list[Any]:
        """For a file."""
        return [getattr(self, name) for name in self.__slots__[:-1]]


class HalfMessages:
    """By the primary's broker and the message's unique key, which is also its transaction id; the oldest go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._halves: OrderedDict[tuple[str, str], HalfMessage] = OrderedDict()
        self.forgotten = 0
        self.changes = 0

    def add_half(self, half: HalfMessage) -> None:
        """Remembers one."""
        self._halves[half.broker, half.unique_key] = half
        self.changes += 1
        while len(self._halves) > self._limit:
            _, oldest = self._halves.popitem(last=False)
            self.forgotten += not oldest.ended

    def find_half(self, broker: str, unique_key: str) -> HalfMessage | None:
        """The one of a broker with this key."""
        return self._halves.get((broker, unique_key))

    def count_open(self, broker: str | None = None) -> int:
        """How many are not ended."""
        return sum(not half.ended and broker in (None, half.broker) for half in self._halves.values())

    def open_groups(self, broker: str) -> set[str]:
        """Producer groups with a half message of this broker that is not ended."""
        return {half.group for half in self._halves.values() if half.broker == broker and not half.ended}

    def note_change(self) -> None:
        """A half message was changed in place."""
        self.changes += 1

    def answer_check_back(
        self, half: HalfMessage, queue_offset: int, physical_offset: int, now_s: float
    ) -> int:
        """What to tell a target that asks about a half message, given where the copy it asks about is; 0: nothing yet.

        A copy that shows up after the end is one too many: it is rolled back, or its message would be there twice.
        While the primary does not know either, nothing is told, and the copy asked about is the one to be ended.
        """
        if half.ended:
            return TRANSACTION_ROLLBACK
        if now_s - half.tried_s < STREAM_GRACE_S:
            return TRANSACTION_NONE
        if half.queue_offset != queue_offset or half.physical_offset != physical_offset:
            half.queue_offset, half.physical_offset = queue_offset, physical_offset
            self.changes += 1
        return half.end

    def dump_rows(self) -> list[list[Any]]:
        """For a file."""
        return [half.to_row() for half in self._halves.values()]

    def load_rows(self, rows: Iterable[Sequence[Any]]) -> None:
        """From a file. Raises TypeError for what `dump` does not give."""
        for row in rows:
            self.add_half(HalfMessage(*row))

    def __len__(self) -> int:
        return len(self._halves)
