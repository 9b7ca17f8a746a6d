"""A store in memory that several controllers of a test share, with leases, hangs and lost answers."""

from dataclasses import replace

import trio

from gateway.controller.broker_set import BrokerSet
from gateway.controller.store import ControllerMember, Entry, StoreUnavailable, Term, TermOver

LEASE_S = 5.0


class MemoryStore:
    """Leases end by the clock of the event loop. ``unavailable`` holds the ids of members that are cut off."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.unavailable: set[str] = set()
        self.loses_answers = False
        self.write_delay_s = 0.0
        self.writes: list[tuple[int, BrokerSet | None]] = []
        """Every write with the fence of its term, in order."""
        self._revision = 0
        self._term: Term | None = None
        self._leader: ControllerMember | None = None

    def of(self, member_id: str) -> "MemberView":
        """Return the store as one controller reaches it."""
        return MemberView(self, member_id)

    def _expire(self) -> None:
        if self._term is not None and trio.current_time() >= self._term.expires_at_s:
            self._term = self._leader = None

    def begin(self, member: ControllerMember) -> Term | None:
        self._expire()
        if self._term is not None:
            return None
        self._revision += 1
        self._leader = member
        self._term = Term(
            f"{member.member_id}-{self._revision}", self._revision, trio.current_time() + LEASE_S
        )
        return self._term

    def renew(self, term: Term) -> Term:
        self._expire()
        if self._term is None or self._term.name != term.name:
            raise TermOver("the lease has expired")
        self._term = replace(term, expires_at_s=trio.current_time() + LEASE_S)
        return self._term

    def end(self, term: Term) -> None:
        if self._term is not None and self._term.name == term.name:
            self._term = self._leader = None

    def leader(self) -> ControllerMember | None:
        self._expire()
        return self._leader

    def put(self, term: Term, name: str, version: int, broker_set: BrokerSet | None) -> int:
        self._expire()
        entry = self.entries.get(name)
        if self._term is None or self._term.name != term.name or version != (entry.version if entry else 0):
            raise TermOver("another controller leads")
        self._revision += 1
        self.writes.append((term.fence, broker_set))
        if broker_set is None:
            self.entries.pop(name, None)
            return 0
        self.entries[name] = Entry(broker_set, self._revision, len(broker_set.to_json()))
        return self._revision


class MemberView:
    """The store of one controller."""

    def __init__(self, shared: MemoryStore, member_id: str) -> None:
        self._shared = shared
        self._member_id = member_id

    async def _reach(self) -> None:
        await trio.sleep(0.001)
        if self._member_id in self._shared.unavailable:
            await trio.sleep(1)
            raise StoreUnavailable("cut off")

    async def begin_term(self, member: ControllerMember) -> Term | None:
        await self._reach()
        return self._shared.begin(member)

    async def renew(self, term: Term) -> Term:
        await self._reach()
        return self._shared.renew(term)

    async def end_term(self, term: Term) -> None:
        await self._reach()
        self._shared.end(term)

    async def read_leader(self) -> ControllerMember | None:
        await self._reach()
        return self._shared.leader()

    async def read_all(self) -> dict[str, Entry]:
        await self._reach()
        return dict(self._shared.entries)

    async def compare_and_put(self, term: Term, name: str, version: int, broker_set: BrokerSet | None) -> int:
        await self._reach()
        await trio.sleep(self._shared.write_delay_s)
        new_version = self._shared.put(term, name, version, broker_set)
        if self._shared.loses_answers:
            raise StoreUnavailable("no answer in time")
        return new_version

    async def close(self) -> None:
        pass
