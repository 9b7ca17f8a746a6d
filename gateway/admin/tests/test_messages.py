"""`rmq-gateway message …` against a server of this process."""

import json
import time

import pytest

from gateway.admin.client import AdminClient
from gateway.admin.consuming import ReadOptions, find_queues
from gateway.admin.settings import ConnectionSettings
from gateway.admin.tests.local_server import LocalServer


@pytest.fixture
def topic(server: LocalServer, name: str) -> str:
    server.run("topic", "create", name, "-q", "1", "--broker", "broker-b")
    return name


def test_by_id_and_by_place(server: LocalServer, topic: str) -> None:
    sent = [
        json.loads(line) for line in server.run("produce", topic, "a", "b", "-k", "k1", "--json").splitlines()
    ]
    for flags in ([sent[1]["uniqueKey"]], [sent[1]["messageId"]], ["--queue", "0", "--offset", "1"]):
        (found,) = server.read("message", "get", topic, *flags)
        assert (found["value"], found["offset"], found["groups"]) == ("b", 1, [])
    text = server.run("message", "get", topic, sent[0]["uniqueKey"])
    assert f"place:             {topic}, broker-b, queue 0, offset 0" in text.splitlines()


def test_groups_that_have_consumed_it(server: LocalServer, topic: str) -> None:
    server.run("produce", topic, "a", "b")
    server.run("consume", topic, "--group", f"group_{topic}", "-n", "1")
    for offset, consumed in ((0, True), (1, False)):
        (found,) = server.read("message", "get", topic, "--queue", "0", "--offset", str(offset))
        assert found["groups"] == [{"group": f"group_{topic}", "consumed": consumed, "offset": 1}]


def test_by_key(server: LocalServer, topic: str) -> None:
    server.run("produce", topic, "a", "-k", "k1")
    server.run("produce", topic, "b", "-k", "k1", "-k", "k2")
    server.run("produce", topic, "c", "-k", "k3")
    assert [each["value"] for each in server.read("message", "find", topic, "-k", "k1")] == ["a", "b"]
    assert [each["value"] for each in server.read("message", "find", topic, "-k", "k1", "-n", "1")] == ["b"]
    assert server.run("message", "find", topic, "-k", "k1", "--until", "1h", code=4) == ""
    assert "VALUE" in server.run("message", "find", topic, "-k", "k2")


def test_by_time(server: LocalServer, topic: str) -> None:
    server.run("produce", topic, "a", "b", "c")
    stored = [each["storedMs"] for each in server.read("message", "find", topic, "--from", "1h")]
    assert len(stored) == 3
    assert len(server.read("message", "find", topic, "--from", "1h", "-n", "2")) == 2
    server.run("message", "find", topic, "--from", str(max(stored) + 1), code=4)
    server.run("message", "find", topic, "--from", "1h", "--until", str(min(stored)), code=4)


def test_a_time_that_ends_is_not_read_beyond_its_end(server: LocalServer, topic: str) -> None:
    """The later part of a queue may have millions of messages."""
    server.run("produce", topic, "old")
    (old,) = server.read("message", "find", topic, "--from", "1h")
    until_ms = old["storedMs"] + 1
    while time.time_ns() // 1_000_000 <= until_ms:
        time.sleep(0.001)
    server.run("produce", topic, *map(str, range(100)))
    options = ReadOptions(start="", start_ms=until_ms - 10_000, end_ms=until_ms)
    with AdminClient(ConnectionSettings(namesrv=[server.namesrv], timeout_s=30)) as client:
        (position,) = find_queues(client, topic, options)
        assert (position.next_offset, position.end) == (0, 2), "one message behind, for brokers of 4.9"
    found = server.read("message", "find", topic, "--from", "1h", "--until", str(until_ms))
    assert [each["value"] for each in found] == ["old"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("get", "TBW102"), 2, "either an ID or --offset"),
        (("get", "TBW102", "--offset", "1"), 2, "Pass --queue, too."),
        (("get", "TBW102", "--offset", "1", "--queue", "0"), 2, "pass --broker"),
        (("get", "TBW102", "0" * 32), 4, "No such message"),
        (("get", "TBW102", "no id at all"), 4, "No such message"),
        (("get", "TBW102", "--offset", "1", "--queue", "0", "--broker", "broker-a"), 4, "No such message"),
        (("get", "no-such-topic", "x"), 1, "does not exist"),
        (("find", "TBW102"), 2, "--key, --from or both"),
    ],
)
def test_refusals(server: LocalServer, arguments: tuple[str, ...], code: int, text: str) -> None:
    result = server.invoke("message", *arguments)
    assert (result.exit_code, text in result.output) == (code, True), result.output
