"""Group commit with a thread of its own and a real reactor, on the machine's clock but without waiting for it."""

import itertools
import socket
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import trio

from gateway.broker.messages import group_commit
from gateway.broker.messages.answer_gate import AnswerGate
from gateway.broker.messages.group_commit import FlushThread, GroupCommit
from gateway.tests.cluster import inline
from remoting.reactor import Reactor

pytestmark = pytest.mark.skipif(not Reactor.is_available(), reason="needs epoll")


class Unbroken:
    """The guard of a store of which no flush failed for good."""

    def check(self) -> None:
        pass


class Store:
    """The part of a store that a flush needs; a flush lasts until `go` is set. Each message has one byte."""

    def __init__(self) -> None:
        self.durable_offset = self.max_physical_offset = 0
        self.started = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()
        self.flush_count = 0
        self.flushes = Unbroken()
        self.errors: list[Exception] = []
        self.during_flush: Callable[[], None] = lambda: None

    def flush(self) -> None:
        target = self.max_physical_offset
        self.flush_count += 1
        self.during_flush()
        self.started.release()
        self.go.wait()
        if self.errors:
            raise self.errors.pop()
        self.durable_offset = target


class Peer:
    """A connection of which only what group commit does to it matters."""

    remote = ("peer", 1)
    outstanding_requests = 0

    def __init__(self, sock: socket.socket | None = None) -> None:
        self.written: list[bytes] = []
        self._socket = sock

    def write(self, data: bytes) -> None:
        self.written.append(data)
        if self._socket is not None:
            self._socket.send(data)


class Sends:
    """Messages that are appended to a store, and their answers, which a gate holds."""

    def __init__(self, store: Store, commit: GroupCommit) -> None:
        self.store = store
        self.gate = AnswerGate(store, commit, flush_timeout_ms=60_000)

    def send(self, peer: Peer, answer: bytes | None) -> None:
        self.store.max_physical_offset += 1
        assert self.gate.hold(peer, answer, self.store.max_physical_offset) is None


def with_commit(test: Callable[..., Awaitable[None]]) -> Callable[[], None]:
    """Run a test with sends whose answers wait for a group commit with a store and a reactor."""

    async def main() -> None:
        reactor, store = Reactor(), Store()
        commit = GroupCommit(store, synchronous=True, interval_ms=500, run_blocking=inline, reactor=reactor)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reactor.run)
                nursery.start_soon(commit.run)
                try:
                    await test(commit, Sends(store, commit))
                finally:
                    store.go.set()
                    commit.close()
                    nursery.cancel_scope.cancel()

    def run() -> None:
        trio.run(main)

    run.__name__ = test.__name__
    return run


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.001)


async def flush_started(store: Store) -> None:
    await trio.to_thread.run_sync(store.started.acquire)


@with_commit
async def test_answers_queued_during_a_flush_wait_for_the_next_one(commit, sends):
    store = sends.store
    store.go.clear()
    one, two = Peer(), Peer()
    sends.send(one, b"a")
    await flush_started(store)
    for answer in (b"b", b"c"):
        sends.send(one, answer)
    sends.send(two, b"d")
    assert commit.flushing_s > 0
    assert not one.written
    store.go.set()
    await until(lambda: sends.gate.held_count == 0)
    assert one.written == [b"a", b"bc"], "all answers of a connection leave in one write"
    assert two.written == [b"d"]
    assert store.flush_count == 2
    assert one.outstanding_requests == two.outstanding_requests == 0
    await until(lambda: commit.flushing_s == 0)


@with_commit
async def test_only_what_was_queued_before_a_flush_is_covered_by_it(commit, sends):
    store, covered = sends.store, []
    peer = Peer()

    def append_late() -> None:
        if store.flush_count == 1:  # a message that is stored while the disk is busy with those before it
            trio.from_thread.run_sync(sends.send, peer, b"late", trio_token=token)

    token = trio.lowlevel.current_trio_token()
    store.during_flush = append_late
    commit.add_listener(covered.append, covered.append)
    sends.send(peer, b"early")
    await until(lambda: sends.gate.held_count == 0)
    assert (covered, peer.written) == ([1, 2], [b"early", b"late"])


def test_messages_of_one_poll_share_a_flush():
    reactor, store = Reactor(), Store()
    commit = GroupCommit(store, synchronous=True, interval_ms=500, run_blocking=inline, reactor=reactor)
    sends, peers = Sends(store, commit), [Peer(), Peer(), Peer()]
    pairs = [socket.socketpair() for _ in peers]
    for peer, (ours, theirs) in zip(peers, pairs, strict=True):

        def read(peer: Peer = peer, ours: socket.socket = ours) -> None:
            sends.send(peer, ours.recv(1))
            # A thread that was started already would begin to flush now.
            time.sleep(0.003)

        reactor.watch(ours.fileno(), read)
        theirs.send(b"a")

    async def main() -> None:
        reactor.run_readers()
        await flush_started(store)
        while sends.gate.held_count:
            reactor.run_readers()

    trio.run(main)
    assert (store.flush_count, [peer.written for peer in peers]) == (1, [[b"a"]] * 3)
    commit.close()
    for sock in itertools.chain(*pairs):
        sock.close()


@with_commit
async def test_a_failed_flush_is_repeated_before_anything_is_answered(commit, sends):
    store = sends.store
    store.errors = [OSError("disk")]
    peer = Peer()
    sends.send(peer, b"a")
    await until(lambda: store.flush_count == 1 and commit.flushing_s == 0)
    sends.send(peer, b"b")
    assert not peer.written
    assert store.flush_count == 1, "there is a pause before the next attempt"
    await until(lambda: sends.gate.held_count == 0)
    assert (peer.written, store.flush_count) == ([b"ab"], 2)


@with_commit
async def test_a_flush_that_nobody_waits_for(commit, sends):
    store = sends.store
    sends.send(Peer(), None)
    await flush_started(store)
    await until(lambda: commit.flushing_s == 0)
    assert store.flush_count == 1


@pytest.fixture(autouse=True)
def short_pause(monkeypatch):
    monkeypatch.setattr(group_commit, "FLUSH_RETRY_S", 0.05)


def test_closing_waits_for_the_flush_that_runs_and_drops_its_outcome():
    reactor, store, ended = Reactor(), Store(), []
    before = threading.active_count()
    thread = FlushThread(store.flush, ended.append, reactor)
    store.go.clear()
    thread.start()
    store.started.acquire()
    closing = threading.Thread(target=thread.close)
    closing.start()
    assert closing.is_alive()
    store.go.set()
    closing.join()
    thread.close()
    assert threading.active_count() == before
    reactor.run_readers()
    assert not ended


def test_a_send_that_waits_for_its_flush_does_not_pass_through_the_scheduler():
    """Counted: steps of trio tasks while a client sends one message after the other."""
    rounds = 200
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    took_s = []

    def client() -> None:
        started_s = time.monotonic()
        for _ in range(rounds):
            theirs.sendall(b"?")
            theirs.recv(1)
        took_s.append(time.monotonic() - started_s)

    async def main() -> int:
        reactor, store = Reactor(slice_s=1.0, linger_s=5.0), Store()
        commit = GroupCommit(store, synchronous=True, interval_ms=500, run_blocking=inline, reactor=reactor)
        sends, peer = Sends(store, commit), Peer(ours)
        reactor.watch(ours.fileno(), lambda: sends.send(peer, ours.recv(1)))
        steps = StepCounter()
        async with trio.open_nursery() as nursery:
            for work in (reactor.run, commit.run, sends.gate.watch_deadlines):
                nursery.start_soon(work)
            trio.lowlevel.add_instrument(steps)
            await trio.to_thread.run_sync(client)
            trio.lowlevel.remove_instrument(steps)
            commit.close()
            nursery.cancel_scope.cancel()
        assert store.flush_count >= rounds
        return steps.count

    with ours, theirs:
        steps = trio.run(main)
    assert steps < rounds / 4 + 10 * took_s[0], "a few at the start, and one or two per slice of a second"


class StepCounter(trio.abc.Instrument):
    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
