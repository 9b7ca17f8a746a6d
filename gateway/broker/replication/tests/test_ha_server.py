"""A master serves slaves that behave, and closes those that do not."""

import itertools
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from gateway.broker.replication import ha_server
from gateway.broker.replication.ha_access import READER_PREFACE, HaAccess, encode_preface
from gateway.broker.replication.ha_server import MAX_CONNECTIONS, PIECE_INTERVAL_S, HaServer
from gateway.broker.replication.ha_wire import MAX_FRAME_BYTES
from gateway.broker.replication.in_sync import InSyncRule
from gateway.broker.replication.log_cursor import LogCursor
from gateway.broker.replication.tests.fake_slave import FakeSlave, connected, real_time
from gateway.config.replication import ReplicationSettings
from remoting.reactor import Reactor
from remoting.tests.longest_turn import (
    CLIENTS_OF_TESTS,
    MAX_TURN_S,
    LongTurn,
    check_short_turns,
    short_turns,
)
from remoting.transport import SocketTransport, Transport
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.errors import StoreFull
from storage.files import MemoryFiles
from storage.store import MessageStore

FILE_BYTES = 16 * 1024
SETTINGS = ReplicationSettings(ha_transfer_batch_bytes=2048)


class Rule(InSyncRule):
    """Shows what the server told the rule of the master."""

    @property
    def joined(self) -> dict[str, int]:
        return {name: slave.position for name, slave in self._slaves.items()}

    @property
    def acknowledged(self) -> dict[str, int]:
        return {name: slave.acknowledged for name, slave in self._slaves.items() if slave.acknowledged}


class Master:
    """A store with a HA port, and what its rule was told."""

    def __init__(self, store: MessageStore, listener: socket.socket, server: HaServer, rule: Rule) -> None:
        self.store, self.listener, self.server, self.rule = store, listener, server, rule
        self.waits = False

    @property
    def end(self) -> int:
        return self.store.max_physical_offset

    def append(self, count: int = 1, size: int = 100) -> int:
        """Store messages and wake the server; return the end of the log."""
        for _ in range(count):
            self.store.append(NewMessage("t", 0, b"x" * size, {}))
        self.server.wake()
        return self.end

    def bytes(self, start: int = 0) -> bytes:
        """Return the log from an offset on."""
        log = self.store.commit_log
        views = [log.mapped_file(base).view[: min(log.file_bytes, self.end - base)] for base in log.bases()]
        return b"".join(views)[start - log.first_base :]


def open_store(file_bytes: int = FILE_BYTES) -> MessageStore:
    config = StoreConfig("/s", commit_log_file_bytes=file_bytes, message_index_enable=False)
    return MessageStore.open(config, MemoryFiles())


@asynccontextmanager
async def running_master(
    store: MessageStore | None = None,
    settings: ReplicationSettings = SETTINGS,
    *,
    is_sync: bool = True,
    **options: Any,
) -> AsyncIterator[Master]:
    store = store or open_store()
    rule = Rule(settings, lambda: store.max_physical_offset)
    listener = socket.create_server(("127.0.0.1", 0))
    server = HaServer(
        "b", store, settings, rule if is_sync else None, has_waiting_answers=lambda: master.waits, **options
    )
    master = Master(store, listener, server, rule)
    with listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run, [listener])
            yield master
            nursery.cancel_scope.cancel()
    assert server.replicas == []
    assert rule.joined == {}
    store.close()


async def until(is_so: Callable[[], bool], within_s: float = 5) -> None:
    with trio.fail_after(within_s):
        while not is_so():
            await trio.sleep(0.005)


def reasons(caplog: pytest.LogCaptureFixture, event: str = "slave refused") -> list[str]:
    return [record.__dict__["reason"] for record in caplog.records if record.getMessage() == event]


# -- what a slave gets --


@real_time
@pytest.mark.parametrize("refusal", [None, "it is a slave itself"])
async def test_a_reader_gets_the_log_from_a_slave_as_well_and_never_counts(refusal: str | None) -> None:
    async with running_master(refusal=refusal) as master, connected(master.listener) as reader:
        master.append(300)
        await reader.stream.send_all(encode_preface(master.server.access.issue_ticket(), READER_PREFACE))
        await reader.report(0)
        await reader.read_until(master.end)
        assert reader.log == master.bytes()
        await trio.sleep(0.2)
        assert (master.server.replicas, master.rule.joined, master.rule.in_sync_count) == ([], {}, 1)


@real_time
async def test_a_slave_gets_the_log_byte_for_byte_and_what_is_appended() -> None:
    async with running_master() as master, connected(master.listener) as slave:
        master.append(300)
        assert len(master.store.commit_log.bases()) > 3
        await slave.report(0)
        await slave.read_until(master.end)
        assert slave.log == master.bytes()
        for _ in range(50):
            await slave.read_until(master.append(3))
        assert slave.log == master.bytes()
        assert all(size <= 2048 for _, size in slave.frames)
        crossing = [
            (offset, size)
            for offset, size in slave.frames
            if offset // FILE_BYTES != (offset + size - 1) // FILE_BYTES
        ]
        assert crossing == []


@real_time
async def test_frames_end_between_messages_and_any_end_can_be_continued() -> None:
    async with running_master() as master:
        master.append(200, size=300)
        async with connected(master.listener) as slave:
            await slave.report(0)
            await slave.read_until(master.end)
        for offset, _ in slave.frames:
            async with connected(master.listener) as again:
                await again.report(offset)
                start, body = await again.read_frame() if offset else (0, b"")
                assert (start, body) == (offset, master.bytes(offset)[: len(body)])


@real_time
async def test_an_empty_slave_gets_the_log_from_its_oldest_file_on() -> None:
    store = open_store()
    async with running_master(store) as master:
        master.append(500)
        store.commit_log.delete_first()
        store.commit_log.delete_first()
        async with connected(master.listener) as slave:
            await slave.report(0)
            await slave.read_until(master.end)
            assert slave.start == 2 * FILE_BYTES
            assert slave.log == master.bytes(2 * FILE_BYTES)


@real_time
async def test_offset_1_stands_for_the_whole_log() -> None:
    async with running_master() as master:
        async with connected(master.listener) as slave:
            await slave.report(1)
            await until(lambda: bool(master.server.replicas))
            master.append(100)
            await slave.read_until(master.end)
            assert slave.log == master.bytes(1)
        async with connected(master.listener) as slave:
            await slave.report(1)
            await slave.read_until(master.end)
            assert slave.log == master.bytes(1)


@real_time
async def test_a_message_longer_than_any_frame_is_cut_and_can_be_continued() -> None:
    size = MAX_FRAME_BYTES + 1000
    store = MessageStore.open(
        StoreConfig(
            "/s", commit_log_file_bytes=16 << 20, max_message_bytes=8 << 20, message_index_enable=False
        ),
        MemoryFiles(),
    )
    async with running_master(store) as master:
        master.append(2, size=size)
        async with connected(master.listener) as slave:
            await slave.report(0)
            await slave.read_frame()
            assert slave.frames == [(0, MAX_FRAME_BYTES)]
        async with connected(master.listener) as again:
            await again.report(slave.end)
            await again.read_until(master.end)
            assert slave.log + again.log == master.bytes()
            # The rest of the cut message, the next one up to the limit, and its rest.
            assert len(again.frames) == 3


@real_time
async def test_what_was_appended_without_a_wake_is_sent_soon() -> None:
    async with running_master() as master, connected(master.listener) as slave:
        await slave.report(0)
        await until(lambda: bool(master.server.replicas))
        master.store.append(NewMessage("t", 0, b"late", {}))
        with trio.fail_after(2):
            await slave.read_until(master.end)


@real_time
async def test_a_reactor_sends_once_for_all_requests_of_a_poll() -> None:
    """The appends of one poll share a frame, and no task switch is needed."""
    reactor = Reactor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reactor.run)
        async with running_master(reactor=reactor) as master, connected(master.listener) as slave:
            await slave.report(0)
            await until(lambda: bool(master.server.replicas))
            left, right = socket.socketpair()
            with left, right:

                def append_often() -> None:
                    left.recv(10)
                    for _ in range(5):
                        master.append()
                    assert slave.frames == []

                reactor.watch(left.fileno(), append_often)
                right.send(b"x")
                await slave.read_until(1)
                reactor.unwatch(left.fileno())
            assert slave.frames == [(0, master.end)]
        nursery.cancel_scope.cancel()


@real_time
async def test_a_master_that_stops_sends_the_rest_first_and_waits_for_no_dead_slave() -> None:
    async with running_master() as master, connected(master.listener) as slave:
        await slave.report(0)
        await until(lambda: bool(master.server.replicas))
        async with trio.open_nursery() as nursery:
            master.store.append(NewMessage("t", 0, b"last words", {}))
            nursery.start_soon(master.server.settle)
            await slave.read_until(master.end)
        (replica,) = master.server.replicas
        assert replica.acknowledged == master.end
        slave.acknowledges = False
        master.append()
        before = trio.current_time()
        await master.server.settle()
        assert 0.9 < trio.current_time() - before < 10


@real_time
async def test_a_few_messages_wait_for_the_acknowledgement_of_a_piece_before() -> None:
    """Each piece costs both sides the same, however few messages it has."""
    async with running_master() as master, connected(master.listener) as slave:
        slave.acknowledges = False
        await slave.report(0)
        await until(lambda: bool(master.server.replicas))
        (replica,) = master.server.replicas
        ends = [master.append() for _ in range(2)]
        assert replica.sent == ends[1]
        end = master.append(3)
        assert replica.sent == ends[1]
        await slave.report(ends[0])
        await until(lambda: replica.sent == end)
        await slave.read_until(end)
        assert [size for _, size in slave.frames] == [ends[0]] * 2 + [3 * ends[0]]
        # A slave that acknowledges nothing gets them nevertheless, a little later; and many are sent at once.
        late_end = master.append()
        assert replica.sent == end
        await until(lambda: replica.sent == late_end)
        full_end = master.append(10, size=4000)
        await until(lambda: replica.sent == full_end)


@real_time
async def test_a_few_messages_for_which_nobody_waits_share_a_piece() -> None:
    async with running_master(is_sync=False) as master, connected(master.listener) as slave:
        await slave.report(0)
        await until(lambda: bool(master.server.replicas))
        (replica,) = master.server.replicas
        replica.last_sent_s = trio.current_time() - PIECE_INTERVAL_S
        first_end = master.append()
        assert replica.sent == first_end
        await slave.read_until(first_end)
        await until(lambda: replica.acknowledged == first_end)
        replica.last_sent_s = trio.current_time() + 60  # the interval does not end while the test looks
        end = [master.append() for _ in range(3)][-1]
        assert replica.sent == first_end
        replica.last_sent_s = 0
        await until(lambda: replica.sent == end)  # without another wake
        await slave.read_until(end)
        assert [size for _, size in slave.frames] == [first_end, 3 * first_end]
        await until(lambda: replica.acknowledged == end)
        replica.last_sent_s = trio.current_time() + 60
        full_end = master.append(10, size=4000)
        await until(lambda: replica.sent == full_end)


# -- acknowledgements --


@real_time
async def test_acknowledgements_reach_the_rule_from_connections_that_were_sent_the_bytes() -> None:
    async with running_master() as master, connected(master.listener) as slave:
        master.append(3)
        await slave.report(0)
        await slave.read_until(master.end)
        await until(lambda: list(master.rule.acknowledged.values()) == [master.end])
        (replica,) = master.server.replicas
        assert (replica.start, replica.sent, replica.acknowledged) == (0, master.end, master.end)
        assert replica.bytes_behind(master.end) == 0


@real_time
async def test_what_a_slave_claims_at_first_is_no_acknowledgement() -> None:
    async with running_master() as master, connected(master.listener) as slave:
        end = master.append(3)
        await slave.report(end)
        await until(lambda: bool(master.rule.joined))
        await slave.report(end)
        await trio.sleep(0.05)
        assert master.rule.acknowledged == {}
        master.append()
        await slave.read_until(master.end) if slave.start else await slave.read_frame()
        await until(lambda: list(master.rule.acknowledged.values()) == [master.end])


@real_time
async def test_a_newcomer_does_not_confirm_messages_that_wait_for_others() -> None:
    """It claims to have them, but nobody sent them to it; its acknowledgements count when the wait is over."""
    settings = replace(SETTINGS, slave_timeout_ms=150)
    async with running_master(settings=settings) as master, connected(master.listener) as slave:
        end = master.append(3)
        master.waits = True
        await slave.report(end)
        await until(lambda: bool(master.server.replicas))
        master.append()
        await slave.read_frame()
        await trio.sleep(0.05)
        assert master.rule.joined == {}
        await trio.sleep(0.2)
        await slave.report(master.end)
        await until(lambda: list(master.rule.acknowledged.values()) == [master.end])


@real_time
async def test_a_slave_that_comes_back_counts_at_once() -> None:
    async with running_master() as master:
        async with connected(master.listener) as slave:
            master.append(3)
            await slave.report(0)
            await slave.read_until(master.end)
        await until(lambda: not master.server.replicas)
        master.waits = True
        async with connected(master.listener) as again:
            await again.report(slave.end)
            await until(lambda: bool(master.rule.joined))


@real_time
async def test_two_connections_of_one_host_count_once_until_both_live() -> None:
    async with running_master() as master, connected(master.listener) as first:
        end = master.append(3)
        await first.report(0)
        await first.read_until(end)
        await until(lambda: list(master.rule.acknowledged.values()) == [end])
        async with connected(master.listener) as second:
            await second.report(0)
            await second.read_until(end)
            await until(lambda: list(master.rule.acknowledged.values()) == [end])
            assert len(master.rule.joined) == 1
            # The first one may be a relic of the same slave, until it acknowledges what was sent since.
            await first.report(end)
            await trio.sleep(0.05)
            assert len(master.rule.joined) == 1
            master.append()
            await first.read_until(master.end)
            await second.read_until(master.end)
            await until(lambda: list(master.rule.acknowledged.values()) == [master.end] * 2)


@real_time
async def test_connections_of_one_slave_of_ours_count_once_and_those_of_two_at_once() -> None:
    async with (
        running_master() as master,
        connected(master.listener) as first,
        connected(master.listener) as second,
        connected(master.listener) as other,
    ):
        end = master.append(3)
        for broker_id, slave in ((1, first), (1, second), (2, other)):
            await slave.stream.send_all(encode_preface(master.server.access.issue_ticket(broker_id)))
            await slave.report(0)
            await slave.read_until(end)
        await until(lambda: master.rule.acknowledged == {"id 1": end, "id 2": end})
        master.append()
        for slave in (first, second, other):
            await slave.read_until(master.end)
        await until(lambda: master.rule.acknowledged == {"id 1": master.end, "id 2": master.end})
        assert master.rule.in_sync_count == 3
        await first.stream.aclose()
        await until(lambda: len(master.server.replicas) == 2)
        assert master.rule.acknowledged == {"id 1": master.end, "id 2": master.end}


@real_time
async def test_two_slaves_with_one_broker_id_count_once_and_the_operator_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A slave that connects anew has one id as well, but its older connection is silent."""
    async with (
        running_master() as master,
        connected(master.listener) as first,
        connected(master.listener) as second,
    ):
        end = master.append(3)
        for slave in (first, second):
            await slave.stream.send_all(encode_preface(master.server.access.issue_ticket(1)))
            await slave.report(0)
            await slave.read_until(end)
        await until(lambda: master.rule.acknowledged == {"id 1": end})
        assert master.server.trouble == ""
        master.append()
        await second.read_until(master.end)
        await until(lambda: master.rule.acknowledged == {"id 1": master.end})
        assert master.server.trouble == ""
        await first.read_until(master.end)
        await until(lambda: "two slaves have the brokerId 1" in master.server.trouble)
        assert master.rule.acknowledged == {"id 1": master.end}
        assert master.rule.in_sync_count == 2
        for _ in range(3):
            master.append()
            for slave in (first, second):
                await slave.read_until(master.end)
        await until(lambda: master.rule.acknowledged == {"id 1": master.end})
        assert caplog.text.count("two slaves have one broker id") == 1
        await second.stream.aclose()
        await until(lambda: master.server.trouble == "")
        assert master.rule.acknowledged == {}
        master.append()
        await first.read_until(master.end)
        await until(lambda: master.rule.acknowledged == {"id 1": master.end})
        assert master.server.trouble == ""


# -- who is not served --


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (lambda end: 1 << 40, "beyond the end of this one"),
        (lambda end: end + 1, "beyond the end of this one"),
        (lambda end: 13, "no message begins at 13"),
        (lambda end: end - 5, "no message begins at"),
        (lambda end: -1, "negative offset -1"),
    ],
)
@real_time
async def test_a_slave_that_is_not_a_copy_is_told_in_the_log_and_closed(
    offset: Callable[[int], int], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_master() as master, connected(master.listener) as slave:
        await slave.report(offset(master.append(3)))
        with trio.fail_after(2):
            await slave.wait_closed()
        assert master.server.replicas == []
    (text,) = reasons(caplog)
    assert reason in text


@real_time
async def test_a_slave_whose_next_messages_are_deleted_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    store = open_store()
    async with running_master(store) as master, connected(master.listener) as slave:
        master.append(500)
        store.commit_log.delete_first()
        await slave.report(5)
        await slave.wait_closed()
    assert "have been deleted here" in reasons(caplog)[0]


@real_time
async def test_a_file_that_is_deleted_while_a_slave_reads_it_is_sent_to_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = open_store(1 << 20)
    settings = replace(SETTINGS, ha_transfer_batch_bytes=4096)
    async with running_master(store, settings) as master, connected(master.listener) as slave:
        master.append(4000, size=1000)
        expected = master.bytes()[: 1 << 20]
        slave.acknowledges = False
        await slave.report(0)
        await slave.read_frame()
        store.commit_log.delete_first()
        store.commit_log.delete_first()
        await slave.read_until(1 << 20)
        assert slave.log == expected
        with pytest.raises(EOFError):
            await slave.read_frame()
    assert "have been deleted" in reasons(caplog)[0]


@real_time
async def test_an_acknowledgement_of_more_than_was_sent_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_master() as master, connected(master.listener) as slave:
        slave.acknowledges = False
        master.append(3)
        await slave.report(0)
        await slave.read_until(master.end)
        await slave.report(master.end + 1)
        await slave.wait_closed()
        assert master.rule.acknowledged == {}
    assert "was sent the log up to" in reasons(caplog)[0]


@real_time
async def test_a_slave_has_no_slaves(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running_master(refusal="this broker is a slave") as master,
        connected(master.listener) as slave,
    ):
        await slave.report(0)
        await slave.wait_closed()
    assert reasons(caplog) == ["this broker is a slave"]


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\xff" * 100]
)
@real_time
async def test_garbage_is_closed(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with running_master() as master, connected(master.listener) as slave:
        await slave.stream.send_all(garbage)
        with trio.fail_after(2):
            await slave.wait_closed()
    assert any(record.levelno == logging.WARNING for record in caplog.records)


@real_time
async def test_a_thousand_connections_do_not_keep_a_slave_away() -> None:
    async with running_master() as master:
        end = master.append(10)
        streams = [await trio.open_tcp_stream(*master.listener.getsockname()[:2]) for _ in range(1000)]
        async with connected(master.listener) as slave:
            await slave.report(0)
            with trio.fail_after(5):
                await slave.read_until(end)
            assert len(master.server._sessions) <= MAX_CONNECTIONS
        for stream in streams:
            await trio.aclose_forcefully(stream)


class SlowAccess(HaAccess):
    """TLS with peers that send nothing, until ``opens`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.opens = trio.Event()
        self.waiting = 0

    async def accept(self, transport: SocketTransport) -> Transport:
        self.waiting += 1
        try:
            await self.opens.wait()
        finally:
            self.waiting -= 1
        return transport


@pytest.mark.parametrize(("most", "most_of_one_host"), [(64, 8), (5, 64)])
@real_time
async def test_connections_that_do_not_finish_tls_are_few(
    most: int, most_of_one_host: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.broker.replication.ha_server.MAX_HANDSHAKES", most)
    monkeypatch.setattr("gateway.broker.replication.ha_server.MAX_HANDSHAKES_PER_HOST", most_of_one_host)
    access, limit = SlowAccess(), min(most, most_of_one_host)
    async with running_master(access=access) as master:
        end = master.append(10)
        address = master.listener.getsockname()[:2]
        streams = [await trio.open_tcp_stream(*address) for _ in range(limit + 3)]
        await until(lambda: len(reasons(caplog, "connection not accepted")) == 3)
        assert access.waiting == limit
        access.opens.set()
        await until(lambda: not access.waiting)
        async with connected(master.listener) as slave:
            await slave.report(0)
            await slave.read_until(end)
        assert not master.server._handshakes
        for stream in streams:
            await trio.aclose_forcefully(stream)


@real_time
async def test_as_many_slaves_as_there_is_room_for(caplog: pytest.LogCaptureFixture) -> None:
    async with running_master() as master, trio.open_nursery() as nursery:
        slaves = []
        for _ in range(MAX_CONNECTIONS):
            stream = await trio.open_tcp_stream(*master.listener.getsockname()[:2])
            slaves.append(FakeSlave(stream))
            await slaves[-1].report(0)
        await until(lambda: len(master.server.replicas) == MAX_CONNECTIONS)
        async with connected(master.listener) as late:
            await late.wait_closed()
        for slave in slaves:
            nursery.start_soon(slave.stream.aclose)
    assert "64 connections are open" in reasons(caplog)[0]


@real_time
async def test_a_file_that_cannot_be_opened_ends_one_connection(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_master() as master, connected(master.listener) as slave:
        await slave.report(0)
        await until(lambda: bool(master.server.replicas))

        def fail(base: int) -> None:
            raise StoreFull("no file descriptor is left")

        with monkeypatch.context() as patch:
            patch.setattr(type(master.store.commit_log), "mapped_file", lambda log, base: fail(base))
            master.server.log.position += 1
            master.server.wake()
            master.server.log.position -= 1
        await slave.wait_closed()
        async with connected(master.listener) as again:
            await again.report(0)
            await again.read_until(master.append())
    assert "log cannot be sent to a slave" in caplog.text


# -- time --


@real_time
async def test_heartbeats_and_silence(caplog: pytest.LogCaptureFixture) -> None:
    settings = replace(SETTINGS, ha_send_heartbeat_interval_ms=100, ha_housekeeping_interval_ms=2000)
    async with running_master(settings=settings) as master, connected(master.listener) as slave:
        end = master.append(3)
        await slave.report(end)
        before = trio.current_time()
        for _ in range(3):
            assert await slave.read_frame() == (end, b"")
        assert 0.28 < trio.current_time() - before < 1.5
        await slave.wait_closed()
        assert 1.95 < trio.current_time() - before < 6
    assert reasons(caplog) == ["it has not reported for 2 s"]


@real_time
async def test_a_connection_that_never_reports_is_closed() -> None:
    settings = replace(SETTINGS, ha_housekeeping_interval_ms=200)
    async with running_master(settings=settings) as master, connected(master.listener) as slave:
        with trio.fail_after(5):
            await slave.wait_closed()


@real_time
async def test_a_slave_that_does_not_read_delays_nobody_and_is_closed() -> None:
    store = open_store(1 << 20)
    settings = replace(SETTINGS, ha_housekeeping_interval_ms=600, ha_transfer_batch_bytes=65536)
    async with running_master(store, settings) as master, connected(master.listener) as stuck:
        master.append(20_000, size=1000)
        await stuck.report(0)
        async with connected(master.listener) as slave:
            await slave.report(0)
            with trio.fail_after(20):
                await slave.read_until(master.end)
            assert slave.log == master.bytes()
        await until(lambda: not master.server.replicas)


@real_time
async def test_flow_control_limits_the_rate_of_a_slave() -> None:
    settings = replace(
        SETTINGS,
        ha_flow_control_enable=True,
        max_ha_transfer_bytes_per_s=20_000,
        ha_transfer_batch_bytes=4096,
    )
    async with running_master(settings=settings) as master, connected(master.listener) as slave:
        end = master.append(300, size=100)
        assert 50_000 < end < 80_000
        await slave.report(0)
        before = trio.current_time()
        await slave.read_until(end)
        assert 1 < trio.current_time() - before < 12


async def copy_a_long_log(messages: int = 200_000) -> None:
    """Send a log to a slave, by default more than 200 MB."""
    store = open_store(64 << 20)
    async with running_master(store, ReplicationSettings()) as master, connected(master.listener) as slave:
        master.append(messages, size=1000)
        await slave.report(0)
        received = 0
        while received < master.end:
            received += len(await slave.stream.receive_some(1 << 20))


def short_passes() -> AbstractContextManager[object]:
    """Measure the master's tasks, whose passes of the loop must stay short."""
    return short_turns(max_pass_s=MAX_TURN_S, left_out=CLIENTS_OF_TESTS)


@real_time
async def test_a_slave_far_behind_leaves_turns_to_others() -> None:
    await check_short_turns(copy_a_long_log, short_passes)


@real_time
async def test_one_long_turn_while_a_log_is_sent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would notice a single piece that takes too long."""
    next_frame, pieces = ha_server._Session._next_frame, itertools.count()

    def take_long(session: Any, cursor: LogCursor) -> bytes | None:
        if next(pieces) == 10:
            end_s = time.thread_time() + MAX_TURN_S
            while time.thread_time() < end_s:
                pass
        return next_frame(session, cursor)

    monkeypatch.setattr(ha_server._Session, "_next_frame", take_long)
    with pytest.raises(LongTurn, match="HaServer"), short_passes():
        await copy_a_long_log(messages=20_000)
    assert next(pieces) > 10


@real_time
async def test_a_slave_that_falls_out_of_sync_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    settings = replace(SETTINGS, max_gap_not_in_sync_bytes=1000)

    def events() -> list[tuple[str, int]]:
        names = ("slave is in sync", "slave is not in sync")
        records = [record for record in caplog.records if record.getMessage() in names]
        return [(record.getMessage(), record.__dict__["bytes_behind"]) for record in records]

    async with running_master(settings=settings) as master, connected(master.listener) as slave:
        slave.acknowledges = False
        await slave.report(0)
        await slave.read_until(master.append(10))
        await until(lambda: len(events()) == 1)
        assert events() == [("slave is not in sync", master.end)]
        await slave.report(master.end)
        await until(lambda: len(events()) == 2)
        await trio.sleep(0.3)
        assert events()[1:] == [("slave is in sync", 0)]
