"""Replicas of our brokers, which get no data yet: however the processes are arranged, the master says so."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from acceptance.test_cluster import available, namesrv_alone
from compat_tests.clients.typed import connect, has_route
from compat_tests.endpoints.official import ReplicaEndpoint
from compat_tests.server import eventually
from remoting.bodies.registration import RegisterBrokerBody
from remoting.bodies.topics import TopicConfig, TopicConfigAndMappingSerializeWrapper
from remoting.requests.ha import ExchangeBrokerHaInfo
from remoting.requests.namesrv import GetBrokerClusterInfo, RegisterBroker
from remoting.requests.pop import GetAllMessageRequestMode
from tools.processes import Gateway

NOTED = "a replica gets no data"
CLUSTER, REPLICA = "DefaultCluster", "127.0.0.1:1"


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Running processes: the namesrv's address, the brokers by name, and the logs to look into."""

    namesrv: str
    brokers: dict[str, str]
    logs: tuple[Gateway, ...]

    def warnings(self) -> list[str]:
        return [line for process in self.logs for line in process.lines(NOTED)]


@contextmanager
def in_one_process(directory: Path, *arguments: str) -> Iterator[Arrangement]:
    with Gateway(directory, "--store", str(directory / "store"), *arguments) as process:
        yield Arrangement(process.namesrv, process.brokers, (process,))


@contextmanager
def apart(directory: Path, *arguments: str) -> Iterator[Arrangement]:
    with ExitStack() as stack:
        namesrv = stack.enter_context(namesrv_alone(directory / "n"))
        place = ["-n", namesrv.namesrv, "--store", str(directory / "store"), *arguments]
        broker = stack.enter_context(Gateway(directory / "b", *place, command="broker"))
        with connect(namesrv.namesrv) as client:
            eventually(lambda: has_route(client, "TBW102"), 20)
        yield Arrangement(namesrv.namesrv, broker.brokers, (namesrv, broker))


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


def has_warnings(running: Arrangement, count: int) -> bool:
    return len(running.warnings()) == count


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_a_replica_learns_its_master_and_the_master_says_that_it_gets_no_data(
    tmp_path: Path, arrangement: str
) -> None:
    start, arguments = ARRANGEMENTS[arrangement]
    with start(tmp_path, *arguments) as running:
        for name, master in running.brokers.items():
            host, _, port = master.rpartition(":")
            with connect(running.namesrv) as namesrv:
                answer = namesrv.ask(registration(name))
                assert (answer.master_addr, answer.ha_server_addr) == (master, f"{host}:{int(port) + 1}")
                addresses = namesrv.ask(GetBrokerClusterInfo()).data.broker_addr_table[name].broker_addrs
                assert addresses == {0: master, 1: REPLICA}
            expected = len(running.warnings()) + 1
            with connect(master) as broker:
                remark = broker.ask(GetAllMessageRequestMode()).remark or ""
                assert remark.startswith(f"{name} does not replicate, so its replicas stay empty")
                refused = broker.send_command(ExchangeBrokerHaInfo().to_command(1))
                assert (refused.code, refused.remark) == (3, remark)
            eventually(partial(has_warnings, running, expected))
        # One warning of the master for each broker.
        assert len(running.warnings()) == len(running.brokers)


@pytest.mark.both_servers
def test_an_official_replica_is_listed_and_told_in_both_logs(tmp_path: Path) -> None:
    settings = {"brokerRole": "SLAVE", "brokerId": "1", "brokerName": "broker-a"}
    with apart(tmp_path) as running, available():

        def is_listed(address: str) -> bool:
            with connect(running.namesrv) as namesrv:
                members = namesrv.ask(GetBrokerClusterInfo()).data.broker_addr_table["broker-a"]
                return address in members.broker_addrs.values()

        with ReplicaEndpoint(settings, tmp_path / "replica", running.namesrv, is_listed):
            # An official replica asks its master first between 60 and 70 s after its start.
            eventually(lambda: all(process.lines(NOTED) for process in running.logs), 150)
