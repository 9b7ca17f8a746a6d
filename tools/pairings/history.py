"""The history that clients of a real cluster saw, and the judgement of what can be read against it.

Bodies name their producer and number: ``b"7-12 …"`` is message 12 of producer 7. A producer sends to one queue only,
and sends a message again until it is stored, so the first appearances of its messages are in the order of the numbers.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

SEND_OK: Final = 0
STORED: Final = (0, 10, 11, 12)
"""Codes of answers to messages that are stored, if only on the master."""

Position = tuple[int, int]
"""A queue and an offset in it."""
QueueContents = Mapping[int, Sequence[tuple[int, bytes]]]
"""The offsets and bodies of the messages that can be read, in the order of reading, by queue."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Counts of the messages that were read from a broker, and of the laws that they break.

    ``missing``: acknowledged messages that are not there. ``altered``: acknowledged places with another message.
    ``gaps``: offsets that are left out. ``out_of_order``: messages after a later one of their producer. ``unknown``:
    messages that nobody sent to that queue, or more often than they were sent. ``conflicts``: places that were
    acknowledged for two messages. ``duplicates`` break no law: they were sent again after an attempt without an answer.
    """

    read: int
    missing: int = 0
    altered: int = 0
    gaps: int = 0
    out_of_order: int = 0
    unknown: int = 0
    conflicts: int = 0
    duplicates: int = 0

    @property
    def faults(self) -> dict[str, int]:
        """The broken laws with their counts."""
        names = ("missing", "altered", "gaps", "out_of_order", "unknown", "conflicts")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


class SendHistory:
    """Messages that clients sent and the answers that they got; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[bytes, int] = {}
        self._attempts: Counter[bytes] = Counter()
        self._stored: dict[Position, bytes] = {}
        self._promised: dict[Position, bytes] = {}
        self._conflicts = 0
        self.statuses: Counter[int] = Counter()

    @property
    def attempts(self) -> int:
        """The number of all attempts to send a message."""
        return self._attempts.total()

    @property
    def promised(self) -> int:
        """The number of messages that must be readable."""
        return len(self._promised)

    def note_attempt(self, body: bytes, queue_id: int) -> None:
        with self._lock:
            self._queues[body] = queue_id
            self._attempts[body] += 1

    def note_answer(self, body: bytes, offset: int, code: int) -> None:
        """Note that a message is stored; only SEND_OK promises that it survives the loss of a machine."""
        with self._lock:
            position = self._queues[body], offset
            self.statuses[code] += 1
            self._stored[position] = body
            if code == SEND_OK:
                self._promise(position, body)

    def promise_stored(self) -> None:
        """Promise everything that is stored: the slave has a copy of all of it."""
        with self._lock:
            for position, body in self._stored.items():
                self._promise(position, body)

    def _promise(self, position: Position, body: bytes) -> None:
        if self._promised.setdefault(position, body) != body:
            self._conflicts += 1

    def promised_bodies(self) -> set[bytes]:
        with self._lock:
            return set(self._promised.values())

    def judge(self, queues: QueueContents) -> Judgement:
        """Judge the whole content of a broker."""
        with self._lock:
            contents = _by_position(queues)
            bodies = Counter(contents.values())
            absent = self._absent_from(contents)
            return Judgement(
                read=len(contents),
                missing=sum(position not in contents for position in absent),
                altered=sum(position in contents for position in absent),
                gaps=sum(_count_gaps([offset for offset, _ in messages]) for messages in queues.values()),
                out_of_order=sum(
                    _count_out_of_order([body for _, body in messages]) for messages in queues.values()
                ),
                unknown=sum(self._queues.get(body) != position[0] for position, body in contents.items())
                + sum(count > self._attempts[body] for body, count in bodies.items()),
                conflicts=self._conflicts,
                duplicates=bodies.total() - len(bodies),
            )

    def forget_lost(self, queues: QueueContents) -> None:
        """Forget the promises that the content of a broker breaks, so that later judgements count later losses only."""
        with self._lock:
            for position in self._absent_from(_by_position(queues)):
                del self._promised[position]

    def _absent_from(self, contents: Mapping[Position, bytes]) -> list[Position]:
        return [position for position, body in self._promised.items() if contents.get(position) != body]


def _by_position(queues: QueueContents) -> dict[Position, bytes]:
    return {(queue_id, offset): body for queue_id, messages in queues.items() for offset, body in messages}


def _count_gaps(offsets: Sequence[int]) -> int:
    return sum(later != earlier + 1 for earlier, later in pairwise(offsets))


def _count_out_of_order(bodies: Sequence[bytes]) -> int:
    last: dict[bytes, int] = {}
    count = 0
    for body in dict.fromkeys(bodies):
        producer, _, number = body.split(b" ", 1)[0].rpartition(b"-")
        count += int(number) < last.get(producer, -1)
        last[producer] = max(int(number), last.get(producer, -1))
    return count
