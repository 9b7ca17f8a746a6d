"""Groups of brokers whose master moves between addresses: under an official controller, with DLedger, and promoted.

All register with a namesrv of ours. `kill_master` kills the master, and returns when another broker is registered as
the master of the name; `restart` starts the killed one again.
"""

from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path

from acceptance.test_cluster import namesrv_alone
from acceptance.test_roles import Pair
from compat_tests.clients.typed import connect, topic_request
from compat_tests.endpoints.ports import find_ports
from compat_tests.server import eventually
from remoting.errors import REQUEST_FAILURES
from remoting.requests.controller import ControllerGetSyncStateData
from remoting.requests.namesrv import GetBrokerClusterInfo
from remoting.requests.topics import GetTopicConfig
from tools.official_controllers import ControlledBroker, OfficialController, UndecidedBroker

NAME = "broker-a"
MASTER_TIMEOUT_S = 120.0
COPY_TIMEOUT_S = 60.0
"""Longest time until an official slave has copied a new topic; it does so every 10 s."""
HEARTBEAT_TIMEOUT_MS = 4_000
SMALL_FILES = {"timerWheelEnable": "false", "mappedFileSizeCommitLog": str(1 << 20)}


class MasterGroup(ABC):
    """Brokers of the name `NAME`, all running after construction, with a master among them."""

    namesrv: str
    is_ours = False

    @property
    @abstractmethod
    def addresses(self) -> list[str]:
        """The brokers' addresses."""

    @abstractmethod
    def kill(self, address: str) -> None:
        """Kill a broker."""

    @abstractmethod
    def restart(self, address: str) -> None:
        """Start a killed broker again; return when it is registered as a slave."""

    def members(self) -> dict[int, str]:
        """Return the registered addresses by broker id."""
        with connect(self.namesrv) as namesrv:
            table = namesrv.ask(GetBrokerClusterInfo()).data.broker_addr_table or {}
        return dict(table[NAME].broker_addrs) if NAME in table else {}

    @property
    def master(self) -> str:
        """The address that is registered as the master's; waits until there is one."""
        return eventually(lambda: self.members().get(0), MASTER_TIMEOUT_S)

    def kill_master(self) -> str:
        """Kill the master, and wait for another one; return the address of the killed one."""
        killed = self.master
        self.kill(killed)
        self._replace_master(killed)
        eventually(lambda: self.members().get(0) not in (None, killed), MASTER_TIMEOUT_S)
        return killed

    def _replace_master(self, killed: str) -> None:  # noqa: B027 - most groups do it by themselves
        """Let another broker take over, where that does not happen by itself."""

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create a topic, and wait until every broker knows it: otherwise a change of the master loses it."""

        def create() -> bool:
            try:
                with connect(self.master) as broker:
                    broker.ask(topic_request(topic, queues))
            except REQUEST_FAILURES:
                return False
            return True

        eventually(create, MASTER_TIMEOUT_S)
        self.wait_until_known(topic)

    def wait_until_known(self, topic: str) -> None:
        """Wait until every registered broker knows a topic."""
        eventually(lambda: all(knows_topic(at, topic) for at in self.members().values()), COPY_TIMEOUT_S)


def knows_topic(address: str, topic: str) -> bool:
    try:
        with connect(address) as broker:
            broker.ask(GetTopicConfig(topic=topic))
    except REQUEST_FAILURES:
        return False
    return True


class ElectedGroup(MasterGroup):
    """Official brokers that choose their master by an election."""

    brokers: dict[str, UndecidedBroker]

    @property
    def addresses(self) -> list[str]:
        return list(self.brokers)

    def kill(self, address: str) -> None:
        self.brokers[address].crash()

    def restart(self, address: str) -> None:
        self.brokers[address].start()
        eventually(
            lambda: address in [at for number, at in self.members().items() if number], MASTER_TIMEOUT_S
        )

    def kill_master(self) -> str:
        self.wait_until_copied()
        return super().kill_master()

    def wait_until_copied(self) -> None:
        """Wait until the group can lose its master."""


class ControlledGroup(ElectedGroup):
    """Two official brokers under an official controller. What is acknowledged is at both of them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.namesrv = stack.enter_context(namesrv_alone(directory / "n")).namesrv
        self.controller = stack.enter_context(
            OfficialController(directory / "c", {"scanNotActiveBrokerInterval": "1000"})
        )
        settings = {
            **SMALL_FILES,
            "brokerName": NAME,
            "controllerHeartBeatTimeoutMills": str(HEARTBEAT_TIMEOUT_MS),
            "registerNameServerPeriod": "10000",
        }
        self.brokers = {}
        for number in range(2):
            broker = ControlledBroker(
                directory / f"b{number}", self.namesrv, self.controller.address, settings
            )
            self.brokers[stack.enter_context(broker).broker] = broker
            eventually(lambda: self.members().get(0), MASTER_TIMEOUT_S)

    def wait_until_copied(self) -> None:
        """Wait until the controller counts every registered broker as in sync."""
        eventually(lambda: self._count_in_sync() == len(self.brokers), MASTER_TIMEOUT_S)

    def _count_in_sync(self) -> int:
        request = ControllerGetSyncStateData()
        request.body = f'["{NAME}"]'.encode()
        with connect(self.controller.address) as controller:
            table = controller.ask(request).data.replicas_info_table
        return len(table[NAME].in_sync_replicas) if NAME in table else 0


class DLedgerGroup(ElectedGroup):
    """Three official brokers with DLedger: two of them have what is acknowledged, and the leader has id 0."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.namesrv = stack.enter_context(namesrv_alone(directory / "n")).namesrv
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(find_ports(3)))
        self.brokers = {}
        for number in range(3):
            settings = {
                **SMALL_FILES,
                "brokerName": NAME,
                "enableDLegerCommitLog": "true",
                "dLegerGroup": NAME,
                "dLegerPeers": peers,
                "dLegerSelfId": f"n{number}",
            }
            broker = UndecidedBroker(directory / f"b{number}", self.namesrv, settings)
            self.brokers[stack.enter_context(broker).broker] = broker
        eventually(lambda: len(self.members()) == 3 and 0 in self.members(), MASTER_TIMEOUT_S)

    def wait_until_copied(self) -> None:
        """Wait until all brokers are registered: two of three must be there to elect."""
        eventually(lambda: len(self.members()) == 3, MASTER_TIMEOUT_S)


class PromotedGroup(MasterGroup):
    """Two brokers of ours, a SYNC_MASTER and a slave; an operator promotes the slave."""

    is_ours = True

    def __init__(self, directory: Path, stack: ExitStack, *settings: str) -> None:
        self.pair = Pair(directory, stack, *settings)
        self.namesrv = self.pair.namesrv.namesrv
        eventually(lambda: set(self.members()) == {0, 1}, MASTER_TIMEOUT_S)
        eventually(lambda: self.pair.status(1).state == "copying", MASTER_TIMEOUT_S)

    @property
    def addresses(self) -> list[str]:
        return [self.pair.address(index) for index in (0, 1)]

    def kill(self, address: str) -> None:
        self.pair.brokers[self.addresses.index(address)].kill()

    def _replace_master(self, killed: str) -> None:
        (other,) = set(self.addresses) - {killed}
        # A SYNC_MASTER without a slave would answer that its messages have one copy.
        self.pair.command("broker", "promote", other, "--role", "ASYNC_MASTER", "--yes")

    def restart(self, address: str) -> None:
        index = self.addresses.index(address)
        self.pair.restart(index)
        self.pair.command("broker", "demote", address, "--id", "1", "--yes")
        eventually(lambda: self.members().get(1) == address, MASTER_TIMEOUT_S)
        eventually(lambda: self.pair.is_in_step(1 - index, index), MASTER_TIMEOUT_S)

    def hand_over(self) -> None:
        """Let the slave take over from the master, which goes on as slave."""
        former = self.master
        self.pair.command("broker", "promote", NAME, "--yes")
        eventually(lambda: self.members().get(0) not in (None, former), MASTER_TIMEOUT_S)
