"""`rmq-gateway dlq …` against a server of this process."""

import json
from typing import Any

import pytest

from codec.ids import decode_message_id
from codec.message import Message
from gateway.admin.dead_letters import TO_GROUP, TO_ORIGIN, DeadLetter, properties_to_resend
from gateway.admin.tests.local_server import LocalServer
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.send import ConsumerSendMsgBack


@pytest.fixture
def group(server: LocalServer, name: str) -> str:
    """A group with three dead letters of a topic with the same name, on broker-a."""
    server.run("topic", "create", name, "-q", "1", "--broker", "broker-a")
    sent = server.run("produce", name, "a", "b", "c", "-k", "k", "-g", "tag", "-p", "n=1", "--json")
    with server.connect() as client:
        client.ask(UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name=name)))
        for line in sent.splitlines():
            place = json.loads(line)
            _, _, offset = decode_message_id(place["messageId"])
            client.ask(
                ConsumerSendMsgBack(
                    offset=offset,
                    group=name,
                    delay_level=-1,
                    origin_msg_id=place["uniqueKey"],
                    origin_topic=name,
                )
            )
    server.run("topic", "create", f"%RETRY%{name}", "-q", "1", "--broker", "broker-a", "--if-not-exists")
    return name


def peek(server: LocalServer, group: str, *flags: str) -> list[Any]:
    return server.read("dlq", "peek", group, *flags)


def test_list_and_peek(server: LocalServer, group: str) -> None:
    (row,) = server.read("dlq", "list", group)
    assert (row["group"], row["messages"]) == (group, 3)
    assert group in server.run("dlq", "list", "-o", "name").splitlines()
    found = peek(server, group)
    assert [each["value"] for each in found] == ["a", "b", "c"]
    assert {each["originTopic"] for each in found} == {group}
    assert [each["value"] for each in peek(server, group, "-n", "2")] == ["a", "b"]
    assert [each["value"] for each in peek(server, group, "--id", found[1]["uniqueKey"])] == ["b"]
    assert "FROM TOPIC" in server.run("dlq", "peek", group)
    assert server.run("dlq", "peek", group, "--id", "none", code=4) == ""


def test_resend_to_the_group_alone(server: LocalServer, group: str) -> None:
    before = server.read("topic", "describe", group)["messages"]
    dry = json.loads(server.run("dlq", "resend", group, "--dry-run", "--json"))
    assert dry == {"group": group, "sent": 0, "selected": 3, "topics": {f"%RETRY%{group}": 3}, "dryRun": True}
    text = server.run("dlq", "resend", group, "--yes")
    assert text == f"Sent 3 dead letter(s): 3 to %RETRY%{group}.\n"
    sent = [json.loads(line) for line in server.run("consume", f"%RETRY%{group}", "--json").splitlines()]
    assert [each["value"] for each in sent] == ["a", "b", "c"]
    letters = peek(server, group)
    for each, letter in zip(sent, letters, strict=True):
        for key in ("uniqueKey", "keys", "tag", "properties"):
            assert each[key] == letter[key]
        assert each["systemProperties"]["RETRY_TOPIC"] == group
        assert each["deliveriesBefore"] == 0
    assert server.read("topic", "describe", group)["messages"] == before


def test_resend_one_to_its_origin(server: LocalServer, group: str) -> None:
    chosen = peek(server, group)[1]
    server.run("dlq", "resend", group, "--to", "origin", "--id", chosen["uniqueKey"], "--yes")
    last = [json.loads(line) for line in server.run("consume", group, "--json").splitlines()][-1]
    assert (last["value"], last["keys"], last["tag"], last["properties"]) == ("b", ["k"], "tag", {"n": "1"})
    assert last["uniqueKey"] == chosen["uniqueKey"]
    assert "RETRY_TOPIC" not in last["systemProperties"]


def test_resend_asks(server: LocalServer, group: str) -> None:
    result = server.invoke("dlq", "resend", group)
    assert result.exit_code == 2
    assert f"Send 3 dead letter(s) of {group} again (3 to %RETRY%{group})?" in result.stderr
    assert server.run("consume", f"%RETRY%{group}") == ""


def test_a_group_without_retry_topic_is_told_what_to_do(server: LocalServer, group: str) -> None:
    server.run("topic", "delete", f"%RETRY%{group}", "--yes")
    result = server.invoke("dlq", "resend", group, "--yes")
    assert result.exit_code == 1
    assert "start a consumer of the group once, which creates it, or pass --to origin" in result.stderr


def test_an_unreadable_topic_of_dead_letters(server: LocalServer, group: str) -> None:
    server.run("topic", "alter", f"%DLQ%{group}", "--perm", "w")
    result = server.invoke("dlq", "peek", group)
    assert result.exit_code == 1
    assert f'"rmq-gateway topic alter %DLQ%{group} --perm rw"' in result.stderr


def test_nothing_to_send(server: LocalServer, group: str) -> None:
    assert "No dead letter fits" in server.invoke("dlq", "resend", group, "--id", "x").stderr
    server.run("dlq", "resend", group, "--id", "x", code=4)
    result = server.invoke("dlq", "peek", "nobody")
    assert (result.exit_code, "has no dead letters" in result.stderr) == (1, True)


def test_properties_of_former_deliveries_are_dropped() -> None:
    message = Message(
        "%DLQ%g",
        properties={
            "KEYS": "k", "own": "1", "UNIQ_KEY": "U", "RETRY_TOPIC": "t", "DELAY": "3", "REAL_TOPIC": "x",
            "RECONSUME_TIME": "16", "ORIGIN_MESSAGE_ID": "O", "DLQ_ORIGIN_TOPIC": "t", "TIMER_OUT_MS": "5",
        },
    )  # fmt: skip
    letter = DeadLetter(message, "broker-a")
    kept = {"KEYS": "k", "own": "1", "UNIQ_KEY": "U", "ORIGIN_MESSAGE_ID": "O"}
    assert properties_to_resend(letter, TO_ORIGIN) == kept
    assert properties_to_resend(letter, TO_GROUP) == {**kept, "RETRY_TOPIC": "t"}


@pytest.mark.parametrize(
    ("properties", "origin"),
    [({"RETRY_TOPIC": "a", "DLQ_ORIGIN_TOPIC": "b"}, "a"), ({"DLQ_ORIGIN_TOPIC": "b"}, "b"), ({}, ""),
     ({"RETRY_TOPIC": "%DLQ%g"}, "")],
)  # fmt: skip
def test_origin(properties: dict[str, str], origin: str) -> None:
    assert DeadLetter(Message("%DLQ%g", properties=properties), "b").origin_topic == origin
