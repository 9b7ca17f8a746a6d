"""Makes one of several controllers the leading one, and keeps it that as long as it can reach the store.

`Leadership.run` begins a term, reads the state, and renews the term at a third of its length. A term that could not be
renewed is over before another controller can begin one, because both count from before the request to renew it. The
clock goes on while the machine is suspended.
"""

import logging
from collections.abc import Callable
from typing import Final

import trio

from gateway.controller.broker_set import UnreadableState
from gateway.controller.store import ControllerMember, Entry, Store, StoreUnavailable, Term, TermOver

log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.5
"""Time between two looks at who leads."""
RENEWALS_PER_TERM: Final = 3
MAX_RENEWAL_INTERVAL_S: Final = 10.0
MAX_END_S: Final = 2.0
"""Longest time that a stop waits for the store, to let another controller lead at once."""


class Leadership:
    """The term of this controller, while it leads, and the controller that leads, as far as known.

    ``take_over`` gets all entries at the begin of each term.
    """

    def __init__(
        self,
        store: Store,
        member: ControllerMember,
        monotonic: Callable[[], float],
        take_over: Callable[[dict[str, Entry]], None],
    ) -> None:
        self._store = store
        self._member = member
        self._monotonic = monotonic
        self._take_over = take_over
        self._term: Term | None = None
        self._is_given_up = trio.Event()
        self._is_failing = False
        self._has_resigned = False
        self._other: ControllerMember | None = None
        self.terms = 0

    @property
    def term(self) -> Term | None:
        """The present term of this controller; None while it does not lead."""
        term = self._term
        if term is None or self._has_resigned or self._monotonic() >= term.expires_at_s:
            return None
        return term

    @property
    def leader(self) -> ControllerMember | None:
        """The leading controller, as far as this one knows."""
        return self._member if self.term is not None else self._other

    @property
    def is_failing(self) -> bool:
        """True if the store could not be used the last time."""
        return self._is_failing

    def give_up(self, reason: str) -> None:
        """End the term, because what is stored may not be what is in memory. Another one begins soon."""
        if self._term is not None:
            log.warning("controller does not lead any more", extra={"reason": reason})
        self._is_given_up.set()

    def resign(self) -> None:
        """End the term for good, because the process stops."""
        self._has_resigned = True
        self._is_given_up.set()

    async def run(self) -> None:
        """Lead whenever possible, until cancelled or resigned."""
        while not self._has_resigned:
            term = await self._begin()
            if term is None:
                await trio.sleep(POLL_INTERVAL_S)
                continue
            try:
                await self._lead()
            finally:
                await self._end()

    async def _begin(self) -> Term | None:
        """Try to begin a term; return None if another controller leads, or the store does not answer."""
        self._is_given_up = trio.Event()
        term: Term | None = None
        try:
            term = await self._store.begin_term(self._member)
            if term is None:
                leader = await self._store.read_leader()
                self._other = None if leader == self._member else leader
                self._note_success()
                return None
            entries = await self._store.read_all()
        except (StoreUnavailable, UnreadableState) as problem:
            self._other = None
            self._note_failure(str(problem))
            if term is not None:
                await self._let_go(term)
            return None
        self._note_success()
        self._other = None
        self._take_over(entries)
        self._term = term
        self.terms += 1
        log.info("controller leads", extra={"member": self._member.member_id, "broker_sets": len(entries)})
        return term

    async def _lead(self) -> None:
        """Renew the term until it is over or given up."""
        while (term := self.term) is not None:
            length_s = term.expires_at_s - self._monotonic()
            with trio.move_on_after(min(length_s / RENEWALS_PER_TERM, MAX_RENEWAL_INTERVAL_S)):
                await self._is_given_up.wait()
            if self._is_given_up.is_set():
                return
            try:
                self._term = await self._store.renew(term)
            except StoreUnavailable as problem:
                self._note_failure(str(problem))
                await trio.sleep(POLL_INTERVAL_S)
            except TermOver as problem:
                self.give_up(str(problem))
            else:
                self._note_success()
        if not self._has_resigned:
            self.give_up("the term could not be renewed in time")

    async def _end(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            await self._let_go(term)

    async def _let_go(self, term: Term) -> None:
        with trio.move_on_after(MAX_END_S, shield=True):
            try:
                await self._store.end_term(term)
            except StoreUnavailable as problem:
                log.info("the term of the controller ends by itself", extra={"reason": str(problem)})

    def _note_failure(self, reason: str) -> None:
        if not self._is_failing:
            log.warning("the store of the controller cannot be used", extra={"reason": reason})
        self._is_failing = True

    def _note_success(self) -> None:
        if self._is_failing:
            log.info("the store of the controller can be used again")
        self._is_failing = False
