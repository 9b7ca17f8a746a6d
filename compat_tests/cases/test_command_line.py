"""The commands of `rmq-gateway` that ask servers: topics, groups, messages, dead letters, settings, health."""

import json
from typing import Any

import pytest

from codec.ids import decode_message_id
from compat_tests.clients.command_line import CommandLine
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import create_group
from compat_tests.marks import case, needs_admin
from compat_tests.server import ServerUnderTest, eventually
from remoting.blocking import BlockingClient
from remoting.requests.send import ConsumerSendMsgBack


@pytest.fixture
def command(server: ServerUnderTest) -> CommandLine:
    return CommandLine(server.namesrv)


@pytest.fixture
def name(server: ServerUnderTest, command: CommandLine) -> str:
    """A topic with two queues, created by the command."""
    name = server.topic_name("command")
    command.run("topic", "create", name, "-q", "2")
    return name


def produce(command: CommandLine, topic: str, *arguments: str) -> list[dict[str, Any]]:
    """Send messages and wait until they can be read: the official server fills its queues after it has answered."""
    before = command.read("topic", "describe", topic)["messages"]
    sent = command.read_lines("produce", topic, *arguments)
    eventually(lambda: command.read("topic", "describe", topic)["messages"] == before + len(sent), 30)
    return sent


@case("admin", "the command line creates, describes, changes and deletes a topic")
def test_topic(command: CommandLine, server: ServerUnderTest) -> None:
    name = server.topic_name("command")
    command.run("topic", "create", name, "-q", "3", "--type", "FIFO")
    (row,) = command.read("topic", "list", name)
    assert (row["topic"], row["type"], row["writeQueues"], row["permission"]) == (name, "FIFO", 3, "RW-")
    assert command.invoke("topic", "create", name).exit_code == 1
    rows = command.read("topic", "alter", name, "--perm", "r", "--write-queues", "1")
    assert {each["setting"] for each in rows} == {"perm", "write_queue_nums"}
    assert eventually(lambda: command.read("topic", "describe", name)["brokers"][0]["permission"] == "R--")
    found = command.read("topic", "describe", name)
    assert (found["type"], found["brokers"][0]["writeQueues"], found["brokers"][0]["readQueues"]) == (
        "FIFO",
        1,
        3,
    )
    command.run("topic", "delete", name, "--yes")
    assert command.read("topic", "list", name) == []
    assert "does not exist" in command.invoke("topic", "describe", name).stderr


@case("admin", "the command line produces and consumes: keys, tags, properties, places, formats")
def test_produce_and_consume(command: CommandLine, name: str) -> None:
    sent = produce(command, name, "a", "b", "-k", "k1", "-g", "red", "-p", "n=1", "--queue", "0")
    assert [(each["queue"], each["offset"]) for each in sent] == [(0, 0), (0, 1)]
    produce(command, name, "c", "-g", "blue", "--queue", "0")
    assert command.run("consume", name, "-f", "%t %p %o %k %g %h %s\\n").splitlines() == [
        f"{name} 0 0 k1 red n=1 a",
        f"{name} 0 1 k1 red n=1 b",
        f"{name} 0 2  blue  c",
    ]
    assert command.run("consume", name, "--tag", "blue") == "c\n"
    assert command.run("consume", name, "--sql", "n = 1") == "a\nb\n"
    assert command.run("consume", name, "--offset", "2") == "c\n"
    assert command.run("consume", name, "--from", "latest") == ""
    assert command.run("consume", name, "--from", "1h", "-n", "1") == "a\n"
    assert f"TOOLS_CONSUMER@{name}" not in command.run("group", "list", "--json")


@case("send", "the command line keeps the order of the lines that it sends to one queue")
def test_order(command: CommandLine, name: str) -> None:
    numbers = [str(number) for number in range(100)]
    produce(command, name, *numbers, "--sharding-key", "customer")
    assert command.run("consume", name).splitlines() == numbers


@case("query", "the command line finds messages by id, offset id, key and time")
def test_messages(command: CommandLine, name: str) -> None:
    first, second = produce(command, name, "a", "b", "-k", f"key_{name}", "--queue", "1")
    for flags in ([second["uniqueKey"]], [second["messageId"]], ["--queue", "1", "--offset", "1"]):
        (found,) = eventually(lambda flags=flags: _read_found(command, "get", name, *flags))  # type: ignore[misc]
        assert (found["value"], found["uniqueKey"]) == ("b", second["uniqueKey"])
    with_key = eventually(lambda: _read_found(command, "find", name, "-k", f"key_{name}"))
    assert [each["uniqueKey"] for each in with_key] == [first["uniqueKey"], second["uniqueKey"]]
    assert len(command.read("message", "find", name, "--from", "1h")) == 2


def _read_found(command: CommandLine, *arguments: str) -> list[dict[str, Any]]:
    """Return what a search finds; nothing while the index does not have it yet."""
    result = command.invoke("message", *arguments, "--json")
    assert result.exit_code in (0, 4), result.output
    return json.loads(result.stdout) if result.exit_code == 0 else []


@case("offsets", "the command line describes a group, moves its offsets and deletes it")
def test_group(command: CommandLine, server: ServerUnderTest, broker: BlockingClient, name: str) -> None:
    group = create_group(broker, server.unique_name("group"))
    produce(command, name, "a", "b", "c", "--queue", "0")
    assert command.run("consume", name, "--group", group, "-n", "2") == "a\nb\n"
    found = command.read("group", "describe", group)
    assert (found["state"], found["lag"]) == ("offline", 1)
    for target, offset in (("--to", "earliest"), 0), (("--to", "latest"), 3), (("--to-offset", "1"), 1):
        command.run("group", "seek", group, "-t", name, *target, "--queue", "0", "--yes")
        queues = command.read("group", "describe", group)["queues"]
        assert [each["consumerOffset"] for each in queues if each["queue"] == 0] == [offset]
    assert command.run("consume", name, "--group", group) == "b\nc\n"
    command.run("group", "delete", group, "--yes")
    assert command.read("group", "list", group) == []


@case("retry", "the command line shows dead letters and sends them again, to the group or to their topic")
def test_dead_letters(
    command: CommandLine, server: ServerUnderTest, broker: BlockingClient, name: str
) -> None:
    group = create_group(broker, server.unique_name("group"))
    for place in produce(command, name, "a", "b", "-k", "k", "-g", "t", "-p", "n=1", "--queue", "0"):
        _, _, offset = decode_message_id(place["messageId"])
        broker.ask(
            ConsumerSendMsgBack(
                offset=offset,
                group=group,
                delay_level=-1,
                origin_msg_id=place["uniqueKey"],
                origin_topic=name,
            )
        )
    eventually(lambda: [each["messages"] for each in command.read("dlq", "list", group)] == [2], 30)
    letters = command.read("dlq", "peek", group)
    assert [(each["value"], each["originTopic"]) for each in letters] == [("a", name), ("b", name)]
    assert command.read("dlq", "resend", group, "--to", "origin", "--dry-run")["topics"] == {name: 2}
    command.run("dlq", "resend", group, "--to", "origin", "--id", letters[1]["uniqueKey"], "--yes")
    eventually(lambda: command.read("topic", "describe", name)["messages"] == 3, 30)
    last = next(
        each for each in command.read_lines("consume", name) if each["messageId"] > letters[1]["messageId"]
    )
    assert (last["value"], last["keys"], last["tag"], last["properties"]) == ("b", ["k"], "t", {"n": "1"})
    command.run("topic", "create", f"%RETRY%{group}", "-q", "1", "--if-not-exists")
    command.run("dlq", "resend", group, "--yes")
    eventually(lambda: len(command.read_lines("consume", f"%RETRY%{group}")) == 2, 30)


@needs_admin("changes settings of the broker")
@case("admin", "the command line shows brokers, checks their health, and reads and changes their settings")
def test_cluster(command: CommandLine) -> None:
    # In its first second an official broker has no statistics, and refuses GET_BROKER_RUNTIME_INFO.
    eventually(lambda: command.read("cluster", "info")[0]["problem"] is None, 30)
    (row,) = command.read("cluster", "info")
    assert (row["id"], row["role"]) == (0, "master")
    checks = json.loads(command.invoke("cluster", "health", "--json").stdout)
    full_disk = {each["check"] for each in checks if each["check"].startswith("disk")}
    assert [each for each in checks if not each["passed"] and each["check"] not in full_disk] == []
    before = command.read("broker", "config", "get", "transactionCheckMax")[0]["value"]
    for value in ("11", before):
        (change,) = command.read("broker", "config", "set", f"transactionCheckMax={value}", "--yes")
        assert (change["now"], change["applied"]) == (value, True)
    assert command.read("namesrv", "config", "get", "orderMessageEnable")[0]["value"] in ("true", "false")


@case("client", "the command line shows members, their queues, and subscriptions that contradict each other")
def test_members(command: CommandLine, server: ServerUnderTest, java5: JavaClient, name: str) -> None:
    group = server.unique_name("group")
    with java5.push(group, subscriptions=[{"topic": name, "tags": "a"}]) as one:
        produce(command, name, "1", "-g", "a")
        assert one.received(1, timeout_s=60)
        found = _describe_members(command, group, 1)
        (member,) = found["members"]
        assert (member["language"], member["subscriptions"]) == ("JAVA", {name: "a"})
        assert found["inconsistentSubscriptions"] == []
        # The client commits its offsets every 5 s.
        assert eventually(lambda: _owners(command, group, name) == {member["client"]}, 60)
        with java5.push(group, name=f"{group}_two", subscriptions=[{"topic": name, "tags": "b"}]):
            found = _describe_members(command, group, 2)
            (conflict,) = found["inconsistentSubscriptions"]
            assert {each["subscription"]: len(each["clients"]) for each in conflict["subscriptions"]} == {
                "a": 1,
                "b": 1,
            }


def _owners(command: CommandLine, group: str, topic: str) -> set[str]:
    """Return the members to which the queues of a topic belong."""
    queues = command.read("group", "describe", group)["queues"]
    return {each["client"] for each in queues if each["topic"] == topic}


def _describe_members(command: CommandLine, group: str, count: int) -> dict[str, Any]:
    """Return the description of a group once this many members tell their state."""

    def describe() -> dict[str, Any] | None:
        found: dict[str, Any] = command.read("group", "describe", group)
        return found if sum(each["answers"] for each in found["members"]) == count else None

    found = eventually(describe, 60)
    assert found is not None
    return found
