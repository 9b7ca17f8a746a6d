"""A slave under a controller has every epoch of its master, and cuts what no other broker has to have."""

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import memory_stream_pair

from gateway.broker.replication import auto_switch_follower, follower
from gateway.broker.replication.auto_switch_follower import EpochHandshake
from gateway.broker.replication.auto_switch_master import AutoSwitchMaster
from gateway.broker.replication.auto_switch_wire import (
    REPORT,
    SLAVE_HELLO,
    MasterHello,
    encode_frame_head,
    encode_master_hello,
)
from gateway.broker.replication.epochs import EpochStart, EpochTable
from gateway.broker.replication.follower import NO_CONNECTION, Follower
from gateway.broker.replication.ha_server import HaServer
from gateway.broker.replication.master_lookup import Master, MasterLookup
from gateway.broker.replication.tests.test_follower import (
    CONFIG,
    HA,
    REQUESTS,
    TROUBLE,
    FakeMaster,
    ends_of,
    fill,
    filled,
    log_bytes,
    opened,
)
from gateway.config.replication import ReplicationSettings
from remoting.tests.virtual import virtual
from remoting.transport import StreamTransport
from storage.crash_files import CrashFiles
from storage.cut import cut_store
from storage.replica_log import ReplicaLog
from storage.store import MessageStore
from storage.tests.support import FakeClock

Epochs = Sequence[tuple[int, int]]
Script = Callable[[trio.abc.Stream], Any]


def table_of(*entries: tuple[int, int]) -> EpochTable:
    table = EpochTable(CrashFiles(), "/s")
    for entry in entries:
        table.append(*entry)
    return table


class EpochMaster(FakeMaster):
    """The HA port of our master; ``words`` replaces what it says on a connection."""

    def __init__(self, store: MessageStore, nursery: trio.Nursery, epochs: EpochTable) -> None:
        super().__init__(store, nursery)
        self.epochs = epochs
        self.confirmed: int | None = None
        self.words: Script | None = None
        stream = AutoSwitchMaster(store.commit_log, epochs, 1, self.confirm_offset)
        settings = ReplicationSettings(ha_transfer_batch_bytes=1024)
        self.server = HaServer("b", store, settings, open_stream=stream.open_stream)
        nursery.start_soon(self.server.run, [])

    def confirm_offset(self) -> int:
        return self.store.max_physical_offset if self.confirmed is None else self.confirmed

    async def open_transport(self, host: str, port: int) -> StreamTransport:
        assert (host, port) == HA
        here, there = memory_stream_pair()
        self._streams.append(there)
        self._nursery.start_soon(self._speak, there)
        return StreamTransport(here)

    async def _speak(self, stream: trio.abc.Stream) -> None:
        if self.words is None:
            await self.server.serve(StreamTransport(stream))
            return
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self.words(stream)

    def elect(self, epoch: int) -> int:
        """Begin an epoch at the end of the log; return that end."""
        self.epochs.append(epoch, self.store.max_physical_offset)
        return self.store.max_physical_offset


class World:
    """A slave that follows our master."""

    def __init__(
        self,
        nursery: trio.Nursery,
        master: MessageStore,
        epochs: EpochTable,
        slave: MessageStore,
        slave_epochs: EpochTable,
        **options: Any,
    ) -> None:
        self.master = EpochMaster(master, nursery, epochs)
        self.slave = slave
        self.epochs = slave_epochs
        self.grown: set[tuple[str, int]] = set()
        lookup = MasterLookup()
        lookup.set_master(Master(HA, REQUESTS))
        self.follower = Follower(
            slave,
            lookup,
            self.master.open_transport,
            self.master.dial,
            self.grown.update,
            handshake=EpochHandshake(slave, slave_epochs, 2, **options),
        )
        nursery.start_soon(self.follower.run)

    def check_equal(self) -> None:
        """Assert that log and epochs are the master's."""
        assert self.follower.state == "copying"
        assert log_bytes(self.slave) == log_bytes(self.master.store, self.slave.min_physical_offset)
        assert self.epochs.entries == self.master.epochs.entries


@asynccontextmanager
async def world(
    master: MessageStore, epochs: EpochTable, slave: MessageStore, slave_epochs: EpochTable, **options: Any
) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        yield World(nursery, master, epochs, slave, slave_epochs, **options)
        nursery.cancel_scope.cancel()


def several_epochs(store: MessageStore) -> EpochTable:
    """Fill a store with messages of epochs of many lengths, two of them without a message."""
    table = table_of((1, 0))
    for epoch in range(2, 12):
        fill(store, (0, 1, 2, 9)[epoch % 4], seed=epoch)
        table.append(epoch, store.max_physical_offset)
    fill(store, 5)
    return table


# -- copying --


@virtual
async def test_an_empty_slave_gets_the_log_and_every_epoch() -> None:
    store = opened()
    epochs = several_epochs(store)
    async with world(store, epochs, opened(), table_of()) as pair:
        await trio.sleep(1)
        pair.check_equal()
        assert ends_of(pair.slave) == ends_of(store)
        assert pair.follower.confirm_offset == store.max_physical_offset
        assert pair.follower.lag_bytes == 0
        assert [replica.acknowledged for replica in pair.master.server.replicas] == [
            store.max_physical_offset
        ]
        fill(store, 10, seed=9)
        await trio.sleep(1)
        pair.check_equal()


@virtual
async def test_an_empty_slave_of_an_empty_master_has_its_epoch_from_the_handshake_on() -> None:
    """It counts as in sync at once. As next master it could not prove otherwise that its log follows on that epoch."""
    async with world(opened(), table_of((1, 0)), opened(), table_of()) as pair:
        while not pair.master.server.replicas:
            await trio.sleep(0.001)
        assert pair.epochs.entries == pair.master.epochs.entries


@pytest.mark.parametrize("begins_at_last_file", [False, True])
@virtual
async def test_an_empty_slave_begins_where_the_masters_bytes_do(begins_at_last_file: bool) -> None:
    store = filled(200)
    store.commit_log.delete_first()
    epochs = table_of((1, 0), (2, store.commit_log.first_base + 4096))
    async with world(store, epochs, opened(), table_of(), begins_at_last_file=begins_at_last_file) as pair:
        await trio.sleep(1)
        assert pair.slave.min_physical_offset == (store.commit_log.base if begins_at_last_file else 4096)
        assert log_bytes(pair.slave) == log_bytes(store, pair.slave.min_physical_offset)
        assert pair.epochs.newest == epochs.newest


@virtual
async def test_a_slave_that_has_messages_never_begins_at_the_last_file() -> None:
    store, slave = filled(100), filled(30)
    async with world(store, table_of((1, 0)), slave, table_of((1, 0)), begins_at_last_file=True) as pair:
        await trio.sleep(1)
        pair.check_equal()


@virtual
async def test_an_empty_slave_waits_for_the_first_message_of_an_empty_master() -> None:
    store = opened()
    async with world(store, table_of((3, 0)), opened(), table_of()) as pair:
        await trio.sleep(1)
        assert pair.epochs.entries == ((3, 0),)
        fill(store, 30)
        await trio.sleep(1)
        pair.check_equal()


@virtual
async def test_an_epoch_is_on_the_disk_before_the_first_byte_of_it_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = opened()
    epochs = several_epochs(store)
    async with world(store, epochs, opened(), table_of()) as pair:
        receive = pair.follower._log.receive

        def check(offset: int, data: memoryview) -> int:
            if data:
                on_disk = EpochTable(pair.epochs._files, "/s").entries
                begun = [entry for entry in epochs.entries if entry.start <= offset]
                assert list(on_disk[: len(begun)]) == begun
                assert [entry for entry in epochs.entries if offset < entry.start < offset + len(data)] == []
            return receive(offset, data)

        monkeypatch.setattr(pair.follower._log, "receive", check)
        await trio.sleep(1)
        pair.check_equal()


@virtual
async def test_a_master_that_is_elected_again_keeps_the_stream_and_its_slave_hears_of_it() -> None:
    store = filled(20)
    async with world(store, table_of((1, 0)), opened(), table_of()) as pair:
        await trio.sleep(1)
        pair.master.elect(4)
        await trio.sleep(0.5)
        pair.check_equal()
        fill(store, 20, seed=2)
        pair.master.elect(6)
        fill(store, 1, seed=3)
        await trio.sleep(0.5)
        pair.check_equal()
        assert len(pair.master._streams) == 1


@virtual
async def test_a_slave_of_this_project_hears_of_epochs_without_messages_too() -> None:
    store = filled(20)
    async with world(store, table_of((1, 0)), opened(), table_of()) as pair:
        pair.master.ticket = pair.master.server.access.issue_ticket(2)
        await trio.sleep(1)
        fill(store, 20, seed=2)
        for epoch in (6, 7, 9):
            pair.master.elect(epoch)
        fill(store, 1, seed=3)
        pair.master.elect(11)
        pair.master.elect(12)
        await trio.sleep(0.5)
        pair.check_equal()
        assert len(pair.master._streams) == 1


@virtual
async def test_queues_end_where_the_master_has_confirmed() -> None:
    store = filled(20)
    async with world(store, table_of((1, 0)), opened(), table_of()) as pair:
        pair.master.confirmed = 0
        await trio.sleep(1)
        assert pair.follower.confirm_offset == 0
        assert pair.slave.max_physical_offset == store.max_physical_offset
        assert ends_of(pair.slave) == {}
        # Also an official master, whose slaves end inside of messages, confirms such an offset.
        pair.master.confirmed = filled(10).max_physical_offset + 5
        await trio.sleep(1)
        assert ends_of(pair.slave) == ends_of(filled(10))
        pair.master.confirmed = 1 << 40
        await trio.sleep(1)
        assert pair.follower.confirm_offset == store.max_physical_offset
        assert ends_of(pair.slave) == ends_of(store)


@virtual
async def test_a_slave_that_connects_again_compares_and_goes_on() -> None:
    store = filled(20)
    async with world(store, table_of((1, 0)), opened(), table_of()) as pair:
        await trio.sleep(1)
        await pair.master.drop_connections()
        fill(store, 20, seed=2)
        pair.master.elect(2)
        fill(store, 20, seed=3)
        await trio.sleep(3)
        pair.check_equal()
        assert len(pair.master._streams) == 2


# -- cutting --


def former_masters(common: int, own_messages: int) -> MessageStore:
    """Return a store whose last messages no other broker has."""
    store = filled(common)
    fill(store, own_messages, seed=77)
    return store


@virtual
async def test_messages_after_the_newest_common_epoch_are_cut() -> None:
    store, slave = filled(20), former_masters(20, 10)
    common = store.max_physical_offset
    fill(store, 10, seed=2)
    async with world(store, table_of((1, 0), (3, common)), slave, table_of((1, 0), (2, common))) as pair:
        before = log_bytes(slave)
        await trio.sleep(60)
        assert pair.follower.cut_at == common
        assert log_bytes(slave) == before
        assert pair.epochs.entries == ((1, 0), (2, common))
        assert [replica.acknowledged for replica in pair.master.server.replicas] == []


@pytest.mark.parametrize(("confirmed", "hides_unconfirmed"), [(False, True), (True, True), (True, False)])
@virtual
async def test_a_cut_of_confirmed_messages_is_said_loudly(
    confirmed: bool, hides_unconfirmed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the election of a replica that was not in sync leads to one, unless sends wait for nobody."""
    store, slave = filled(20), filled(20)
    common = store.max_physical_offset
    if confirmed:
        fill(slave, 10, seed=77)
    else:
        former = former_masters(20, 10)
        ReplicaLog(slave).receive(common, memoryview(log_bytes(former, common)))
    fill(store, 10, seed=2)
    tables = table_of((1, 0), (3, common)), table_of((1, 0), (2, common))
    async with world(store, tables[0], slave, tables[1], hides_unconfirmed=hides_unconfirmed) as pair:
        await trio.sleep(5)
        assert pair.follower.cut_at == common
    assert ("confirmed messages are cut off" in caplog.text) is (confirmed and hides_unconfirmed)


@virtual
async def test_messages_of_a_first_master_are_cut_when_the_new_one_has_none() -> None:
    """Also although that leaves nothing: the epochs prove that nobody has to have them."""
    slave = filled(10)
    epochs = table_of((1, 0), (2, 0))
    async with world(opened(), epochs, slave, table_of((1, 0))) as pair:
        await trio.sleep(10)
        assert pair.follower.cut_at == 0


@virtual
async def test_what_is_the_masters_after_a_common_epoch_is_not_cut() -> None:
    """An official master that was elected again kept its connections, and named its new epoch to nobody."""
    store, slave = filled(60), filled(40)
    middle = filled(20).max_physical_offset
    async with world(store, table_of((1, 0), (2, middle)), slave, table_of((1, 0))) as pair:
        await trio.sleep(1)
        assert pair.follower.cut_at is None
        pair.check_equal()


@virtual
async def test_the_cut_is_at_the_first_message_that_differs() -> None:
    store, slave = filled(60), former_masters(40, 5)
    middle, common = filled(20).max_physical_offset, filled(40).max_physical_offset
    async with world(store, table_of((1, 0), (2, middle)), slave, table_of((1, 0))) as pair:
        await trio.sleep(10)
        assert pair.follower.cut_at == common


@virtual
async def test_messages_that_differ_from_the_masters_do_not_become_readable_while_they_are_compared() -> None:
    store, slave = filled(60), filled(40)
    middle, common = filled(20).max_physical_offset, slave.max_physical_offset
    ReplicaLog(slave).receive(common, memoryview(log_bytes(former_masters(40, 5), common)))
    async with world(store, table_of((1, 0), (2, middle)), slave, table_of((1, 0))) as pair:
        await trio.sleep(10)
        assert pair.follower.cut_at == common
        assert pair.follower.confirm_offset is None
        assert slave.readable_until == common
        assert ends_of(slave) == ends_of(filled(40))


@virtual
async def test_a_new_connection_confirms_no_more_than_is_readable_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def rest(_: Follower) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Follower, "_build_queues", rest)
    store, slave = filled(60), filled(40)
    middle, common = filled(20).max_physical_offset, slave.max_physical_offset
    ReplicaLog(slave).receive(common, memoryview(log_bytes(former_masters(40, 5), common)))
    async with world(store, table_of((1, 0), (2, middle)), slave, table_of((1, 0))) as pair:
        pair.follower.confirm_offset = slave.max_physical_offset
        await trio.sleep(10)
        assert pair.follower.cut_at == common
        assert pair.follower.confirm_offset == common


@virtual
async def test_bytes_decide_where_no_epoch_is_common() -> None:
    """Such as at a broker that had no controller before."""
    store, slave = filled(60), filled(40)
    async with world(store, table_of((7, store.max_physical_offset)), slave, table_of()) as pair:
        await trio.sleep(1)
        pair.check_equal()
    store, slave = filled(60), former_masters(20, 10)
    async with world(store, table_of((7, 0)), slave, table_of((3, 0))) as pair:
        await trio.sleep(10)
        assert pair.follower.cut_at == filled(20).max_physical_offset


@virtual
async def test_a_long_log_is_cut_without_comparing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_switch_follower, "MAX_COMPARED_BYTES", 100)
    store, slave = filled(20), former_masters(20, 10)
    common = store.max_physical_offset
    fill(store, 30, seed=2)
    async with world(store, table_of((1, 0), (3, common)), slave, table_of((1, 0), (2, common))) as pair:
        await trio.sleep(10)
        assert pair.follower.cut_at == common


@pytest.mark.parametrize("limit", [1000, 1 << 20])
@virtual
async def test_a_log_that_parts_in_what_the_master_has_deleted_is_not_kept(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first master went on alone, and is elected again: the common epoch ends before its log begins now."""
    monkeypatch.setattr(follower, "MAX_DISCARDED_BYTES", limit)
    store, slave = filled(5), former_masters(5, 40)
    common = store.max_physical_offset
    fill(store, 40, seed=2)
    store.commit_log.delete_first()
    assert common < store.min_physical_offset
    epochs = table_of((1, 0), (3, store.max_physical_offset))
    async with world(store, epochs, slave, table_of((1, 0), (2, common))) as pair:
        await trio.sleep(10)
        assert pair.follower.cut_at == (None if limit == 1000 else 0)
        assert (pair.follower.state == "cannot follow the master") is (limit == 1000)


@pytest.mark.parametrize("is_known", [False, True])
@virtual
async def test_a_log_that_ends_where_the_master_begins_needs_a_common_epoch(is_known: bool) -> None:
    store, slave = filled(40), opened()
    ReplicaLog(slave).receive(0, memoryview(log_bytes(store, 0, 4096)))
    store.commit_log.delete_first()
    epochs = table_of((1, 0)) if is_known else table_of((7, 4096))
    async with world(store, epochs, slave, table_of((1, 0)) if is_known else table_of()) as pair:
        await trio.sleep(10)
        if is_known:
            assert pair.follower.state == "copying"
            assert log_bytes(slave, 4096) == log_bytes(store)
        else:
            assert slave.max_physical_offset == 4096
            assert pair.follower.state == "cannot follow the master"


@virtual
async def test_a_cut_store_goes_on_as_a_slave_and_has_the_masters_epochs() -> None:
    files, store = CrashFiles(), filled(20)
    common = store.max_physical_offset
    fill(store, 10, seed=2)
    former = MessageStore.open(CONFIG, files, FakeClock())
    fill(former, 20)
    fill(former, 10, seed=77)
    epochs = EpochTable(files, CONFIG.root)
    epochs.append(1, 0)
    epochs.append(2, common)
    former.close()
    cut_store(CONFIG, files, common)
    epochs.cut(common)
    again = MessageStore.open(CONFIG, files, FakeClock())
    async with world(store, table_of((1, 0), (3, common)), again, EpochTable(files, CONFIG.root)) as pair:
        await trio.sleep(1)
        pair.check_equal()


# -- hostile masters --


def hello_of(pair: World) -> MasterHello:
    store = pair.master.store
    return MasterHello(store.max_physical_offset, pair.master.epochs.entries)


async def take_hello(stream: trio.abc.Stream) -> bytes:
    data = bytes(await stream.receive_some(SLAVE_HELLO.size))
    assert SLAVE_HELLO.unpack(data) == (1, 0, 0, 2)
    return data


async def take_report(stream: trio.abc.Stream) -> int:
    state, offset = REPORT.unpack(await stream.receive_some(REPORT.size))
    assert state == 2
    return int(offset)


@virtual
async def test_the_words_of_an_official_master() -> None:
    """It names the next epoch with the last piece of one, and so never names the first one: the handshake does."""
    store = filled(30)
    border, end = filled(10).max_physical_offset, store.max_physical_offset
    async with world(store, table_of((1, 0), (5, border)), opened(), table_of()) as pair:

        async def speak(stream: trio.abc.Stream) -> None:
            await take_hello(stream)
            await stream.send_all(encode_master_hello(hello_of(pair)))
            assert await take_report(stream) == 0
            for start, stop in ((0, border), (border, end)):
                head = encode_frame_head(start, stop - start, EpochStart(5, border), end)
                await stream.send_all(head + log_bytes(store, start, stop))
            while await take_report(stream) < end:
                pass
            await trio.sleep_forever()

        pair.master.words = speak
        await trio.sleep(1)
        pair.check_equal()
        assert pair.follower.confirm_offset == end


@virtual
async def test_heartbeats_of_an_empty_official_master_begin_nothing() -> None:
    store = opened()
    async with world(store, table_of((1, 0)), opened(), table_of()) as pair:

        async def speak(stream: trio.abc.Stream) -> None:
            await take_hello(stream)
            await stream.send_all(encode_master_hello(hello_of(pair)))
            await take_report(stream)
            await stream.send_all(encode_frame_head(-1, 0, EpochStart(1, 0), -1))
            await trio.sleep_forever()

        pair.master.words = speak
        await trio.sleep(1)
        assert pair.epochs.entries == pair.master.epochs.entries, "from the handshake"
        assert (pair.slave.min_physical_offset, pair.slave.max_physical_offset) == (0, 0)
        assert pair.follower.state == "copying"


def _frame(size: int, offset: int, epoch: int, start: int, confirmed: int = 0) -> bytes:
    return struct.pack(">iiqiqq", 2, size, offset, epoch, start, confirmed) + bytes(max(0, min(size, 3000)))


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "another offset": lambda offset: _frame(100, offset + 1, 1, 0),
    "a heartbeat of another offset": lambda offset: _frame(0, offset + 500, 1, 0),
    "zeros": lambda offset: _frame(3000, offset, 1, 0),
    "a negative size": lambda offset: _frame(-5, offset, 1, 0),
    "an older epoch": lambda offset: _frame(0, offset, 0, 0),
    "an epoch that began before": lambda offset: (
        _frame(0, offset, 2, max(0, offset - 1)) if offset else b"\xff" * 99
    ),
    "the same epoch with another start": lambda offset: _frame(0, offset, 1, offset + 5),
    "a handshake again": lambda offset: encode_master_hello(MasterHello(offset, ())) + bytes(99),
    "gigabytes": lambda offset: _frame(2**31 - 1, offset, 1, 0),
}


@pytest.mark.parametrize("attack", HOSTILE)
@pytest.mark.parametrize("slave_messages", [0, 12])
@virtual
async def test_what_a_master_cannot_send_is_refused(attack: str, slave_messages: int) -> None:
    store, slave = filled(40), filled(slave_messages)
    end = slave.max_physical_offset
    async with world(store, table_of((1, 0)), slave, table_of((1, 0))) as pair:

        async def speak(stream: trio.abc.Stream) -> None:
            await take_hello(stream)
            await stream.send_all(encode_master_hello(hello_of(pair)))
            first = await take_report(stream)
            known = log_bytes(store, first, end) if slave_messages else b""
            await stream.send_all(encode_frame_head(first, len(known), EpochStart(1, 0), 0) + known)
            await stream.send_all(HOSTILE[attack](first + len(known)))
            await trio.sleep_forever()

        pair.master.words = speak
        await trio.sleep(60)
        assert pair.follower.state == TROUBLE
        assert slave.max_physical_offset == end
        assert pair.epochs.entries == ((1, 0),)
        assert 5 <= len(pair.master._streams) <= 15
        pair.master.words = None
        await trio.sleep(6)
        pair.check_equal()


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (encode_master_hello(MasterHello(100, (EpochStart(1, 0),))) + b"more", TROUBLE),
        (struct.pack(">iiqi", 1, 2**31 - 1, 0, 1), TROUBLE),
        (struct.pack(">iiqi", 2, 0, 0, 1), TROUBLE),
        (b"", NO_CONNECTION),
        (b"\0\0\0\1", NO_CONNECTION),
    ],
)
@virtual
async def test_an_answer_to_the_handshake_that_is_none(answer: bytes, state: str) -> None:
    store = filled(10)
    async with world(store, table_of((1, 0)), opened(), table_of()) as pair:

        async def speak(stream: trio.abc.Stream) -> None:
            await take_hello(stream)
            await stream.send_all(answer)
            await trio.sleep_forever()

        pair.master.words = speak
        await trio.sleep(20)
        assert pair.follower.state == state
        assert pair.slave.max_physical_offset == 0


@virtual
async def test_nothing_is_cut_for_a_broker_that_is_not_the_master_yet() -> None:
    store, slave = filled(20), former_masters(20, 10)
    common = store.max_physical_offset
    async with world(store, table_of((1, 0)), slave, table_of((1, 0), (4, common))) as pair:
        await trio.sleep(10)
        assert pair.follower.cut_at is None
        assert pair.follower.state == NO_CONNECTION
        assert "has messages of epoch 4" in pair.follower.reason
        pair.master.elect(5)
        fill(store, 1, seed=2)
        await trio.sleep(10)
        assert pair.follower.cut_at == common


@pytest.mark.parametrize("is_of_project", [False, True])
@virtual
async def test_a_master_of_this_project_has_reached_the_epoch_that_the_controller_named(
    is_of_project: bool,
) -> None:
    """An official one leaves an epoch out of its table that begins where the one before did."""
    store = filled(20)
    async with world(store, table_of((1, 0)), opened(), table_of(), master_epoch=3) as pair:
        if is_of_project:
            pair.master.ticket = pair.master.server.access.issue_ticket(2)
        await trio.sleep(1)
        if is_of_project:
            assert pair.follower.state == NO_CONNECTION
            assert "named the master of epoch 3" in pair.follower.reason
            assert pair.slave.max_physical_offset == 0
            pair.master.elect(3)
            pair.master.ticket = pair.master.server.access.issue_ticket(2)
            await trio.sleep(5)
        pair.check_equal()


@pytest.mark.parametrize("inside", [1, 13, filled(20).max_physical_offset - 5])
@virtual
async def test_a_master_cannot_have_a_log_cut_inside_a_message(inside: int) -> None:
    """The cut would fail, and the broker would serve nothing more."""
    store, slave = filled(40), filled(20)
    async with world(store, table_of((1, 0)), slave, table_of((1, 0))) as pair:

        async def speak(stream: trio.abc.Stream) -> None:
            await take_hello(stream)
            await stream.send_all(encode_master_hello(MasterHello(inside, (EpochStart(1, 0),))))
            await trio.sleep_forever()

        pair.master.words = speak
        await trio.sleep(10)
        assert pair.follower.cut_at is None
        assert "where no message begins" in pair.follower.reason
