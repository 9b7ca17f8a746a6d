"""The namesrv: routes, brokers and configuration, with our typed client and brokers that only register."""

import json
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import pytest

from codec.fastjson import dumps
from compat_tests.clients.typed import connect, expect_refusal, has_route, send_plain
from compat_tests.marks import case, needs_admin, read_only
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.bodies.queues import DataVersion
from remoting.errors import RemotingClosed, RequestError
from remoting.requests.namesrv import (
    AddWritePermOfBroker,
    DeleteKvConfig,
    DeleteTopicInNamesrv,
    GetAllTopicListFromNameserver,
    GetBrokerClusterInfo,
    GetBrokerMemberGroup,
    GetKvConfig,
    GetKvListByNamespace,
    GetRouteInfoByTopic,
    GetTopicsByCluster,
    PutKvConfig,
    QueryDataVersion,
    RegisterBroker,
    RegisterBrokerReply,
    UnregisterBroker,
    WipeWritePermOfBroker,
)


class NameOnlyBroker:
    """A broker that registers its topics and does nothing else, in a cluster of its own.

    Its name is always one of its topics, as with official brokers: a first registration of a single topic is refused.
    """

    def __init__(self, client: BlockingClient, name: str, address: str = "192.0.2.1:10911") -> None:
        self.client, self.name, self.address, self.cluster = client, name, address, f"cluster_{name}"

    def register(
        self,
        topics: dict[str, int],
        counter: int = 1,
        *,
        broker_id: int = 0,
        compressed: bool = False,
        **fields: int,
    ) -> RegisterBrokerReply:
        topics = {self.name: 1, **topics}
        body = dumps(self.body(topics, counter))
        if compressed:
            body = self.compressed(topics, counter)
        request = RegisterBroker(
            broker_name=self.name,
            broker_addr=self.address,
            cluster_name=self.cluster,
            ha_server_addr="192.0.2.1:10912",
            broker_id=broker_id,
            compressed=compressed,
            body_crc32=crc32(body),
            body=body,
            **fields,
        )
        return self.client.ask(request)

    def body(self, topics: dict[str, int], counter: int) -> dict[str, object]:
        version = {"counter": counter, "timestamp": 1_700_000_000_000, "stateVersion": 0}
        table = {topic: self.topic(topic, queues) for topic, queues in topics.items()}
        wrapper = {"dataVersion": version, "topicConfigTable": table}
        return {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}

    def topic(self, topic: str, queues: int) -> dict[str, object]:
        return {
            "topicName": topic,
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        }

    def compressed(self, topics: dict[str, int], counter: int) -> bytes:
        """Return the compressed body: data version, topic count, topics as text and filter servers, length-prefixed."""
        version = dumps({"counter": counter, "timestamp": 1_700_000_000_000, "stateVersion": 0})
        parts = [len(version).to_bytes(4, "big"), version, len(topics).to_bytes(4, "big")]
        for topic, queues in topics.items():
            text = f"{topic} {queues} {queues} 6 SINGLE_TAG".encode()
            parts += [len(text).to_bytes(4, "big"), text]
        parts += [(2).to_bytes(4, "big"), b"[]", (0).to_bytes(4, "big")]
        return zlib.compress(b"".join(parts))

    def unregister(self) -> None:
        self.client.ask(
            UnregisterBroker(
                broker_name=self.name, broker_addr=self.address, cluster_name=self.cluster, broker_id=0
            )
        )

    def version(self, counter: int) -> DataVersion:
        return DataVersion(counter=counter, timestamp=1_700_000_000_000, state_version=0)


def crc32(body: bytes) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF


@pytest.fixture
def ghost(server: ServerUnderTest, admin_rights: None) -> Iterator[NameOnlyBroker]:
    """A name-only broker on a connection of its own, which unregisters it by closing."""
    with connect(server.namesrv) as client:
        broker = NameOnlyBroker(client, server.unique_name("broker"))
        yield broker
        with suppress(RemotingClosed):  # a namesrv closes the connection of an expired broker
            broker.unregister()


@read_only
@case("namesrv", "refused: the route of an unknown topic (17)")
def test_no_route(namesrv: BlockingClient, server: ServerUnderTest) -> None:
    name = server.unique_name("missing")
    error = expect_refusal(namesrv, GetRouteInfoByTopic(topic=name))
    assert error.code == 17
    assert f"No topic route info in name server for the topic: {name}" in (error.remark or "")


@read_only
@case("namesrv", "TBW102 has a route if brokers create topics on the first send")
def test_template(namesrv: BlockingClient, server: ServerUnderTest) -> None:
    route = namesrv.ask(GetRouteInfoByTopic(topic="TBW102")).data
    assert server.broker in [address for data in route.broker_datas for address in data.broker_addrs.values()]


@case("namesrv", "a route in standard JSON, on request")
def test_standard_json(namesrv: BlockingClient, topic: str) -> None:
    answer = send_plain(namesrv, 105, topic=topic, acceptStandardJsonOnly="true")
    route = json.loads(answer.body)
    assert list(route["brokerDatas"][0]["brokerAddrs"]) == ["0"]
    assert route["queueDatas"][0]["writeQueueNums"] == 4


@case("namesrv", "a registered broker has a route")
def test_register(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    topic = server.unique_name("topic")
    ghost.register({topic: 5})
    route = namesrv.ask(GetRouteInfoByTopic(topic=topic)).data
    assert [(q.broker_name, q.read_queue_nums, q.write_queue_nums, q.perm) for q in route.queue_datas] == [
        (ghost.name, 5, 5, 6)
    ]
    assert [(b.cluster, b.broker_name, b.broker_addrs) for b in route.broker_datas] == [
        (ghost.cluster, ghost.name, {0: ghost.address})
    ]


@case("namesrv", "a registration in the compressed form")
def test_register_compressed(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    topic = server.unique_name("topic")
    ghost.register({topic: 3}, compressed=True)
    assert namesrv.ask(GetRouteInfoByTopic(topic=topic)).data.queue_datas[0].write_queue_nums == 3


@case("namesrv", "a registration with a wrong checksum is refused")
def test_register_damaged(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    topic = server.unique_name("topic")
    request = RegisterBroker(
        broker_name=ghost.name,
        broker_addr=ghost.address,
        cluster_name=ghost.cluster,
        ha_server_addr="",
        broker_id=0,
        body_crc32=12345,
        body=dumps(ghost.body({topic: 1}, 1)),
    )
    assert expect_refusal(namesrv, request).code == 1
    assert not has_route(namesrv, topic)


@case("namesrv", "refused: a first registration with a single topic (1)")
def test_register_single(ghost: NameOnlyBroker) -> None:
    with pytest.raises(RequestError) as error:
        ghost.register({})
    assert error.value.code == 1


@case("namesrv", "refused: a registration with a topic that is null (1); nothing of it stays")
def test_register_null(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    body = ghost.body({server.unique_name("topic"): 1, server.unique_name("topic"): 1}, 1)
    wrapper = cast("dict[str, dict[str, object]]", body["topicConfigSerializeWrapper"])
    wrapper["topicConfigTable"][next(iter(wrapper["topicConfigTable"]))] = None
    request = RegisterBroker(
        broker_name=ghost.name,
        broker_addr=ghost.address,
        cluster_name=ghost.cluster,
        ha_server_addr="",
        broker_id=0,
        body=dumps(body),
    )
    assert expect_refusal(namesrv, request).code == 1
    assert ghost.name not in namesrv.ask(GetBrokerClusterInfo()).data.broker_addr_table


@case("namesrv", "a registration with a number beyond Java's range harms no other broker")
def test_register_huge_number(
    namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest
) -> None:
    topic = server.unique_name("topic")
    ghost.register({topic: 1})
    with connect(server.namesrv) as client:
        other = NameOnlyBroker(client, server.unique_name("broker"), "192.0.2.3:10911")
        text = dumps(other.body({other.name: 1, topic: 1}, 1))
        request = RegisterBroker(
            broker_name=other.name,
            broker_addr=other.address,
            cluster_name=other.cluster,
            ha_server_addr="",
            broker_id=0,
            body=text.replace(b'"readQueueNums":1', b'"readQueueNums":' + b"9" * 40),
        )
        with suppress(RequestError):
            client.ask(request)
        queues = namesrv.ask(GetRouteInfoByTopic(topic=topic)).data.queue_datas
        assert (ghost.name, 1) in [(each.broker_name, each.read_queue_nums) for each in queues]


@case("namesrv", "a newer registration changes routes")
def test_register_newer(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    one, two = server.unique_name("topic"), server.unique_name("topic")
    ghost.register({one: 1}, 1)
    ghost.register({one: 6, two: 2}, 2)
    assert namesrv.ask(GetRouteInfoByTopic(topic=one)).data.queue_datas[0].write_queue_nums == 6
    assert namesrv.ask(GetRouteInfoByTopic(topic=two)).data.queue_datas[0].write_queue_nums == 2


@case("namesrv", "the cluster's brokers are listed")
def test_cluster(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    ghost.register({server.unique_name("topic"): 1})
    data = namesrv.ask(GetBrokerClusterInfo()).data
    assert data.broker_addr_table[ghost.name].broker_addrs == {0: ghost.address}
    assert list(data.cluster_addr_table[ghost.cluster]) == [ghost.name]
    assert any(server.broker in data.broker_addrs.values() for data in data.broker_addr_table.values())


@case("namesrv", "topic lists: all, and of one cluster")
def test_lists(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    topic = server.unique_name("topic")
    ghost.register({topic: 1})
    assert topic in namesrv.ask(GetAllTopicListFromNameserver()).data.topic_list
    assert sorted(namesrv.ask(GetTopicsByCluster(cluster=ghost.cluster)).data.topic_list) == sorted(
        [topic, ghost.name]
    )


@case("namesrv", "an unregistered broker is removed with its routes")
def test_unregister(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    topic = server.unique_name("topic")
    ghost.register({topic: 1})
    ghost.unregister()
    assert eventually(lambda: not has_route(namesrv, topic))
    assert ghost.name not in namesrv.ask(GetBrokerClusterInfo()).data.broker_addr_table


@needs_admin("registers a broker")
@case("namesrv", "a broker whose connection is lost is removed")
def test_lost(namesrv: BlockingClient, server: ServerUnderTest) -> None:
    topic = server.unique_name("topic")
    with connect(server.namesrv) as client:
        NameOnlyBroker(client, server.unique_name("broker")).register({topic: 1})
        assert has_route(namesrv, topic)
    assert eventually(lambda: not has_route(namesrv, topic), 15)


@case("namesrv", "a broker that stops registering expires after its own timeout")
def test_expiry(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    topic = server.unique_name("topic")
    ghost.register({topic: 1}, heartbeat_timeout_millis=1000)
    assert has_route(namesrv, topic)
    assert eventually(lambda: not has_route(namesrv, topic), 15)  # an official namesrv checks every 5 s


@case("namesrv", "a slave's address is listed beside its master's, and it is told the master's address")
def test_slave(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    topic = server.unique_name("topic")
    ghost.register({topic: 1})
    with connect(server.namesrv) as client:
        slave = NameOnlyBroker(client, ghost.name, "192.0.2.2:10911")
        slave.cluster = ghost.cluster
        reply = slave.register({topic: 1}, broker_id=1)
        assert reply.master_addr == ghost.address
        assert reply.ha_server_addr == "192.0.2.1:10912"
        (data,) = namesrv.ask(GetRouteInfoByTopic(topic=topic)).data.broker_datas
        assert data.broker_addrs == {0: ghost.address, 1: "192.0.2.2:10911"}
        request = GetBrokerMemberGroup(cluster_name=ghost.cluster, broker_name=ghost.name)
        group = namesrv.ask(request).data.broker_member_group
        assert group is not None
        assert group.broker_addrs == {0: ghost.address, 1: "192.0.2.2:10911"}


@case("namesrv", "wipe and add the write permission of a broker")
def test_write_permission(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    topic = server.unique_name("topic")
    ghost.register({topic: 1})
    assert namesrv.ask(WipeWritePermOfBroker(broker_name=ghost.name)).wipe_topic_count == 2
    assert namesrv.ask(GetRouteInfoByTopic(topic=topic)).data.queue_datas[0].perm == 4
    assert namesrv.ask(AddWritePermOfBroker(broker_name=ghost.name)).add_topic_count == 2
    assert namesrv.ask(GetRouteInfoByTopic(topic=topic)).data.queue_datas[0].perm == 6


@case(
    "namesrv", "a wiped write permission outlasts registrations of the same version, a deleted route does not"
)
def test_renewal(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    topic = server.unique_name("topic")
    ghost.register({topic: 1}, 1)
    namesrv.ask(WipeWritePermOfBroker(broker_name=ghost.name))
    ghost.register({topic: 1}, 1)
    assert namesrv.ask(GetRouteInfoByTopic(topic=topic)).data.queue_datas[0].perm == 4
    namesrv.ask(DeleteTopicInNamesrv(topic=topic))
    ghost.register({topic: 1}, 1)
    assert namesrv.ask(GetRouteInfoByTopic(topic=topic)).data.queue_datas[0].perm == 6


@case("namesrv", "QUERY_DATA_VERSION: tells if the namesrv has the broker's newest topics")
def test_data_version(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    ghost.register({server.unique_name("topic"): 1}, 7)

    def changed(counter: int) -> bool:
        request = QueryDataVersion(
            broker_name=ghost.name,
            broker_addr=ghost.address,
            cluster_name=ghost.cluster,
            broker_id=0,
            data=ghost.version(counter),
        )
        return namesrv.ask(request).changed

    assert changed(7) is False
    assert changed(8) is True


@case("namesrv", "delete a topic's route")
def test_delete_topic(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    topic = server.unique_name("topic")
    ghost.register({topic: 1})
    namesrv.ask(DeleteTopicInNamesrv(topic=topic))
    assert not has_route(namesrv, topic)


@needs_admin("changes the KV configuration of the namesrv")
@case("namesrv", "KV configuration: put, get, list, delete")
def test_kv(namesrv: BlockingClient, server: ServerUnderTest) -> None:
    space = server.unique_name("space")
    namesrv.ask(PutKvConfig(namespace=space, key="one", value="1"))
    namesrv.ask(PutKvConfig(namespace=space, key="two", value="zwei ✓"))
    namesrv.ask(PutKvConfig(namespace=space, key="one", value="eins"))
    assert namesrv.ask(GetKvConfig(namespace=space, key="one")).value == "eins"
    assert namesrv.ask(GetKvListByNamespace(namespace=space)).data.table == {"one": "eins", "two": "zwei ✓"}
    namesrv.ask(DeleteKvConfig(namespace=space, key="one"))
    assert expect_refusal(namesrv, GetKvConfig(namespace=space, key="one")).code == 22
    namesrv.ask(DeleteKvConfig(namespace=space, key="two"))


@read_only
@case("namesrv", "refused: an unknown KV key or namespace (22)")
def test_no_kv(namesrv: BlockingClient, server: ServerUnderTest) -> None:
    space = server.unique_name("space")
    assert expect_refusal(namesrv, GetKvConfig(namespace=space, key="k")).code == 22
    assert expect_refusal(namesrv, GetKvListByNamespace(namespace=space)).code == 22


@case("namesrv", "order configuration of a topic comes with its route")
def test_order_topic(namesrv: BlockingClient, ghost: NameOnlyBroker, server: ServerUnderTest) -> None:
    topic = server.unique_name("topic")
    ghost.register({topic: 1})
    namesrv.ask(PutKvConfig(namespace="ORDER_TOPIC_CONFIG", key=topic, value=f"{ghost.name}:4"))
    try:
        assert namesrv.ask(GetRouteInfoByTopic(topic=topic)).data.order_topic_conf in (
            f"{ghost.name}:4",
            None,
        )
    finally:
        namesrv.ask(DeleteKvConfig(namespace="ORDER_TOPIC_CONFIG", key=topic))


@read_only
@case("namesrv", "broker ids are JSON keys, bare or quoted; stock clients read both")
def test_dialect(namesrv: BlockingClient, topic: str) -> None:
    body = bytes(send_plain(namesrv, 105, topic=topic).body)
    assert re.search(rb'"brokerAddrs":\{"?0"?:"', body)


@needs_admin("opens a hundred connections")
@case("namesrv", "a hundred clients ask at the same time")
def test_many(server: ServerUnderTest, topic: str) -> None:
    clients = [connect(server.namesrv) for _ in range(100)]
    try:
        for client in clients:
            assert has_route(client, topic)
    finally:
        for client in clients:
            client.close()


@read_only
@case("namesrv", "a route request without a topic is refused, and the connection stays open")
def test_missing_topic(namesrv: BlockingClient, topic: str) -> None:
    assert send_plain(namesrv, 105).code != 0
    assert has_route(namesrv, topic)
