"""The history that the clients of a simulation saw, and the judgement on it."""

from collections import defaultdict
from dataclasses import dataclass, field

from storage.store import MessageStore

Queue = tuple[str, int]
Place = tuple[Queue, int]
"""A queue and an offset in it."""


class LawBroken(AssertionError):
    """A law of replication does not hold."""


@dataclass(slots=True)
class History:
    """Messages by their bodies, of which each is sent for one queue only."""

    sent: dict[bytes, Queue] = field(default_factory=dict)
    attempts: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    promised: dict[Place, bytes] = field(
        default_factory=dict
    )  # acknowledged as the mode of the cluster requires
    ends: dict[Place, int] = field(default_factory=dict)  # of the promised messages, as physical offsets
    broken_ends: list[int] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    reads: int = 0

    def note_attempt(self, body: bytes, queue: Queue) -> None:
        self.sent[body] = queue
        self.attempts[body] += 1

    def note_answer(self, body: bytes, code: int, offset: int, end: int, breaks: int) -> None:
        """Note an answer that the client got; ``end`` is the physical offset one past the message.

        ``breaks`` is the number of broken promises when the answer was sent.
        """
        self.statuses[code] += 1
        if code or any(end > broken_end for broken_end in self.broken_ends[breaks:]):
            return
        place = self.sent[body], offset
        other = self.promised.get(place)
        if other not in (None, body):
            raise LawBroken(
                f"two messages were acknowledged at {place}: {other and other[:20]!r} and {body[:20]!r}"
            )
        self.promised[place] = body
        self.ends[place] = end

    @property
    def promised_end(self) -> int:
        """The physical offset one past the last promised message."""
        return max(self.ends.values(), default=0)

    def break_promises_after(self, end: int) -> None:
        """Drop what no mode promises: messages that an asynchronous slave does not have when it takes over."""
        self.broken_ends.append(end)
        for place in [place for place, message_end in self.ends.items() if message_end > end]:
            del self.promised[place], self.ends[place]

    def note_read(self, reader: str, queue: Queue, offset: int, body: bytes) -> None:
        self.reads += 1
        if self.sent.get(body) != queue:
            raise LawBroken(
                f"{reader} read {body[:20]!r} from {queue} at {offset}, which was never sent there"
            )
        promised = self.promised.get((queue, offset))
        if promised not in (None, body):
            raise LawBroken(
                f"{reader} read {body[:20]!r} from {queue} at {offset}, acknowledged was {promised and promised[:20]!r}"
            )

    # -- at the end --

    def check_store(
        self, name: str, store: MessageStore, queues: dict[Queue, list[tuple[int, bytes]]]
    ) -> None:
        """Judge the whole content of a broker."""
        for queue, messages in queues.items():
            offsets = [offset for offset, _ in messages]
            if offsets != list(range(len(offsets))):
                raise LawBroken(f"the offsets of {queue} at {name} have gaps: {offsets}")
            for offset, body in messages:
                self.note_read(name, queue, offset, body)
            self._check_duplicates(name, queue, [body for _, body in messages])
            self._check_order(name, queue, [body for _, body in messages])
        for (queue, offset), body in self.promised.items():
            messages = queues.get(queue, [])
            if offset >= len(messages) or messages[offset][1] != body:
                raise LawBroken(
                    f"{body[:20]!r} was acknowledged at {queue} {offset}, and {name} does not have it"
                )

    def _check_duplicates(self, name: str, queue: Queue, bodies: list[bytes]) -> None:
        for body in set(bodies):
            if bodies.count(body) > self.attempts[body]:
                raise LawBroken(f"{body[:20]!r} is in {queue} of {name} more often than it was sent")

    def _check_order(self, name: str, queue: Queue, bodies: list[bytes]) -> None:
        """First appearances of one producer's messages follow the order in which it sent them."""
        last: dict[bytes, int] = {}
        for body in dict.fromkeys(bodies):
            producer, number = body.split(b" ")[0].split(b"-")
            if last.get(producer, -1) > int(number):
                raise LawBroken(
                    f"{body[:20]!r} comes after a later message of its producer in {queue} of {name}"
                )
            last[producer] = int(number)
