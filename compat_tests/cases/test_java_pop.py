"""The stock push consumer with broker-side queue assignment, switched to pop as `mqadmin setConsumeMode` does."""

from collections import Counter
from typing import Any

from compat_tests.clients.java_api import JavaClient
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually

# Official brokers fetch the routes of new topics every 30 s, and clients their assignments every 20 s.
FIRST_S, AGAIN_S = 90.0, 120.0
POP: dict[str, Any] = {"clientRebalance": False}


def bodies(messages: list[dict[str, Any]]) -> Counter[str]:
    return Counter(message["body"] for message in messages)


def popping(java: JavaClient, server: ServerUnderTest) -> tuple[str, str]:
    """Create a topic with four queues and a group that pops it."""
    topic, group = server.topic_name(), server.unique_name("group")
    java.driver.call("admin.create_topic", topic=topic, queues=4)
    java.driver.call("admin.mode", topic=topic, group=group, mode="POP")
    return topic, group


@case("pop", "Java: a push consumer pops each message once, and its group has no lag")
def test_pop(java5: JavaClient, server: ServerUnderTest) -> None:
    topic, group = popping(java5, server)
    with (
        java5.producer(server.unique_name("producer")) as producer,
        java5.push(group, topic, settings=POP) as consumer,
    ):
        producer.send_numbered(topic, 100)
        messages = consumer.received(100, FIRST_S)
        assert bodies(messages) == Counter(str(number) for number in range(100))
        assert all("POP_CK" in message["properties"] for message in messages)
        producer.send_numbered(topic, 10)
        assert len(consumer.received(110, 30)) == 110

    def caught_up() -> bool:
        stats = java5.driver.call("admin.consume_stats", group=group)
        mine = [offsets for queue, offsets in stats.items() if queue.startswith(topic)]
        return len(mine) == 4 and all(consumed == end for consumed, end in mine)

    eventually(caught_up, 20)


@case("pop", "Java: a message that failed is popped again, and then acked")
def test_failure(java5: JavaClient, server: ServerUnderTest) -> None:
    topic, group = popping(java5, server)
    options = {"settings": POP, "failures": 1}
    with (
        java5.producer(server.unique_name("producer")) as producer,
        java5.push(group, topic, **options) as consumer,
    ):
        producer.send_numbered(topic, 3)
        messages = consumer.received(6, AGAIN_S)
        assert bodies(messages) == Counter({"0": 2, "1": 2, "2": 2})
        again = [message for message in messages if message["reconsume"]]
        assert [message["reconsume"] for message in again] == [1, 1, 1]
        assert {message["topic"] for message in again} == {topic}


@case("pop", "Java: popping consumers share every queue, each message goes to one of them")
def test_two(java5: JavaClient, server: ServerUnderTest) -> None:
    topic, group = popping(java5, server)
    with (
        java5.producer(server.unique_name("producer")) as producer,
        java5.push(group, topic, name=f"{group}1", settings={**POP, "instanceName": f"{group}1"}) as one,
        java5.push(group, topic, name=f"{group}2", settings={**POP, "instanceName": f"{group}2"}) as two,
    ):
        producer.send_numbered(topic, 200)
        eventually(lambda: len(one.received(0)) + len(two.received(0)) >= 200, FIRST_S)
        messages = one.received(0) + two.received(0)
        assert bodies(messages) == Counter(str(number) for number in range(200))


@case("pop", "Java: a push consumer that pops by tags")
def test_tags(java5: JavaClient, server: ServerUnderTest) -> None:
    topic, group = popping(java5, server)
    subscriptions = [{"topic": topic, "tags": "red || blue"}]
    with (
        java5.producer(server.unique_name("producer")) as producer,
        java5.push(group, subscriptions=subscriptions, settings=POP) as consumer,
    ):
        for tag in ("red", "green", "blue"):
            producer.send({"topic": topic, "body": tag, "tags": tag})
        assert bodies(consumer.received(2, FIRST_S)) == Counter(["red", "blue"])


@case("pop", "Java: the broker assigns queues to the members of a pulling group")
def test_shared_by_the_broker(java5: JavaClient, server: ServerUnderTest) -> None:
    topic, group = server.topic_name(), server.unique_name("group")
    java5.driver.call("admin.create_topic", topic=topic, queues=4)
    with (
        java5.producer(server.unique_name("producer")) as producer,
        java5.push(group, topic, name=f"{group}1", settings={**POP, "instanceName": f"{group}1"}) as one,
        java5.push(group, topic, name=f"{group}2", settings={**POP, "instanceName": f"{group}2"}) as two,
    ):

        def held() -> list[list[int]]:
            return [
                sorted(queue["queue"] for queue in consumer.queues() if queue["topic"] == topic)
                for consumer in (one, two)
            ]

        eventually(lambda: sorted(held()) == [[0, 1], [2, 3]], FIRST_S)
        producer.send_numbered(topic, 20)
        eventually(lambda: len(one.received(0)) + len(two.received(0)) >= 20, 60)
        messages = one.received(0) + two.received(0)
        assert bodies(messages) == Counter(str(number) for number in range(20))
        assert not any("POP_CK" in message["properties"] for message in messages)
