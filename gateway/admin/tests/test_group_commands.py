"""`rmq-gateway group …` against a server of this process, with members that answer as stock clients do."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway.admin.tests.local_server import LocalServer
from gateway.admin.tests.member import connect_member
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.declare import Request
from remoting.requests.groups import GetAllSubscriptionGroupConfig, UpdateAndCreateSubscriptionGroup
from remoting.requests.offsets import UpdateConsumerOffset
from remoting.requests.send import SendMessage


def ask(server: LocalServer, broker: str, *requests: Request[Any]) -> None:
    with server.connect(broker) as client:
        for request in requests:
            client.ask(request)


def eventually(probe: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (answer := probe()):
        assert time.monotonic() < deadline, answer
        time.sleep(0.01)
    return answer


def send(topic: str, queue: int, count: int) -> list[SendMessage]:
    return [
        SendMessage(
            producer_group="p",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue,
            sys_flag=0,
            born_timestamp=1_700_000_000_000,
            flag=0,
            properties="",
            body=b"x",
        )
        for _ in range(count)
    ]


def commit(group: str, topic: str, queue: int, offset: int) -> UpdateConsumerOffset:
    return UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue, commit_offset=offset)


@pytest.fixture
def group(server: LocalServer, name: str) -> str:
    """A group that has consumed 2 of 5 messages of queue 0 of a topic of the same name, and none of queue 1."""
    server.run("topic", "create", name, "-q", "2", "--broker", "broker-a")
    ask(
        server,
        "broker-a",
        UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name=name)),
        *send(name, 0, 5),
        commit(name, name, 0, 2),
        commit(name, name, 1, 0),
    )
    return name


def offsets(server: LocalServer, group: str) -> list[int]:
    return [each["consumerOffset"] for each in server.read("group", "describe", group)["queues"]]


def test_a_group_without_members(server: LocalServer, group: str) -> None:
    (row,) = server.read("group", "list", group)
    assert (row["group"], row["members"], row["lag"], row["topics"]) == (group, 0, 3, [group])
    found = server.read("group", "describe", group)
    assert (found["state"], found["lag"], found["members"], found["deadLetters"]) == ("offline", 3, [], 0)
    assert [
        (each["queue"], each["consumerOffset"], each["maxOffset"], each["lag"]) for each in found["queues"]
    ] == [
        (0, 2, 5, 3),
        (1, 0, 0, 0),
    ]
    text = server.run("group", "describe", group)
    assert "state:        offline" in text
    assert "Inconsistent" not in text


def test_lag_on_a_broker_where_the_group_has_no_offset(server: LocalServer, name: str) -> None:
    server.run("topic", "create", name, "-q", "1")
    for broker, count in (("broker-a", 2), ("broker-b", 3)):
        server.run("produce", name, *map(str, range(count)), "--broker", broker)
    server.run("consume", name, "--group", name, "--broker", "broker-a")
    found = server.read("group", "describe", name)
    assert [(each["broker"], each["lag"]) for each in found["queues"]] == [("broker-a", 0), ("broker-b", 3)]
    assert found["lag"] == 3
    assert server.read("group", "list", name)[0]["lag"] == 3


def test_members_their_queues_and_subscriptions(server: LocalServer, group: str) -> None:
    with (
        connect_member(server, "10.0.0.1@1", group, {group: "a || b"}, owns=((group, "broker-a", 0),)),
        connect_member(server, "10.0.0.2@1", group, {group: "b||a", f"%RETRY%{group}": "*"}),
    ):
        found = server.read("group", "describe", group)
    assert [(each["client"], each["queues"], each["subscriptions"]) for each in found["members"]] == [
        ("10.0.0.1@1", 1, {group: "a || b"}),
        ("10.0.0.2@1", 0, {group: "b||a"}),
    ]
    assert found["queues"][0]["client"] == "10.0.0.1@1"
    assert found["inconsistentSubscriptions"] == []
    assert (found["state"], found["messageModel"]) == ("online", "CLUSTERING")


def test_members_that_speak_grpc(server: LocalServer, group: str) -> None:
    with (
        connect_member(server, "one", group, {group: "*"}),
        connect_member(server, "two", group, {group: "*"}, answers=False, speaks_grpc=True),
    ):
        members = server.read("group", "describe", group, "--timeout", "1")["members"]
        text = server.run("group", "describe", group, "--timeout", "1")
        brokers = server.read("cluster", "info")
        table = server.run("cluster", "info")
    assert {member["client"]: member["protocol"] for member in members} == {"one": "remoting", "two": "grpc"}
    (line,) = [line for line in text.splitlines() if line.strip().startswith("two")]
    assert "grpc" in line.split()
    assert [broker["grpcClients"] for broker in brokers] == [1, 1]
    assert all(broker["remotingClients"] >= 1 for broker in brokers)
    assert table.count(", 1 by gRPC") == 2


def test_members_that_disagree_are_named(server: LocalServer, group: str) -> None:
    with (
        connect_member(server, "one", group, {group: "a"}),
        connect_member(server, "two", group, {group: "b", "more": "*"}),
    ):
        found = server.read("group", "describe", group)["inconsistentSubscriptions"]
        text = server.run("group", "describe", group)
    assert found == [
        {
            "topic": "more",
            "subscriptions": [
                {"subscription": "not subscribed", "clients": ["one"]},
                {"subscription": "*", "clients": ["two"]},
            ],
        },
        {
            "topic": group,
            "subscriptions": [
                {"subscription": "a", "clients": ["one"]},
                {"subscription": "b", "clients": ["two"]},
            ],
        },
    ]
    assert f'  {group}: one: "a"; two: "b"' in text.splitlines()


def test_a_member_that_tells_nothing_is_listed(server: LocalServer, group: str) -> None:
    with connect_member(server, "mute", group, {group: "*"}, answers=False):
        (member,) = server.read("group", "describe", group, "--timeout", "1")["members"]
    assert (member["client"], member["answers"], member["queues"]) == ("mute", False, None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--to", "earliest"), [0, 0]),
        (("--to", "latest"), [5, 0]),
        (("--to-offset", "4"), [4, 0]),
        (("--to-offset", "1", "--queue", "0"), [1, 0]),
        (("--to", "2020-01-01"), [0, 0]),
        (("--to", "0s"), [5, 0]),
    ],
)
def test_seek_without_members(
    server: LocalServer, group: str, arguments: tuple[str, ...], expected: list[int]
) -> None:
    plan = json.loads(server.run("group", "seek", group, "-t", group, *arguments, "--dry-run", "--json"))
    assert [each["before"] for each in plan] == [2, 0][: len(plan)]
    assert offsets(server, group) == [2, 0], "a dry run changes nothing"
    assert f"Moved {group}" in server.run("group", "seek", group, "-t", group, *arguments, "--yes")
    assert offsets(server, group) == expected
    assert [each["after"] for each in plan] == expected[: len(plan)]


def test_seek_asks_first(server: LocalServer, group: str) -> None:
    result = server.invoke("group", "seek", group, "-t", group, "--to", "earliest")
    assert result.exit_code == 2
    assert "pass --yes" in result.stderr
    assert offsets(server, group) == [2, 0]


def test_seek_with_members(server: LocalServer, group: str) -> None:
    with connect_member(server, "one", group, {group: "*"}):
        server.run("group", "seek", group, "-t", group, "--to", "latest", "--yes")
        assert offsets(server, group) == [5, 0]
        result = server.invoke("group", "seek", group, "-t", group, "--to-offset", "1", "--yes")
        assert result.exit_code == 1
        assert "Stop them first" in result.stderr
        assert offsets(server, group) == [5, 0]


def test_delete(server: LocalServer, group: str) -> None:
    with connect_member(server, "one", group, {group: "*"}):
        result = server.invoke("group", "delete", group, "--yes")
        assert result.exit_code == 1
        assert "has members (one). Stop them first, or pass --force" in result.stderr
    eventually(lambda: server.read("group", "describe", group)["members"] == [])
    server.run("topic", "create", f"%RETRY%{group}", "--broker", "broker-a", "--if-not-exists")
    assert server.run("group", "delete", group, "--yes").startswith(
        f"Deleted {group}, and the topics %RETRY%{group}"
    )
    assert server.read("group", "list", group) == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("describe", "TOOLS_CONSUMR"), 1, 'did you mean "TOOLS_CONSUMER"?'),
        (("delete", "no-such-group-at-all", "-y"), 1, 'See the names with "rmq-gateway group list"'),
        (("seek", "TOOLS_CONSUMER", "-t", "absent-topic", "--to", "latest"), 1, "does not exist"),
        (("seek", "TOOLS_CONSUMER", "-t", "TBW102", "--to", "never"), 2, "--to: 'never' is neither"),
        (("seek", "TOOLS_CONSUMER", "-t", "TBW102"), 2, "either --to or --to-offset"),
        (("seek", "TOOLS_CONSUMER", "-t", "TBW102", "--to", "latest", "--queue", "99"), 1, "has no queue 99"),
    ],
)
def test_refusals(server: LocalServer, arguments: tuple[str, ...], code: int, text: str) -> None:
    result = server.invoke("group", *arguments)
    assert (result.exit_code, text in result.output) == (code, True), result.output


def test_internal_groups_are_hidden(server: LocalServer) -> None:
    assert "TOOLS_CONSUMER" not in server.run("group", "list", "-o", "name").splitlines()
    assert "TOOLS_CONSUMER" in server.run("group", "list", "--all", "-o", "name").splitlines()


def test_a_group_is_created_and_changed(server: LocalServer, name: str) -> None:
    """No command could set consumeMessageOrderly, which the guide demands for gRPC clients."""
    created = server.read("group", "create", name, "--orderly")
    assert created == {"group": name, "brokers": ["broker-a", "broker-b"]}
    assert "group alter" in refused(server, "group", "create", name)
    assert group_on(server, "broker-b", name).consume_message_orderly
    rows = server.read("group", "alter", name, "--retries", "3")
    assert rows == [
        {"broker": broker, "setting": "retry_max_times", "before": 16, "now": 3}
        for broker in ("broker-a", "broker-b")
    ]
    server.run("group", "alter", name, "--not-orderly", "--no-consume", "--broker", "broker-a")
    changed, other = group_on(server, "broker-a", name), group_on(server, "broker-b", name)
    assert (changed.consume_message_orderly, changed.consume_enable, changed.retry_max_times) == (
        False,
        False,
        3,
    )
    assert (other.consume_message_orderly, other.consume_enable) == (True, True)
    assert "Nothing changed" in server.invoke("group", "alter", name, "--retries", "3").output
    assert "Nothing to change" in refused(server, "group", "alter", name)
    assert "does not exist" in refused(server, "group", "alter", f"{name}-other", "--orderly")


def refused(server: LocalServer, *arguments: str) -> str:
    result = server.invoke(*arguments)
    assert result.exit_code != 0
    return result.output


def group_on(server: LocalServer, broker: str, name: str) -> SubscriptionGroupConfig:
    with server.connect(broker) as client:
        return client.ask(GetAllSubscriptionGroupConfig()).data.subscription_group_table[name]
