"""Message traces of stock clients: stored by the broker, found and shown by the official tools."""

import time
from pathlib import Path
from typing import Any

from compat_tests.cases.test_config import changed
from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.programs import run_mqadmin
from compat_tests.clients.typed import create_topic
from compat_tests.marks import case, needs_admin
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient

# Clients send their traces every few seconds, and the official broker indexes keys later than it stores messages.
PATIENCE_S = 90.0


def traces(java5: JavaClient, message_id: str) -> list[dict[str, Any]]:
    """Return the traces of a message, as shown by the official tool; the trace of a consumption has two parts."""
    try:
        found: list[dict[str, Any]] = java5.driver.call("admin.trace", msg_id=message_id)
    except JavaClientError:  # no traces yet
        return []
    return found


@case("trace", "Java: a traced producer and consumer, decoded by the stock TraceView")
def test_views(java: JavaClient, java5: JavaClient, server: ServerUnderTest) -> None:
    topic, group, sender = server.topic_name(), server.unique_name("group"), server.unique_name("producer")
    create_topic(server, topic, 1)
    with java.producer(sender, trace=True) as producer, java.push(group, topic, trace=True) as consumer:
        (sent,) = producer.send({"topic": topic, "body": "traced", "tags": "red", "keys": "k1"})
        assert len(consumer.received(1, 60)) == 1
        published = {"type": "Pub", "status": "success", "topic": topic, "group": sender}
        published |= {"tags": "red", "keys": "k1"}
        seen = eventually(
            lambda: (r := traces(java5, sent["msg_id"])) and {"Pub", "SubAfter"} <= types(r) and r, PATIENCE_S
        )
    assert published in seen
    assert {view["group"] for view in seen if view["type"] == "SubBefore"} <= {group}
    assert {view["status"] for view in seen} == {"success"}


def types(views: list[dict[str, Any]]) -> set[str]:
    return {view["type"] for view in views}


@case("trace", "Java: the end of a traced transaction is traced as well")
def test_transaction(java5: JavaClient, server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    with java5.transactions(server.unique_name("tx"), enableTrace=True) as producer:
        sent: list[str] = []

        def is_traced() -> bool:
            # The client drops traces that it could not send in a few seconds, so another message is sent at times.
            if len(sent) < 3 and time.monotonic() > begin + len(sent) * PATIENCE_S / 3:
                message = {"topic": topic, "body": "x", "properties": {"local": "COMMIT_MESSAGE"}}
                sent.extend(each["msg_id"] for each in producer.send(message))
            return any("EndTransaction" in types(traces(java5, each)) for each in sent)

        begin = time.monotonic()
        eventually(is_traced, PATIENCE_S)


@needs_admin("changes settings of the broker")
@case("trace", "Java: a recall of a traced producer is traced as well")
def test_recall(java5: JavaClient, server: ServerUnderTest, broker: BlockingClient) -> None:
    topic, sender = server.topic_name(), server.unique_name("producer")
    create_topic(server, topic, 1)
    with changed(broker, recallMessageEnable="true"), java5.producer(sender, trace=True) as producer:
        (sent,) = producer.send({"topic": topic, "body": "x", "delay_s": 3600})
        assert producer.recall(topic, sent["recall_handle"]) == sent["msg_id"]
        eventually(lambda: "Recall" in types(traces(java5, sent["msg_id"])), PATIENCE_S)


@case("trace", "mqadmin queryMsgTraceById shows a message's producer and consumer groups")
def test_mqadmin(java5: JavaClient, server: ServerUnderTest, tmp_path: Path) -> None:
    topic, group, sender = server.topic_name(), server.unique_name("group"), server.unique_name("producer")
    create_topic(server, topic, 1)
    with java5.producer(sender, trace=True) as producer, java5.push(group, topic, trace=True) as consumer:
        (sent,) = producer.send_numbered(topic, 1)
        assert len(consumer.received(1, 60)) == 1
        eventually(lambda: {"Pub", "SubAfter"} <= types(traces(java5, sent["msg_id"])), PATIENCE_S)
    printed = run_mqadmin(tmp_path / "admin", "queryMsgTraceById", "-n", server.namesrv, "-i", sent["msg_id"])
    assert sender in printed
    assert group in printed
    assert "success" in printed
