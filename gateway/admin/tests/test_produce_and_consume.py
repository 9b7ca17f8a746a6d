"""`rmq-gateway produce` and `rmq-gateway consume` against a server of this process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from codec.message import Message
from gateway.admin.tests.local_server import LocalServer

TIMEOUT_S = 60


@pytest.fixture
def topic(server: LocalServer, name: str) -> str:
    """A topic with two queues on one broker."""
    server.run("topic", "create", name, "-q", "2", "--broker", "broker-a")
    return name


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_values_keys_tags_and_properties(server: LocalServer, topic: str) -> None:
    result = server.invoke(
        "produce",
        topic,
        "one",
        "two",
        "-k",
        "k1",
        "-k",
        "k2",
        "-g",
        "new",
        "-p",
        "a=1",
        "--queue",
        "1",
        "--json",
    )
    assert result.exit_code == 0, result.output
    assert result.stderr == f"Sent 2 message(s) to {topic}.\n"
    places = lines(result.stdout)
    assert [(each["broker"], each["queue"], each["offset"]) for each in places] == [
        ("broker-a", 1, 0),
        ("broker-a", 1, 1),
    ]
    found = lines(server.run("consume", topic, "--json"))
    assert [each["value"] for each in found] == ["one", "two"]
    assert (found[0]["keys"], found[0]["tag"], found[0]["properties"]) == (["k1", "k2"], "new", {"a": "1"})
    assert found[0]["uniqueKey"] == places[0]["uniqueKey"]


def test_lines_of_standard_input_and_of_a_file(server: LocalServer, topic: str, tmp_path: Path) -> None:
    server.run("produce", topic, "--queue", "0", stdin="a\nb\n")
    file = tmp_path / "messages"
    file.write_bytes(b"k1:c;k2:d")
    server.run("produce", topic, "--queue", "0", "-f", str(file), "-D", ";", "-K", ":")
    server.run("produce", topic, "--queue", "0", "-f", str(file), "--whole")
    assert server.run("consume", topic, "-f", "%o %k %s\\n") == "0  a\n1  b\n2 k1 c\n3 k2 d\n4  k1:c;k2:d\n"


def test_messages_go_to_all_queues_in_turn(server: LocalServer, name: str) -> None:
    server.run("topic", "create", name, "-q", "2")
    server.run("produce", name, *map(str, range(8)))
    counts = [each["messages"] for each in server.read("topic", "describe", name)["queues"]]
    assert counts == [2, 2, 2, 2]


def test_a_sharding_key_keeps_messages_together(server: LocalServer, topic: str) -> None:
    server.run("produce", topic, *map(str, range(10)), "--sharding-key", "customer-7")
    assert sorted(each["messages"] for each in server.read("topic", "describe", topic)["queues"]) == [0, 10]


def test_what_was_consumed_can_be_produced(server: LocalServer, topic: str) -> None:
    server.run("produce", topic, "--whole", "-k", "k", "-p", "a=1", stdin=b"\xff\x00")
    consumed = server.run("consume", topic, "--json")
    server.run("produce", topic, "--json-lines", stdin=consumed)
    first, second = lines(server.run("consume", topic, "--json"))
    for key in ("valueBase64", "keys", "tag", "properties"):
        assert first[key] == second[key]


def test_many_lines(server: LocalServer, topic: str) -> None:
    numbers = [str(number) for number in range(1500)]
    server.run("produce", topic, stdin="\n".join(numbers))
    assert sorted(server.run("consume", topic).splitlines(), key=int) == numbers
    assert len(server.run("consume", topic, "-n", "700").splitlines()) == 700


def test_places_to_begin(server: LocalServer, topic: str) -> None:
    server.run("produce", topic, "a", "b", "c", "--queue", "0")
    assert server.run("consume", topic, "--offset", "2") == "c\n"
    assert server.run("consume", topic, "--queue", "1") == ""
    assert server.run("consume", topic, "--from", "latest") == ""
    assert server.run("consume", topic, "--from", "1h") == "a\nb\nc\n"
    assert server.run("consume", topic, "--from", "0s") == ""
    assert server.run("consume", topic, "--from", "2020-01-01") == "a\nb\nc\n"


def test_filters(server: LocalServer, topic: str) -> None:
    server.run("produce", topic, "red", "-g", "red", "-p", "n=1", "--queue", "0")
    server.run("produce", topic, "blue", "-g", "blue", "-p", "n=2", "--queue", "0")
    assert server.run("consume", topic, "--tag", "blue || green") == "blue\n"
    assert server.run("consume", topic, "--sql", "n = 1") == "red\n"
    result = server.invoke("consume", topic, "--sql", "n = = 1")
    assert result.exit_code == 1
    assert "refused PULL_MESSAGE" in result.stderr


def test_a_group_goes_on_where_it_ended(server: LocalServer, topic: str) -> None:
    server.run("produce", topic, "a", "b", "c", "--queue", "0")
    group = f"group_{topic}"
    assert server.run("consume", topic, "--group", group, "-n", "2") == "a\nb\n"
    assert server.read("group", "describe", group)["queues"][0]["consumerOffset"] == 2
    assert server.run("consume", topic, "--group", group) == "c\n"
    assert server.run("consume", topic, "--group", group) == ""


def test_without_a_group_nothing_is_left_behind(server: LocalServer, topic: str) -> None:
    def traces() -> list[Any]:
        return [(each["group"], each["topics"]) for each in server.read("group", "list", "--all")]

    before = traces()
    server.run("produce", topic, "a")
    server.run("consume", topic)
    assert traces() == before


def test_a_delayed_message_comes_later(server: LocalServer, topic: str) -> None:
    server.run("produce", topic, "late", "--delay", "1h")
    assert server.run("consume", topic) == ""


@contextmanager
def following(server: LocalServer, topic: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-m",
        "gateway.commands.cli",
        "consume",
        topic,
        "--follow",
        "--namesrv",
        server.namesrv,
    ]
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def test_follow_until_ctrl_c(server: LocalServer, topic: str) -> None:
    group = f"group_{topic}"
    server.run("produce", topic, "first", "--queue", "0")
    with following(server, topic, "--group", group) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        for value in ("second", "third"):
            server.run("produce", topic, value, "--queue", "0")
            assert process.stdout.readline() == f"{value}\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, out, errors) == (0, "", "")
    assert server.read("group", "describe", group)["queues"][0]["lag"] == 0


def test_ctrl_c_ends_after_the_message_that_is_being_printed(
    server: LocalServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that comes when the message is written, but not counted yet, made it come again."""
    group = f"group_{topic}"
    server.run("produce", topic, "first", "second", "third", "--queue", "0")

    def render(message: Message, broker: str) -> bytes:
        os.kill(os.getpid(), signal.SIGINT)
        return message.body + b"\n"

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as patch:
        patch.setattr("gateway.admin.commands.consume._choose_renderer", lambda *options, **more: render)
        assert server.run("consume", topic, "--group", group) == "first\n"
    signal.signal(signal.SIGINT, handler)
    assert server.run("consume", topic, "--group", group) == "second\nthird\n"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("produce", "no-such-topic", "x"), 1, 'topic "no-such-topic" does not exist'),
        (("produce", "TBW102", "x", "--queue", "99"), 1, "has no queue 99"),
        (("produce", "TBW102", "x", "-f", "-"), 2, "either VALUEs or an input"),
        (("produce", "TBW102", "-f", "/no/such/file"), 2, "--file /no/such/file: No such file"),
        (("produce", "TBW102", "x", "-p", "novalue"), 2, "expected NAME=VALUE"),
        (("produce", "TBW102", "--repeat", "2"), 2, "standard input can be read once only"),
        (("produce", "TBW102", "x", "--deliver-at", "soon"), 2, "neither ms since 1970 nor a time"),
        (("produce", "TBW102", "x", "-p", "KEYS=a"), 1, 'property "KEYS" is reserved by the system'),
        (("produce", "TBW102", "x", "--delay", "soon"), 2, "is not a duration"),
        (("produce", "TBW102", "x", "--delay", "5s", "--delay-level", "1"), 2, "only one of"),
        (("produce", "TBW102", "-D", "\\x", "--whole"), 2, "hex digits"),
        (("consume", "no-such-topic"), 1, "does not exist"),
        (("consume", "TBW102", "-f", "%z"), 2, '--format: "%z" is not a part of a format; expected %s'),
        (("consume", "TBW102", "-f", "%s", "--json"), 2, "either --json or --format"),
        (("consume", "TBW102", "--from", "never"), 2, "--from: 'never' is neither"),
        (("consume", "TBW102", "--queue", "99"), 1, "no such readable queue"),
    ],
)
def test_refusals(server: LocalServer, arguments: tuple[str, ...], code: int, text: str) -> None:
    result = server.invoke(*arguments)
    assert (result.exit_code, text in result.output) == (code, True), result.output


def test_a_failure_in_the_middle_tells_how_far_it_came(server: LocalServer, topic: str) -> None:
    good = [json.dumps({"value": str(number)}) for number in range(250)]
    result = server.invoke("produce", topic, "--json-lines", stdin="\n".join([*good, "bad"]))
    assert result.exit_code == 1
    assert f"200 message(s) were sent to {topic} before this failure" in result.stderr
    assert "line 251 of the input is not a message" in result.stderr
