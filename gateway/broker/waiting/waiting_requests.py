"""Requests that wait for a message, and the waiting pulls of one queue, found by the tags of new messages.

`long_poll.py` decides when a waiting request is tried. It keeps as little of the request's command as it can, because a
hundred thousand requests may wait for minutes (`keep_header`).

Most waiting pulls want a few tags, or everything. A new message concerns those that want its tag and those that must
look at every message: pulls without tags, with an SQL92 expression, or with more tags than `MAX_INDEXED_TAGS`.
`QueuePulls` does not touch the others, however many they are.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from heapq import merge
from itertools import count, groupby
from operator import attrgetter
from typing import Final, Protocol

from codec.command import Command
from remoting.connection import Connection

MAX_INDEXED_TAGS: Final = 16
"""Largest number of tags of a pull that is found by its tags; each takes an entry per waiting pull."""

FEW_PULLS: Final = 4
"""Largest number of pulls that are tried at every message: reading in vain costs less than an index."""

_serials = count()
_serial_of = attrgetter("serial")

MAX_WAITING_HEADER_CHARS: Final = 2048
"""Largest header of a request that may wait, without the expression that the filter cache holds anyway. The headers of
stock clients have a quarter of this."""


class WaitOutcome(Enum):
    """The outcome of trying to answer a waiting request."""

    ANSWERED = 0
    NOTHING = 1
    """There is no message for it yet."""
    UNFINISHED = 2
    """There are more messages to look at than one step may."""


# Looking up a member of an Enum takes 0.2 us, twenty times as long as a name.
ANSWERED: Final = WaitOutcome.ANSWERED
NOTHING: Final = WaitOutcome.NOTHING
UNFINISHED: Final = WaitOutcome.UNFINISHED


class WaitingRequest:
    """A request that found no message yet. ``waiting_list`` is where it waits, None before and after."""

    __slots__ = ("connection", "tick", "waiting_list")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.tick = 0
        self.waiting_list: WaitingList | None = None

    def expire(self) -> None:
        """Answer the request with or without messages."""
        raise NotImplementedError

    def release(self) -> None:
        """Give up what is kept for the request. Called once, when it waits no longer."""


class WaitingList(Protocol):
    """Waiting requests in the order in which they came."""

    def add(self, request: WaitingRequest, /) -> None:
        """Add a request that is not in a list."""

    def discard(self, request: WaitingRequest, /) -> None:
        """Remove a request of this list."""


def keep_header(command: Command, expression_field: str, shared_expression: str | None) -> bool:
    """Drop what a waiting request does not need of its command; return False if the rest is too large to wait.

    ``shared_expression`` is the text that the filter cache holds for the request's expression, None without one.
    """
    command.body = b""
    command.remark = None
    # The members of a group repeat one expression, of up to 64 KiB: all of them refer to one copy of it.
    if shared_expression is not None and command.ext.get(expression_field) == shared_expression:
        command.ext[expression_field] = shared_expression
        shared_chars = len(shared_expression)
    else:
        shared_chars = 0
    return sum(map(len, command.ext.values())) - shared_chars <= MAX_WAITING_HEADER_CHARS


class WaitingPull(WaitingRequest):
    """A pull that found no message yet. ``tag_codes`` are the hashes of the tags that it wants, None for any message.

    ``serial`` is higher for a pull that came later.
    """

    __slots__ = ("serial", "tag_codes")

    def __init__(self, connection: Connection, tag_codes: frozenset[int] | None) -> None:
        super().__init__(connection)
        self.serial = next(_serials)
        self.tag_codes = tag_codes

    def try_answer(self, start: int) -> WaitOutcome:
        """Answer the pull if there are messages for it; there are none before queue offset ``start``."""
        raise NotImplementedError


class QueuePulls:
    """The waiting pulls of one queue. For none of them is there a message before queue offset ``seen_until``.

    ``forget`` is called when the last one is removed. The index is made when there are more than `FEW_PULLS`.
    """

    __slots__ = ("_by_code", "_forget", "_pulls", "_unindexed", "seen_until")

    def __init__(self, seen_until: int, forget: Callable[[], object]) -> None:
        self.seen_until = seen_until
        self._forget = forget
        self._pulls: dict[WaitingPull, None] = {}
        self._unindexed: dict[WaitingPull, None] = {}
        self._by_code: dict[int, dict[WaitingPull, None]] | None = None

    def __len__(self) -> int:
        return len(self._pulls)

    def add(self, pull: WaitingRequest) -> None:
        """Add a pull that comes after all others."""
        assert isinstance(pull, WaitingPull)
        self._pulls[pull] = None
        if self._by_code is not None:
            self._index(pull, self._by_code)
        elif len(self._pulls) > FEW_PULLS:
            # Kept until the queue's last pull is removed: at this limit, pulls come and go all the time.
            self._by_code = {}
            for indexed_pull in self._pulls:
                self._index(indexed_pull, self._by_code)

    def _index(self, pull: WaitingPull, by_code: dict[int, dict[WaitingPull, None]]) -> None:
        codes = _indexed_codes(pull)
        if codes is None:
            self._unindexed[pull] = None
            return
        for code in codes:
            by_code.setdefault(code, {})[pull] = None

    def discard(self, pull: WaitingRequest) -> None:
        """Remove a pull."""
        assert isinstance(pull, WaitingPull)
        del self._pulls[pull]
        if not self._pulls:
            self._forget()
        by_code = self._by_code
        if by_code is None:
            return
        codes = _indexed_codes(pull)
        if codes is None:
            del self._unindexed[pull]
            return
        for code in codes:
            pulls = by_code[code]
            del pulls[pull]
            if not pulls:
                del by_code[code]

    @property
    def has_indexed(self) -> bool:
        """True if a pull is found by its tags."""
        return bool(self._by_code)

    def concerned(self, codes: Iterable[int]) -> Iterator[WaitingPull]:
        """Return the pulls that messages with these tag hashes concern, oldest first, as they are now."""
        by_code = self._by_code
        if by_code is None:
            return self.everyone()
        lists = [list(by_code[code]) for code in set(codes) if code in by_code]
        if not lists:
            return iter(list(self._unindexed))
        # A pull that wants two of the tags comes twice, one right after the other.
        return (pull for pull, _ in groupby(merge(list(self._unindexed), *lists, key=_serial_of)))

    def everyone(self) -> Iterator[WaitingPull]:
        """Return all pulls, oldest first, as they are now."""
        return iter(list(self._pulls))


def _indexed_codes(pull: WaitingPull) -> frozenset[int] | None:
    codes = pull.tag_codes
    return None if codes is None or len(codes) > MAX_INDEXED_TAGS else codes
