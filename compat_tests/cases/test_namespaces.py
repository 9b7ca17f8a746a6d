"""Namespaces of stock clients, which the broker only sees as names, and unit mode."""

from typing import Any

from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import send, send_heartbeat
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.errors import RequestError
from remoting.requests.client import GetConsumerConnectionList
from remoting.requests.namesrv import (
    GetHasUnitSubTopicList,
    GetHasUnitSubUnunitTopicList,
    GetUnitTopicList,
)
from remoting.requests.topics import GetTopicConfig

UNIT, UNIT_SUBSCRIBED = 1, 2


def exists(broker: BlockingClient, topic: str) -> bool:
    try:
        broker.ask(GetTopicConfig(topic=topic))
    except RequestError:
        return False
    return True


@case("namespace", "Java: setNamespace, names are prefixed on the broker, retries included")
def test_namespace(java: JavaClient, server: ServerUnderTest, broker: BlockingClient) -> None:
    space = server.unique_name("space")
    topic, group, settings = server.topic_name(), server.unique_name("group"), {"namespace": space}
    full, full_group = f"{space}%{topic}", f"{space}%{group}"
    server.groups.append(full_group)
    with java.producer(server.unique_name("producer"), namespace=space) as producer:
        (sent,) = producer.send({"topic": topic, "body": "mine", "tags": "t"})
        with java.push(group, topic, failures=1, delay_level=1, settings=settings) as consumer:
            received = consumer.received(2, 60)
            connections = broker.ask(GetConsumerConnectionList(consumer_group=full_group)).data
        assert [queue["topic"] for queue in producer.queues(topic)] == [topic] * 4
    assert sent["status"] == "SEND_OK"
    assert [(m["topic"], m["body"], m["reconsume"]) for m in received] == [
        (topic, "mine", 0),
        (topic, "mine", 1),
    ]
    assert set(connections.subscription_table) == {full, f"%RETRY%{full_group}"}
    assert (exists(broker, full), exists(broker, topic)) == (True, False)


@case("namespace", "Java: two namespaces do not see each other's messages")
def test_apart(java: JavaClient, server: ServerUnderTest) -> None:
    one, two = server.unique_name("one"), server.unique_name("two")
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer"), namespace=one) as producer:
        producer.send({"topic": topic, "body": "in one"})
    with java.producer(server.unique_name("producer"), namespace=two) as producer:
        producer.send({"topic": topic, "body": "in two"})
    for space, body in ((one, "in one"), (two, "in two")):
        server.groups.append(f"{space}%{group}")
        with java.push(group, topic, name=server.unique_name("c"), settings={"namespace": space}) as consumer:
            assert [message["body"] for message in consumer.received(1, 60)] == [body]


@case("namespace", "Java: setNamespaceV2, which is for proxies; a broker sees the bare names")
def test_namespace_v2(java5: JavaClient, server: ServerUnderTest, broker: BlockingClient) -> None:
    space = server.unique_name("space")
    topic, group = server.topic_name(), server.unique_name("group")
    with java5.producer(server.unique_name("producer"), namespaceV2=space) as producer:
        producer.send({"topic": topic, "body": "mine"})
        with java5.push(group, topic, settings={"namespaceV2": space}) as consumer:
            received = consumer.received(1, 60)
    assert [(message["topic"], message["body"]) for message in received] == [(topic, "mine")]
    assert exists(broker, topic)


@case("namespace", "Java: unit mode, topics and retry topics created by such clients are flagged")
def test_unit_mode(
    java: JavaClient, server: ServerUnderTest, broker: BlockingClient, namesrv: BlockingClient
) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    with java.producer(server.unique_name("producer"), unitMode=True) as producer:
        producer.send({"topic": topic, "body": "unit"})
        with java.push(group, topic, failures=1, delay_level=1, settings={"unitMode": True}) as consumer:
            received = consumer.received(2, 60)
    assert [message["reconsume"] for message in received] == [0, 1]
    assert flags(broker, topic) & UNIT
    assert flags(broker, f"%RETRY%{group}") & UNIT_SUBSCRIBED
    eventually(lambda: topic in namesrv.ask(GetUnitTopicList()).data.topic_list, 30)
    subscribed: Any = eventually(
        lambda: (r := namesrv.ask(GetHasUnitSubTopicList()).data.topic_list) and f"%RETRY%{group}" in r and r,
        30,
    )
    assert topic not in subscribed
    assert f"%RETRY%{group}" in namesrv.ask(GetHasUnitSubUnunitTopicList()).data.topic_list


def flags(broker: BlockingClient, topic: str) -> int:
    config = broker.ask(GetTopicConfig(topic=topic)).data
    return int(config.topic_sys_flag)


@case("namespace", "unit mode: a send flags the topic it creates, but not an existing one")
def test_unit_send(broker: BlockingClient, server: ServerUnderTest, topic: str, group: str) -> None:
    new = server.topic_name()
    send(broker, new, unit_mode=True)
    send(broker, topic, unit_mode=True)
    assert (flags(broker, new), flags(broker, topic)) == (UNIT, 0)
    send_heartbeat(broker, f"{group}@1", group, topic)
    assert flags(broker, f"%RETRY%{group}") == 0
