"""The story of one pairing: each step makes one fault happen while clients send, and says what came of it.

After each step the senders pause, the slave catches up, and both logs are compared byte by byte. What a history of the
clients does not allow ends the story of a pairing with our broker; of two official ones it is shown.
"""

import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from compat_tests.cases.conftest import warm_up
from compat_tests.cases.grpc_fixtures import start_grpc_driver
from compat_tests.clients.command_driver import StockClientError
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.grpc_api import StockGrpcClient
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import connect, create_group, has_route, send_request, topic_request
from compat_tests.endpoints.ports import find_ports
from compat_tests.endpoints.proxy import OfficialProxy
from compat_tests.server import eventually
from remoting.errors import REQUEST_FAILURES
from remoting.requests.groups import GetAllSubscriptionGroupConfig
from remoting.requests.topics import GetAllTopicConfig
from tools.pairings.history import SEND_OK, Judgement, SendHistory
from tools.pairings.load import (
    GRPC_TOPIC,
    GrpcTraffic,
    JavaDeliveries,
    JavaSender,
    SenderLoad,
    TypedSender,
    find_master,
    judge_consumers,
)
from tools.pairings.members import (
    MASTER_ROLE,
    OFFICIAL,
    OFFICIAL_4,
    OURS,
    QUEUES,
    SLAVE_ROLE,
    TOPIC,
    BrokerKind,
    Machine,
    PairMember,
    absent_files,
    find_difference,
    is_prefix_of_master,
    log_end,
    log_files,
    members,
    new_member,
    read_topic,
    resume,
    suspend,
)
from tools.pairings.network import MachineLink
from tools.processes import Gateway

log = logging.getLogger(__name__)
BACKLOG: Final = 3000
BACKLOG_BODY: Final = b"x" * 900
SENDERS: Final = 3
LINES: Final = {"4.9.8": "client-4.9", "5.4.0": "server-5.4"}
"""Stock Java clients by version, with the profile of their jars."""
STOCK_PRODUCERS: Final = {"4.9.8": 100, "5.4.0": 101}
GRPC_PRODUCER: Final = 200
BACKLOG_PRODUCERS: Final = 1000
"""First producer number of the backlog, of which each message has its own: official brokers reorder a pipeline."""
GRPC_GROUP: Final = "PairingGrpcGroup"
IN_STEP_S: Final = 90.0
RETURN_S: Final = 40.0
SHORT_RETURN_S: Final = 15.0
DRAIN_S: Final = 90.0
STATUS_NAMES: Final = {0: "OK", 10: "disk timeout", 11: "no slave", 12: "slave timeout"}
STEPS: Final = (
    "empty slave",
    "in step",
    "slave killed",
    "slave stopped 4 s",
    "link silent 8 s",
    "master stopped 6 s",
    "master killed",
    "takeover",
    "old master back",
    "hung master wakes",
    "other kind opens it",
    "Java 4.9.8",
    "Java 5.4.0",
    "gRPC",
    "acknowledged",
    "stored twice",
)


LEFT_OUT_OF_SHORT: Final = ("slave stopped 4 s", "master stopped 6 s", "hung master wakes", "clients")


class StoryFailed(Exception):
    """A pairing did what it must not do; the text says what."""


@dataclass(slots=True)
class PairingRow:
    """The results of a pairing by step, and why it failed, "" if it did not."""

    master: str
    slave: str
    cells: dict[str, str] = field(default_factory=dict)
    failure: str = ""


class Pairing:
    """A namesrv, a master and a slave of given kinds, and their clients.

    `is_short` leaves out stock clients and the steps that take long, for a run that every change can afford.
    """

    def __init__(
        self,
        master: BrokerKind,
        slave: BrokerKind,
        network: MachineLink,
        directory: Path,
        stack: ExitStack,
        *,
        is_short: bool,
    ) -> None:
        self._stack, self._network, self._directory, self._is_short = stack, network, directory, is_short
        self.row = PairingRow(master.name, slave.name)
        self._are_official = OURS not in (master, slave)
        self._history, self._load = SendHistory(), SenderLoad()
        port = find_ports(1)[0]
        stack.enter_context(
            Gateway(directory / "n", "--port", str(port), "--host", "0.0.0.0", command="namesrv")
        )
        self._namesrv = f"{network.first}:{port}"
        near = Machine(network.first, directory / "m")
        far = Machine(network.second, directory / "s", network.prefix)
        self._master, self._slave = (
            new_member(kind, machine, self._namesrv) for kind, machine in ((master, near), (slave, far))
        )
        stack.callback(self._master.kill)
        stack.callback(self._slave.kill)
        stack.callback(self._load.close)
        self._deliveries: dict[str, JavaDeliveries] = {}
        self._grpc: GrpcTraffic | None = None

    # -- the story -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Go through all steps. Raises StoryFailed."""
        steps: Sequence[tuple[str, Callable[[], str]]] = [
            ("empty slave", self._copy_to_empty_slave),
            ("in step", lambda: self._with_fault(lambda: time.sleep(3))),
            ("slave killed", lambda: self._with_fault(self._kill_slave)),
            ("slave stopped 4 s", lambda: self._with_fault(self._suspend_slave)),
            ("link silent 8 s", lambda: self._with_fault(self._drop_link)),
            ("master stopped 6 s", lambda: self._with_fault(self._suspend_master)),
            ("master killed", lambda: self._with_fault(self._kill_master)),
            ("takeover", self._take_over),
            ("old master back", self._return_old_master),
            ("hung master wakes", self._replace_hung_master),
            ("clients", self._judge_clients),
            ("other kind opens it", self._open_with_other_kind),
        ]
        left_out = set(LEFT_OUT_OF_SHORT) if self._is_short else set()
        if not self._network.can_drop:
            left_out.add("link silent 8 s")
        try:
            self._start_master()
        except (StockClientError, RuntimeError, *REQUEST_FAILURES) as error:
            raise StoryFailed(f"start: {error}") from error
        for name, step in steps:
            if name in left_out:
                continue
            begun_s = time.monotonic()
            try:
                self.row.cells[name] = step()
            except (AssertionError, StoryFailed, RuntimeError, StockClientError, *REQUEST_FAILURES) as error:
                self.row.cells[name] = "FAILED"
                raise StoryFailed(f"{name}: {error}") from error
            pair, took_s = f"{self.row.master} → {self.row.slave}", time.monotonic() - begun_s
            log.info("%s, %s: %s (%.0f s)", pair, name, self.row.cells[name], took_s)
        self.row.cells["acknowledged"] = f"{self._history.promised:,} of {self._history.attempts:,} attempts"

    def _start_master(self) -> None:
        self._master.start(MASTER_ROLE)
        with connect(self._master.address) as broker:
            broker.ask(topic_request(TOPIC, QUEUES))
            broker.ask(topic_request(GRPC_TOPIC, QUEUES))
            for group in (*map(_group, LINES), GRPC_GROUP):
                create_group(broker, group)
        with connect(self._namesrv) as namesrv:
            eventually(lambda: has_route(namesrv, TOPIC), 40)
        self._send_backlog()
        for number in range(SENDERS):
            sender = TypedSender(partial(find_master, self._namesrv), self._history)
            self._load.add(number, sender.send, 0.003, sender.close)
        if not self._is_short:
            for version in LINES:
                self._start_java(version)

    def _send_backlog(self) -> None:
        """Send several log files full before there is a slave."""
        properties = {"WAIT": "false"}
        with connect(self._master.address, timeout_s=60) as broker:
            for begin in range(0, BACKLOG, 200):
                requests = []
                bodies = [
                    b"%d-0 " % (BACKLOG_PRODUCERS + number) + BACKLOG_BODY
                    for number in range(begin, begin + 200)
                ]
                for body in bodies:
                    self._history.note_attempt(body, 0)
                    requests.append(send_request(TOPIC, body, properties=properties))
                for body, reply in zip(bodies, broker.pipeline(requests, timeout_s=60), strict=True):
                    # It has no copy yet, whatever the answer says.
                    self._history.note_answer(body, reply.queue_offset, reply.code or 11)

    def _start_java(self, version: str) -> None:
        driver = self._stack.enter_context(closing(JavaDriver(LINES[version], self._namesrv)))
        client = JavaClient(driver, version)
        warm_up(client)
        name = f"{_group(version)}-producers"
        self._stack.enter_context(client.producer(name, pollNameServerInterval=1000, sendMsgTimeout=4000))
        consumer = client.push(_group(version), TOPIC, orderly=version == "4.9.8")
        self._deliveries[version] = JavaDeliveries(self._stack.enter_context(consumer))
        self._load.add(STOCK_PRODUCERS[version], JavaSender(client, name, self._history).send, 0.02)

    def _start_grpc(self) -> bool:
        """Start a Proxy and its client, once the master is a broker whose messages a Proxy can pop.

        Returns True if they were started now.
        """
        if self._is_short or self._grpc is not None or self._master.kind is OFFICIAL_4:
            return False
        proxy = self._stack.enter_context(self._start_proxy())
        driver = self._stack.enter_context(closing(start_grpc_driver(proxy.address)))
        self._grpc = GrpcTraffic(StockGrpcClient(driver, proxy.address), GRPC_GROUP)
        self._stack.enter_context(self._grpc.running(self._load, GRPC_PRODUCER, 0.05))
        return True

    def _start_proxy(self) -> OfficialProxy:
        try:
            return OfficialProxy(self._namesrv)
        except RuntimeError:  # On a busy machine it gives up on the topic that it has just created.
            return OfficialProxy(self._namesrv)

    def _copy_to_empty_slave(self) -> str:
        begun_s = time.monotonic()
        self._slave.start(SLAVE_ROLE)
        self._wait_until_in_step()
        took_s = time.monotonic() - begun_s
        absent = absent_files(self._master.store, self._slave.store)
        files = len(log_files(self._master.store))
        if absent:
            if not self._are_official:
                raise StoryFailed(f"the slave lacks {len(absent)} of {files} log files")
        else:
            self._history.promise_stored()
        if not self._is_short:  # An official slave asks for them once a minute.
            eventually(self._has_tables, 90)
        self._start_grpc()
        return f"last of {files} files only" if absent else f"{files} files, {took_s:.0f} s"

    def _has_tables(self) -> bool:
        try:
            with connect(self._slave.address) as slave:
                topics = slave.ask(GetAllTopicConfig()).data.topic_config_table
                groups = slave.ask(GetAllSubscriptionGroupConfig()).data.subscription_group_table
        except REQUEST_FAILURES:
            return False
        return {TOPIC, GRPC_TOPIC} <= topics.keys() and GRPC_GROUP in groups

    # -- faults --------------------------------------------------------------------------------------------

    def _with_fault(self, fault: Callable[[], object]) -> str:
        """Send during a fault and for a second after it, then let the slave catch up; return what was answered."""
        before = Counter(self._history.statuses)
        with self._load.running():
            fault()
            time.sleep(1)
        statuses = self._history.statuses - before
        took_s = self._wait_until_in_step()
        if not statuses[SEND_OK]:
            raise StoryFailed("nothing was answered with SEND_OK")
        return f"{_describe(statuses)}; in step after {took_s:.1f} s"

    def _kill_slave(self) -> None:
        time.sleep(0.5)
        self._slave.kill()
        time.sleep(2)
        self._slave.start(SLAVE_ROLE)
        self._wait_until_connected()

    def _suspend_slave(self) -> None:
        time.sleep(0.5)
        with _suspended(self._slave):
            time.sleep(4)

    def _drop_link(self) -> None:
        time.sleep(0.5)
        with _dropped(self._network):
            time.sleep(8)
        self._wait_until_connected()

    def _suspend_master(self) -> None:
        time.sleep(0.5)
        with _suspended(self._master):
            time.sleep(6)
        self._wait_until_connected()

    def _kill_master(self) -> None:
        time.sleep(0.5)
        self._master.kill()
        self._master.start(MASTER_ROLE)
        self._wait_until_connected()

    def _wait_until_connected(self) -> None:
        """Wait until a message is answered with SEND_OK again."""
        before = self._history.statuses[SEND_OK]
        eventually(lambda: self._history.statuses[SEND_OK] > before, 60)

    def _wait_until_in_step(self, timeout_s: float = IN_STEP_S) -> float:
        """Wait until both logs have the same end, and compare them; return how long that took."""
        begun_s = time.monotonic()
        end = eventually(self._common_end, timeout_s, every_s=0.1)
        took_s = time.monotonic() - begun_s
        difference = find_difference(self._master.store, self._slave.store, end)
        if difference is not None:
            raise StoryFailed(f"the slave's log up to {end} differs from the master's at {difference}")
        return took_s

    def _common_end(self) -> int | None:
        end = log_end(self._master.address)
        return end if 0 <= end == log_end(self._slave.address) else None

    # -- changes of the master -----------------------------------------------------------------------------

    def _take_over(self) -> str:
        """The link goes, the master stores what its slave never gets, and is killed; the slave becomes the master."""
        before = Counter(self._history.statuses)
        with self._load.running():
            time.sleep(1)
            with _dropped(self._network):
                time.sleep(3)
                self._master.kill()
            self._slave.promote()
            if self._is_short:
                with connect(self._slave.address) as broker:
                    broker.ask(topic_request(TOPIC, QUEUES))
            eventually(lambda: members(self._namesrv).get(0) == self._slave.address, 40)
            self._master, self._slave = self._slave, self._master
            count = self._history.statuses.total()
            eventually(lambda: self._history.statuses.total() > count + 20, 60)
            time.sleep(1)
        if self._start_grpc():
            with self._load.running():
                time.sleep(3)
        judgement = self._judge(self._master.address)
        return f"{_describe(self._history.statuses - before)}; {_verdict(judgement)}"

    def _return_old_master(self) -> str:
        """Start the former master as a slave. What only it has must go, or nothing must be copied to it."""
        before = log_files(self._slave.store)
        is_prefix = is_prefix_of_master(self._master.store, self._slave.store)
        self._slave.start(SLAVE_ROLE)
        try:
            is_patient = self._slave.kind is OURS or not self._is_short
            self._wait_until_in_step(RETURN_S if is_patient else SHORT_RETURN_S)
        except (AssertionError, StoryFailed) as error:
            if self._slave.kind is OURS:
                raise
            after = log_files(self._slave.store)
            changed = sum(after.get(name) != data for name, data in before.items())
            if changed and not self._are_official:
                raise StoryFailed("the master appended to a log that differs") from error
            return "differs, merged" if changed else "does not follow"
        with self._load.running():
            time.sleep(1)
        self._wait_until_in_step()
        return "nothing to cut, in step" if is_prefix else "cut, in step"

    def _replace_hung_master(self) -> str:
        """Promote the slave of a master that hangs, and wake that one up: it must not promise anything more."""
        if not self.row.cells["old master back"].endswith("in step"):
            return "-"
        before = Counter(self._history.statuses)
        with self._load.running():
            time.sleep(1)
            with _suspended(self._master):
                self._slave.promote()
                eventually(lambda: members(self._namesrv).get(0) == self._slave.address, 40)
                time.sleep(3)
            self._master, self._slave = self._slave, self._master
            count = self._history.statuses.total()
            eventually(lambda: self._history.statuses.total() > count + 20, 60)
            time.sleep(6)
        judgement = self._judge(self._master.address)
        return f"{_describe(self._history.statuses - before)}; {_verdict(judgement)}"

    def _open_with_other_kind(self) -> str:
        """Stop the master, and open a copy of its store with a broker of the other kind."""
        self._load.close()
        self._slave.kill()
        self._master.stop()
        kind = OFFICIAL if self._master.kind is OURS else OURS
        machine = Machine("127.0.0.1", self._directory / "o")
        shutil.copytree(self._master.store, machine.directory / "store")
        port = find_ports(1)[0]
        with Gateway(self._directory / "on", "--port", str(port), command="namesrv"):
            other = new_member(kind, machine, f"127.0.0.1:{port}")
            self._stack.callback(other.kill)
            other.start({**MASTER_ROLE, "brokerRole": "ASYNC_MASTER"})
            judgement = self._judge(other.address)
            self.row.cells["stored twice"] = str(judgement.duplicates)
            other.kill()
        return f"{kind.name}: {_verdict(judgement)}"

    # -- judgement -----------------------------------------------------------------------------------------

    def _judge(self, address: str) -> Judgement:
        """Judge what a broker serves; of two official ones, the faults are only shown."""
        judgement = self._history.judge(read_topic(address))
        if judgement.faults and not self._are_official:
            raise StoryFailed(f"{judgement.faults} of {judgement.read} messages read")
        return judgement

    def _judge_clients(self) -> str:
        """Wait until the consumers have everything that was acknowledged; count what they got more than once."""
        counts = judge_consumers(self._history.promised_bodies(), self._deliveries, self._grpc, DRAIN_S)
        texts = {client: str(deliveries) for client, deliveries in counts.items()}
        self.row.cells.update(texts)
        return "; ".join(f"{client}: {text}" for client, text in texts.items())


def _group(version: str) -> str:
    return "PairingGroup-" + version.replace(".", "-")


def _describe(statuses: Mapping[int, int]) -> str:
    """Return counts of the statuses in words."""
    return ", ".join(
        f"{count} {STATUS_NAMES.get(code, code)}" for code, count in sorted(statuses.items()) if count
    )


def _verdict(judgement: Judgement) -> str:
    faults = ", ".join(f"{count} {name}" for name, count in judgement.faults.items())
    return faults or "nothing lost"


@contextmanager
def _suspended(member: PairMember) -> Iterator[None]:
    suspend(member)
    try:
        yield
    finally:
        resume(member)


@contextmanager
def _dropped(network: MachineLink) -> Iterator[None]:
    """Lose everything between the machines during the block, where that is possible."""
    if network.can_drop:
        network.drop()
    try:
        yield
    finally:
        network.restore()


def run_pairing(
    master: BrokerKind, slave: BrokerKind, network: MachineLink, directory: Path, *, is_short: bool = False
) -> PairingRow:
    """Run the story of one pairing and return its row."""
    with network, ExitStack() as stack:
        pairing = Pairing(master, slave, network, directory, stack, is_short=is_short)
        try:
            pairing.run()
        except StoryFailed as error:
            pairing.row.failure = str(error)
        return pairing.row
