"""The history that the clients of a simulation saw, and the judgement on it."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from storage.store import MessageStore

Queue = tuple[str, int]
Place = tuple[Queue, int]
"""A queue and an offset in it."""


class LawBroken(AssertionError):
    """A law of replication does not hold."""


def is_dropped(body: bytes) -> bool:
    """Tell whether the producer rolls a half message back; it decides so however often it is asked."""
    return body.split(b" ")[1] == b"rollback"


@dataclass(slots=True)
class History:
    """Messages by their bodies, of which each is sent for one queue only.

    A message *waits* if it is acknowledged, but not yet in its queue: it is delayed, or one half of a transaction.
    Times are those of `trio.current_time`.
    """

    sent: dict[bytes, Queue] = field(default_factory=dict)
    attempts: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    stored_from: dict[bytes, int] = field(
        default_factory=dict
    )  # a physical offset before whatever the attempts may have stored
    promised: dict[Place, bytes] = field(
        default_factory=dict
    )  # acknowledged as the mode of the cluster requires
    ends: dict[Place, int] = field(default_factory=dict)  # of the promised messages, as physical offsets
    waiting: dict[bytes, int] = field(default_factory=dict)  # promised messages that wait, and their ends
    popped: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    acking: set[bytes] = field(default_factory=set)  # popped messages that a consumer tried to ack
    acked: set[bytes] = field(default_factory=set)  # popped messages whose ack was answered
    commits: dict[tuple[str, Queue], list[tuple[float, int]]] = field(default_factory=dict)
    names: dict[str, float] = field(
        default_factory=dict
    )  # topics and groups, when their creation was answered
    deletions: dict[str, float] = field(default_factory=dict)  # topics deleted, when that was answered
    is_group_lost: bool = False  # a master took over that may not have heard of a group
    half_deleted: set[str] = field(default_factory=set)
    """Topics that one broker may have deleted without another: the deletion was not answered in time."""
    first_numbers: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Topics that were created again: when they had been deleted, and the first number in them since."""
    broken_ends: list[int] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    reads: int = 0
    redeliveries: int = 0  # of acked messages
    changes: int = 0  # ends of a master's process, and changes of the master

    def note_attempt(self, body: bytes, queue: Queue) -> None:
        self.sent[body] = queue
        self.attempts[body] += 1
        self.stored_from[body] = min(self.promised_end, self.stored_from.get(body, self.promised_end))

    def note_answer(
        self, body: bytes, code: int, offset: int, end: int, breaks: int, *, waits: bool = False
    ) -> None:
        """Note an answer that the client got; ``end`` is a physical offset inside of the message.

        ``breaks`` is the number of broken promises when the answer was sent.
        """
        self.statuses[code] += 1
        if code or any(end > broken_end for broken_end in self.broken_ends[breaks:]):
            return
        if waits:
            self.waiting[body] = max(end, self.waiting.get(body, 0))
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
        """A physical offset inside of the last promised message."""
        return max(max(self.ends.values(), default=0), max(self.waiting.values(), default=0))

    def break_promises_after(self, end: int) -> None:
        """Drop what no mode promises: messages that an asynchronous slave does not have when it takes over."""
        self.broken_ends.append(end)
        for place in [place for place, message_end in self.ends.items() if message_end > end]:
            del self.promised[place], self.ends[place]
        for body in [body for body, message_end in self.waiting.items() if message_end > end]:
            del self.waiting[body]

    def break_tables_after(self, time_s: float) -> None:
        """Expect nothing of what was committed, created or deleted since: it may not have reached the next master."""
        for commits in self.commits.values():
            commits[:] = [commit for commit in commits if commit[0] < time_s]
        self.is_group_lost |= any(name[0] == "@" and at >= time_s for name, at in self.names.items())
        self.names = {name: created_s for name, created_s in self.names.items() if created_s < time_s}
        for topic in [topic for topic, deleted_s in self.deletions.items() if deleted_s >= time_s]:
            del self.deletions[topic]
            self.half_deleted.add(topic)
        for topic in [topic for topic, (deleted_s, _) in self.first_numbers.items() if deleted_s >= time_s]:
            del self.first_numbers[topic]
            self.half_deleted.add(topic)

    def limit_commits(self, end_of_queue: Callable[[str, int], int]) -> None:
        """Lower what was committed to the ends of a new master's queues: consumers had read what is lost now."""
        for (_, queue), commits in self.commits.items():
            end = end_of_queue(*queue)
            commits[:] = [(time_s, min(offset, end)) for time_s, offset in commits]

    def note_read(self, reader: str, queue: Queue, offset: int, body: bytes) -> None:
        self.reads += 1
        if self.sent.get(body) != queue:
            raise LawBroken(
                f"{reader} read {body[:20]!r} from {queue} at {offset}, which was never sent there"
            )
        if is_dropped(body):
            raise LawBroken(f"{reader} read {body[:20]!r}, which its producer rolled back")
        if (
            queue[0] in self.first_numbers
            and int(body.split(b" ")[0].split(b"-")[1]) < self.first_numbers[queue[0]][1]
        ):
            raise LawBroken(f"{reader} read {body[:20]!r} from a topic that was deleted after it was sent")
        promised = self.promised.get((queue, offset))
        if promised not in (None, body):
            raise LawBroken(
                f"{reader} read {body[:20]!r} from {queue} at {offset}, acknowledged was {promised and promised[:20]!r}"
            )

    def committed_before(self, key: tuple[str, Queue], time_s: float) -> int:
        """Return the greatest offset that was committed before a time, -1 without one."""
        return max((offset for at, offset in self.commits.get(key, []) if at < time_s), default=-1)

    # -- at the end --

    def check_store(
        self, name: str, store: MessageStore, queues: dict[Queue, list[tuple[int, bytes]]]
    ) -> None:
        """Judge the whole content of a broker."""
        first = store.min_physical_offset
        for queue, messages in queues.items():
            offsets = [offset for offset, _ in messages]
            begin = offsets[0] if offsets else 0
            if offsets != list(range(begin, begin + len(offsets))) or (
                begin and not first and queue[0] not in self.half_deleted
            ):
                raise LawBroken(f"the offsets of {queue} at {name} have gaps: {offsets}")
            for offset, body in messages:
                self.note_read(name, queue, offset, body)
            self._check_duplicates(name, queue, [body for _, body in messages])
            if queue[0] in ("a", "b", "o"):
                self._check_order(name, queue, [body for _, body in messages])
        for (queue, offset), body in self.promised.items():
            if self.ends[queue, offset] > first and dict(queues.get(queue, [])).get(offset) != body:
                raise LawBroken(
                    f"{body[:20]!r} was acknowledged at {queue} {offset}, and {name} does not have it"
                )

    def missing(self, bodies: set[bytes], expired_end: int) -> list[bytes]:
        """Return the messages that wait and are not among those that came. Those that expired need not come."""
        return [
            body
            for body in self.waiting
            if body not in bodies and self._first_offset(body) >= expired_end and not is_dropped(body)
        ]

    def _first_offset(self, body: bytes) -> int:
        """Return a physical offset before or in the message that waits, from which on it can have come.

        Of a half message that was sent more than once, an earlier copy may have been committed. A new master then drops
        the acknowledged copy, because it finds the real message.
        """
        is_half = self.sent[body][0] == "x"
        return self.stored_from[body] if is_half and self.attempts[body] > 1 else self.waiting[body] - 1

    def unpopped(self, expired_end: int) -> list[bytes]:
        """Return the messages that were to be popped, and that nobody has got and acked."""
        return [
            body
            for (queue, offset), body in self.promised.items()
            if queue[0] == "o" and body not in self.acking and self.ends[queue, offset] > expired_end
        ]

    def _check_duplicates(self, name: str, queue: Queue, bodies: list[bytes]) -> None:
        # What waits may come once more after each change: the new master cannot know the last moments of the old one.
        times = 1 + self.changes if queue[0] in ("d", "x") else 1
        for body in set(bodies):
            if bodies.count(body) > self.attempts[body] * times:
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
