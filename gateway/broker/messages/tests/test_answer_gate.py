"""The answer gate with a disk, replicas and connections that the test controls."""

from dataclasses import dataclass, field
from itertools import product

import pytest
import trio

from codec.command import decode_frame, encode_response
from codec.constants import ResponseCode
from gateway.broker.messages.answer_gate import AnswerGate, with_status, without_status
from remoting.errors import RequestError
from remoting.tests.virtual import virtual
from storage.errors import FlushFailed

DISK_LIMIT_S = 5.0
NEVER = 1000.0


class Disk:
    """Stands for a `GroupCommit`."""

    def __init__(self, synchronous: bool) -> None:
        self.synchronous = synchronous
        self.requests = 0

    def add_listener(self, durable, failed) -> None:
        self.durable, self.failed = durable, failed

    def request_flush(self) -> None:
        self.requests += 1


class Replicas:
    """A replication rule whose answers the test sets."""

    def __init__(self, status: int | None = None, timeout_s: float = 3.0) -> None:
        self.status = status
        self.timeout_s = timeout_s
        self.refusal: RequestError | None = None

    def status_now(self) -> int | None:
        return self.status

    def check_append(self) -> None:
        if self.refusal is not None:
            raise self.refusal


class Store:
    class config:
        max_message_bytes = 4096


class Peer:
    remote = ("peer", 1)

    def __init__(self) -> None:
        self.outstanding_requests = 0
        self.writes: list[bytes] = []
        self.answers: list[tuple[float, int, int]] = []
        self._start_s = trio.current_time()

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        at = 0
        while at < len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            command = decode_frame(data, at + 4, end)
            self.answers.append((round(trio.current_time() - self._start_s, 3), command.opaque, command.code))
            at = end


@dataclass
class Sends:
    """Appends messages of one byte, whose answers the gate holds."""

    disk: Disk
    replicas: Replicas | None = None
    encode_status = staticmethod(with_status)
    end: int = 0
    peer: Peer = field(default_factory=Peer)

    def __post_init__(self) -> None:
        self.gate = AnswerGate(
            Store(), self.disk, flush_timeout_ms=int(DISK_LIMIT_S * 1000), replication=self.replicas
        )

    def send(self, peer: Peer | None = None) -> int | None:
        """Return the code of an answer that leaves at once, None for one that is held."""
        self.end += 1
        answer = encode_response(self.end, 0, {"queueOffset": str(self.end)}, b"", None)
        answer_now = self.gate.hold(peer or self.peer, answer, self.end, self.encode_status)
        return None if answer_now is None else decode_frame(answer_now, 4, len(answer_now)).code


def expected(flushes, status, durable_s, replicated_s, timeout_s):
    """Return time and code of an answer: the plain rule, once more."""
    disk_s, disk_code = 0.0, 0
    if flushes:
        disk_s, disk_code = (durable_s, 0) if durable_s < DISK_LIMIT_S else (DISK_LIMIT_S, 10)
    if status == "none":
        return disk_s, disk_code
    if status is not None:
        return disk_s, status or disk_code
    replica_s, replica_code = (replicated_s, 0) if replicated_s < timeout_s else (timeout_s, 12)
    return max(disk_s, replica_s), replica_code or disk_code


@pytest.mark.parametrize("timeout_s", [3.0, 7.0])
@pytest.mark.parametrize("replicated_s", [0.5, 2.0, 6.0, NEVER])
@pytest.mark.parametrize("durable_s", [1.0, 4.0, 6.5, NEVER])
@pytest.mark.parametrize("status", ["none", None, 11, 0])
@pytest.mark.parametrize("flushes", [False, True])
@virtual
async def test_an_answer_waits_for_both_outcomes(flushes, status, durable_s, replicated_s, timeout_s):
    disk = Disk(flushes)
    replicas = None if status == "none" else Replicas(status, timeout_s)
    sends = Sends(disk, replicas)
    assert sends.gate.must_wait == (flushes or replicas is not None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sends.gate.watch_deadlines)
        now = sends.send()
        held = now is None
        assert (sends.gate.held_count, sends.peer.outstanding_requests) == (held, held)
        assert disk.requests == flushes
        answered_s, code = expected(flushes, status, durable_s, replicated_s, timeout_s)
        if not held:
            assert (0.0, code) == (answered_s, now)
        start_s = trio.current_time()
        for at, note in sorted(
            [(durable_s, disk.durable), (replicated_s, sends.gate.note_replicated)], key=lambda pair: pair[0]
        ):
            await trio.sleep_until(start_s + min(at, 20.0))
            if at < NEVER:
                note(sends.end)
        await trio.sleep_until(start_s + 20)
        assert sends.peer.answers == ([(answered_s, 1, code)] if held else [])
        assert (sends.gate.held_count, sends.peer.outstanding_requests) == (0, 0)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("status", ["none", None, 11, 0])
@virtual
async def test_a_message_without_an_answer_is_only_flushed(flushes, status):
    disk = Disk(flushes)
    sends = Sends(disk, None if status == "none" else Replicas(status))
    assert sends.gate.hold(sends.peer, None, 1) is None
    disk.durable(1)
    sends.gate.note_replicated(1)
    assert (disk.requests, sends.gate.held_count, sends.peer.writes) == (flushes, 0, [])


@virtual
async def test_what_is_reached_leaves_and_what_is_not_stays():
    sends = Sends(Disk(True), Replicas())
    peer, other = Peer(), Peer()
    for peer_of_send in (peer, peer, other, peer):
        assert sends.send(peer_of_send) is None
    sends.disk.durable(3)
    assert not peer.writes
    sends.gate.note_replicated(2)
    assert [opaque for _, opaque, _ in peer.answers] == [1, 2]
    assert len(peer.writes) == 1, "all answers of a connection leave in one write"
    sends.gate.note_replicated(1)
    sends.gate.note_replicated(4)
    assert [opaque for _, opaque, _ in other.answers] == [3]
    assert (sends.gate.held_count, peer.outstanding_requests, other.outstanding_requests) == (1, 1, 0)
    sends.disk.durable(4)
    assert [opaque for _, opaque, _ in peer.answers] == [1, 2, 4]


@virtual
async def test_answers_that_need_no_replica_pass_those_that_wait_for_one():
    replicas = Replicas()
    sends = Sends(Disk(True), replicas)
    assert sends.send() is None
    replicas.status = ResponseCode.SLAVE_NOT_AVAILABLE
    assert sends.send() is None
    sends.disk.durable(2)
    assert sends.peer.answers == [(0.0, 2, 11)]
    sends.gate.note_replicated(1)
    assert sends.peer.answers[1:] == [(0.0, 1, 0)]


@virtual
async def test_a_failed_flush_refuses_what_waits_for_the_disk_once():
    sends = Sends(Disk(True), Replicas())
    for _ in range(3):
        sends.send()
    sends.gate.note_replicated(1)
    sends.disk.failed(FlushFailed("/store/file", "a flush to the disk failed"))
    assert [(opaque, code) for _, opaque, code in sends.peer.answers] == [(1, 14), (2, 14), (3, 14)]
    assert b"a flush to the disk failed" in sends.peer.writes[0]
    assert b"/store" not in b"".join(sends.peer.writes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sends.gate.watch_deadlines)
        sends.gate.note_replicated(2)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert len(sends.peer.answers) == 3
    assert (sends.gate.held_count, sends.peer.outstanding_requests) == (0, 0)


@virtual
async def test_a_failed_flush_leaves_answers_alone_that_wait_for_replicas_only():
    sends = Sends(Disk(False), Replicas())
    sends.send()
    sends.disk.failed(FlushFailed("file", "a flush to the disk failed"))
    assert not sends.peer.answers
    sends.gate.note_replicated(1)
    assert sends.peer.answers == [(0.0, 1, 0)]


@pytest.mark.parametrize(("flushes", "status"), list(product([False, True], [None, 11])))
@virtual
async def test_a_status_that_nobody_reads_is_left_out(flushes, status):
    sends = Sends(Disk(flushes), Replicas(status))
    sends.encode_status = without_status
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sends.gate.watch_deadlines)
        now = sends.send()
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    codes = [code for _, _, code in sends.peer.answers]
    assert codes == [0] if now is None else (now, codes) == (0, [])


@virtual
async def test_a_changed_time_limit_applies_to_later_answers():
    sends = Sends(Disk(True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sends.gate.watch_deadlines)
        sends.send()
        sends.gate.reconfigure(flush_timeout_ms=8000)
        sends.send()
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert sends.peer.answers == [(5.0, 1, 10), (8.0, 2, 10)]


@virtual
async def test_all_waits_end_when_the_store_is_about_to_be_closed():
    sends = Sends(Disk(True), Replicas())
    for _ in range(3):
        sends.send()
    sends.disk.durable(2)
    sends.gate.note_replicated(1)
    sends.gate.end_waits()
    assert sends.peer.answers == [(0.0, 1, 0), (0.0, 2, 12), (0.0, 3, 12)]
    assert (sends.gate.held_count, sends.peer.outstanding_requests) == (0, 0)
    disk_only = Sends(Disk(True))
    disk_only.send()
    disk_only.gate.end_waits()
    assert disk_only.peer.answers == [(0.0, 1, 10)]


@virtual
async def test_too_few_replicas_refuse_before_anything_is_stored():
    replicas = Replicas()
    replicas.refusal = RequestError(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
    with pytest.raises(RequestError, match="in-sync replicas not enough"):
        Sends(Disk(True), replicas).gate.check_append()
    Sends(Disk(True)).gate.check_append()
