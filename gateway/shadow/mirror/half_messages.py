"""The half messages sent to the target: where their copies are, and how their transactions ended.

A half message is remembered from the time it is sent until well after its end, because the target may still ask about
it (check-back). `resend_writer.py` and `check_back_producer.py` send the decisions.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from codec.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK

FINAL_DECISIONS: Final = (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
STREAM_GRACE_S: Final = 60.0
"""Time after an end was sent during which check-backs are not answered, because the stream repeats the end anyway."""


class CopyPlace(NamedTuple):
    """The place of a copy at the target: where it stands in the queue of half messages, and in the commit log."""

    queue_offset: int
    physical_offset: int


@dataclass(slots=True)
class HalfMessage:
    """One half message and its copy at the target.

    `group` is the producer group; `topic` and `queue_id` are those of the message itself. `queue_offset` and
    `physical_offset` are the place of the target's newest copy. `end` is the producer's decision, 0 until there is one;
    `ended` tells whether the target has acknowledged it, and `tried_s` when the decision was last sent, on this
    process's monotonic clock.
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

    @property
    def copy(self) -> CopyPlace:
        """The place of the target's newest copy."""
        return CopyPlace(self.queue_offset, self.physical_offset)

    def record_decision(self, end: int, now_s: float = -math.inf) -> None:
        """Record the producer's decision, and with ``now_s`` that it is being sent to the target."""
        self.end = end
        self.tried_s = max(self.tried_s, now_s)

    def to_row(self) -> list[Any]:
        """Return the fields as a row of the state file."""
        return [getattr(self, name) for name in self.__slots__[:-1]]


class HalfMessages:
    """Half messages by broker of the primary and unique key, which is also the transaction id.

    Beyond ``max_halves`` the oldest are forgotten; `forgotten` counts those that had not ended.
    """

    def __init__(self, max_halves: int) -> None:
        self._max_halves = max_halves
        self._halves: OrderedDict[tuple[str, str], HalfMessage] = OrderedDict()
        self.forgotten = 0
        self.changes = 0

    def add_half(self, half: HalfMessage) -> None:
        """Remember a half message."""
        self._halves[half.broker, half.unique_key] = half
        self.changes += 1
        while len(self._halves) > self._max_halves:
            _, oldest = self._halves.popitem(last=False)
            self.forgotten += not oldest.ended

    def find_half(self, broker: str, unique_key: str) -> HalfMessage | None:
        """Return the half message of a broker with this unique key, if it is remembered."""
        return self._halves.get((broker, unique_key))

    def count_open(self, broker: str | None = None) -> int:
        """Return the number of half messages without an acknowledged end."""
        return sum(not half.ended and broker in (None, half.broker) for half in self._halves.values())

    def open_groups(self, broker: str) -> set[str]:
        """Return the producer groups with open half messages of a broker."""
        return {half.group for half in self._halves.values() if half.broker == broker and not half.ended}

    def note_change(self) -> None:
        """Note that a half message was changed in place, so that the state is saved."""
        self.changes += 1

    def answer_check_back(self, half: HalfMessage, copy: CopyPlace, now_s: float) -> int:
        """Return the decision for a check-back about a copy, 0 for no answer yet.

        A copy that shows up after the end is a duplicate, and is rolled back. While there is no decision, the copy that
        the target asks about becomes the one to be ended later.
        """
        if half.ended:
            return TRANSACTION_ROLLBACK
        # The stream is sending the end, or will repeat it.
        if now_s - half.tried_s < STREAM_GRACE_S:
            return TRANSACTION_NONE
        if half.copy != copy:
            half.queue_offset, half.physical_offset = copy
            self.changes += 1
        return half.end

    def dump_rows(self) -> list[list[Any]]:
        """Return all half messages as rows of the state file."""
        return [half.to_row() for half in self._halves.values()]

    def load_rows(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add half messages from rows of the state file. Raises TypeError for rows of another shape."""
        for row in rows:
            self.add_half(HalfMessage(*row))

    def __len__(self) -> int:
        return len(self._halves)
