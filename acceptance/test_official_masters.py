"""Our slaves at official masters: they copy log and tables, survive kills of either, and take a cluster over."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from acceptance.test_cluster import BROKERS, available, namesrv_alone
from acceptance.test_replicas import commit_log
from acceptance.test_roles import run_command
from codec.message import iter_messages
from codec.properties import properties_text
from compat_tests.clients.typed import connect, create_group, has_route, send, topic_request
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually
from remoting.bodies.progress import ConsumerOffsetSerializeWrapper
from remoting.errors import REQUEST_FAILURES, RequestError
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.offsets import (
    GetAllConsumerOffset,
    GetMaxOffset,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from remoting.requests.pull import PullMessage
from remoting.requests.topics import GetAllTopicConfig
from tools.processes import Gateway

pytestmark = pytest.mark.both_servers
FILE_BYTES = 1 << 20
SETTINGS = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "brokerRole": "ASYNC_MASTER",
    "brokerName": "broker-a",
}
TOPIC, GROUP = "Copied", "CopiedGroup"


class OfficialPair:
    """An official master, and our slave of it, which can be killed and started again."""

    def __init__(self, directory: Path, stack: ExitStack, profile: str) -> None:
        self._directory = directory
        self._stack = stack
        self.namesrv = stack.enter_context(namesrv_alone(directory / "n")).namesrv
        self.master = OfficialEndpoint(SETTINGS, directory / "m", namesrv=self.namesrv, profile=profile)
        stack.enter_context(self.master)
        self._port = find_server_ports()[1]
        self.slave: Gateway | None = None

    @property
    def slave_store(self) -> Path:
        return self._directory / "s" / "store"

    @property
    def slave_address(self) -> str:
        assert self.slave is not None
        return self.slave.broker

    def start_slave(self) -> Gateway:
        options = ["-n", self.namesrv, "--store", str(self.slave_store), "--host", "127.0.0.1"]
        options += ["--port", str(self._port)]
        for setting in (
            "brokerName=broker-a", "brokerRole=SLAVE", "brokerId=1", "brokerIP1=127.0.0.1",
            f"mappedFileSizeCommitLog={FILE_BYTES}",
        ):  # fmt: skip
            options += ["--set", setting]
        self.slave = self._stack.enter_context(Gateway(self._directory / "s", *options, command="broker"))
        return self.slave

    def log_end(self, address: str) -> int:
        with connect(address) as broker:
            return int(broker.ask(GetBrokerRuntimeInfo()).data.table["commitLogMaxOffset"])

    def has_all(self) -> bool:
        try:
            return self.log_end(self.master.broker) == self.log_end(self.slave_address)
        except RequestError:  # a 4.9 broker fails before it has taken its first sample
            return False

    def check_equal(self) -> None:
        """Assert that log and queues of the slave are the master's."""
        eventually(self.has_all, 60)
        own, copies = commit_log(self.master.store), commit_log(self.slave_store)
        assert {name: data == copies.get(name) for name, data in own.items()} == dict.fromkeys(own, True)
        with connect(self.master.broker) as master, connect(self.slave_address) as slave:
            for queue_id in range(4):
                last = GetMaxOffset(topic=TOPIC, queue_id=queue_id)
                eventually(lambda last=last: slave.ask(last).offset == master.ask(last).offset, 20)  # type: ignore[misc]


@contextmanager
def pair(directory: Path, profile: str) -> Iterator[OfficialPair]:
    with ExitStack() as stack, available():
        running = OfficialPair(directory, stack, profile)
        with connect(running.master.broker) as master:
            master.ask(topic_request(TOPIC, 4))
            create_group(master, GROUP)
        with connect(running.namesrv) as namesrv:
            eventually(lambda: has_route(namesrv, TOPIC), 40)
        yield running


def fill(address: str, count: int) -> None:
    with connect(address) as master:
        for number in range(count):
            send(master, TOPIC, b"%d " % number + b"x" * 900, queue_id=number % 4)


@contextmanager
def sending(address: str) -> Iterator[None]:
    """Send messages during the block, until the master is gone."""
    is_over = threading.Event()

    def send_all() -> None:
        try:
            while not is_over.is_set():
                fill(address, 20)
        except REQUEST_FAILURES:
            pass

    thread = threading.Thread(target=send_all)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def topics_of(address: str) -> set[str]:
    with connect(address) as broker:
        return set(broker.ask(GetAllTopicConfig()).data.topic_config_table)


@pytest.mark.parametrize("version", BROKERS)
def test_our_slave_copies_an_official_master_through_kills_of_either(tmp_path: Path, version: str) -> None:
    with pair(tmp_path, BROKERS[version]) as running:
        # More than one log file before there is a slave: an official one would get the last only.
        fill(running.master.broker, 4000)
        with connect(running.master.broker) as master:
            committed = UpdateConsumerOffset(consumer_group=GROUP, topic=TOPIC, queue_id=1, commit_offset=17)
            master.ask(committed)
        running.start_slave()
        running.check_equal()
        assert len(commit_log(running.slave_store)) > 2
        # Killed while messages come.
        with sending(running.master.broker):
            time.sleep(0.5)
            assert running.slave is not None
            running.slave.kill()
            time.sleep(0.2)
            running.start_slave()
            time.sleep(1)
        running.check_equal()
        eventually(lambda: topics_of(running.master.broker) <= topics_of(running.slave_address), 30)
        with connect(running.slave_address) as slave:
            table: ConsumerOffsetSerializeWrapper = slave.ask(GetAllConsumerOffset()).data
            assert table.offset_table[f"{TOPIC}@{GROUP}"][1] == 17
        # The master is killed while messages come, and returns.
        with sending(running.master.broker):
            time.sleep(0.5)
            running.master.crash()
        running.master.start()
        fill(running.master.broker, 100)
        running.check_equal()


def read_all(address: str) -> list[str]:
    """Return the bodies of the short messages in the topic's first queue."""
    found: list[str] = []
    with connect(address) as broker:
        offset, end = 0, broker.ask(GetMaxOffset(topic=TOPIC, queue_id=0)).offset
        while offset < end:
            reply = broker.ask(
                PullMessage(
                    consumer_group=GROUP, topic=TOPIC, queue_id=0, queue_offset=offset, max_msg_nums=32, sys_flag=4,
                    commit_offset=0, suspend_timeout_millis=0, subscription="*", sub_version=0,
                )
            )  # fmt: skip
            if not reply.body:
                break
            for message in iter_messages(reply.body):
                found.append(bytes(message.body).decode())
                offset = message.queue_offset + 1
    return found


def test_a_cluster_moves_from_an_official_broker_to_ours(tmp_path: Path) -> None:
    """Follow the official master, stop it, promote: what waits comes at its time, and nothing comes twice."""
    with pair(tmp_path, BROKERS["5.4.0"]) as running:
        running.start_slave()
        begin_ms = int(time.time() * 1000)

        def send_later(body: str, **properties: str) -> None:
            text = properties_text({"UNIQ_KEY": f"key-{body}", **properties})
            with connect(running.master.broker) as master:
                send(master, TOPIC, body.encode(), properties=text)

        send_later("at once")
        send_later("level 3", DELAY="3")
        send_later("level 5", DELAY="5")
        for delay_s in (3, 9, 45, 60):
            send_later(f"timer {delay_s}", TIMER_DELIVER_MS=str(begin_ms + delay_s * 1000))
        with connect(running.master.broker) as master:
            master.ask(UpdateConsumerOffset(consumer_group=GROUP, topic=TOPIC, queue_id=0, commit_offset=1))
        early = ["at once", "timer 3", "timer 9", "level 3"]
        eventually(lambda: sorted(read_all(running.master.broker)) == sorted(early), 40)
        # Everything, the tables too, which are copied every few seconds.
        time.sleep(12)
        eventually(running.has_all, 30)
        running.master.crash()
        promoted = run_command(
            tmp_path, running.namesrv, "broker", "promote", running.slave_address, "--force", "--yes"
        )
        assert promoted
        with connect(running.slave_address) as new:
            offset = new.ask(QueryConsumerOffset(consumer_group=GROUP, topic=TOPIC, queue_id=0)).offset
            assert offset == 1
            send(new, TOPIC, b"to the new master")
        late = [*early, "to the new master", "timer 45", "timer 60", "level 5"]
        eventually(lambda: len(read_all(running.slave_address)) >= len(late), 90)
        time.sleep(3)
        assert sorted(read_all(running.slave_address)) == sorted(late)
