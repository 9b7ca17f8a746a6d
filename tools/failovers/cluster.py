"""The processes of a cluster: a namesrv, controllers with their etcd, and three brokers of one name."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from compat_tests.clients.typed import connect
from compat_tests.endpoints.official import QUICK_START
from compat_tests.endpoints.ports import find_ports, find_server_ports
from compat_tests.endpoints.process import ChildProcess
from compat_tests.server import eventually
from remoting.bodies.ha import ReplicasInfo
from remoting.errors import REQUEST_FAILURES
from remoting.requests.controller import ControllerGetMetadataInfo
from tools.etcd_members import EtcdMembers
from tools.failovers.network import CLIENTS, Machines
from tools.official_controllers import (
    ControlledBroker,
    launch_controller,
    launch_namesrv,
    leads,
    read_replicas,
)
from tools.pairings.members import BROKER, FILE_BYTES, OFFICIAL, OURS, BrokerKind, log_end
from tools.processes import Gateway

BROKERS: Final = 3
BROKER_MACHINES: Final = tuple(f"b{number}" for number in range(1, BROKERS + 1))
SMALL_HEAP: Final = "-Xms128m -Xmx448m -XX:MaxDirectMemorySize=256m"
START_S: Final = 90.0
CONTROLLER_TIMEOUT_S: Final = 2.0
SETTINGS: Final = {
    "brokerName": BROKER,
    "enableControllerMode": "true",
    "brokerId": "-1",
    "brokerRole": "SLAVE",
    "allAckInSyncStateSet": "true",
    # Readers at the slaves see what those take for confirmed.
    "slaveReadEnable": "true",
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    # An official slave gets its master's port for the log with an answer of the namesrv: every 10 s, not 30.
    "registerNameServerPeriod": "10000",
}
"""Settings of every broker. Those that decide how long a change of the master takes have their defaults."""


@dataclass(frozen=True, slots=True)
class ControllerKind:
    """A kind of controllers: their number, and whether they are ours, with etcd or with a file."""

    name: str
    count: int
    is_ours: bool
    has_etcd: bool = False

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(f"c{number}" for number in range(1, self.count + 1))


OFFICIAL_CONTROLLERS: Final = ControllerKind("official", 3, is_ours=False)
SQLITE_CONTROLLER: Final = ControllerKind("ours, SQLite", 1, is_ours=True)
ETCD_CONTROLLERS: Final = ControllerKind("ours, etcd", 3, is_ours=True, has_etcd=True)
BROKER_GROUPS: Final[Mapping[str, Sequence[BrokerKind]]] = {
    "official": (OFFICIAL,) * BROKERS,
    "ours": (OURS,) * BROKERS,
    "mixed": (OURS, OFFICIAL, OURS),
}
CONTROLLER_KINDS: Final = {
    "official": OFFICIAL_CONTROLLERS,
    "sqlite": SQLITE_CONTROLLER,
    "etcd": ETCD_CONTROLLERS,
}


class BrokerMember(Protocol):
    """A broker of the group, on a machine of its own. Its address and its store survive restarts."""

    kind: BrokerKind
    machine: str

    @property
    def address(self) -> str: ...

    @property
    def store(self) -> Path: ...

    def start(self) -> None:
        """Start the broker, and return when its process serves; it has no role yet."""

    def kill(self) -> None: ...

    def pids(self) -> list[int]: ...


class OurGroupMember:
    """A broker of this project in controller mode."""

    kind = OURS

    def __init__(
        self, machine: str, machines: Machines, directory: Path, namesrv: str, settings: Mapping[str, str]
    ) -> None:
        self.machine = machine
        self._directory, self._namesrv, self._settings = directory, namesrv, settings
        self._host, self._prefix = machines.host(machine), machines.prefix(machine)
        self._port = find_server_ports()[1]
        self._process: Gateway | None = None

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def store(self) -> Path:
        return self._directory / "store"

    def start(self) -> None:
        options = ["-n", self._namesrv, "--store", str(self.store), "--host", "0.0.0.0"]
        options += ["--port", str(self._port)]
        for key, value in {**self._settings, "brokerIP1": self._host, "brokerIP2": self._host}.items():
            options += ["--set", f"{key}={value}"]
        self._process = Gateway(self._directory, *options, command="broker", prefix=self._prefix)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def pids(self) -> list[int]:
        return [] if self._process is None else self._process.child.pids()


class OfficialGroupMember:
    """An official broker in controller mode."""

    kind = OFFICIAL

    def __init__(
        self, machine: str, machines: Machines, directory: Path, namesrv: str, settings: Mapping[str, str]
    ) -> None:
        self.machine = machine
        host = machines.host(machine)
        self._endpoint = ControlledBroker(
            directory,
            namesrv,
            settings["controllerAddr"],
            {**settings, "bindAddress": "0.0.0.0", "brokerIP1": host, "brokerIP2": host},
            host=host,
            jvm=f"{QUICK_START} {SMALL_HEAP}",
            prefix=machines.prefix(machine),
        )
        self._endpoint.settings["haListenPort"] = str(self._endpoint.broker_port + 1)

    @property
    def address(self) -> str:
        return self._endpoint.broker

    @property
    def store(self) -> Path:
        return self._endpoint.store

    def start(self) -> None:
        self._endpoint.start()

    def kill(self) -> None:
        self._endpoint.crash()

    def pids(self) -> list[int]:
        return self._endpoint.pids()


class Controllers:
    """The controllers of a cluster, and their etcd members, which run on the same machines."""

    def __init__(self, kind: ControllerKind, machines: Machines, directory: Path, stack: ExitStack) -> None:
        self.kind = kind
        self.etcd: EtcdMembers | None = None
        self._machines, self._directory = machines, directory
        self._processes: dict[int, ChildProcess] = {}
        hosts = [machines.host(machine) for machine in kind.machines]
        self.addresses = [f"{host}:{port}" for host, port in zip(hosts, find_ports(kind.count), strict=True)]
        stack.callback(self._kill_all)
        if kind.has_etcd:
            (directory / "etcd").mkdir(parents=True)
            prefixes = [machines.prefix(machine) for machine in kind.machines]
            self.etcd = stack.enter_context(EtcdMembers(directory / "etcd", kind.count, hosts, prefixes))

    def _kill_all(self) -> None:
        for index in list(self._processes):
            self.kill(index)

    @property
    def machines(self) -> tuple[str, ...]:
        return self.kind.machines

    def start_all(self) -> None:
        for index in range(self.kind.count):
            self.start(index)
        self.wait_ready()

    def start(self, index: int) -> None:
        directory = self._directory / f"c{index + 1}"
        peers = ";".join(f"n{number}-{address}" for number, address in enumerate(self.addresses))
        prefix = self._machines.prefix(self.machines[index])
        if not self.kind.is_ours:
            self._processes[index] = launch_controller(directory, peers, f"n{index}", prefix=prefix)
            return
        settings = {
            "controllerDLegerPeers": peers,
            "controllerDLegerSelfId": f"n{index}",
            "controllerStorePath": str(directory / "state"),
        }
        if self.etcd is not None:
            settings["controllerEtcd"] = ";".join(self.etcd.urls)
        arguments = ["--host", "0.0.0.0"]
        for key, value in settings.items():
            arguments += ["--set", f"{key}={value}"]
        self._processes[index] = Gateway(directory, *arguments, command="controller", prefix=prefix).child

    def kill(self, index: int) -> None:
        self._processes.pop(index).kill()

    def suspend(self, index: int) -> None:
        """Stop a controller with SIGSTOP: its connections stay open, and nobody answers."""
        send_signal(self._processes[index].pids(), signal.SIGSTOP)

    def resume(self, index: int) -> None:
        send_signal(self._processes[index].pids(), signal.SIGCONT)

    def leader(self) -> int:
        """Return the number of the controller that leads. Raises AssertionError if none does."""

        def find_leader() -> tuple[int] | None:
            for index in self._processes:
                if leads(self.addresses[index]):
                    return (index,)
            return None

        return eventually(find_leader, START_S, every_s=0.2)[0]

    def wait_ready(self) -> None:
        """Wait until every controller names a leader."""
        eventually(lambda: all(map(_names_leader, self.addresses)), START_S, every_s=0.2)

    def replicas(self) -> ReplicasInfo:
        """Return what the leading controller knows; nothing while none leads."""
        return read_replicas(self.addresses, BROKER, timeout_s=CONTROLLER_TIMEOUT_S)


def _names_leader(address: str) -> bool:
    try:
        with connect(address, timeout_s=CONTROLLER_TIMEOUT_S) as controller:
            return bool(controller.ask(ControllerGetMetadataInfo()).controller_leader_address)
    except REQUEST_FAILURES:
        return False


class FailoverCluster:
    """A namesrv, controllers of a kind, and a group of three brokers. The namesrv is official if all the others are."""

    def __init__(
        self,
        group: Sequence[BrokerKind],
        kind: ControllerKind,
        machines: Machines,
        directory: Path,
        stack: ExitStack,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.machines, self._directory = machines, directory
        port = find_ports(1)[0]
        self.namesrv = f"{machines.host(CLIENTS)}:{port}"
        if kind.is_ours or OURS in group:
            namesrv = ("--port", str(port), "--host", "0.0.0.0")
            stack.enter_context(Gateway(directory / "n", *namesrv, command="namesrv"))
        else:
            stack.callback(launch_namesrv(directory / "n", machines.host(CLIENTS), port).kill)
        self.controllers = Controllers(kind, machines, directory, stack)
        lines = {
            **SETTINGS,
            "controllerAddr": ";".join(self.controllers.addresses),
            **(settings or {}),
        }
        self.brokers: list[BrokerMember] = []
        for broker_kind, machine in zip(group, BROKER_MACHINES, strict=True):
            make = OurGroupMember if broker_kind is OURS else OfficialGroupMember
            broker = make(machine, machines, directory / machine, self.namesrv, lines)
            stack.callback(broker.kill)
            self.brokers.append(broker)

    @property
    def machine_names(self) -> tuple[str, ...]:
        """The machines of brokers and controllers."""
        return BROKER_MACHINES + self.controllers.machines

    def start(self) -> None:
        """Start everything: the first broker becomes the master, and the others its slaves in sync."""
        self.controllers.start_all()
        first, *others = self.brokers
        first.start()
        eventually(lambda: self.controllers.replicas().master_address == first.address, START_S)
        for broker in others:
            broker.start()
        self.wait_in_sync(2 * START_S)

    def master(self) -> BrokerMember:
        """Return the broker that the controller names as master. Raises AssertionError if there is none."""

        def find_master() -> BrokerMember | None:
            address = self.controllers.replicas().master_address
            return next((broker for broker in self.brokers if broker.address == address), None)

        return eventually(find_master, START_S)

    def slaves(self) -> list[BrokerMember]:
        master = self.master()
        return [broker for broker in self.brokers if broker is not master]

    def wait_in_sync(self, timeout_s: float) -> float:
        """Wait until every broker is in sync; return how long that took."""
        begun_s = time.monotonic()
        eventually(self._are_in_sync, timeout_s, every_s=0.2)
        return time.monotonic() - begun_s

    def _are_in_sync(self) -> bool:
        replicas = self.controllers.replicas()
        in_sync = {replica.broker_address for replica in replicas.in_sync_replicas}
        return in_sync == {broker.address for broker in self.brokers}

    def wait_same_end(self, timeout_s: float) -> None:
        """Wait until the logs of all brokers end at one offset."""

        def have_same_end() -> bool:
            ends = {log_end(broker.address) for broker in self.brokers}
            return len(ends) == 1 and -1 not in ends

        eventually(have_same_end, timeout_s, every_s=0.2)

    def find_difference(self) -> str | None:
        """Compare the logs of all brokers byte by byte; return where they differ first."""
        end = min(log_end(broker.address) for broker in self.brokers)
        first, *others = self.brokers
        for broker in others:
            offset = first_difference(first.store, broker.store, end)
            if offset is not None:
                return f"the logs of {first.machine} and {broker.machine} differ at {offset}"
        return None

    def count_tracebacks(self) -> int:
        """Return the number of errors with a traceback in the logs of our processes."""
        logs = (
            path
            for name in ("broker", "controller", "namesrv")
            for path in self._directory.glob(f"*/{name}.log")
        )
        return sum(
            path.read_text(errors="replace").count("Traceback (most recent call last)") for path in logs
        )

    def cut_off(self, machine: str, others: Sequence[str]) -> None:
        """Lose everything between a machine and some others."""
        for other in others:
            if other != machine:
                self.machines.cut(machine, other)

    def join(self, machine: str, others: Sequence[str]) -> None:
        for other in others:
            if other != machine:
                self.machines.join(machine, other)


def send_signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def first_difference(store: Path, other: Path, end: int) -> int | None:
    """Return the first offset below `end` where two logs differ, of the files that both have."""
    for path in sorted((store / "commitlog").iterdir()):
        twin = other / "commitlog" / path.name
        begin = int(path.name)
        if begin >= end or not twin.exists():
            continue
        size = min(FILE_BYTES, end - begin)
        with path.open("rb") as file, twin.open("rb") as twin_file:
            data, twin_data = file.read(size), twin_file.read(size)
        if data != twin_data:
            length = min(len(data), len(twin_data))
            return begin + next((at for at in range(length) if data[at] != twin_data[at]), length)
    return None
