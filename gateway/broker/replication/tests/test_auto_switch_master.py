"""A master under a controller tells its slaves every epoch, counts those of the set, and closes those that lie."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from gateway.broker.replication.auto_switch_master import AutoSwitchMaster
from gateway.broker.replication.auto_switch_wire import (
    EPOCH,
    FRAME_HEAD,
    MASTER_HELLO,
    MasterHello,
    MasterHelloReader,
    SlaveHello,
    encode_report,
    encode_slave_hello,
)
from gateway.broker.replication.epochs import EpochStart, EpochTable
from gateway.broker.replication.ha_access import READER_PREFACE, HaAccess, encode_preface
from gateway.broker.replication.ha_server import HaServer
from gateway.broker.replication.ha_wire import encode_report as encode_default_report
from gateway.broker.replication.tests.fake_slave import FakeSlave, real_time
from gateway.broker.replication.tests.test_ha_server import (
    FILE_BYTES,
    SETTINGS,
    Master,
    open_store,
    reasons,
    running_master,
    until,
)
from storage.files import MemoryFiles

OWN_ID = 1
BROKER_2 = SlaveHello(2)


class EpochSlave(FakeSlave):
    """A slave that shakes hands, and notes the epoch and the confirm offset of each frame."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self.epochs: list[tuple[int, int]] = []
        self.confirmed: list[int] = []

    async def report(self, offset: int) -> None:
        await self.stream.send_all(encode_report(offset))

    async def greet(self, hello: SlaveHello = BROKER_2) -> MasterHello:
        await self.stream.send_all(encode_slave_hello(hello))
        head = await self.read_exactly(MASTER_HELLO.size)
        body = await self.read_exactly(MASTER_HELLO.unpack(head)[1])
        answer = MasterHelloReader().feed(head + body)
        assert answer is not None
        return answer[0]

    async def read_frame(self) -> tuple[int, bytes]:
        state, size, offset, epoch, start, confirmed = FRAME_HEAD.unpack(
            await self.read_exactly(FRAME_HEAD.size)
        )
        assert state == 2
        piece = await self.read_piece(offset, size)
        self.epochs.append((epoch, start))
        self.confirmed.append(confirmed)
        return piece


class EpochMaster:
    """A running master with a table of epochs."""

    def __init__(self, master: Master, epochs: EpochTable) -> None:
        self.master = master
        self.epochs = epochs
        self.confirmed: int | None = None

    def elect(self, epoch: int) -> int:
        """Begin an epoch at the end of the log; return that end."""
        self.epochs.append(epoch, self.master.end)
        return self.master.end


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[EpochMaster]:
    store = options.pop("store", None) or open_store()
    epochs = EpochTable(MemoryFiles(), "/s")
    epochs.append(1, store.max_physical_offset)
    world: EpochMaster

    def confirm_offset() -> int:
        return store.max_physical_offset if world.confirmed is None else world.confirmed

    words = AutoSwitchMaster(store.commit_log, epochs, OWN_ID, confirm_offset)
    async with running_master(store, open_stream=words.open_stream, **options) as master:
        world = EpochMaster(master, epochs)
        yield world


@asynccontextmanager
async def slave_of(world: EpochMaster) -> AsyncIterator[EpochSlave]:
    stream = await trio.open_tcp_stream(*world.master.listener.getsockname()[:2])
    async with stream:
        yield EpochSlave(stream)


@real_time
async def test_the_words_of_an_official_master() -> None:
    """The numbers are those that a fake slave got from an official broker 5.4.0."""
    async with running() as world, slave_of(world) as slave:
        end = world.master.append(2)
        assert await slave.greet() == MasterHello(end, (EpochStart(1, 0),))
        await slave.report(0)
        await slave.read_frame()
        assert (slave.frames, slave.epochs, slave.confirmed) == ([(0, end)], [(1, 0)], [end])
        await until(lambda: world.master.rule.acknowledged == {"2": end})


@real_time
async def test_nothing_is_said_before_the_handshake_and_the_first_report() -> None:
    async with running() as world, slave_of(world) as slave:
        world.master.append(2)
        with trio.move_on_after(0.3) as silence:
            await slave.stream.receive_some(1)
        assert silence.cancelled_caught
        await slave.greet()
        with trio.move_on_after(0.3) as silence:
            await slave.stream.receive_some(1)
        assert silence.cancelled_caught
        assert world.master.server.replicas == []


@real_time
async def test_pieces_end_with_their_epoch_and_name_the_next_one() -> None:
    async with running(settings=replace(SETTINGS, ha_transfer_batch_bytes=1 << 20)) as world:
        first = world.master.append(5)
        world.elect(5)
        end = world.master.append(1)
        async with slave_of(world) as slave:
            hello = await slave.greet()
            assert hello == MasterHello(end, (EpochStart(1, 0), EpochStart(5, first)))
            await slave.report(0)
            await slave.read_until(end)
            # An official master leaves the first frame out, and its slave never hears of epoch 1.
            assert slave.frames == [(0, 0), (0, first), (first, end - first)]
            assert slave.epochs == [(1, 0), (5, first), (5, first)]
            assert slave.log == world.master.bytes()


@real_time
async def test_every_epoch_is_named_to_a_slave_that_knows_no_handshake() -> None:
    """Short ones, one without messages, and those that are longer than a piece."""
    async with running() as world:
        for epoch in range(2, 30):
            world.master.append(epoch % 4, size=900 * (epoch % 3))
            world.elect(epoch)
        end = world.master.append(3)
        by_start = {entry.start: entry.epoch for entry in world.epochs.entries}
        for start in (0, world.epochs.entries[7].start):
            async with slave_of(world) as slave:
                await slave.greet()
                await slave.report(start)
                await slave.read_until(end)
                known: list[tuple[int, int]] = []
                for named in slave.epochs:  # as an official slave takes them over
                    if not known or (known[-1][0] < named[0] and known[-1][1] < named[1]):
                        known.append(named)
                expected = [(number, begin) for begin, number in sorted(by_start.items()) if begin >= start]
                assert known[-len(expected) :] == expected
                for offset, size in slave.frames:
                    inside = [begin for begin in by_start if offset < begin < offset + size]
                    assert inside == []


@real_time
async def test_a_master_that_is_elected_again_keeps_the_stream() -> None:
    async with running() as world, slave_of(world) as slave:
        await slave.greet()
        await slave.report(0)
        end = world.master.append(3)
        await slave.read_until(end)
        world.elect(2)
        while slave.epochs[-1] != (2, end):
            await slave.read_frame()
        assert slave.frames[-1] == (end, 0)
        await slave.read_until(world.master.append(1))
        assert slave.epochs[-1] == (2, end)
        assert len(world.master.server.replicas) == 1


@real_time
async def test_a_slave_hears_of_a_newer_confirm_offset_soon() -> None:
    async with running() as world, slave_of(world) as slave:
        world.confirmed = 0
        await slave.greet()
        await slave.report(0)
        end = world.master.append(3)
        await slave.read_until(end)
        assert slave.confirmed[-1] == 0
        world.confirmed = end
        with trio.fail_after(2):
            while slave.confirmed[-1] != end:
                await slave.read_frame()
        assert slave.frames[-1] == (end, 0)


@real_time
async def test_messages_that_are_older_than_the_first_epoch_are_served() -> None:
    store = open_store()
    async with running(store=store) as world:
        world.epochs.cut(0)
        first = world.master.append(3)
        world.elect(4)
        end = world.master.append(3)
        async with slave_of(world) as slave:
            await slave.greet()
            await slave.report(0)
            await slave.read_until(end)
            assert slave.log == world.master.bytes()
            assert set(slave.epochs) == {(4, first)}


@pytest.mark.parametrize("begins_at_last_file", [False, True])
@real_time
async def test_an_empty_slave_begins_with_the_oldest_file_or_the_last(begins_at_last_file: bool) -> None:
    store = open_store()
    async with running(store=store) as world, slave_of(world) as slave:
        world.master.append(500)
        store.commit_log.delete_first()
        start = store.commit_log.base if begins_at_last_file else FILE_BYTES
        await slave.greet(SlaveHello(2, begins_at_last_file))
        await slave.report(0)
        await slave.read_until(world.master.end)
        assert slave.start == start
        assert slave.log == world.master.bytes(start)


@real_time
async def test_epochs_of_deleted_files_are_not_told() -> None:
    store = open_store()
    async with running(store=store) as world, slave_of(world) as slave:
        world.master.append(20)
        second = world.elect(2)
        world.master.append(500)
        world.elect(3)
        store.commit_log.delete_first()
        hello = await slave.greet()
        assert hello.epochs == (EpochStart(2, second), EpochStart(3, world.master.end))


# -- who counts --


@real_time
async def test_the_first_report_counts_and_every_later_one_is_passed_on() -> None:
    async with running() as world, slave_of(world) as slave:
        world.master.waits = True  # answers wait, and the slave has what they wait for
        end = world.master.append(3)
        await slave.greet(SlaveHello(7))
        await slave.report(end)
        await until(lambda: world.master.rule.acknowledged == {"7": end})
        world.master.rule._slaves["7"].acknowledged = 0
        await slave.report(end)
        await until(lambda: world.master.rule.acknowledged == {"7": end})


@real_time
async def test_a_learner_copies_and_never_counts() -> None:
    async with running() as world, slave_of(world) as slave:
        end = world.master.append(3)
        await slave.greet(SlaveHello(2, is_learner=True))
        await slave.report(0)
        await slave.read_until(end)
        await until(lambda: [replica.acknowledged for replica in world.master.server.replicas] == [end])
        await trio.sleep(0.05)
        assert world.master.rule.joined == {}


@real_time
async def test_a_slave_that_connects_again_counts_once() -> None:
    async with running() as world, slave_of(world) as first, slave_of(world) as second:
        end = world.master.append(3)
        for slave in (first, second):
            await slave.greet()
            await slave.report(0)
            await slave.read_until(end)
        await until(lambda: world.master.rule.acknowledged == {"2": end})
        world.master.append()
        await first.read_until(world.master.end)
        await trio.sleep(0.05)
        assert world.master.rule.acknowledged == {"2": end}


@real_time
async def test_a_repeated_handshake_is_not_answered_again() -> None:
    """An official slave repeats it when the answer comes in two parts, and takes one answer only."""
    async with running() as world, slave_of(world) as slave:
        end = world.master.append(1)
        await slave.stream.send_all(encode_slave_hello(SlaveHello(2)))
        await slave.greet()
        await slave.report(0)
        await slave.read_until(end)
        assert slave.frames[0] == (0, end)


# -- who is closed --


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (encode_report(0), "a report before the handshake"),
        (encode_default_report(0), "without a controller"),
        (encode_slave_hello(SlaveHello(0)), "no slave of this master"),
        (encode_slave_hello(SlaveHello(-1)), "no slave of this master"),
        (encode_slave_hello(SlaveHello(OWN_ID)), "no slave of this master"),
        (encode_slave_hello(SlaveHello(2)) + encode_slave_hello(SlaveHello(3)), "a second handshake"),
        (encode_slave_hello(SlaveHello(2)) + encode_report(1 << 40), "beyond the end"),
        (encode_slave_hello(SlaveHello(2)) + encode_report(13), "no message begins at 13"),
        (encode_slave_hello(SlaveHello(2)) + encode_report(-1), "negative offset"),
        (
            encode_slave_hello(SlaveHello(2)) + encode_report(0) + encode_slave_hello(SlaveHello(2)),
            "a second",
        ),
        (encode_slave_hello(SlaveHello(2)) + b"\x00\x00\x00\x09", "state 9"),
        (b"\xff" * 100, "state -1"),
    ],
)
@real_time
async def test_a_slave_that_lies_is_closed(
    words: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as world, slave_of(world) as slave:
        world.master.append(3)
        await slave.stream.send_all(words)
        with trio.fail_after(2):
            await slave.wait_closed()
        await until(lambda: world.master.rule.joined == {})
    assert reason in reasons(caplog)[0]


@real_time
async def test_an_acknowledgement_of_more_than_was_sent_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as world, slave_of(world) as slave:
        slave.acknowledges = False
        end = world.master.append(3)
        await slave.greet()
        await slave.report(0)
        await slave.read_until(end)
        await slave.report(end + 1)
        await slave.wait_closed()
        assert world.master.rule.acknowledged in ({}, {"2": 0})
    assert "was sent the log up to" in reasons(caplog)[0]


@real_time
async def test_a_master_without_an_epoch_and_a_slave_serve_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as world, slave_of(world) as slave:
        world.epochs.cut(0)
        await slave.stream.send_all(encode_slave_hello(SlaveHello(2)))
        await slave.wait_closed()
    async with running(refusal="b is a slave itself") as world, slave_of(world) as slave:
        await slave.stream.send_all(encode_slave_hello(SlaveHello(2)))
        await slave.wait_closed()
    assert reasons(caplog) == ["this master has no epoch yet", "b is a slave itself"]


@real_time
async def test_the_handshake_must_fit_the_ticket(caplog: pytest.LogCaptureFixture) -> None:
    access = HaAccess(has_access_control=True)
    async with running(access=access) as world:
        end = world.master.append(1)
        async with slave_of(world) as slave:
            await slave.stream.send_all(encode_preface(access.issue_ticket(2)))
            await slave.greet(SlaveHello(2))
            await slave.report(0)
            await slave.read_until(end)
        async with slave_of(world) as other:
            await other.stream.send_all(encode_preface(access.issue_ticket(2)))
            await other.stream.send_all(encode_slave_hello(SlaveHello(3)))
            await other.wait_closed()
        async with slave_of(world) as stranger:
            await stranger.stream.send_all(encode_slave_hello(SlaveHello(2)))
            await stranger.wait_closed()
    texts = reasons(caplog)
    assert "broker 3 with the ticket of broker 2" in texts[0]
    assert "no valid ticket" in texts[1]


@real_time
async def test_a_reader_gets_the_log_in_the_words_of_the_default() -> None:
    """`store repair --from` reads so from any replica."""
    async with running() as world:
        end = world.master.append(30)
        stream = await trio.open_tcp_stream(*world.master.listener.getsockname()[:2])
        async with stream:
            reader = FakeSlave(stream)
            ticket = world.master.server.access.issue_ticket()
            await stream.send_all(encode_preface(ticket, READER_PREFACE))
            await reader.report(0)
            await reader.read_until(end)
            assert reader.log == world.master.bytes()
            assert world.master.server.replicas == []


@real_time
async def test_many_epochs_fit_into_an_answer() -> None:
    async with running() as world, slave_of(world) as slave:
        world.epochs.adopt(tuple(EpochStart(number, 0) for number in range(1, 1500)), 0)
        hello = await slave.greet()
        assert len(hello.epochs) * EPOCH.size == 12_000
        assert hello.newest_epoch == 1499


def test_a_server_without_a_controller_speaks_the_default() -> None:
    store = open_store()
    server = HaServer("b", store, SETTINGS)
    assert server.open_stream(4).member is None
    assert server.open_stream(4).broker_id == 4
