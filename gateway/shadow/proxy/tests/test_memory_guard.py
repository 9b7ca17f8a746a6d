"""The memory of all sessions together is bounded, and ended sessions free theirs."""

import gc

import pytest
import trio

from gateway.shadow.proxy.memory_guard import MemoryGuard
from gateway.shadow.proxy.peer_connection import LARGE_READ_BYTES
from gateway.shadow.proxy.session import Session
from gateway.shadow.proxy.session_driver import SessionDriver
from gateway.shadow.tests.sessions import SessionBench, request, run_with_nursery
from gateway.tests.cluster import inline
from remoting.tests.virtual import counting_turns, settle, virtual

MIB = 1 << 20


class FakeSession:
    def __init__(self, buffered=0, unfinished=0):
        self.buffered_bytes, self.unfinished_bytes = buffered + unfinished, unfinished
        self.aborted = False

    def abort(self):
        self.aborted = True
        self.buffered_bytes = self.unfinished_bytes = 0


class FakeGroup:
    def __init__(self, *sessions):
        self.sessions = sessions
        self.buffered_bytes = self.unfinished_bytes = 0


@virtual
async def test_the_largest_sessions_are_closed_and_the_sums_shown():
    guard = MemoryGuard(1000, 500)
    small, large, reader = FakeSession(unfinished=100), FakeSession(unfinished=450), FakeSession(buffered=800)
    groups = FakeGroup(small, large), FakeGroup(reader)
    await guard.sweep(groups)
    assert (small.aborted, large.aborted, reader.aborted) == (False, True, False)
    assert [(each.buffered_bytes, each.unfinished_bytes) for each in groups] == [(550, 550), (800, 0)]
    small.buffered_bytes = 300
    await guard.sweep(groups)
    assert (small.aborted, reader.aborted) == (False, True)
    assert guard.closed_total == 2
    await guard.sweep(groups)
    assert (groups[0].buffered_bytes, groups[1].buffered_bytes) == (300, 0)


def test_a_burst_is_stopped_before_the_next_sweep():
    guard = MemoryGuard(10_000, 1000)
    sessions = []
    for number in range(100):
        session = FakeSession()
        sessions.append(session)
        for _ in range(10):
            session.buffered_bytes += 20 + number
            session.unfinished_bytes += 20 + number
            guard.note_growth(session, 20 + number)
            held = sum(each.unfinished_bytes for each in sessions)
            assert held <= 1000 * 1.3
    assert guard.closed_total
    for session in sessions:
        guard.forget_session(session)
    assert not guard._grown


@virtual
async def test_a_sweep_of_many_sessions_lets_others_run():
    async with counting_turns() as turns:
        await MemoryGuard(1, 1).sweep([FakeGroup(*(FakeSession() for _ in range(10_000)))])
    assert turns.count >= 30


def count_alive():
    return sum(isinstance(each, SessionDriver | Session) for each in gc.get_objects())


@pytest.mark.parametrize("reactive", [True, False])
@pytest.mark.parametrize("end", ["client", "abort"])
def test_an_ended_session_is_freed_without_a_garbage_collection(reactive, end):
    """150 unfinished frames of 6 MiB left 900 MiB behind, because sessions were cycles of references."""

    async def main(nursery):
        bench = SessionBench(nursery, reactive=reactive)
        await bench.send_from_client(request(), (8 * MIB).to_bytes(4) + bytes(MIB))
        assert bench.session.buffered_bytes > MIB - 1024
        before = count_alive()
        if end == "abort":
            bench.session.abort()
            assert bench.session.buffered_bytes == 0
        else:
            bench.client.arrive(b"")
        await bench.ended.wait()
        del bench.session, bench.client, bench.upstream
        await settle()
        assert count_alive() == before - 2

    gc.collect()
    gc.disable()
    try:
        run_with_nursery(main)
    finally:
        gc.enable()


def test_large_frames_are_read_in_small_pieces():
    async def main(nursery):
        bench = SessionBench(nursery, read_bytes=MIB)
        await bench.send_from_client((4 * MIB).to_bytes(4) + bytes(MIB), bytes(MIB))
        before = len(bench.client.read_sizes)
        await bench.send_from_client(bytes(2 * MIB), request())
        assert bench.client.read_sizes[before] == LARGE_READ_BYTES
        assert bench.client.read_sizes[-1] == MIB

    run_with_nursery(main)


@virtual
async def test_memory_is_given_back_after_a_burst_but_not_all_the_time():
    calls = []
    guard = MemoryGuard(1 << 40, 1 << 40, lambda: calls.append(trio.current_time()), inline)
    session = FakeSession(buffered=100 * MIB)
    for _ in range(5):
        await guard.sweep([FakeGroup(session)])
        await trio.sleep(1)
    assert not calls
    session.buffered_bytes = 0
    for _ in range(5):
        await guard.sweep([FakeGroup(session)])
        await trio.sleep(1)
    assert calls == [5]
    for number in range(60):
        session.buffered_bytes = 100 * MIB * (number % 2)
        await guard.sweep([FakeGroup(session)])
        await trio.sleep(1)
    assert len(calls) <= 7
