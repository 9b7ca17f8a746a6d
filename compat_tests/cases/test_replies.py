"""Request and reply: the answering client sends 324 or 325, the broker pushes 326 to the asking one."""

import threading

import pytest

from compat_tests.clients.typed import connect, expect_refusal, pull, read_first_message, send_heartbeat
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.requests.send import (
    PushReplyMessageToClient,
    SendMessageReply,
    SendReplyMessage,
    SendReplyMessageV2,
)

PROPERTIES = "REPLY_TO_CLIENT\x01{client}\x02CORRELATION_ID\x0142\x02TTL\x013000\x02"


def reply_to(
    client: str, topic: str, kind: type[SendReplyMessage] | type[SendReplyMessageV2] = SendReplyMessageV2
) -> SendReplyMessage | SendReplyMessageV2:
    request = kind(
        producer_group="compat_replier",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=77,
        flag=3,
        properties=PROPERTIES.format(client=client) if client else "CORRELATION_ID\x0142\x02",
    )
    request.body = b"the answer"
    return request


@pytest.mark.parametrize("kind", [SendReplyMessage, SendReplyMessageV2], ids=["324", "325"])
@case("reply", "a reply (324, 325) is pushed to the client that asked (326), and stored")
def test_reply(
    server: ServerUnderTest,
    broker: BlockingClient,
    topic: str,
    kind: type[SendReplyMessage] | type[SendReplyMessageV2],
) -> None:
    asker = server.unique_name("asker")
    send_heartbeat(broker, asker, producer=server.unique_name("producer"))
    pushed: list[PushReplyMessageToClient] = []
    broker.serve_request(PushReplyMessageToClient, pushed.append)
    serving = threading.Thread(target=lambda: broker.serve_until(lambda: bool(pushed), timeout_s=30))
    serving.start()
    with connect(server.broker) as replier:
        answer: SendMessageReply = replier.ask(reply_to(asker, topic, kind))
        where = ":".join(map(str, replier.local))
    serving.join()
    (push,) = pushed
    assert (bytes(push.body), push.topic, push.producer_group) == (b"the answer", topic, "compat_replier")
    assert (push.born_timestamp, push.flag) == (77, 3)
    if server.kind in (
        "ours",
        "official",
    ):  # at other endpoints the client's address may be translated on the way
        assert push.born_host == where
    assert "CORRELATION_ID\x0142" in (push.properties or "")
    assert "PUSH_REPLY_TIME\x01" in (push.properties or "")
    stored = read_first_message(broker, topic)
    assert (stored.body, stored.flag, stored.properties["CORRELATION_ID"]) == (b"the answer", 3, "42")
    assert (answer.queue_id, answer.queue_offset) == (0, 0)


@case("reply", "a reply to a client that is not there is refused (1), and stored")
def test_nobody(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    client = server.unique_name("nobody")
    error = expect_refusal(broker, reply_to(client, topic))
    assert error.code == 1
    assert error.remark == f"push reply message fail, channel of <{client}> not found."
    assert eventually(lambda: pull(broker, topic).max_offset == 1, 20)


@case("reply", "a reply that names no client is refused (1)")
def test_unnamed(broker: BlockingClient, topic: str) -> None:
    error = expect_refusal(broker, reply_to("", topic))
    assert (error.code, error.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
