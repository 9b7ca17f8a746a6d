"""The state of replication, as `brokerStatus` and metrics show it."""

from dataclasses import dataclass
from typing import Any

from gateway.broker.assembly.metrics import replication_metrics
from gateway.broker.replication.parts import LogCut
from gateway.broker.replication.replica import Replica
from gateway.broker.replication.status import TROUBLE, ReplicationStatus, SlaveStatus, replication_status
from gateway.config.replication import ReplicationSettings
from gateway.runtime.metrics import Metric
from gateway.tests.broker_world import World
from remoting.requests.admin import GetBrokerRuntimeInfo

SLAVE = ReplicationSettings(broker_role="SLAVE")


@dataclass
class PlayedFollower:
    state: str = "copying"
    reason: str = ""
    lag_bytes: int = 0
    damaged_messages: int = 0
    master_address: str = "h:1"

    @property
    def is_copying(self) -> bool:
        return self.state == "copying"


def slave_world(**follower: Any) -> World:
    world = World(replication=SLAVE, broker_id=1)
    world.broker.replication.follower = PlayedFollower(**follower)
    return world


def status_of(world: World) -> ReplicationStatus:
    broker = world.broker
    return replication_status(
        broker.replication, broker.store, broker.config.replication, broker.clock.now_ms()
    )


def runtime_info(world: World) -> dict[str, str]:
    return dict(world.ask(GetBrokerRuntimeInfo()).data.table)


def metrics(world: World) -> dict[str, float]:
    samples = list(replication_metrics("b1", world.broker))
    assert all(isinstance(sample, Metric) for sample in samples)
    return {sample.name: sample.value for sample in samples}


def test_a_master_without_slaves_shows_nothing_new() -> None:
    assert not {"brokerRole", "slaves", "slaveState"} & runtime_info(World()).keys()
    shown = runtime_info(World(replication=ReplicationSettings(broker_role="SYNC_MASTER")))
    assert (shown["brokerRole"], shown["slaves"], shown["slavesInSync"]) == ("SYNC_MASTER", "0", "0")


def test_a_master_shows_its_slaves_and_the_age_of_what_they_lack() -> None:
    world = World(replication=ReplicationSettings(max_gap_not_in_sync_bytes=150))
    world.put()
    first_end = world.broker.store.max_physical_offset
    world.clock.pass_ms(5000)
    world.put()
    world.clock.pass_ms(2000)
    end = world.broker.store.max_physical_offset

    @dataclass
    class Server:
        replicas: list[Replica]
        trouble: str = ""

    replicas = []
    for offset, port in ((end, 1), (first_end, 2), (0, 3)):
        replica = Replica(("10.0.0.1", port), 0.0)
        replica.begin(offset, 0.0)
        replicas.append(replica)
    world.broker.replication.server = Server(replicas)  # type: ignore[assignment]
    status = status_of(world)
    assert status.slaves == (
        SlaveStatus("10.0.0.1:1", 0, 0, True),
        SlaveStatus("10.0.0.1:2", end - first_end, 2000, True),
        SlaveStatus("10.0.0.1:3", end, 7000, False),
    )
    info = status.runtime_info()
    assert (info["slaves"], info["slavesInSync"]) == ("3", "2")
    assert (info["slaveBehindBytes"], info["slaveBehindMs"]) == (str(end), "7000")
    shown = metrics(world)
    assert (shown["replication_is_master"], shown["replication_slaves"]) == (1, 3)
    assert shown["replication_in_sync_slaves"] == 2
    assert (status.trouble, shown["replication_trouble"]) == ("", 0)
    world.broker.replication.server.trouble = "two slaves have one id"  # type: ignore[misc]
    assert runtime_info(world)["replicationTrouble"] == "two slaves have one id"
    assert metrics(world)["replication_trouble"] == 1


def test_a_slave_shows_how_far_it_is_behind() -> None:
    world = slave_world(lag_bytes=500)
    assert (status_of(world).behind_bytes, status_of(world).behind_ms) == (500, -1)
    world.broker.store.dispatched_until_ms = world.clock.now_ms() - 3000
    assert (status_of(world).behind_bytes, status_of(world).behind_ms) == (500, 3000)
    info = runtime_info(world)
    assert (info["brokerRole"], info["slaveState"]) == ("SLAVE", "copying")
    assert (info["slaveBehindBytes"], info["slaveBehindMs"]) == ("500", "3000")
    assert TROUBLE not in info
    shown = metrics(world)
    assert (shown["replication_is_master"], shown["replication_trouble"]) == (0, 0)
    assert (shown["replication_behind_bytes"], shown["replication_behind_ms"]) == (500, 3000)


def test_only_what_does_not_pass_by_itself_is_a_trouble() -> None:
    away = slave_world(state="no connection to the master", reason="refused", lag_bytes=-1)
    assert (status_of(away).trouble, status_of(away).behind_ms) == ("", -1)
    differs = slave_world(state="this log differs from the master's", reason="from physical offset 7 on")
    text = "this log differs from the master's: from physical offset 7 on"
    assert runtime_info(differs)[TROUBLE] == text
    assert metrics(differs)["replication_trouble"] == 1


def test_a_cut_stays_visible() -> None:
    world = slave_world()
    assert "lastCut" not in runtime_info(world)
    assert "replication_last_cut_bytes" not in metrics(world)
    world.broker.replication.last_cut = LogCut(1_700_000_000_500, 700, 42)
    assert runtime_info(world)["lastCut"] == "42 bytes from 700 on at 1700000000500"
    shown = metrics(world)
    assert shown["replication_last_cut_bytes"] == 42
    assert shown["replication_last_cut_timestamp_seconds"] == 1_700_000_000.5
