"""A slave copies its master's log from wherever it is, and appends nothing that is not the master's next message."""

import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import memory_stream_pair

from codec.constants import ResponseCode
from gateway.broker.replication import follower
from gateway.broker.replication.follower import Follower, GroupName, LogCopy, LogRange
from gateway.broker.replication.ha_access import encode_preface
from gateway.broker.replication.ha_wire import encode_frame_head
from gateway.broker.replication.master_lookup import Master, MasterLookup
from remoting.bodies.topics import KVTable
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerConfig, GetBrokerConfigReply, GetBrokerRuntimeInfoReply
from remoting.requests.ha import ExchangeBrokerHaInfo, ExchangeBrokerHaInfoReply
from remoting.requests.replication import OpenReplication, OpenReplicationReply
from remoting.tests.virtual import virtual
from remoting.transport import StreamTransport
from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.replica_log import Diverged, ReplicaLog
from storage.store import MessageStore
from storage.tests.support import FakeClock, small_config

CONFIG = replace(small_config(), commit_log_file_bytes=4096, max_message_bytes=2000)
HA, REQUESTS = ("10.0.0.1", 10912), ("10.0.0.1", 10911)
OTHER_HA = ("10.0.0.2", 10912)
SETTINGS = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "haListenPort": "10912",
}
LINE = "storage.replica_log"
TROUBLE = "the master sent what cannot be appended"


def opened(files: CrashFiles | None = None) -> MessageStore:
    return MessageStore.open(CONFIG, files or CrashFiles(), FakeClock())


def fill(store: MessageStore, messages: int, seed: int = 1) -> None:
    randomness = random.Random(seed)
    for number in range(messages):
        body = randomness.randbytes(randomness.choice([0, 30, 200, 900]))
        store.append(NewMessage("t", number % 3, body, b"", born_timestamp=number))


def filled(messages: int = 60, seed: int = 1) -> MessageStore:
    store = opened()
    fill(store, messages, seed)
    return store


def log_bytes(store: MessageStore, start: int | None = None, end: int | None = None) -> bytes:
    """Return the bytes of the log between two physical offsets."""
    offset = store.min_physical_offset if start is None else start
    stop = store.max_physical_offset if end is None else end
    parts = []
    while offset < stop:
        view, base, file_end = store.commit_log.file_containing(offset)
        piece_end = min(stop, base + store.commit_log.file_bytes)
        parts.append(bytes(view[offset - base : piece_end - base]))
        offset = piece_end
    return b"".join(parts)


def ends_of(store: MessageStore) -> dict[tuple[str, int], int]:
    return {key: store.max_offset(*key) for key in store.queue_keys()}


class FakeMaster:
    """An official master's HA port: it sends its log from whatever offset it is asked for, in pieces of any size.

    ``script`` replaces what it does after the first report of a connection.
    """

    def __init__(self, store: MessageStore, nursery: trio.Nursery, piece_bytes: int = 700) -> None:
        self.store = store
        self.piece_bytes = piece_bytes
        self.reports: list[int] = []
        self.first_reports: list[int] = []
        self.script: Callable[[trio.abc.Stream, int], Any] | None = None
        self.answers: dict[str, str] | None = None
        self.ticket: str | None = None
        self.exchanged: tuple[str, int] | None = HA
        self.settings = dict(SETTINGS)
        self.openings: list[bytes] = []
        self.refuses = False
        self._nursery = nursery
        self._streams: list[trio.abc.Stream] = []

    async def open_transport(self, host: str, port: int) -> StreamTransport:
        assert (host, port) in (HA, OTHER_HA)
        if self.refuses:
            raise ConnectionRefusedError("nobody there")
        here, there = memory_stream_pair()
        self._streams.append(there)
        self._nursery.start_soon(self._serve, there)
        return StreamTransport(here)

    @asynccontextmanager
    async def dial(self, host: str, port: int) -> AsyncIterator[Any]:
        assert (host, port) == REQUESTS
        if self.refuses:
            raise ConnectionRefusedError("nobody there")
        yield SimpleNamespace(ask=self._ask)

    async def _ask(self, request: Any, timeout_s: float = 3.0, sign: Any = None) -> Any:
        if isinstance(request, ExchangeBrokerHaInfo):
            if self.exchanged is None:
                raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "as 4.9 brokers answer")
            return ExchangeBrokerHaInfoReply(master_ha_address="{}:{}".format(*self.exchanged))
        if isinstance(request, GetBrokerConfig):
            reply = GetBrokerConfigReply(version="{}")
            reply.body = "".join(f"{key}={value}\n" for key, value in self.settings.items()).encode()
            return reply
        if isinstance(request, OpenReplication):
            if self.ticket is None:
                raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "as official masters answer")
            return OpenReplicationReply(ticket=self.ticket)
        ends = {
            "commitLogMinOffset": str(self.store.min_physical_offset),
            "commitLogMaxOffset": str(self.store.max_physical_offset),
        }
        return GetBrokerRuntimeInfoReply(data=KVTable(table=self.answers or ends))

    async def _serve(self, stream: trio.abc.Stream) -> None:
        try:
            if self.ticket is not None:
                self.openings.append(await stream.receive_some(len(encode_preface(self.ticket))))
            first = int.from_bytes(await stream.receive_some(8), "big")
            self.first_reports.append(first)
            if self.script is not None:
                await self.script(stream, first)
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send_log, stream, first)
                    await self._read_reports(stream)
                    nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _read_reports(self, stream: trio.abc.Stream) -> None:
        while data := await stream.receive_some(8):
            self.reports.append(int.from_bytes(data, "big"))

    async def _send_log(self, stream: trio.abc.Stream, offset: int) -> None:
        if offset == 0:  # as officially: the last file only
            offset = self.store.max_physical_offset - self.store.max_physical_offset % 4096
        silent_since = trio.current_time()
        while True:
            commit_log = self.store.commit_log
            if commit_log.first_base <= offset < commit_log.max_offset:
                base = commit_log.base_of(offset)
                end = min(base + commit_log.file_bytes, commit_log.max_offset, offset + self.piece_bytes)
                await stream.send_all(
                    encode_frame_head(offset, end - offset) + log_bytes(self.store, offset, end)
                )
                offset, silent_since = end, trio.current_time()
            elif trio.current_time() - silent_since >= 5:
                await stream.send_all(encode_frame_head(offset, 0))
                silent_since = trio.current_time()
            else:
                await trio.sleep(0.1)

    async def drop_connections(self) -> None:
        for stream in self._streams:
            await trio.aclose_forcefully(stream)


class World:
    """A slave that follows a fake master."""

    def __init__(
        self, nursery: trio.Nursery, master: MessageStore, slave: MessageStore, **master_options: Any
    ):
        self.master = FakeMaster(master, nursery, **master_options)
        self.slave = slave
        self.nursery = nursery
        self.grown: set[tuple[str, int]] = set()
        self.compared: list[tuple[str, int]] = []
        self.lookup = MasterLookup()
        self.lookup.set_master(Master(HA, REQUESTS))
        self.follower = self.new_follower()
        self.scope = trio.CancelScope()

    def new_follower(self) -> Follower:
        return Follower(
            self.slave,
            self.lookup,
            self.master.open_transport,
            self.master.dial,
            self.grown.update,
            note_compared=self.compared.append,
            group=GroupName("DefaultCluster", "broker-a"),
        )

    async def run(self) -> None:
        with self.scope:
            await self.follower.run()

    def start(self) -> None:
        self.nursery.start_soon(self.run)

    def is_equal(self) -> bool:
        return log_bytes(self.slave) == log_bytes(self.master.store, self.slave.min_physical_offset)


@asynccontextmanager
async def world(master: MessageStore, slave: MessageStore, **options: Any) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        made = World(nursery, master, slave, **options)
        yield made
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("piece_bytes", [1, 7, 97, 700, 5000])
@virtual
async def test_an_empty_slave_gets_the_whole_log_and_its_queues(piece_bytes: int) -> None:
    master = filled()
    async with world(master, opened(), piece_bytes=piece_bytes) as pair:
        pair.start()
        await trio.sleep(1)
        assert pair.is_equal()
        assert ends_of(pair.slave) == ends_of(master)
        assert pair.grown == set(ends_of(master))
        assert pair.master.first_reports == [1]
        assert pair.master.reports[-1] == master.max_physical_offset
        assert pair.follower.state == "copying"
        assert pair.follower.lag_bytes == 0


@virtual
async def test_a_slave_shows_a_master_of_this_project_its_ticket() -> None:
    master = filled()
    async with world(master, opened()) as pair:
        pair.master.ticket = "0f" * 32
        pair.start()
        await trio.sleep(1)
        assert pair.master.openings == [encode_preface("0f" * 32)]
        assert pair.is_equal()


@virtual
async def test_an_empty_slave_begins_where_the_master_begins() -> None:
    master = filled()
    master.commit_log.delete_first()
    master.commit_log.delete_first()
    async with world(master, opened()) as pair:
        pair.start()
        await trio.sleep(1)
        assert pair.master.first_reports == [8192]
        assert pair.slave.min_physical_offset == 8192
        assert pair.is_equal()


@virtual
async def test_an_empty_slave_waits_for_the_first_message_of_an_empty_master() -> None:
    master = opened()
    async with world(master, opened()) as pair:
        pair.start()
        await trio.sleep(1)
        assert pair.follower.state == "copying"
        fill(master, 30)
        await trio.sleep(1)
        assert pair.is_equal()
        assert ends_of(pair.slave) == ends_of(master)


@virtual
async def test_an_empty_master_of_4_9_says_that_its_log_begins_at_minus_1() -> None:
    master = opened()
    async with world(master, opened()) as pair:
        pair.master.answers = {"commitLogMinOffset": "-1", "commitLogMaxOffset": "0"}
        pair.start()
        await trio.sleep(1)
        fill(master, 30)
        await trio.sleep(1)
        assert pair.is_equal()


@virtual
async def test_an_empty_slave_copies_nothing_before_it_knows_where_the_log_begins() -> None:
    master = filled()
    async with world(master, opened()) as pair:
        pair.lookup.set_master(Master(HA))
        pair.start()
        await trio.sleep(30)
        assert pair.slave.max_physical_offset == 0
        assert pair.master.first_reports == []
        assert pair.follower.state == "cannot follow the master"
        pair.lookup.note_registration("10.0.0.1:10912", "10.0.0.1:10911")
        await trio.sleep(1)
        assert pair.is_equal()


@pytest.mark.parametrize("exchange", [HA, ("10.9.9.9", 10912), None])
@virtual
async def test_an_empty_slave_with_a_named_port_needs_no_namesrv(
    exchange: tuple[str, int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The port for requests is the one before the HA port unless it was configured; 4.9 brokers have no code 906."""
    master = filled()
    master.commit_log.delete_first()
    async with world(master, opened()) as pair:
        pair.master.exchanged = exchange
        pair.lookup = MasterLookup("10.0.0.1:10912")
        pair.follower = pair.new_follower()
        pair.start()
        await trio.sleep(8)
        assert pair.is_equal()
        assert pair.follower.state == "copying"
        assert pair.lookup.master == Master(HA, REQUESTS)
    assert "does not copy" not in caplog.text


@virtual
async def test_the_port_before_a_named_port_may_be_of_another_broker() -> None:
    master = filled()
    async with world(master, opened()) as pair:
        pair.master.exchanged = ("10.0.0.1", 10999)
        pair.lookup = MasterLookup("10.0.0.1:10912")
        pair.follower = pair.new_follower()
        pair.start()
        await trio.sleep(8)
        assert pair.slave.max_physical_offset == 0
        assert pair.follower.state == "cannot follow the master"
        assert "haMasterAddress" in pair.follower.reason


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("brokerClusterName", "OtherCluster"),
        ("brokerName", "broker-b"),
        ("brokerId", "1"),
        ("brokerRole", "SLAVE"),
        ("haListenPort", "10999"),
        ("haListenPort", ""),
    ],
)
@virtual
async def test_a_4_9_broker_before_a_named_port_must_be_the_master_of_this_name(
    key: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot say which HA port is its own, and its tables would replace those of this slave."""
    master = filled()
    async with world(master, opened()) as pair:
        pair.master.exchanged = None
        pair.master.settings[key] = value
        pair.lookup = MasterLookup("10.0.0.1:10912")
        pair.follower = pair.new_follower()
        pair.start()
        await trio.sleep(30)
        assert pair.lookup.master == Master(HA, None)
        assert pair.slave.max_physical_offset == 0
        assert caplog.text.count("is not this slave's master") == 1
        # The namesrv knows better.
        pair.lookup.note_registration("10.0.0.1:10912", "10.0.0.1:10911")
        await trio.sleep(1)
        assert pair.is_equal()


@virtual
async def test_a_slave_goes_on_where_it_was_after_comparing_its_last_messages() -> None:
    master = filled(20)
    slave = opened()
    async with world(master, slave) as pair:
        pair.start()
        await trio.sleep(1)
        await pair.master.drop_connections()
        fill(master, 20, seed=2)
        await trio.sleep(3)
        assert pair.is_equal()
        assert ends_of(slave) == ends_of(master)
        # All of this log is compared, since it is short.
        assert pair.master.first_reports == [1, 1]


@virtual
async def test_nothing_is_acknowledged_while_messages_are_compared() -> None:
    master, slave = filled(40), filled(30)
    async with world(master, slave, piece_bytes=50) as pair:
        pair.start()
        await trio.sleep(1)
        assert pair.is_equal()
        assert pair.master.reports[0] > 1
        assert all(report >= slave.min_physical_offset for report in pair.master.reports)
        assert min(pair.master.reports) >= filled(30).max_physical_offset


@virtual
async def test_messages_that_differ_are_cut_from_the_first_one_on() -> None:
    master, slave = filled(20), filled(20)
    common = slave.max_physical_offset
    fill(master, 20, seed=2)
    fill(slave, 10, seed=3)
    async with world(master, slave) as pair:
        before = log_bytes(slave)
        pair.start()
        await trio.sleep(60)
        assert pair.follower.diverged.is_set()
        assert pair.follower.cut_at == common
        assert log_bytes(slave) == before
        assert pair.follower.state == "this log differs from the master's"
        assert pair.master.reports == []
        assert not pair.compared


@virtual
async def test_a_log_that_is_the_masters_is_noted_once_it_is_compared() -> None:
    master, slave = filled(40), filled(20)
    async with world(master, slave, piece_bytes=50) as pair:
        pair.start()
        while slave.max_physical_offset == filled(20).max_physical_offset:
            assert not pair.compared or pair.follower.state == "copying"
            await trio.lowlevel.checkpoint()
        assert pair.compared == [HA]


@pytest.mark.parametrize("messages", [0, 3])
@virtual
async def test_each_connection_compares_however_soon_it_ends(messages: int) -> None:
    """The lookup goes from one master to the next; all that there is to compare is in the first read."""
    master, slave = filled(messages), filled(messages)
    async with world(master, slave, piece_bytes=4096) as pair:
        pair.start()
        await trio.sleep(1)
        assert pair.follower.is_copying
        pair.lookup.set_master(Master(OTHER_HA, REQUESTS))
        await trio.sleep(1)
        assert pair.follower.is_copying
        assert pair.compared == [HA, OTHER_HA]
        await pair.master.drop_connections()
        await trio.sleep(follower.MAX_PAUSE_S + 1)
        assert pair.follower.is_copying
        assert pair.compared == [HA, OTHER_HA, OTHER_HA]


@virtual
async def test_the_log_is_not_taken_for_that_of_a_new_master_before_it_is_compared() -> None:
    master, slave = filled(3), filled(3)
    async with world(master, slave) as pair:
        pair.start()
        await trio.sleep(1)
        assert pair.follower.is_copying

        async def stay_silent(stream: trio.abc.Stream, first: int) -> None:
            await trio.sleep(10)

        pair.master.script = stay_silent
        pair.lookup.set_master(Master(OTHER_HA, REQUESTS))
        await trio.testing.wait_all_tasks_blocked()
        assert not pair.follower.is_copying
        await trio.sleep(1)
        assert pair.follower.state == "comparing"
        assert pair.compared == [HA]


@virtual
async def test_messages_that_the_master_does_not_have_are_cut() -> None:
    master, slave = filled(20), filled(20)
    common = slave.max_physical_offset
    fill(slave, 10, seed=3)
    async with world(master, slave) as pair:
        pair.start()
        await trio.sleep(1)
        assert pair.follower.diverged.is_set()
        assert pair.follower.cut_at == common


@virtual
async def test_more_is_compared_when_all_of_the_last_messages_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.broker.replication.follower.COMPARED_BYTES", 100)
    master, slave = filled(20), filled(20)
    common = slave.max_physical_offset
    fill(master, 40, seed=2)
    fill(slave, 40, seed=3)
    async with world(master, slave) as pair:
        pair.follower._compared_bytes = 100
        pair.start()
        await trio.sleep(60)
        assert pair.follower.diverged.is_set()
        assert pair.follower.cut_at == common
        first_reports = pair.master.first_reports
        assert len(first_reports) > 1
        assert first_reports == sorted(first_reports, reverse=True)


@pytest.mark.parametrize("limit", [1000, 1 << 20])
@virtual
async def test_a_store_without_any_message_of_the_master_is_cut_only_if_it_is_short(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.broker.replication.follower.MAX_DISCARDED_BYTES", limit)
    master, slave = filled(40, seed=2), filled(40, seed=3)
    async with world(master, slave) as pair:
        pair.start()
        await trio.sleep(60)
        if limit == 1000:
            assert pair.follower.cut_at is None
            assert pair.follower.state == "cannot follow the master"
            assert "move its store away" in pair.follower.reason
        else:
            assert pair.follower.cut_at == 0


@pytest.mark.parametrize("times", [1, 2, 100])
@virtual
async def test_a_damaged_message_is_fetched_again(times: int, caplog: pytest.LogCaptureFixture) -> None:
    master = opened()
    for number in range(20):
        master.append(NewMessage("t", 0, b"%d" % number * 100, b""))
    place, commit_log = master.physical_offset_at("t", 0, 9), master.commit_log
    byte = place - commit_log.base_of(place) + 100
    commit_log.mapped_file(commit_log.base_of(place)).buffer[byte] ^= 1
    async with world(master, opened()) as pair:
        pair.start()
        while pair.follower.damaged_messages < min(times, 3):
            assert pair.slave.max_physical_offset <= place
            assert all(report <= place for report in pair.master.reports)
            await trio.sleep(0.1)
        assert pair.follower.state == "the master sent a damaged message"
        if times < 3:
            commit_log.mapped_file(commit_log.base_of(place)).buffer[byte] ^= 1
        await trio.sleep(20)
        assert pair.is_equal()
        assert pair.follower.damaged_messages == min(times, 3)
        assert ("log of the master is damaged" in caplog.text) is (times == 100)
        assert pair.follower.state == "copying"


@virtual
async def test_no_more_is_compared_than_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the master says, because the places of all compared messages are found in one step."""
    monkeypatch.setattr("gateway.broker.replication.follower.COMPARED_BYTES", 500)
    monkeypatch.setattr("gateway.broker.replication.follower.MAX_COMPARED_BYTES", 4000)
    master, slave = filled(5), filled(5)
    fill(master, 60, seed=2)
    fill(slave, 60, seed=3)
    end = slave.max_physical_offset
    async with world(master, slave) as pair:
        pair.start()
        await trio.sleep(60)
        assert pair.follower.state == "cannot follow the master"
        assert pair.follower.reason.startswith(
            "the last 4000 bytes of this log have no message of the master's"
        )
        assert slave.max_physical_offset == end
        assert not pair.follower.diverged.is_set()


@virtual
async def test_a_master_that_lacks_too_much_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.broker.replication.follower.MAX_COMPARED_BYTES", 4000)
    master, slave = filled(5), filled(60)
    missing = slave.max_physical_offset - master.max_physical_offset
    assert missing > 4000
    async with world(master, slave) as pair:
        pair.start()
        await trio.sleep(60)
        assert pair.follower.state == "cannot follow the master"
        assert f"the master lacks {missing} bytes, which are too many to cut" in pair.follower.reason
        assert pair.master.first_reports == []
        assert not pair.follower.diverged.is_set()


@virtual
async def test_a_ticket_that_is_none_is_a_trouble_of_the_connection() -> None:
    async with world(filled(), opened()) as pair:
        pair.master.ticket = "not hexadecimal"
        pair.start()
        await trio.sleep(10)
        assert pair.follower.state == TROUBLE
        assert "ticket" in pair.follower.reason
        pair.master.ticket = None
        await trio.sleep(10)
        assert pair.is_equal()


@virtual
async def test_the_advice_keeps_the_role() -> None:
    """Without it a master that was demoted by a request would begin as an empty master."""
    async with world(opened(), filled(60)) as pair:
        pair.start()
        await trio.sleep(10)
        assert "keep config/brokerRole.json" in pair.follower.reason


def test_another_master_is_not_copied_from_the_port_of_the_former_one() -> None:
    lookup = MasterLookup()
    lookup.note_registration("10.0.0.1:10912", "10.0.0.1:10911")
    lookup.note_registration(None, "10.0.0.1:10911")
    assert lookup.master == Master(HA, REQUESTS)
    lookup.note_registration(None, "10.0.0.2:10911")
    assert lookup.master is None
    lookup.note_registration("10.0.0.2:10912", "10.0.0.2:10911")
    assert lookup.master == Master(("10.0.0.2", 10912), ("10.0.0.2", 10911))


def test_a_named_port_stays_whatever_the_namesrv_says() -> None:
    lookup = MasterLookup("10.0.0.1:10912")
    lookup.note_registration(None, "10.0.0.1:10911")
    lookup.note_registration(None, "10.0.0.2:10911")
    assert lookup.master == Master(HA, ("10.0.0.2", 10911))


@virtual
async def test_an_empty_master_does_not_empty_its_slave() -> None:
    async with world(opened(), filled(3)) as pair:
        pair.start()
        await trio.sleep(60)
        assert pair.follower.cut_at is None
        assert pair.follower.state == "cannot follow the master"
        assert pair.master.first_reports == []


@virtual
async def test_a_slave_says_that_the_master_has_deleted_what_comes_next() -> None:
    master, slave = filled(60), filled(5)
    master.commit_log.delete_first()
    master.commit_log.delete_first()
    end = slave.max_physical_offset
    async with world(master, slave) as pair:
        pair.start()
        await trio.sleep(60)
        assert slave.max_physical_offset == end
        assert pair.master.first_reports == []
        assert pair.follower.reason.startswith(f"the master's log begins at 8192, and this one ends at {end}")


@virtual
async def test_comparison_begins_where_the_master_begins() -> None:
    master, slave = filled(60), filled(50)
    master.commit_log.delete_first()
    async with world(master, slave) as pair:
        pair.start()
        await trio.sleep(1)
        assert pair.master.first_reports == [4096]
        assert pair.slave.max_physical_offset == master.max_physical_offset
        assert log_bytes(slave, 4096) == log_bytes(master)


def parted_at_the_start(own_seed: int, messages: int = 40) -> MessageStore:
    """Return a store whose own messages begin in its first log file."""
    store = filled(5)
    assert store.max_physical_offset < 4096
    fill(store, messages, own_seed)
    return store


@pytest.mark.parametrize("limit", [1000, 1 << 20])
@virtual
async def test_what_the_master_has_deleted_is_not_kept_in_a_log_that_differs_after_it(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs part where nobody can compare them: somewhere in the file that only the slave still has."""
    monkeypatch.setattr("gateway.broker.replication.follower.MAX_DISCARDED_BYTES", limit)
    master, slave = parted_at_the_start(2), parted_at_the_start(3)
    master.commit_log.delete_first()
    async with world(master, slave) as pair:
        pair.start()
        await trio.sleep(60)
        assert pair.master.first_reports[0] == 4096
        assert not pair.compared
        if limit == 1000:
            assert pair.follower.cut_at is None
            assert pair.follower.state == "cannot follow the master"
            assert f"(4096 to {slave.max_physical_offset})" in pair.follower.reason
        else:
            assert pair.follower.cut_at == 0


@virtual
async def test_a_log_that_ends_where_the_master_begins_cannot_be_compared() -> None:
    master, former, slave = parted_at_the_start(2), parted_at_the_start(3), opened()
    master.commit_log.delete_first()
    ReplicaLog(slave).receive(0, memoryview(log_bytes(former, 0, 4096)))
    async with world(master, slave) as pair:
        pair.start()
        await trio.sleep(60)
        assert slave.max_physical_offset == 4096
        assert pair.master.first_reports == []
        assert pair.follower.state == "cannot follow the master"
        assert pair.follower.reason.startswith("the master's log begins at 4096, where this one ends")


# -- hostile masters ----------------------------------------------------------------------------------------------


HOSTILE = {
    "another offset": lambda offset: encode_frame_head(offset + 1, 100) + bytes(100),
    "an earlier offset": lambda offset: encode_frame_head(max(0, offset - 1), 100) + bytes(100),
    "a heartbeat of another offset": lambda offset: encode_frame_head(offset + 500, 0),
    "a huge message": lambda offset: encode_frame_head(offset, 2**31 - 1) + b"\x7f\xff\xff" + bytes(4000),
    "a negative size": lambda offset: encode_frame_head(offset, -5) + bytes(100),
    "a negative offset": lambda offset: encode_frame_head(-1, 5) + bytes(100),
    "bytes that are no message": lambda offset: encode_frame_head(offset, 3000) + b"x" * 3000,
    "zeros": lambda offset: encode_frame_head(offset, 3000) + bytes(3000),
}


@pytest.mark.parametrize("attack", HOSTILE)
@pytest.mark.parametrize("slave_messages", [0, 12])
@virtual
async def test_what_is_not_the_next_message_is_refused(attack: str, slave_messages: int) -> None:
    master, slave = filled(40), filled(slave_messages)
    end = slave.max_physical_offset
    async with world(master, slave) as pair:

        async def answer(stream: trio.abc.Stream, first: int) -> None:
            known = log_bytes(master, first, end) if slave_messages else b""
            await stream.send_all(encode_frame_head(first, len(known)) + known)
            await stream.send_all(HOSTILE[attack](first + len(known)))
            await trio.sleep_forever()

        pair.master.script = answer
        pair.start()
        await trio.sleep(60)
        assert pair.follower.state == TROUBLE
        assert slave.max_physical_offset == end
        # With a pause between, and no more than one connection in it.
        assert 5 <= len(pair.master.first_reports) <= 15
        pair.master.script = None
        await trio.sleep(6)
        assert pair.is_equal()
        assert pair.follower.state == "copying"


@virtual
async def test_a_frame_of_gigabytes_takes_no_memory() -> None:
    master, slave = filled(40), opened()
    async with world(master, slave) as pair:

        async def answer(stream: trio.abc.Stream, first: int) -> None:
            await stream.send_all(encode_frame_head(first, 2**31 - 1) + log_bytes(master, first))
            await trio.sleep_forever()

        pair.master.script = answer
        pair.start()
        await trio.sleep(1)
        assert pair.is_equal()


@virtual
async def test_a_silent_master_is_left_and_reports_come_every_five_seconds() -> None:
    master, slave = filled(10), filled(10)
    reports: list[tuple[float, int]] = []
    async with world(master, slave) as pair:

        async def answer(stream: trio.abc.Stream, first: int) -> None:
            start = trio.current_time()
            data = log_bytes(master, first)
            await stream.send_all(encode_frame_head(first, len(data)) + data)
            while report := await stream.receive_some(8):
                reports.append((round(trio.current_time() - start), int.from_bytes(report, "big")))
            pair.master.script = None

        pair.master.script = answer
        pair.start()
        await trio.sleep(19)
        assert pair.follower.state == "copying"
        end = master.max_physical_offset
        assert reports == [(0, end), (5, end), (10, end), (15, end)]
        await trio.sleep(1.5)
        assert pair.follower.state == "no connection to the master"
        assert "nothing for 20 s" in pair.follower.reason
        await trio.sleep(3)
        assert pair.follower.state == "copying"


@virtual
async def test_a_master_that_is_away_is_tried_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    master, slave = filled(10), opened()
    async with world(master, slave) as pair:
        pair.master.refuses = True
        pair.start()
        await trio.sleep(60)
        states = [record.__dict__["state"] for record in caplog.records if hasattr(record, "state")]
        assert states.count("no connection to the master") == 1
        pair.master.refuses = False
        await trio.sleep(6)
        assert pair.is_equal()


@virtual
async def test_another_master_is_followed_at_once() -> None:
    master, slave = filled(10), opened()
    async with world(master, slave) as pair:
        pair.start()
        await trio.sleep(1)
        pair.lookup.set_master(None)
        await trio.sleep(1)
        assert pair.follower.state == "looking for the master"
        fill(master, 3)
        pair.lookup.set_master(Master(HA, REQUESTS))
        await trio.sleep(0.5)
        assert pair.is_equal()


@virtual
async def test_queues_are_built_in_slices_that_give_turns() -> None:
    master = opened()
    for number in range(3000):
        master.append(NewMessage("t", 0, b"x", b"", born_timestamp=number))
    async with world(master, opened(), piece_bytes=100_000) as pair:
        sizes: list[int] = []
        pair.follower._queues_grew = lambda queues: sizes.append(pair.slave.max_offset("t", 0))
        pair.start()
        await trio.sleep(1)
        assert ends_of(pair.slave) == ends_of(master)
        steps = [after - before for before, after in zip([0, *sizes], sizes, strict=False)]
        assert max(steps) <= 200


class GrowthNotes(set[tuple[str, int]]):
    """The queues that grew, and the end of the slave's log when the first of them did."""

    def __init__(self, slave: MessageStore) -> None:
        super().__init__()
        self.slave = slave
        self.first_end: int | None = None

    def update(self, *queues: Iterable[tuple[str, int]]) -> None:
        if self.first_end is None:
            self.first_end = self.slave.max_physical_offset
        super().update(*queues)


@pytest.mark.parametrize(
    ("max_undispatched_bytes", "first_ends"), [(1 << 20, range(36_000, 40_000)), (3000, range(3000, 9000))]
)
@virtual
async def test_a_slave_that_is_far_behind_copies_before_it_builds_queues(
    monkeypatch: pytest.MonkeyPatch, max_undispatched_bytes: int, first_ends: range
) -> None:
    monkeypatch.setattr(follower, "CATCHING_UP_BYTES", 2000)
    monkeypatch.setattr(follower, "MAX_UNDISPATCHED_BYTES", max_undispatched_bytes)
    master = filled(100)
    end = master.max_physical_offset
    async with world(master, opened()) as pair:

        async def send_slowly(stream: trio.abc.Stream, offset: int) -> None:
            while offset < end:
                stop = min(offset + 700, end, offset - offset % 4096 + 4096)
                await stream.send_all(
                    encode_frame_head(offset, stop - offset) + log_bytes(master, offset, stop)
                )
                offset = stop
                await trio.sleep(0.01)
            await trio.sleep(100)

        pair.master.script = send_slowly
        pair.grown = notes = GrowthNotes(pair.slave)
        pair.follower = pair.new_follower()
        pair.start()
        await trio.sleep(10)
        assert pair.is_equal()
        assert ends_of(pair.slave) == ends_of(master)
        assert notes.first_end in first_ends


@virtual
async def test_a_slave_whose_master_pauses_builds_queues_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "CATCHING_UP_BYTES", 2000)
    master = filled(100)
    async with world(master, opened()) as pair:

        async def send_some_and_pause(stream: trio.abc.Stream, offset: int) -> None:
            await stream.send_all(encode_frame_head(offset, 3000) + log_bytes(master, offset, offset + 3000))
            await trio.sleep(10)

        pair.master.script = send_some_and_pause
        pair.start()
        await trio.sleep(1)
        assert pair.slave.max_physical_offset > 2000
        assert pair.follower.lag_bytes > 2000
        assert pair.grown == set(ends_of(master))


def test_a_copy_never_acknowledges_more_than_it_knows() -> None:
    master, slave = filled(10), filled(10)
    copy = LogCopy(slave, ReplicaLog(slave), LogRange(0, master.max_physical_offset))
    assert copy.acknowledged == copy.first_report == 1
    with pytest.raises(Diverged):
        copy.receive(1, memoryview(bytes([255]) * 10))
    assert copy.acknowledged == 1
