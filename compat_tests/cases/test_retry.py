"""Messages a consumer sends back: retry topics, delays and dead letters, with our typed client."""

from functools import partial
from typing import Any

import pytest

from codec.ids import decode_message_id
from codec.message import Message
from compat_tests.clients.typed import (
    create_group,
    expect_refusal,
    has_route,
    messages,
    pull,
    send,
    send_heartbeat,
)
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.errors import RequestError
from remoting.requests.groups import GetSubscriptionGroupConfig
from remoting.requests.offsets import GetMaxOffset
from remoting.requests.send import ConsumerSendMsgBack
from remoting.requests.topics import GetTopicConfig

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


def back(group: str, topic: str, message_id: str, **fields: Any) -> ConsumerSendMsgBack:
    values = {"delay_level": 1, "max_reconsume_times": 16, "unit_mode": False, **fields}
    return ConsumerSendMsgBack(
        offset=decode_message_id(message_id)[2],
        group=group,
        origin_msg_id=message_id,
        origin_topic=topic,
        **values,
    )


def arrived(broker: BlockingClient, group: str, topic: str) -> Message:
    """Wait for the first message of a topic that may not exist yet."""

    def look() -> list[Message]:
        try:
            reply = pull(broker, topic, consumer_group=group)
        except RequestError:
            return []
        return messages(reply) if reply.code == 0 else []

    return eventually(look, 60)[0]


@case("retry", "send back: the message comes again in the group's retry topic, after the delay")
def test_back(broker: BlockingClient, group: str, topic: str) -> None:
    sent = send(broker, topic, b"again", queue_id=2, properties={"TAGS": "t", "KEYS": "k", "own": "1"})
    broker.ask(back(group, topic, sent.msg_id))
    message = arrived(broker, group, f"%RETRY%{group}")
    assert (message.body, message.tags, message.keys, message.properties["own"]) == (
        b"again",
        "t",
        ["k"],
        "1",
    )
    assert message.reconsume_times == 1
    assert message.properties["RETRY_TOPIC"] == topic
    assert message.properties["ORIGIN_MESSAGE_ID"] == sent.msg_id
    assert message.properties["REAL_TOPIC"] == f"%RETRY%{group}"


@case("retry", "send back: a second time keeps the origin and increases the count")
def test_back_twice(broker: BlockingClient, group: str, topic: str) -> None:
    sent = send(broker, topic, b"again")
    broker.ask(back(group, topic, sent.msg_id))
    first = arrived(broker, group, f"%RETRY%{group}")
    broker.ask(back(group, topic, first.msg_id))
    found = eventually(
        lambda: (r := pull(broker, f"%RETRY%{group}", 1, consumer_group=group)).code == 0 and messages(r), 60
    )
    assert found[0].reconsume_times == 2
    assert found[0].properties["RETRY_TOPIC"] == topic
    assert found[0].properties["ORIGIN_MESSAGE_ID"] == sent.msg_id


@case("retry", "send back: a negative delay level is a dead letter at once")
def test_dead(broker: BlockingClient, group: str, topic: str) -> None:
    sent = send(broker, topic, b"dead", properties={"TAGS": "t"})
    broker.ask(back(group, topic, sent.msg_id, delay_level=-1))
    message = arrived(broker, group, f"%DLQ%{group}")
    assert (message.body, message.queue_id) == (b"dead", 0)
    assert message.properties["RETRY_TOPIC"] == topic


@case("retry", "send back: after the last retry the message becomes a dead letter")
def test_last(broker: BlockingClient, group: str, topic: str) -> None:
    sent = send(broker, topic, b"last", reconsume_times=3)
    broker.ask(back(group, topic, sent.msg_id, max_reconsume_times=3))
    assert arrived(broker, group, f"%DLQ%{group}").body == b"last"


@case("retry", "send back: an unknown group is created")
def test_unknown_group(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = server.unique_name("group")
    broker.ask(back(group, topic, send(broker, topic, b"new").msg_id))
    assert arrived(broker, group, f"%RETRY%{group}").body == b"new"


@case("retry", "send back: refused for an offset without a message (1)")
def test_unknown_message(broker: BlockingClient, group: str, topic: str) -> None:
    request = back(group, topic, send(broker, topic).msg_id)
    request.offset = 1 << 60
    assert expect_refusal(broker, request).code == 1


@case("retry", "send back: a group without retry queues drops the message")
def test_no_retry_queues(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = create_group(broker, server.unique_name("group"), retry_queue_nums=0)
    assert broker.ask(GetSubscriptionGroupConfig(group=group)).data.retry_queue_nums == 0
    broker.ask(back(group, topic, send(broker, topic).msg_id))


@case("retry", "a client sends to the retry topic by itself when send back fails")
def test_send_to_retry(broker: BlockingClient, group: str, topic: str) -> None:
    send_heartbeat(broker, "client@1", group, topic)
    retry = f"%RETRY%{group}"
    send(broker, retry, b"self", properties={"RETRY_TOPIC": topic, "RECONSUME_TIME": "1"}, reconsume_times=1)
    message = arrived(broker, group, retry)
    assert (message.body, message.reconsume_times) == (b"self", 1)


@case("retry", "a send to the retry topic beyond the group's retries is a dead letter")
def test_send_beyond_retries(broker: BlockingClient, group: str, topic: str) -> None:
    send_heartbeat(broker, "client@1", group, topic)
    send(broker, f"%RETRY%{group}", b"too often", reconsume_times=17, max_reconsume_times=16)
    assert arrived(broker, group, f"%DLQ%{group}").body == b"too often"


@case("retry", "send back without a level: level 3 the first time, one level higher per attempt, at most 18")
@pytest.mark.parametrize(("attempts", "level"), [(0, 3), (5, 8), (14, 17), (15, 18), (30, 18)])
def test_levels(broker: BlockingClient, group: str, topic: str, attempts: int, level: int) -> None:
    sent = send(broker, topic, b"grows", reconsume_times=attempts)
    begin = broker.ask(GetMaxOffset(topic=SCHEDULE, queue_id=level - 1)).offset
    broker.ask(back(group, topic, sent.msg_id, delay_level=0, max_reconsume_times=100))
    (message,) = eventually(lambda: waiting(broker, level, begin, f"%RETRY%{group}"), 20)
    assert message.reconsume_times == attempts + 1
    assert message.properties["DELAY"] == str(level)


def waiting(broker: BlockingClient, level: int, begin: int, topic: str) -> list[Message]:
    """Return the messages of a topic that wait in the queue of a delay level, from an offset on."""
    found: list[Message] = []
    while (reply := pull(broker, SCHEDULE, begin, queue_id=level - 1)).code == 0:
        found += messages(reply)
        begin = reply.next_begin_offset
    return [message for message in found if message.properties["REAL_TOPIC"] == topic]


@case("retry", "send back: a group's own retry limit applies if the client names none")
def test_group_limit(broker: BlockingClient, server: ServerUnderTest, topic: str) -> None:
    group = create_group(broker, server.unique_name("group"), retry_max_times=2)
    sent = send(broker, topic, b"twice", reconsume_times=2)
    broker.ask(back(group, topic, sent.msg_id, max_reconsume_times=None))
    assert arrived(broker, group, f"%DLQ%{group}").body == b"twice"


@case("retry", "send back: a group without settings allows 16 retries")
@pytest.mark.parametrize(("attempts", "dead"), [(15, False), (16, True)])
def test_default_limit(broker: BlockingClient, group: str, topic: str, attempts: int, dead: bool) -> None:
    sent = send(broker, topic, b"last", reconsume_times=attempts)
    broker.ask(back(group, topic, sent.msg_id, max_reconsume_times=None))
    message = arrived(broker, group, f"%DLQ%{group}" if dead else f"%RETRY%{group}")
    assert (message.body, message.reconsume_times) == (b"last", attempts + 1)


@case("retry", "retry and dead letter topics: one readable and writable queue, known to the namesrv")
def test_topics(broker: BlockingClient, namesrv: BlockingClient, group: str, topic: str) -> None:
    broker.ask(back(group, topic, send(broker, topic).msg_id))
    broker.ask(back(group, topic, send(broker, topic).msg_id, delay_level=-1))
    for name in (f"%RETRY%{group}", f"%DLQ%{group}"):
        config = broker.ask(GetTopicConfig(topic=name)).data
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
        eventually(partial(has_route, namesrv, name), 30)


@case("retry", "a dead letter keeps key, tag, properties and the id of the original through all retries")
def test_dead_letter_origin(broker: BlockingClient, group: str, topic: str) -> None:
    properties = {"TAGS": "t", "KEYS": "k", "UNIQ_KEY": "AC10", "own": "1"}
    sent = send(broker, topic, b"kept", properties=properties, flag=5)
    broker.ask(back(group, topic, sent.msg_id))
    again = arrived(broker, group, f"%RETRY%{group}")
    broker.ask(back(group, f"%RETRY%{group}", again.msg_id, delay_level=-1))
    dead = arrived(broker, group, f"%DLQ%{group}")
    assert (dead.body, dead.flag, dead.tags, dead.keys, dead.unique_key) == (b"kept", 5, "t", ["k"], "AC10")
    assert (dead.properties["RETRY_TOPIC"], dead.properties["own"]) == (topic, "1")
    assert dead.properties["ORIGIN_MESSAGE_ID"] == sent.msg_id
