"""Masters and their slaves, ours and official ones, as the benchmark of replication starts them.

A pair has a fixed master. A group of three is in controller mode: a controller of its own kind chooses the master, and
each send waits for all replicas in sync (`allAckInSyncStateSet`). Other settings have their defaults; official brokers
run with G1 and untuned.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compat_tests.clients.typed import connect
from compat_tests.endpoints import Endpoint
from compat_tests.endpoints.official import FULL_SPEED, OfficialEndpoint, ReplicaEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.endpoints.ports import find_ports, find_server_ports
from compat_tests.server import eventually
from remoting.bodies.ha import ReplicasInfo
from remoting.requests.namesrv import GetBrokerClusterInfo
from tools.official_controllers import ControlledBroker, OfficialController, launch_namesrv, read_replicas
from tools.processes import Gateway

BROKER: Final = "broker-a"
HOST: Final = "127.0.0.1"
REPLICAS: Final = 3
CONTROLLER_TIMEOUT_S: Final = 5.0
MASTER_TIMEOUT_S: Final = 90.0
SYNC_TIMEOUT_S: Final = 180.0
"""An official slave asks the namesrv for its master's port of the log, every 30 s."""
SLAVE: Final[Mapping[str, str]] = {"brokerRole": "SLAVE", "brokerId": "1"}
LOG_FILE_BYTES: Final = 1 << 30
"""The default of both kinds; cases about official controllers use smaller files."""


@dataclass(frozen=True)
class Measured:
    """A running master, or its slave, as loads see it: they send to the master and count ``pids``."""

    name: str
    namesrv: str
    broker: str
    process_ids: tuple[int, ...]

    def pids(self) -> list[int]:
        """Return the processes whose processor time counts."""
        return list(self.process_ids)


@dataclass(frozen=True)
class ReplicatedGroup:
    """A running master and its slaves. ``controller`` is the address of the one that chose the master, if one did."""

    master: Measured
    slaves: tuple[Measured, ...] = ()
    controller: str | None = None


Arrange = Callable[[Path], Iterator[ReplicatedGroup]]
"""Starts an arrangement in a folder, yields it, and stops it."""


def _settings(role: str) -> Mapping[str, str]:
    # The official default of inSyncReplicas waits for nobody, so both sides are told to wait for one slave.
    return {"brokerRole": role, **({"inSyncReplicas": "2"} if role == "SYNC_MASTER" else {})}


def _ours(role: str, *, with_slave: bool) -> Arrange:
    def arrange(directory: Path) -> Iterator[ReplicatedGroup]:
        with ExitStack() as stack:
            master = stack.enter_context(OursEndpoint(_settings(role), directory / "master"))
            name = f"ours, {role}" + ("" if with_slave else ", no slave")
            slaves: tuple[Measured, ...] = ()
            if with_slave:
                options = ["-n", master.namesrv, "--store", str(directory / "slave-store")]
                options += _set_options(SLAVE)
                process = stack.enter_context(Gateway(directory / "slave", *options, command="broker"))
                slaves = (Measured(name, master.namesrv, process.broker, (process.pid,)),)
            yield ReplicatedGroup(_measured(name, master), slaves)

    return arrange


def _official(role: str) -> Arrange:
    def arrange(directory: Path) -> Iterator[ReplicatedGroup]:
        with ExitStack() as stack:
            name = f"official, {role}"
            master = stack.enter_context(
                OfficialEndpoint(_settings(role), directory / "master", jvm=FULL_SPEED)
            )
            replica = ReplicaEndpoint(
                SLAVE, directory / "slave", master.namesrv, lambda address: _lists(master, address)
            )
            replica.jvm = FULL_SPEED
            stack.enter_context(replica)
            yield ReplicatedGroup(_measured(name, master), (_measured(name, replica),))

    return arrange


def _measured(name: str, endpoint: Endpoint) -> Measured:
    # The last process is the broker; the official namesrv is another one, and idle.
    return Measured(name, endpoint.namesrv, endpoint.broker, tuple(endpoint.pids()[-1:]))


def _lists(endpoint: Endpoint, address: str) -> bool:
    with connect(endpoint.namesrv) as namesrv:
        table = namesrv.ask(GetBrokerClusterInfo()).data.broker_addr_table
    return any(address in entry.broker_addrs.values() for entry in table.values())


def _ours_controlled(directory: Path) -> Iterator[ReplicatedGroup]:
    with ExitStack() as stack:
        namesrv = stack.enter_context(Gateway(directory / "namesrv", command="namesrv")).namesrv
        controller = f"{HOST}:{find_ports(1)[0]}"
        settings = {
            "controllerDLegerPeers": f"n0-{controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(directory / "controller" / "state"),
        }
        options = ["--host", HOST, *_set_options(settings)]
        stack.enter_context(Gateway(directory / "controller", *options, command="controller"))
        settings = {
            "brokerName": BROKER,
            "brokerIP1": HOST,
            "enableControllerMode": "true",
            "controllerAddr": controller,
            "allAckInSyncStateSet": "true",
            "autoCreateTopicEnable": "true",
        }

        def start(replica_directory: Path) -> Measured:
            port = find_server_ports()[1]
            options = ["-n", namesrv, "--store", str(replica_directory / "store")]
            options += ["--host", HOST, "--port", str(port), *_set_options(settings)]
            process = stack.enter_context(Gateway(replica_directory, *options, command="broker"))
            return Measured("ours, three with allAck", namesrv, f"{HOST}:{port}", (process.pid,))

        yield _start_group(controller, directory, start)


def _official_controlled(directory: Path) -> Iterator[ReplicatedGroup]:
    with ExitStack() as stack:
        port = find_ports(1)[0]
        stack.callback(launch_namesrv(directory / "namesrv", HOST, port).kill)
        namesrv = f"{HOST}:{port}"
        controller = stack.enter_context(OfficialController(directory / "controller")).address
        settings = {"timerWheelEnable": "true", "mappedFileSizeCommitLog": str(LOG_FILE_BYTES)}

        def start(replica_directory: Path) -> Measured:
            broker = ControlledBroker(replica_directory, namesrv, controller, settings, jvm=FULL_SPEED)
            broker.settings["haListenPort"] = str(broker.broker_port + 1)
            stack.callback(broker.crash)
            broker.start()
            return _measured("official, three with allAck", broker)

        yield _start_group(controller, directory, start)


def _set_options(settings: Mapping[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def _start_group(controller: str, directory: Path, start: Callable[[Path], Measured]) -> ReplicatedGroup:
    """Start the replicas of a group, the first one as its master, and wait until all are in sync."""
    master = start(directory / "replica-0")
    eventually(lambda: group_replicas(controller).master_address == master.broker, MASTER_TIMEOUT_S)
    slaves = tuple(start(directory / f"replica-{index}") for index in range(1, REPLICAS))
    eventually(lambda: len(group_replicas(controller).in_sync_replicas) == REPLICAS, SYNC_TIMEOUT_S, 0.2)
    return ReplicatedGroup(master, slaves, controller)


def group_replicas(controller: str) -> ReplicasInfo:
    """Return the replicas of the group as its controller knows them."""
    return read_replicas([controller], BROKER, timeout_s=CONTROLLER_TIMEOUT_S)


PAIRS: Final[Mapping[str, Arrange]] = {
    "ours-alone": _ours("ASYNC_MASTER", with_slave=False),
    "ours-async": _ours("ASYNC_MASTER", with_slave=True),
    "ours-sync": _ours("SYNC_MASTER", with_slave=True),
    "official-async": _official("ASYNC_MASTER"),
    "official-sync": _official("SYNC_MASTER"),
}
CONTROLLED: Final[Mapping[str, Arrange]] = {
    "ours-controlled": _ours_controlled,
    "official-controlled": _official_controlled,
}
