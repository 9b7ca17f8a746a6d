"""Leading in virtual time: renewals, a store that is gone for a while, a state that cannot be read."""

from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock

from gateway.controller.broker_set import BrokerSet, UnreadableState
from gateway.controller.leadership import Leadership
from gateway.controller.store import ControllerMember, Entry
from gateway.controller.tests.memory_store import LEASE_S, MemberView, MemoryStore

ME, OTHER = ControllerMember("n0", "h:0"), ControllerMember("n1", "h:1")


def play(story: Callable[[MemoryStore, Leadership, list[set[str]]], Awaitable[None]]) -> None:
    async def run() -> None:
        store = MemoryStore()
        taken: list[set[str]] = []
        leadership = Leadership(
            store.of("n0"), ME, trio.current_time, lambda entries: taken.append(set(entries))
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leadership.run)
            await story(store, leadership, taken)
            nursery.cancel_scope.cancel()
        assert store.leader() in (None, OTHER), "a stop lets another controller lead at once"

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_a_term_is_renewed_as_long_as_the_store_answers() -> None:
    async def story(store: MemoryStore, leadership: Leadership, taken: list[set[str]]) -> None:
        await trio.sleep(0.1)
        for _ in range(600):
            assert leadership.term is not None
            await trio.sleep(0.1)
        assert (leadership.terms, leadership.leader, taken) == (1, ME, [set()])

    play(story)


def test_a_short_trouble_of_the_store_does_not_end_a_term() -> None:
    async def story(store: MemoryStore, leadership: Leadership, taken: list[set[str]]) -> None:
        await trio.sleep(0.1)
        for _ in range(3):
            store.unavailable.add("n0")
            await trio.sleep(LEASE_S / 3)
            store.unavailable.clear()
            await trio.sleep(LEASE_S)
        assert (leadership.terms, leadership.term is not None) == (1, True)

    play(story)


def test_a_long_trouble_ends_the_term_in_time_and_the_next_one_reads_again() -> None:
    async def story(store: MemoryStore, leadership: Leadership, taken: list[set[str]]) -> None:
        await trio.sleep(0.1)
        store.unavailable.add("n0")
        await trio.sleep(LEASE_S + 0.1)
        assert leadership.term is None
        term = store.begin(OTHER)
        assert term is not None
        store.put(term, "a", 0, BrokerSet("C", "a").with_replica(1, "h:1", "x"))
        store.unavailable.clear()
        await trio.sleep(4)
        assert leadership.leader == OTHER
        store.end(term)
        await trio.sleep(1)
        assert leadership.leader == ME
        assert taken == [set(), {"a"}]

    play(story)


def test_a_term_that_is_given_up_begins_anew() -> None:
    async def story(store: MemoryStore, leadership: Leadership, taken: list[set[str]]) -> None:
        await trio.sleep(0.1)
        leadership.give_up("no answer")
        await trio.sleep(1)
        assert (leadership.terms, leadership.term is not None) == (2, True)

    play(story)


def test_a_controller_that_cannot_read_the_state_does_not_lead() -> None:
    async def run() -> None:
        store = MemoryStore()

        class Unreadable(MemberView):
            async def read_all(self) -> dict[str, Entry]:
                raise UnreadableState("format 2, this version reads 1")

        leadership = Leadership(Unreadable(store, "n0"), ME, trio.current_time, lambda _: None)
        with trio.move_on_after(5):
            await leadership.run()
        assert leadership.terms == 0
        assert store.leader() is None, "another version may lead"

    trio.run(run, clock=MockClock(autojump_threshold=0))
