"""The brokers of a pairing: official ones and ours, each at one of two machines, as master or as slave."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final, Protocol

from codec.message import iter_messages
from compat_tests.clients.typed import connect, pull
from compat_tests.endpoints.official import ReplicaEndpoint
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually
from remoting.errors import REQUEST_FAILURES
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.namesrv import GetBrokerClusterInfo
from remoting.requests.offsets import GetMaxOffset, GetMinOffset
from tools.processes import Gateway, environment

BROKER: Final = "broker-a"
CLUSTER: Final = "DefaultCluster"
FILE_BYTES: Final = 1 << 20
TOPIC: Final = "Pairing"
QUEUES: Final = 4
SETTINGS: Final = {
    "brokerName": BROKER,
    "brokerClusterName": CLUSTER,
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "slaveTimeout": "1000",
    # A dropped link is noticed sooner than within 20 s.
    "haHousekeepingInterval": "6000",
    "haSendHeartbeatInterval": "1500",
}
MASTER_ROLE: Final = {"brokerRole": "SYNC_MASTER", "brokerId": "0"}
SLAVE_ROLE: Final = {"brokerRole": "SLAVE", "brokerId": "1"}


@dataclass(frozen=True, slots=True)
class BrokerKind:
    """A kind of broker: ours, or an official release, of which ``profile`` has the jars."""

    name: str
    profile: str | None = None


OURS: Final = BrokerKind("ours")
OFFICIAL: Final = BrokerKind("official 5.4.0", "server-5.4")
OFFICIAL_4: Final = BrokerKind("official 4.9.7", "server-4.9")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that a broker runs on: its address, the folder of its files, and the words that run a program there."""

    host: str
    directory: Path
    prefix: tuple[str, ...] = ()


class PairMember(Protocol):
    """One of the two brokers. Its address and its store survive restarts."""

    kind: BrokerKind

    @property
    def address(self) -> str: ...

    @property
    def store(self) -> Path: ...

    def start(self, role: dict[str, str]) -> None:
        """Start the broker with the settings of a role, and wait until the namesrv knows it."""

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def pids(self) -> list[int]: ...

    def promote(self) -> None:
        """Make a slave the master, as an operator of this kind of broker does."""


class OurMember:
    """A broker of this project as a process."""

    kind = OURS

    def __init__(self, machine: Machine, namesrv: str) -> None:
        self._machine, self._namesrv = machine, namesrv
        self._port = find_server_ports()[1]
        self._process: Gateway | None = None

    @property
    def address(self) -> str:
        return f"{self._machine.host}:{self._port}"

    @property
    def store(self) -> Path:
        return self._machine.directory / "store"

    def start(self, role: dict[str, str]) -> None:
        options = [
            "-n",
            self._namesrv,
            "--store",
            str(self.store),
            "--host",
            "0.0.0.0",
            "--port",
            str(self._port),
        ]
        for key, value in {**SETTINGS, "brokerIP1": self._machine.host, **role}.items():
            options += ["--set", f"{key}={value}"]
        self._process = Gateway(
            self._machine.directory, *options, command="broker", prefix=self._machine.prefix
        )
        eventually(lambda: self.address in members(self._namesrv).values(), 40)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        assert self._process is not None
        self._process.stop()

    def pids(self) -> list[int]:
        return [] if self._process is None else [self._process.pid]

    def promote(self) -> None:
        line = [sys.executable, "-m", "gateway.commands.cli", "broker", "promote", self.address]
        line += ["--role", "SYNC_MASTER", "--force", "--yes", "--namesrv", self._namesrv]
        variables = {**os.environ, **environment(self._machine.directory)}
        done = subprocess.run(line, capture_output=True, text=True, env=variables, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"promote failed: {done.stdout}{done.stderr}")


class OfficialMember:
    """An official broker as a process."""

    def __init__(self, machine: Machine, namesrv: str, kind: BrokerKind) -> None:
        assert kind.profile is not None
        self.kind = kind
        self._endpoint = ReplicaEndpoint(
            {}, machine.directory, namesrv, self._is_listed, profile=kind.profile, prefix=machine.prefix
        )
        self._endpoint.host = machine.host
        self._namesrv = namesrv
        self._places = {
            "bindAddress": "0.0.0.0",
            "brokerIP1": machine.host,
            "brokerIP2": machine.host,
            "haListenPort": str(self._endpoint.broker_port + 1),
            # The default waits for nobody.
            "inSyncReplicas": "2",
        }

    def use_jvm(self, options: str) -> None:
        """Start the broker with other JVM options from now on."""
        self._endpoint.jvm = options

    def _is_listed(self, address: str) -> bool:
        return address in members(self._namesrv).values()

    @property
    def address(self) -> str:
        return self._endpoint.broker

    @property
    def store(self) -> Path:
        return self._endpoint.store

    def start(self, role: dict[str, str]) -> None:
        self._endpoint.settings = {**SETTINGS, **self._places, **role}
        self._endpoint.start()

    def kill(self) -> None:
        self._endpoint.crash()

    def stop(self) -> None:
        self._endpoint.stop()

    def pids(self) -> list[int]:
        return self._endpoint.pids()

    def promote(self) -> None:
        self.stop()
        eventually(lambda: not self._is_listed(self.address), 30)
        self.start(MASTER_ROLE)


def new_member(kind: BrokerKind, machine: Machine, namesrv: str) -> PairMember:
    """Return a broker that is not started yet."""
    return OurMember(machine, namesrv) if kind is OURS else OfficialMember(machine, namesrv, kind)


def suspend(member: PairMember) -> None:
    """Stop a broker's processes with SIGSTOP: its connections stay open, and nobody answers."""
    for pid in member.pids():
        os.kill(pid, signal.SIGSTOP)


def resume(member: PairMember) -> None:
    for pid in member.pids():
        os.kill(pid, signal.SIGCONT)


def members(namesrv: str) -> dict[int, str]:
    """Return the addresses of the registered brokers of the pairing by broker id."""
    try:
        with connect(namesrv) as client:
            table = client.ask(GetBrokerClusterInfo()).data.broker_addr_table
    except REQUEST_FAILURES:
        return {}
    return dict(table[BROKER].broker_addrs) if BROKER in table else {}


def log_end(address: str) -> int:
    """Return the end of a broker's log, -1 while it does not say."""
    try:
        with connect(address, timeout_s=5) as broker:
            return int(broker.ask(GetBrokerRuntimeInfo()).data.table["commitLogMaxOffset"])
    except REQUEST_FAILURES:
        return -1


def read_topic(address: str) -> dict[int, list[tuple[int, bytes]]]:
    """Return the offsets and bodies of all messages of the topic, by queue, as a broker serves them."""
    queues: dict[int, list[tuple[int, bytes]]] = {}
    with connect(address, timeout_s=20) as broker:
        for queue_id in range(QUEUES):
            entries = queues[queue_id] = []
            offset = broker.ask(GetMinOffset(topic=TOPIC, queue_id=queue_id)).offset
            end = broker.ask(GetMaxOffset(topic=TOPIC, queue_id=queue_id)).offset
            while offset < end:
                reply = pull(broker, TOPIC, offset, queue_id=queue_id, consumer_group="PairingReader")
                if reply.code:
                    break
                entries += [
                    (message.queue_offset, bytes(message.body)) for message in iter_messages(reply.body)
                ]
                offset = reply.next_begin_offset
    return queues


def log_files(store: Path) -> dict[str, bytes]:
    """Return the files of a commit log that have messages."""
    files = {path.name: path.read_bytes() for path in sorted((store / "commitlog").iterdir())}
    return {name: data for name, data in files.items() if any(data)}


def absent_files(master: Path, slave: Path) -> Sequence[str]:
    """Return the names of a master's log files that its slave does not have."""
    copies = log_files(slave)
    return [name for name in log_files(master) if name not in copies]


def find_difference(master: Path, slave: Path, end: int) -> int | None:
    """Return the first physical offset at which a slave's log is not its master's; None if there is none.

    Compared is what the slave has, and what lies below ``end``, which both logs have reached. The master may append by
    itself, such as a message whose delay is over: so its log is read last, and may have more. Files that only one of
    the two has are passed over.
    """
    copies = log_files(slave)
    for name, data in log_files(master).items():
        base = int(name)
        copy = copies.get(name, data)
        size = max(len(copy.rstrip(b"\0")), min(len(data), end - base))
        if data[:size] != copy[:size]:
            pairs = enumerate(zip_longest(data[:size], copy[:size]))
            return base + next(position for position, (byte, copied) in pairs if byte != copied)
    return None


def is_prefix_of_master(master: Path, slave: Path) -> bool:
    """Tell whether a master's log begins with all that a slave's log has."""
    return find_difference(master, slave, 0) is None
