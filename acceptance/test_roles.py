"""Changes of the role, with two of our brokers as processes: a killed master, its return, and a hand-over."""

import itertools
import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from acceptance.test_cluster import available, namesrv_alone
from codec.message import iter_messages
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import connect, create_group, has_route, send_request, topic_request
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.namesrv import GetBrokerClusterInfo
from remoting.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from remoting.requests.pull import PullMessage
from remoting.requests.roles import BrokerRoleStatus, GetBrokerRole
from tools.processes import Gateway, environment

TOPIC, QUEUES, GROUP = "Roles", 4, "RolesGroup"
STORED = {0, 10, 11, 12}
"""Codes of messages that are stored, if only on the master."""


def run_command(home: Path, namesrv: str, *arguments: str) -> Any:
    """Run a command about a cluster, and return its JSON."""
    line = [sys.executable, "-m", "gateway.commands.cli", *arguments, "--namesrv", namesrv, "--json"]
    run = subprocess.run(line, capture_output=True, text=True, env=environment(home), timeout=180)
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads(run.stdout)


class Pair:
    """A namesrv, and two brokers of one name that can be killed and started again."""

    def __init__(self, directory: Path, stack: ExitStack, *settings: str) -> None:
        self._directory = directory
        self._stack = stack
        self.namesrv = stack.enter_context(namesrv_alone(directory / "n"))
        self._ports = [find_server_ports()[1] for _ in range(2)]
        self.settings = [
            ["brokerRole=SYNC_MASTER", *settings],
            ["brokerRole=SLAVE", "brokerId=1", *settings],
        ]
        self.brokers = [self.start(0), self.start(1)]

    def start(self, index: int) -> Gateway:
        directory = self._directory / f"b{index}"
        sets = [
            "brokerName=broker-a",
            "brokerIP1=127.0.0.1",
            "autoCreateTopicEnable=true",
            *self.settings[index],
        ]
        options = ["-n", self.namesrv.namesrv, "--store", str(directory / "store"), "--host", "127.0.0.1"]
        options += ["--port", str(self._ports[index])]
        for setting in sets:
            options += ["--set", setting]
        return self._stack.enter_context(Gateway(directory, *options, command="broker"))

    def restart(self, index: int) -> None:
        self.brokers[index] = self.start(index)

    def address(self, index: int) -> str:
        return self.brokers[index].broker

    def status(self, index: int) -> BrokerRoleStatus:
        with connect(self.address(index)) as broker:
            return broker.ask(GetBrokerRole()).data

    def command(self, *arguments: str) -> Any:
        """Run a command about the cluster, and return its JSON."""
        return run_command(self._directory, self.namesrv.namesrv, *arguments)

    def members(self) -> dict[int, str]:
        with connect(self.namesrv.namesrv) as namesrv:
            table = namesrv.ask(GetBrokerClusterInfo()).data.broker_addr_table
        return dict(table["broker-a"].broker_addrs) if "broker-a" in table else {}

    def is_in_step(self, master: int, slave: int) -> bool:
        ends = [self.status(index) for index in (master, slave)]
        return ends[0].log_end == ends[1].log_end and ends[1].state == "copying"


@contextmanager
def pair(directory: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        running = Pair(directory, stack)
        eventually(lambda: set(running.members()) == {0, 1}, 30)
        eventually(lambda: running.status(1).state == "copying", 40)
        with connect(running.address(0)) as master:
            master.ask(topic_request(TOPIC, QUEUES))
        with connect(running.namesrv.namesrv) as namesrv:
            eventually(lambda: has_route(namesrv, TOPIC), 20)
        yield running


class Senders:
    """Threads that send numbered messages to the master that they know, and note which were acknowledged.

    As stock producers do, they learn of another master by looking the route up every half a second, and send a message
    again when it fails.
    """

    def __init__(self, running: Pair, threads: int = 3) -> None:
        self._running = running
        self._is_over = threading.Event()
        self.acknowledged: list[bytes] = []
        self.statuses: dict[int, int] = {}
        self.failures: list[str] = []
        self.max_attempts = 0
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(threads)]

    def __enter__(self) -> "Senders":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def _send(self, number: int) -> None:
        connection: BlockingClient | None = None
        address, looked_s = self._running.members()[0], time.monotonic()
        for count in itertools.count():
            if self._is_over.is_set():
                break
            body = b"%d-%d" % (number, count)
            for attempt in itertools.count(1):
                if time.monotonic() > looked_s + 0.5:
                    looked_s, found = time.monotonic(), self._running.members().get(0)
                    if found is not None and found != address:
                        _close(connection)
                        address, connection = found, None
                try:
                    connection = connection or connect(address, timeout_s=5)
                    request = send_request(TOPIC, body, queue_id=count % QUEUES)
                    answer = connection.send_command(request.to_command(count))
                except (OSError, RemotingClosed, RemotingTimeout) as error:
                    _close(connection)
                    connection, problem = None, str(error)
                else:
                    self.statuses[answer.code] = self.statuses.get(answer.code, 0) + 1
                    if answer.code in STORED:
                        self.acknowledged.append(body)
                        break
                    problem = f"{answer.code} {answer.remark}"
                self.failures.append(problem)
                self.max_attempts = max(self.max_attempts, attempt + 1)
                if self._is_over.is_set():
                    break
                time.sleep(0.1)
        _close(connection)

    def wait_for(self, more: int) -> None:
        """Wait until so many more messages are acknowledged."""
        goal = len(self.acknowledged) + more
        eventually(lambda: len(self.acknowledged) >= goal, 60)


def _close(connection: BlockingClient | None) -> None:
    if connection is not None:
        connection.close()


def read_all(address: str) -> list[bytes]:
    """Return the bodies of all messages of the topic."""
    bodies = []
    with connect(address) as broker:
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                answer = broker.ask(
                    PullMessage(
                        consumer_group=GROUP, topic=TOPIC, queue_id=queue_id, queue_offset=offset,
                        max_msg_nums=32, sys_flag=4, commit_offset=0, suspend_timeout_millis=0,
                        subscription="*", sub_version=0,
                    )
                )  # fmt: skip
                found = [bytes(message.body) for message in iter_messages(answer.body)] if answer.body else []
                if not found:
                    break
                bodies += found
                offset = answer.next_begin_offset
    return bodies


def assert_nothing_lost(senders: Senders, address: str) -> int:
    """Return the number of messages that are there more than once."""
    bodies = read_all(address)
    missing = set(senders.acknowledged) - set(bodies)
    assert not missing, f"{len(missing)} of {len(senders.acknowledged)} acknowledged messages are missing"
    return len(bodies) - len(set(bodies))


def same_log(running: Pair) -> bool:
    """Return True if both commit logs are the same, byte by byte, up to the end of the messages."""
    ends = [running.status(index).log_end for index in (0, 1)]
    if ends[0] != ends[1]:
        return False
    logs = []
    for index in (0, 1):
        folder = running._directory / f"b{index}" / "store" / "commitlog"
        logs.append(b"".join(path.read_bytes() for path in sorted(folder.iterdir()))[: ends[0]])
    return logs[0] == logs[1]


def test_a_slave_takes_over_from_a_killed_master_and_it_returns_as_slave(tmp_path: Path) -> None:
    with pair(tmp_path) as running:
        with Senders(running) as senders:
            senders.wait_for(300)
            assert set(senders.statuses) == {0}, "a SYNC_MASTER with its slave"
            running.brokers[0].kill()
            time.sleep(0.5)
            (row,) = running.command(
                "broker", "promote", running.address(1), "--role", "SYNC_MASTER", "--yes"
            )
            assert (row["role"], row["id"]) == ("SYNC_MASTER", 0)
            senders.wait_for(300)
        assert_nothing_lost(senders, running.address(1))

        running.restart(0)
        with connect(running.address(0)) as former, pytest.raises(RequestError, match="the live broker at"):
            former.ask(send_request(TOPIC, b"lost"))
        assert running.members()[0] == running.address(1)
        (row,) = running.command("broker", "demote", running.address(0), "--id", "1", "--yes")
        assert (row["role"], row["id"]) == ("SLAVE", 1)
        eventually(lambda: running.is_in_step(1, 0), 40)
        assert same_log(running)
        rows = running.command("broker", "status")
        assert [(row["role"], row["address"]) for row in rows] == [
            ("SYNC_MASTER", running.address(1)),
            ("SLAVE", running.address(0)),
        ]
        with Senders(running) as again:
            again.wait_for(100)
        assert set(again.statuses) == {0}
        eventually(lambda: same_log(running), 20)


def test_a_former_master_is_cut_to_where_it_is_the_same(tmp_path: Path) -> None:
    """The master stores messages that no slave has, and goes."""
    with pair(tmp_path) as running:
        with Senders(running) as senders:
            senders.wait_for(100)
        running.brokers[1].kill()
        with connect(running.address(0)) as master:
            for number in range(50):
                answer = master.send_command(send_request(TOPIC, b"only here %d" % number).to_command(1))
                assert answer.code == 11, "SLAVE_NOT_AVAILABLE says that there is one copy"
        running.brokers[0].kill()
        running.restart(1)
        running.command("broker", "promote", running.address(1), "--force", "--yes")
        with Senders(running) as more:
            more.wait_for(100)
        running.restart(0)
        running.command("broker", "demote", running.address(0), "--yes")
        eventually(lambda: running.is_in_step(1, 0), 40)
        assert same_log(running)
        assert running.brokers[0].lines("this log differs from the master's")
        assert_nothing_lost(senders, running.address(1))
        assert_nothing_lost(more, running.address(1))


def test_a_planned_change_loses_nothing_and_fails_nothing(tmp_path: Path) -> None:
    with pair(tmp_path) as running:
        with connect(running.address(0)) as master, Senders(running) as senders:
            create_group(master, GROUP)
            senders.wait_for(300)
            for offset in range(1, 50):
                commit = {"consumer_group": GROUP, "topic": TOPIC, "queue_id": 0, "commit_offset": offset}
                master.ask(UpdateConsumerOffset(**commit))
            (row,) = running.command("broker", "promote", "broker-a", "--yes")
            assert (row["role"], row["id"], row["address"]) == ("SYNC_MASTER", 0, running.address(1))
            senders.wait_for(300)
            eventually(lambda: running.members() == {0: running.address(1), 1: running.address(0)}, 10)
            senders.wait_for(100)
        assert senders.failures == []
        assert_nothing_lost(senders, running.address(1))
        with connect(running.address(1)) as master:
            query = QueryConsumerOffset(consumer_group=GROUP, topic=TOPIC, queue_id=0)
            assert master.ask(query).offset == 49
        eventually(lambda: running.is_in_step(1, 0), 40)
        eventually(lambda: same_log(running), 20)
        (row,) = running.command("broker", "promote", running.address(0), "--yes")
        assert row["address"] == running.address(0)
        for index in (0, 1):
            assert running.brokers[index].stop() == 0
            running.restart(index)
        eventually(lambda: running.members() == {0: running.address(0), 1: running.address(1)}, 30)
        eventually(lambda: running.is_in_step(0, 1), 40)


def test_a_laptop_runs_master_and_slave(tmp_path: Path) -> None:
    with Gateway(tmp_path, "--replicas", "2", "--store", str(tmp_path / "store")) as server:
        assert set(server.brokers) == {"broker-a", "broker-a/1"}
        with connect(server.brokers["broker-a"]) as master:
            master.ask(topic_request(TOPIC, QUEUES))
            for number in range(20):
                master.ask(send_request(TOPIC, b"%d" % number))
        with connect(server.brokers["broker-a/1"]) as slave:
            eventually(lambda: slave.ask(GetBrokerRole()).data.state == "copying", 40)
            eventually(lambda: slave.ask(GetBrokerRole()).data.behind_bytes == 0, 20)
        (row,) = run_command(tmp_path, server.namesrv, "broker", "promote", "broker-a", "--yes")
        assert row["id"] == 0
        bodies = read_all(server.brokers["broker-a/1"])
        assert sorted(map(int, bodies)) == list(range(20))
        assert re.search(r"broker handed over and became slave", server.output())


def first_answer(address: tuple[str, int]) -> bytes:
    """Ask a HA port for the log as an official slave does, and return its first bytes, b"" if it closes."""
    with socket.create_connection(address, 5) as intruder:
        intruder.sendall(struct.pack(">q", 0))
        with suppress(ConnectionResetError):
            return intruder.recv(4096)
    return b""


def test_the_port_for_slaves_is_locked_where_access_control_is_on(tmp_path: Path) -> None:
    user, key = (
        '{"username":"root","password":"open sesame"}',
        '{"accessKey":"root","secretKey":"open sesame"}',
    )
    locked = (
        "authenticationEnabled=true",
        "authorizationEnabled=true",
        f"initAuthenticationUser={user}",
        f"innerClientAuthenticationCredentials={key}",
        "tls.server.mode=enforcing",
        "tls.enable=true",
        "tls.client.authServer=false",
    )
    with ExitStack() as stack:
        running = Pair(tmp_path, stack, *locked)
        eventually(lambda: running.brokers[1].lines("follows its master"), 40)
        (connected,) = running.brokers[0].lines("slave connected")
        assert "remote=127.0.0.1" in connected
        host, _, port = running.address(0).rpartition(":")
        assert first_answer((host, int(port) + 1)) == b""
        assert running.brokers[0].lines("connection without TLS refused")
        assert len(running.brokers[0].lines("slave connected")) == 1


def test_an_official_slave_needs_an_address_in_the_list(tmp_path: Path) -> None:
    with ExitStack() as stack:
        running = Pair(tmp_path, stack, "haAllowedAddresses=10.99.0.0/16")
        eventually(lambda: running.brokers[0].lines("127.0.0.1 is not in haAllowedAddresses"), 40)
        host, _, port = running.address(0).rpartition(":")
        assert first_answer((host, int(port) + 1)) == b""
        running.brokers[0].kill()
        running.settings[0][-1] = "haAllowedAddresses=127.0.0.1;10.99.0.0/16"
        running.restart(0)
        eventually(lambda: running.status(1).state == "copying", 40)


@pytest.mark.both_servers
@pytest.mark.parametrize("profile", ["client-4.9", "client-5.5"])
def test_a_stock_java_client_sees_no_error_of_a_planned_change(tmp_path: Path, profile: str) -> None:
    """Its route is up to 30 s old, so the former master passes its messages on; its consumer goes on as well."""
    with (
        pair(tmp_path) as running,
        available(),
        closing(JavaDriver(profile, running.namesrv.namesrv)) as driver,
        JavaClient(driver, profile).producer("p") as producer,
        JavaClient(driver, profile).push(GROUP, TOPIC) as consumer,
    ):
        sent = producer.send_numbered(TOPIC, 50)
        changing = threading.Thread(
            target=running.command, args=("broker", "promote", "broker-a", "--yes"), daemon=True
        )
        changing.start()
        while changing.is_alive() or len(sent) < 150:
            sent += producer.send({"topic": TOPIC, "body": f"during {len(sent)}"})
        changing.join()
        assert running.members()[0] == running.address(1)
        assert {one["status"] for one in sent} <= {"SEND_OK", "SLAVE_NOT_AVAILABLE"}
        received = consumer.received(len(sent), 90)
        assert {one["body"] for one in received} >= {str(number) for number in range(50)}
        assert len(read_all(running.address(1))) == len(sent)
