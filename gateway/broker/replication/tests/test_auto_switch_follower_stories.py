"""Three replicas through random elections, kills and losses of power: each log and each table of epochs stays true.

Masters are elected as badly as a controller ever may, also such that lack messages of others. Every message names the
epoch in which it was written, so that the tables can be checked against the logs.
"""

import os
import random
from collections.abc import Iterable

import pytest
import trio
from trio.testing import memory_stream_pair

from codec.message import iter_messages
from gateway.broker.replication.auto_switch_follower import EpochHandshake
from gateway.broker.replication.auto_switch_master import AutoSwitchMaster
from gateway.broker.replication.epochs import EpochTable
from gateway.broker.replication.follower import Follower
from gateway.broker.replication.ha_server import HaServer
from gateway.broker.replication.master_lookup import Master, MasterLookup
from gateway.broker.replication.tests.test_follower import CONFIG, HA, REQUESTS, FakeMaster, log_bytes
from gateway.config.replication import ReplicationSettings
from remoting.tests.virtual import virtual
from remoting.transport import StreamTransport
from storage.append import NewMessage
from storage.crash_files import CrashFiles, ProcessKilled
from storage.cut import cut_store
from storage.store import MessageStore
from storage.tests.support import FakeClock

BROKERS = (1, 2, 3)
SEEDS = [*range(int(os.environ.get("STORY_SEEDS", "24"))), 184]
"""Seed 184 kills a slave between the first bytes of its log and their epoch."""


class Replica:
    """One broker: its disk, and its store and epochs while the process runs."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.files = CrashFiles()
        self.cuts = 0
        self.open()

    def open(self) -> None:
        self.store = MessageStore.open(CONFIG, self.files, FakeClock())
        self.epochs = EpochTable(self.files, CONFIG.root)
        self.epochs.trim(self.store.max_physical_offset)

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def cut(self, end: int) -> None:
        """Build the parts again with a shorter log."""
        self.store.close()
        self.cuts += 1
        cut_store(CONFIG, self.files, end)
        self.epochs.cut(end)
        self.open()

    def crash(self, randomness: random.Random, *, loses_power: bool) -> None:
        self.files = self.files.crash(randomness, lose_unflushed=loses_power)
        self.open()

    def write(self, epoch: int, numbers: Iterable[int], randomness: random.Random) -> None:
        for number in numbers:
            body = b"%d %d " % (epoch, number) + randomness.randbytes(randomness.choice([0, 30, 200, 900]))
            self.store.append(NewMessage("t", number % 3, body, b""))

    def check_epochs(self) -> None:
        """Assert that each message of the log is of the epoch that the table names."""
        for message in iter_messages(log_bytes(self.store)):
            epoch = self.epochs.find(message.physical_offset)
            assert epoch is not None
            assert int(message.body.split()[0]) == epoch.epoch


class Story:
    """The replicas, and the master of the moment."""

    def __init__(self, seed: int) -> None:
        self.randomness = random.Random(seed)
        self.replicas = [Replica(broker_id) for broker_id in BROKERS]
        self.master = self.replicas[0]
        self.epoch = 0
        self.number = 0
        self.loses_power = seed % 2 == 1

    def elect(self, replica: Replica) -> None:
        self.epoch += self.randomness.choice([1, 1, 3])
        self.master = replica
        replica.reopen()
        replica.epochs.append(self.epoch, replica.store.max_physical_offset)

    def write(self, count: int) -> None:
        numbers = range(self.number, self.number + count)
        self.number += count
        self.master.write(self.epoch, numbers, self.randomness)
        if self.randomness.random() < 0.5:
            self.master.store.flush()

    @property
    def slaves(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica is not self.master]

    async def copy(self, slaves: list[Replica], seconds: float) -> None:
        """Let slaves follow the master for a while; connections break at any moment."""
        async with trio.open_nursery() as nursery:
            words = AutoSwitchMaster(
                self.master.store.commit_log,
                self.master.epochs,
                self.master.broker_id,
                lambda: self.master.store.max_physical_offset,
            )
            settings = ReplicationSettings(
                ha_transfer_batch_bytes=self.randomness.choice([1024, 3000, 1 << 20])
            )
            server = HaServer("b", self.master.store, settings, open_stream=words.open_stream)
            nursery.start_soon(server.run, [])
            ends = trio.current_time() + seconds
            async with trio.open_nursery() as followers:
                for slave in slaves:
                    followers.start_soon(self._follow, slave, server, ends, nursery)
            nursery.cancel_scope.cancel()

    async def _follow(self, slave: Replica, server: HaServer, ends: float, nursery: trio.Nursery) -> None:
        has_ticket = self.randomness.random() < 0.7
        port = FakeMaster(self.master.store, nursery)

        async def open_transport(host: str, port_number: int) -> StreamTransport:
            here, there = memory_stream_pair()
            nursery.start_soon(server.serve, StreamTransport(there))
            return StreamTransport(here)

        while trio.current_time() < ends:
            port.ticket = server.access.issue_ticket(slave.broker_id) if has_ticket else None
            lookup = MasterLookup()
            lookup.set_master(Master(HA, REQUESTS))
            dies = self.randomness.random() < 0.3
            slave.files.operations_left = self.randomness.randrange(60) if dies else None
            follower = Follower(
                slave.store,
                lookup,
                open_transport,
                port.dial,
                lambda queues: None,
                handshake=EpochHandshake(slave.store, slave.epochs, slave.broker_id),
            )
            try:
                with trio.move_on_at(min(ends, trio.current_time() + 10)):
                    async with trio.open_nursery() as running:
                        running.start_soon(follower.run)
                        await follower.diverged.wait()
                        running.cancel_scope.cancel()
                if follower.cut_at is not None:
                    slave.cut(follower.cut_at)
            except* ProcessKilled:
                slave.crash(self.randomness, loses_power=self.loses_power)
            slave.files.operations_left = None
            slave.check_epochs()

    async def run(self, steps: int) -> None:
        randomness = self.randomness
        self.elect(self.master)
        for _ in range(steps):
            step = randomness.randrange(6)
            if step == 0:
                self.elect(randomness.choice(self.replicas))
            elif step in (1, 2):
                self.write(randomness.choice([0, 1, 2, 10]))
            elif step in (3, 4):
                slaves = randomness.sample(self.slaves, randomness.choice([1, 2]))
                await self.copy(slaves, randomness.choice([0.0, 0.05, 2.0, 30.0]))
            else:
                replica = randomness.choice(self.replicas)
                replica.crash(randomness, loses_power=self.loses_power)
                if replica is self.master:
                    self.elect(randomness.choice(self.replicas))
            for replica in self.replicas:
                replica.check_epochs()

    async def heal(self) -> None:
        """Let all slaves follow the master to its end."""
        self.write(1)
        await self.copy(self.slaves, 60.0)

    def check_equal(self) -> None:
        log = log_bytes(self.master.store)
        for replica in self.replicas:
            replica.check_epochs()
            assert log_bytes(replica.store) == log
            # A replica may know an older epoch without messages that this master was never told of.
            epochs = self.master.epochs.entries
            assert replica.epochs.entries[-len(epochs) :] == epochs


@pytest.mark.parametrize("seed", SEEDS)
@virtual
async def test_replicas_agree_after_any_elections(seed: int) -> None:
    story = Story(seed)
    await story.run(steps=25)
    await story.heal()
    story.check_equal()
