"""Slaves of our masters: each is told where to copy from, and copies, however the processes are arranged."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from acceptance.test_cluster import available, namesrv_alone
from compat_tests.clients.typed import connect, create_group, has_route, send, topic_request
from compat_tests.endpoints.official import ReplicaEndpoint
from compat_tests.server import eventually
from remoting.bodies.pop import SetMessageRequestModeRequestBody
from remoting.bodies.registration import RegisterBrokerBody
from remoting.bodies.topics import TopicConfig, TopicConfigAndMappingSerializeWrapper
from remoting.requests.groups import GetAllSubscriptionGroupConfig
from remoting.requests.ha import ExchangeBrokerHaInfo, GetBrokerHaStatus
from remoting.requests.namesrv import GetBrokerClusterInfo, RegisterBroker
from remoting.requests.offsets import GetAllConsumerOffset, GetAllDelayOffset, UpdateConsumerOffset
from remoting.requests.pop import GetAllMessageRequestMode, SetMessageRequestMode
from remoting.requests.timers import GetTimerCheckPoint
from remoting.requests.topics import GetAllTopicConfig
from tools.processes import Gateway

CLUSTER, REPLICA = "DefaultCluster", "127.0.0.1:1"


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Running processes: the namesrv's address, the brokers by name, and their stores."""

    namesrv: str
    brokers: dict[str, str]
    store: Path


@contextmanager
def in_one_process(directory: Path, *arguments: str) -> Iterator[Arrangement]:
    with Gateway(directory, "--store", str(directory / "store"), *arguments) as process:
        yield Arrangement(process.namesrv, process.brokers, directory / "store")


@contextmanager
def apart(directory: Path, *arguments: str) -> Iterator[Arrangement]:
    with ExitStack() as stack:
        namesrv = stack.enter_context(namesrv_alone(directory / "n"))
        place = ["-n", namesrv.namesrv, "--store", str(directory / "store"), *arguments]
        broker = stack.enter_context(Gateway(directory / "b", *place, command="broker"))
        with connect(namesrv.namesrv) as client:
            eventually(lambda: has_route(client, "TBW102"), 20)
        yield Arrangement(namesrv.namesrv, broker.brokers, directory / "store")


ARRANGEMENTS: dict[str, tuple[Callable[..., AbstractContextManager[Arrangement]], tuple[str, ...]]] = {
    "one broker": (in_one_process, ()),
    "several brokers": (in_one_process, ("--brokers", "2")),
    "broker processes": (in_one_process, ("--brokers", "2", "--processes")),
    "namesrv apart": (apart, ()),
}


def registration(broker_name: str) -> RegisterBroker:
    """Return the registration of a replica with two topics, as an official one sends it."""
    topics = {
        name: TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
        for name in ("T", "U")
    }
    wrapper = TopicConfigAndMappingSerializeWrapper(topic_config_table=topics)
    request = RegisterBroker(
        broker_name=broker_name,
        broker_addr=REPLICA,
        cluster_name=CLUSTER,
        ha_server_addr="127.0.0.1:2",
        broker_id=1,
    )
    request.body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=[]).to_json()
    return request


def read_frame(connection: socket.socket) -> tuple[int, bytes]:
    """Read what a master sends next: the physical offset, and bytes of the log."""
    stream = connection.makefile("rb")
    offset, size = struct.unpack(">qi", stream.read(12))
    return offset, stream.read(size)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_namesrv_and_master_say_where_to_copy_from(tmp_path: Path, arrangement: str) -> None:
    start, arguments = ARRANGEMENTS[arrangement]
    with start(tmp_path, *arguments) as running:
        ha_addresses = set()
        for name, master in running.brokers.items():
            with connect(running.namesrv) as namesrv:
                reply = namesrv.ask(registration(name))
                addresses = namesrv.ask(GetBrokerClusterInfo()).data.broker_addr_table[name].broker_addrs
            assert addresses == {0: master, 1: REPLICA}
            assert reply.master_addr == master
            assert reply.ha_server_addr is not None
            ha_addresses.add(reply.ha_server_addr)
            with connect(master) as broker:
                exchanged = broker.ask(ExchangeBrokerHaInfo())
                assert (exchanged.master_ha_address, exchanged.master_address) == (
                    reply.ha_server_addr,
                    master,
                )
                host, _, port = reply.ha_server_addr.rpartition(":")
                with socket.create_connection((host, int(port)), 5) as slave:
                    slave.sendall(struct.pack(">q", 0))
                    send(broker, "T", f"message of {name}".encode())
                    offset, log = read_frame(slave)
                    assert (offset, f"message of {name}".encode() in log) == (0, True)
                    status = broker.ask(GetBrokerHaStatus()).data
                    assert [info.transfer_from_where for info in status.ha_connection_info] == [len(log)]
        assert len(ha_addresses) == len(running.brokers)


def commit_log(store: Path) -> dict[str, bytes]:
    """Return the files of a commit log that have messages."""
    files = {path.name: path.read_bytes() for path in (store / "commitlog").iterdir()}
    return {name: data for name, data in files.items() if any(data)}


@pytest.mark.both_servers
@pytest.mark.parametrize("profile", ["server-5.4", "server-4.9"])
def test_an_official_slave_copies_our_log(tmp_path: Path, profile: str) -> None:
    settings = {
        "brokerRole": "SLAVE",
        "brokerId": "1",
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": "1048576",
    }
    with apart(tmp_path, "--set", "mappedFileSizeCommitLog=1048576") as running, available():
        (master,) = running.brokers.values()

        def is_listed(address: str) -> bool:
            with connect(running.namesrv) as namesrv:
                members = namesrv.ask(GetBrokerClusterInfo()).data.broker_addr_table["broker-a"]
                return address in members.broker_addrs.values()

        with connect(master) as broker:
            for number in range(3000):
                send(broker, "T", b"%d " % number + b"x" * 1000)
            endpoint = ReplicaEndpoint(
                settings, tmp_path / "replica", running.namesrv, is_listed, profile=profile
            )
            with endpoint:

                def has_all() -> bool:
                    status = broker.ask(GetBrokerHaStatus()).data
                    return [info.diff for info in status.ha_connection_info] == [0]

                eventually(has_all, 60)
                for number in range(200):
                    send(broker, "T", b"again %d" % number)
                eventually(has_all, 10)
                own, copies = commit_log(running.store), commit_log(endpoint.store)
                assert len(own) > 2
                assert {name: data == copies.get(name) for name, data in own.items()} == dict.fromkeys(
                    own, True
                )


@pytest.mark.both_servers
def test_an_official_slave_copies_our_tables(tmp_path: Path) -> None:
    """It asks for them 10 s after its start, and every minute. It answers from its own tables, as a master does."""
    settings = {"brokerRole": "SLAVE", "brokerId": "1", "brokerName": "broker-a"}
    with apart(tmp_path) as running, available():
        (master,) = running.brokers.values()

        def is_listed(address: str) -> bool:
            with connect(running.namesrv) as namesrv:
                members = namesrv.ask(GetBrokerClusterInfo()).data.broker_addr_table["broker-a"]
                return address in members.broker_addrs.values()

        with connect(master) as broker:
            for number in range(2500):  # more than one page
                broker.ask(topic_request(f"table-{number:04}", 1, attributes="+message.type=FIFO"))
            create_group(broker, "table-group", retry_max_times=3)
            send(broker, "table-0001", properties="DELAY\x011\x02")
            offset = UpdateConsumerOffset(
                consumer_group="table-group", topic="table-0001", queue_id=0, commit_offset=5
            )
            broker.ask(offset)
            mode = SetMessageRequestModeRequestBody(
                topic="table-0001", consumer_group="table-group", mode="POP", pop_share_queue_num=2
            )
            broker.ask(SetMessageRequestMode(data=mode))
            eventually(lambda: b"1:1" in broker.ask(GetAllDelayOffset()).body, 20)
            replica = ReplicaEndpoint(settings, tmp_path / "replica", running.namesrv, is_listed)
            with replica, connect(replica.broker) as slave:

                def has_tables() -> bool:
                    topics = slave.ask(GetAllTopicConfig()).data.topic_config_table
                    modes = slave.ask(GetAllMessageRequestMode()).data.message_request_mode_map
                    return "table-2499" in topics and bool(modes)

                eventually(has_tables, 150)
                topics = slave.ask(GetAllTopicConfig()).data.topic_config_table
                assert topics == broker.ask(GetAllTopicConfig()).data.topic_config_table
                groups = slave.ask(GetAllSubscriptionGroupConfig()).data.subscription_group_table
                assert groups["table-group"].retry_max_times == 3
                offsets = slave.ask(GetAllConsumerOffset()).data.offset_table
                assert offsets["table-0001@table-group"] == {0: 5}
                modes = slave.ask(GetAllMessageRequestMode()).data.message_request_mode_map
                assert modes["table-0001"]["table-group"].mode == "POP"
                assert b"1:1" in (replica.store / "config" / "delayOffset.json").read_bytes()
                assert len(slave.ask(GetTimerCheckPoint()).body) == 56
