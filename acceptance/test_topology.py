"""Ports and advertised addresses of our processes, several brokers in one, and separate namesrvs and brokers."""

import socket
from functools import partial
from pathlib import Path

import pytest

from codec.ids import decode_message_id
from compat_tests.clients.typed import has_route, messages, pull, send, topic_request
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually, split_address
from remoting.blocking import BlockingClient
from remoting.bodies.routes import TopicRouteData
from remoting.errors import RemotingClosed
from remoting.requests.namesrv import GetBrokerClusterInfo, GetRouteInfoByTopic
from tools.processes import Gateway


def dial(where: str, host: str = "") -> BlockingClient:
    """Connect to "host:port", or to another host at that port."""
    own, port = split_address(where)
    return BlockingClient(host or own.strip("[]"), port, timeout_s=15)


def route(client: BlockingClient, topic: str) -> TopicRouteData:
    return client.ask(GetRouteInfoByTopic(topic=topic)).data


def masters(data: TopicRouteData) -> dict[str, str]:
    return {broker.broker_name: broker.broker_addrs[0] for broker in data.broker_datas}


# Several brokers in one process


def test_three_brokers(tmp_path: Path) -> None:
    """Each broker has a name, ports and a store of its own; a topic created on all of them is one topic to clients."""
    with Gateway(tmp_path, "--brokers", "3", "--store", str(tmp_path / "store")) as gateway:
        assert list(gateway.brokers) == ["broker-a", "broker-b", "broker-c"]
        assert len(set(gateway.brokers.values())) == 3
        with dial(gateway.namesrv) as namesrv:
            # A producer of a new topic uses this route, and so spreads its messages over all brokers.
            assert masters(route(namesrv, "TBW102")) == gateway.brokers
            for name, where in gateway.brokers.items():
                with dial(where) as broker:
                    broker.ask(topic_request("spread", 2))
                    assert send(broker, "spread", name.encode()).queue_offset == 0
            found = route(namesrv, "spread")
            assert masters(found) == gateway.brokers
            assert {(data.broker_name, data.write_queue_nums) for data in found.queue_datas} == {
                (name, 2) for name in gateway.brokers
            }
            for name, where in gateway.brokers.items():
                with dial(where) as broker:
                    (message,) = messages(pull(broker, "spread"))
                    assert message.body == name.encode()
        before = gateway.brokers
        assert gateway.stop() == 0
    with Gateway(tmp_path, "--brokers", "3", "--store", str(tmp_path / "store")) as again:
        assert list(again.brokers) == list(before)
        for name, where in again.brokers.items():
            with dial(where) as broker:
                assert messages(pull(broker, "spread"))[0].body == name.encode()


def test_brokers_are_ten_ports_apart(tmp_path: Path) -> None:
    namesrv, broker = find_server_ports()
    try:
        gateway = Gateway(
            tmp_path, "--memory", "--brokers", "2", "--port", str(namesrv), "--broker-port", str(broker)
        )
    except Exception as error:
        if "in use" in str(error):
            pytest.skip("the second broker's port is taken on this machine")
        raise
    with gateway:
        assert [int(split_address(one)[1]) for one in gateway.brokers.values()] == [broker, broker + 10]


# Namesrv and broker in separate processes


def start_namesrv(directory: Path, port: int) -> Gateway:
    return Gateway(directory, "--port", str(port), command="namesrv")


def start_broker(directory: Path, namesrv: str, *arguments: str) -> Gateway:
    return Gateway(
        directory, "-n", namesrv, "--store", str(directory / "store"), *arguments, command="broker"
    )


def knows(namesrv: str, topic: str) -> bool:
    try:
        with dial(namesrv) as client:
            return has_route(client, topic)
    except RemotingClosed:
        return False


def test_namesrv_and_broker_apart(tmp_path: Path) -> None:
    port, _ = find_server_ports()
    with start_namesrv(tmp_path / "n", port) as namesrv:
        assert namesrv.ready["brokers"] == {}
        with start_broker(tmp_path / "b", namesrv.namesrv) as broker:
            assert broker.ready["namesrv"] is None
            eventually(lambda: knows(namesrv.namesrv, "TBW102"), 10)
            with dial(broker.broker) as client:
                send(client, "apart")
            eventually(lambda: knows(namesrv.namesrv, "apart"), 10)
            with dial(namesrv.namesrv) as client:
                assert masters(route(client, "apart")) == {"broker-a": broker.broker}

            namesrv.kill()
            with dial(broker.broker) as client:
                send(client, "alone")  # a broker serves without its namesrv
            eventually(lambda: broker.lines("registration with namesrv failed"))
            with start_namesrv(tmp_path / "n", port) as again:
                eventually(lambda: knows(again.namesrv, "alone"), 5)
                assert knows(again.namesrv, "apart")
                eventually(lambda: broker.lines("registration with namesrv works again"))
                assert len(broker.lines("registration with namesrv failed")) == 1
                assert broker.stop() == 0
                eventually(lambda: not knows(again.namesrv, "apart"), 5)


def test_broker_without_its_namesrv_starts_and_finds_it_later(tmp_path: Path) -> None:
    port, _ = find_server_ports()
    with start_broker(tmp_path / "b", f"127.0.0.1:{port}") as broker:
        with dial(broker.broker) as client:
            send(client, "early")
        with start_namesrv(tmp_path / "n", port) as namesrv:
            eventually(lambda: knows(namesrv.namesrv, "early"), 5)
            assert len(broker.lines("registration with namesrv failed")) == 1


def test_killed_broker_leaves_the_routes_at_once(tmp_path: Path) -> None:
    port, _ = find_server_ports()
    with (
        start_namesrv(tmp_path / "n", port) as namesrv,
        start_broker(tmp_path / "b", namesrv.namesrv) as broker,
    ):
        eventually(lambda: knows(namesrv.namesrv, "TBW102"), 10)
        broker.kill()
        eventually(lambda: not knows(namesrv.namesrv, "TBW102"), 5)


def test_two_namesrvs(tmp_path: Path) -> None:
    first_port, second_port = (find_server_ports()[0] for _ in range(2))
    both = f"127.0.0.1:{first_port};127.0.0.1:{second_port}"
    with (
        start_namesrv(tmp_path / "1", first_port) as first,
        start_namesrv(tmp_path / "2", second_port) as second,
        start_broker(tmp_path / "b", both) as broker,
    ):
        for one in (first, second):
            eventually(partial(knows, one.namesrv, "TBW102"), 10)
        first.kill()
        with dial(broker.broker) as client:
            send(client, "with_one")
        eventually(lambda: knows(second.namesrv, "with_one"), 5)


# Sources of settings


def test_precedence_of_settings(tmp_path: Path) -> None:
    """Defaults < file < environment < --set < other flags, each observed by clients."""
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "brokerName=of-file\nbrokerClusterName=of-file\nregionId=of-file\nbrokerIP1=192.0.2.1\n"
        f"storePathRootDir={tmp_path / 'of-file'}\n"
    )
    env = {
        "RMQ_GATEWAY_BROKER_NAME": "of-environment",
        "RMQ_GATEWAY_BROKER_CLUSTER_NAME": "of-environment",
        "RMQ_GATEWAY_BROKER_IP1": "192.0.2.2",
    }
    sets = ["--set", "brokerName=of-set", "--set", "brokerIP1=192.0.2.3"]
    flags = ["--advertise", "192.0.2.4", "--store", str(tmp_path / "of-flag")]
    with Gateway(tmp_path, "-c", str(conf), *sets, *flags, env=env) as gateway:
        assert list(gateway.brokers) == ["of-set"]
        with dial(gateway.namesrv) as namesrv:
            info = namesrv.ask(GetBrokerClusterInfo()).data
            assert set(info.cluster_addr_table) == {"of-environment"}
            port = split_address(gateway.broker)[1]
            assert masters(route(namesrv, "TBW102")) == {"of-set": f"192.0.2.4:{port}"}
        with gateway.connect() as client:
            send(client, "t")
            (message,) = messages(pull(client, "t"))
        assert message.properties["MSG_REGION"] == "of-file"
        assert (tmp_path / "of-flag" / "commitlog").is_dir()
        assert not (tmp_path / "of-file").exists()


# Addresses


def test_vip_port(tmp_path: Path) -> None:
    namesrv, broker = find_server_ports()
    with Gateway(tmp_path, "--memory", "--port", str(namesrv), "--broker-port", str(broker)):
        with dial(f"127.0.0.1:{broker - 2}") as client:
            reply = send(client, "vip", b"through the other door")
            # The message id contains the broker's main port, which every client can reach.
            assert decode_message_id(reply.msg_id)[:2] == ("127.0.0.1", broker)
        with dial(f"127.0.0.1:{broker}") as client:
            assert messages(pull(client, "vip"))[0].body == b"through the other door"


def test_auto_address_is_the_one_dialled(tmp_path: Path) -> None:
    with Gateway(tmp_path, "--memory", "--host", "0.0.0.0") as gateway:
        port = split_address(gateway.broker)[1]
        for host in ("127.0.0.1", "127.0.0.2"):
            with dial(gateway.namesrv, host) as namesrv:
                assert masters(route(namesrv, "TBW102")) == {"broker-a": f"{host}:{port}"}
                info = namesrv.ask(GetBrokerClusterInfo()).data
                assert info.broker_addr_table["broker-a"].broker_addrs == {0: f"{host}:{port}"}
            with dial(gateway.broker, host) as broker:
                reply = send(broker, "where")
                assert decode_message_id(reply.msg_id)[:2] == (host, port)


def test_fixed_address_wins(tmp_path: Path) -> None:
    with Gateway(tmp_path, "--memory", "--host", "0.0.0.0", "--advertise", "192.0.2.9") as gateway:
        port = split_address(gateway.broker)[1]
        for host in ("127.0.0.1", "127.0.0.2"):
            with dial(gateway.namesrv, host) as namesrv:
                assert masters(route(namesrv, "TBW102")) == {"broker-a": f"192.0.2.9:{port}"}
            with dial(gateway.broker, host) as broker:
                assert decode_message_id(send(broker, "where").msg_id)[:2] == ("192.0.2.9", port)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
@pytest.mark.parametrize("host", ["::", "::1"])
def test_ipv6(tmp_path: Path, host: str) -> None:
    with Gateway(tmp_path, "--memory", "--host", host) as gateway:
        port = split_address(gateway.broker)[1]
        with dial(gateway.namesrv, "::1") as namesrv:
            assert masters(route(namesrv, "TBW102")) == {"broker-a": f"[::1]:{port}"}
        with dial(gateway.broker, "::1") as broker:
            reply = send(broker, "six", b"over IPv6")
            assert decode_message_id(reply.msg_id)[:2] == ("::1", port)
            (message,) = messages(pull(broker, "six"))
            assert message.body == b"over IPv6"
            assert message.born_host[0] == "::1"
            assert message.store_host == ("::1", port)
        if host == "::":
            # Dual stack, as documented for bindAddress.
            with dial(gateway.namesrv, "127.0.0.1") as namesrv:
                assert masters(route(namesrv, "TBW102")) == {"broker-a": f"127.0.0.1:{port}"}
            with dial(gateway.broker, "127.0.0.1") as broker:
                send(broker, "six", b"over IPv4")
                assert [message.body for message in messages(pull(broker, "six"))] == [
                    b"over IPv6",
                    b"over IPv4",
                ]
                assert messages(pull(broker, "six", 1))[0].born_host[0] == "127.0.0.1"


def test_bind_address_is_kept(tmp_path: Path) -> None:
    with Gateway(tmp_path, "--memory", "--host", "127.0.0.2") as gateway:
        assert split_address(gateway.broker)[0] == "127.0.0.2"
        with dial(gateway.broker) as broker:
            send(broker, "bound")
        with pytest.raises(RemotingClosed):
            dial(gateway.broker, "127.0.0.1")


def test_ready_file(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    with Gateway(tmp_path, "--memory", "--ready-file", str(file)) as gateway:
        assert gateway.namesrv in file.read_text()
