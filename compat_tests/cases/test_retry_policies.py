"""Retry policies of groups: the broker stores and returns them, but itself uses delay levels."""

from json import dumps
from typing import Any

import pytest

from codec.command import Command
from codec.fastjson import loads
from codec.message import Message
from compat_tests.cases.test_retry import back
from compat_tests.clients.typed import messages, pull, send, send_plain
from compat_tests.marks import case
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.requests.groups import GetSubscriptionGroupConfig
from remoting.requests.offsets import GetMaxOffset, GetMinOffset

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
FIRST_RETRY_LEVEL = 3
POLICIES: dict[str, dict[str, Any]] = {
    "customized": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000, 10000]}},
    "exponential": {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1000, "max": 60000, "multiplier": 3},
    },
    "by type alone": {"type": "EXPONENTIAL"},
}


def set_policy(broker: BlockingClient, server: ServerUnderTest, policy: dict[str, Any]) -> str:
    """Create a group with a policy, as `mqadmin updateSubGroup -p` does."""
    group = server.unique_name("group")
    body = dumps({"groupName": group, "groupRetryPolicy": policy}).encode()
    answer = broker.send_command(Command(200, body=body, language="JAVA"))
    assert answer.code == 0, answer.remark
    return group


@case("retry", "a group's retry policy is stored and returned")
@pytest.mark.parametrize("name", list(POLICIES))
def test_policy_is_kept(broker: BlockingClient, server: ServerUnderTest, name: str) -> None:
    policy = POLICIES[name]
    group = set_policy(broker, server, policy)
    answer = send_plain(broker, GetSubscriptionGroupConfig.code, group=group)
    told = loads(answer.body)["groupRetryPolicy"]
    assert told | policy == told


@case("retry", "a group without a retry policy is returned with a customized one")
def test_default_policy(broker: BlockingClient, group: str) -> None:
    told = loads(send_plain(broker, GetSubscriptionGroupConfig.code, group=group).body)["groupRetryPolicy"]
    assert told["type"] == "CUSTOMIZED"
    assert told.get("customizedRetryPolicy") is None


@case("retry", "send back: a group's retry policy is for proxies; the broker uses delay levels")
@pytest.mark.parametrize("name", ["customized", "exponential"])
def test_send_back_goes_by_level(
    broker: BlockingClient, server: ServerUnderTest, topic: str, name: str
) -> None:
    group = set_policy(broker, server, POLICIES[name])
    body = server.unique_name("again").encode()
    sent = send(broker, topic, body, reconsume_times=1)
    broker.ask(back(group, topic, sent.msg_id, delay_level=0))
    waiting = eventually(lambda: scheduled(broker, FIRST_RETRY_LEVEL + 1, body), 20)
    assert waiting.properties["REAL_TOPIC"] == f"%RETRY%{group}"


def scheduled(broker: BlockingClient, level: int, body: bytes) -> Message | None:
    """Return the message with this body in the queue of a delay level; None if it is not there."""
    queue = {"topic": SCHEDULE, "queue_id": level - 1}
    offset, end = broker.ask(GetMinOffset(**queue)).offset, broker.ask(GetMaxOffset(**queue)).offset
    while offset < end:
        reply = pull(broker, SCHEDULE, offset, queue_id=level - 1)
        for message in messages(reply) if reply.code == 0 else ():
            if message.body == body:
                return message
        if reply.next_begin_offset <= offset:
            return None
        offset = reply.next_begin_offset
    return None
