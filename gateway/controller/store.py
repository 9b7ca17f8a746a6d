"""The protocol of stores for the controller's state, and the election of the controller that may write it.

Theory of operation
-------------------
A store holds one entry for each broker set. All decisions rest on two operations: reading all entries, and
`Store.compare_and_put`, which writes one entry if nobody has written it since it was read.

Several controllers may share a store. One of them leads: it holds a *term*, which ends by itself unless it is renewed.
Each write names its term, and the store refuses it once another controller has begun a term. So a controller that
stopped for a minute, and believes that it still leads, changes nothing. It reads all entries at the begin of its term;
as nobody else can write meanwhile, what it has in memory is what is stored.

A write without an answer may or may not have been carried out (`StoreUnavailable`). The controller then ends its term
and begins another one, which reads everything again.
"""

from dataclasses import dataclass
from typing import Protocol

from gateway.controller.broker_set import BrokerSet


class StoreUnavailable(Exception):
    """The store does not answer, or cannot write. What was asked of it may have been done."""


class TermOver(Exception):
    """The write was refused: another controller leads, or has written the entry."""


@dataclass(frozen=True, slots=True)
class Term:
    """The right to write. ``expires_at_s`` is monotonic time; it moves when the term is renewed."""

    name: str
    fence: int
    expires_at_s: float


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored broker set, with the version that the next write must name, and the length of its JSON."""

    broker_set: BrokerSet
    version: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ControllerMember:
    """A controller as the others and brokers know it: its id, and the address at which it serves."""

    member_id: str
    address: str


class Store(Protocol):
    """The state of a group of controllers. Every method may raise StoreUnavailable."""

    async def begin_term(self, member: ControllerMember) -> Term | None:
        """Begin to lead; return None if another controller leads."""

    async def renew(self, term: Term) -> Term:
        """Prolong a term. Raises TermOver."""

    async def end_term(self, term: Term) -> None:
        """Let another controller lead at once."""

    async def read_leader(self) -> ControllerMember | None:
        """Return the controller that leads."""

    async def read_all(self) -> dict[str, Entry]:
        """Return all entries by broker name. Raises UnreadableState."""

    async def compare_and_put(self, term: Term, name: str, version: int, broker_set: BrokerSet | None) -> int:
        """Write an entry, or delete it, if its version is the one given; return the new version.

        The version of an entry that does not exist is 0. Raises TermOver.
        """

    async def close(self) -> None:
        """Release files and connections."""
