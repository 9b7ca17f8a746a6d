"""Broker processes register over their control channel as local brokers do, and nobody takes their names."""

from typing import Any

import pytest

from codec.command import Command, decode_frame
from codec.hashing import crc32
from gateway.config.process import NamesrvConfig
from gateway.namesrv.child_broker import ChildBroker
from gateway.namesrv.context import Namesrv, build_namesrv
from gateway.namesrv.processors import handlers
from gateway.namesrv.tests.test_processors import Clock, Peer
from remoting.bodies.queues import DataVersion
from remoting.bodies.registration import RegisterBrokerBody
from remoting.bodies.topics import TopicConfig, TopicConfigAndMappingSerializeWrapper
from remoting.errors import RequestError
from remoting.requests.namesrv import RegisterBroker, RegisterBrokerReply, UnregisterBroker

AUTO_ADDRESS = "auto:10911"


@pytest.fixture
def namesrv() -> Namesrv:
    return build_namesrv(NamesrvConfig(), Clock(), memory=True)


@pytest.fixture
def child(namesrv: Namesrv) -> ChildBroker:
    return namesrv.child_brokers.add("broker-a", 0)


@pytest.fixture
def control(child: ChildBroker) -> Peer:
    """The supervisor's end of the control channel."""
    peer = Peer()
    child.attach(peer)
    return peer


def register(
    namesrv: Namesrv,
    peer: Peer,
    address: str = AUTO_ADDRESS,
    name: str = "broker-a",
    broker_id: int = 0,
    **topics: int,
) -> RegisterBrokerReply:
    """Register a broker; ``topics`` are permissions by topic."""
    table = {
        topic: TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4, perm=perm)
        for topic, perm in (topics or {"T": 6, "U": 6}).items()
    }
    wrapper = TopicConfigAndMappingSerializeWrapper(
        data_version=DataVersion(counter=1, timestamp=1), topic_config_table=table
    )
    body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=[]).to_json()
    request = RegisterBroker(
        broker_name=name,
        broker_addr=address,
        cluster_name="C",
        ha_server_addr="auto:10912",
        broker_id=broker_id,
        body_crc32=crc32(body),
    )
    request.body = body
    return request.read_reply(handle(namesrv, peer, request))


def handle(namesrv: Namesrv, peer: Peer, request: Any) -> Command:
    """Pass a request to its handler, and return the answer. Raises RequestError for a refusal."""
    answer = handlers.bind(namesrv)[request.code](peer, request.to_command(1))
    assert answer is not None
    return decode_frame(answer, 4, len(answer))


def seen(namesrv: Namesrv, topic: str = "T") -> tuple[str, int] | None:
    """Return address and permission of broker-a in a topic's route, for a client that dialled 10.0.0.1."""
    route = namesrv.routes.topic_route(topic, "10.0.0.1")
    if route is None:
        return None
    return route.broker_datas[0].broker_addrs[0], route.queue_datas[0].perm


def test_clients_get_the_address_by_which_they_came(namesrv: Namesrv, control: Peer) -> None:
    register(namesrv, control)
    assert seen(namesrv) == ("10.0.0.1:10911", 6)


def test_a_stranger_with_the_word_auto_gets_no_such_address(namesrv: Namesrv) -> None:
    register(namesrv, Peer(), name="broker-x")
    assert seen(namesrv) == (AUTO_ADDRESS, 6)


def test_a_broker_process_never_expires(namesrv: Namesrv, control: Peer) -> None:
    register(namesrv, control)
    namesrv.clock.seconds += 10_000  # type: ignore[attr-defined]
    assert namesrv.routes.expire_silent_brokers() == []
    assert seen(namesrv)


def test_a_stranger_displaces_it_neither_while_it_runs_nor_while_it_does_not(
    namesrv: Namesrv, child: ChildBroker, control: Peer
) -> None:
    with pytest.raises(RequestError, match="broker-a is a broker process of this namesrv's server"):
        register(namesrv, Peer(), "6.6.6.6:1")
    register(namesrv, control)
    with pytest.raises(RequestError, match="broker-a with broker id 0 is a broker of this namesrv's process"):
        register(namesrv, Peer(), "6.6.6.6:1")
    with pytest.raises(RequestError, match="it unregisters when it stops"):
        handle(
            namesrv,
            Peer("10.0.0.1"),
            UnregisterBroker(
                broker_name="broker-a", broker_addr="10.0.0.1:10911", cluster_name="C", broker_id=0
            ),
        )
    assert seen(namesrv) == ("10.0.0.1:10911", 6)
    child.unregister()
    with pytest.raises(RequestError, match="needs another brokerName"):
        register(namesrv, Peer(), "6.6.6.6:1")
    assert seen(namesrv) is None


def test_it_leaves_when_its_channel_closes_and_returns(
    namesrv: Namesrv, child: ChildBroker, control: Peer
) -> None:
    register(namesrv, control)
    for callback in control.callbacks:
        callback(control)
    assert seen(namesrv) is None
    again = Peer()
    child.attach(again)
    register(namesrv, again, "auto:10911", T=6)
    assert seen(namesrv) == ("10.0.0.1:10911", 6)


def test_it_unregisters_itself(namesrv: Namesrv, control: Peer) -> None:
    register(namesrv, control)
    request = UnregisterBroker(
        broker_name="broker-a", broker_addr=AUTO_ADDRESS, cluster_name="C", broker_id=0
    )
    handle(namesrv, control, request)
    assert seen(namesrv) is None


def test_the_channel_serves_one_broker_only(namesrv: Namesrv, control: Peer) -> None:
    with pytest.raises(RequestError, match="this channel belongs to broker-a"):
        register(namesrv, control, name="broker-b")


def test_only_changed_and_missing_topics_are_registered_anew(namesrv: Namesrv, control: Peer) -> None:
    register(namesrv, control, T=6, U=6)
    namesrv.routes.set_writable("broker-a", False)
    namesrv.routes.delete_topic("U")
    register(namesrv, control, T=6, U=6)
    assert seen(namesrv, "T") == ("10.0.0.1:10911", 4), "an administrator removed its write permission"
    assert seen(namesrv, "U") == ("10.0.0.1:10911", 6), "a deleted topic comes back, as officially"
    register(namesrv, control, T=2, U=6)
    assert seen(namesrv, "T") == ("10.0.0.1:10911", 2)


@pytest.fixture
def replica(namesrv: Namesrv) -> Peer:
    """The control channel of a second broker process of the same name."""
    peer = Peer()
    namesrv.child_brokers.add("broker-a", 1).attach(peer)
    return peer


def members(namesrv: Namesrv) -> dict[int, str]:
    return dict(namesrv.routes.cluster_info("10.0.0.1").broker_addr_table["broker-a"].broker_addrs)


def test_a_replica_in_another_process_learns_its_master(
    namesrv: Namesrv, control: Peer, replica: Peer
) -> None:
    register(namesrv, control)
    answer = register(namesrv, replica, "auto:10921", broker_id=1, X=6)
    assert (answer.master_addr, answer.ha_server_addr) == ("127.0.0.1:10911", "127.0.0.1:10912")
    assert members(namesrv) == {0: "10.0.0.1:10911", 1: "10.0.0.1:10921"}
    assert seen(namesrv, "X") is None, "topics come from the master"


def test_two_processes_change_their_roles(namesrv: Namesrv, control: Peer, replica: Peer) -> None:
    register(namesrv, control)
    register(namesrv, replica, "auto:10921", broker_id=1)
    with pytest.raises(RequestError, match="another broker process has the name broker-a and the id 0"):
        register(namesrv, replica, "auto:10921", broker_id=0)
    register(namesrv, control, broker_id=2)
    register(namesrv, replica, "auto:10921", broker_id=0, T=6, N=6)
    assert members(namesrv) == {0: "10.0.0.1:10921", 2: "10.0.0.1:10911"}
    assert seen(namesrv, "N") == ("10.0.0.1:10921", 6)
    answer = register(namesrv, control, broker_id=2)
    assert answer.master_addr == "127.0.0.1:10921"


def test_the_name_stays_reserved_while_one_of_two_processes_starts(
    namesrv: Namesrv, control: Peer, replica: Peer
) -> None:
    register(namesrv, replica, "auto:10921", broker_id=1)
    with pytest.raises(RequestError, match="broker-a is a broker process of this namesrv's server"):
        register(namesrv, Peer(), "6.6.6.6:1")


def test_the_address_of_the_last_registration_stays_while_the_process_restarts(
    namesrv: Namesrv, child: ChildBroker, control: Peer
) -> None:
    assert child.address == ""
    for address in (AUTO_ADDRESS, "10.7.7.7:10911"):
        register(namesrv, control, address)
        assert child.address == address
    child.unregister()
    assert child.address == "10.7.7.7:10911"


def test_another_broker_is_elected_while_a_broker_process_starts(namesrv: Namesrv) -> None:
    """It is elected because the process is gone: refusing it would leave the name without a master."""
    child, peer = namesrv.child_brokers.add("broker-a", 0, is_elected=True), Peer()
    child.attach(peer)
    register(namesrv, Peer(), "10.7.7.7:10911")
    assert seen(namesrv) == ("10.7.7.7:10911", 6)
    register(namesrv, peer, AUTO_ADDRESS, broker_id=1)
    assert members(namesrv)[0] == "10.7.7.7:10911"
    with pytest.raises(RequestError, match="this channel belongs to broker-a"):
        register(namesrv, peer, name="broker-b")
