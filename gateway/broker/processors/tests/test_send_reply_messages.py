"""Replies: pushed to the client that waits, stored, and refused with the official texts."""

import pytest

from codec.command import Command
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from remoting.errors import RemotingTimeout, RequestError
from remoting.requests.send import PushReplyMessageToClient, SendReplyMessage, SendReplyMessageV2

TOPIC = "c1_REPLY_TOPIC"
PROPERTIES = "REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x0142\x02UNIQ_KEY\x01U1\x02"


def reply_request(kind=SendReplyMessageV2, properties=PROPERTIES, topic=TOPIC):
    request = kind(
        producer_group="g",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=77,
        flag=3,
        properties=properties,
    )
    request.body = b"the answer"
    return request


@pytest.fixture
def world():
    return World()


@pytest.fixture
def asker(world):
    connection = FakeConnection(remote=("10.0.0.7", 4000))
    connection.answer = Command(0, 1, 1)
    world.beat(connection, group=None, client_id="asker", producers=["askers"])
    return connection


@pytest.mark.parametrize("kind", [SendReplyMessage, SendReplyMessageV2])
def test_a_reply_reaches_the_client_that_asked_and_is_stored(world, asker, kind):
    reply = world.ask_async(reply_request(kind))
    (pushed,) = asker.asked
    push = PushReplyMessageToClient.from_command(pushed)
    assert (pushed.code, bytes(pushed.body)) == (326, b"the answer")
    assert (push.topic, push.producer_group, push.born_timestamp, push.flag) == (TOPIC, "g", 77, 3)
    assert (push.born_host, push.store_host) == ("10.0.0.1:50000", "10.0.0.9:10911")
    assert f"PUSH_REPLY_TIME\x01{world.clock.now_ms()}" in (push.properties or "")
    assert "CORRELATION_ID\x0142" in (push.properties or "")
    (stored,) = world.stored(TOPIC)
    assert (stored.body, stored.flag, stored.msg_id) == (b"the answer", 3, reply.msg_id)
    assert reply.queue_offset == 0


def test_without_storing_the_answer_has_no_place(asker, world):
    world.broker.config = world.broker.config.__class__(
        broker_name="b1", broker_cluster_name="c1", store_reply_message_enable=False
    )
    reply = world.ask_async(reply_request())
    assert (reply.msg_id, reply.queue_id, reply.queue_offset) == ("0", 0, 0)
    assert world.stored(TOPIC) == []


@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ("UNIQ_KEY\x01U1\x02", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01nobody\x02", "push reply message fail, channel of <nobody> not found."),
    ],
)
def test_a_reply_to_nobody_is_refused(world, asker, properties, remark):
    with pytest.raises(RequestError) as refused:
        world.ask_async(reply_request(properties=properties))
    assert (refused.value.code, refused.value.remark) == (1, remark)
    assert asker.asked == []


@pytest.mark.parametrize("answer", [Command(1, 1, 1, remark="no"), RemotingTimeout("late")])
def test_a_client_that_does_not_take_it_is_told_of(world, asker, answer):
    asker.answer = answer
    with pytest.raises(RequestError, match="push reply message to askerfail"):
        world.ask_async(reply_request())
    assert len(world.stored(TOPIC)) == 1


def test_an_illegal_topic_is_refused_before_anything_is_pushed(world, asker):
    with pytest.raises(RequestError, match="illegal characters"):
        world.ask_async(reply_request(topic="no such!"))
    assert asker.asked == []
