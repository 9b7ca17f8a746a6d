"""`rmq-gateway topic …` against a server of this process."""

import pytest

from gateway.admin.tests.local_server import LocalServer
from gateway.admin.topics import attribute_text, classify_topic


def test_a_topic_from_its_creation_to_its_end(server: LocalServer, name: str) -> None:
    assert server.run("topic", "create", name, "-q", "3", "--type", "FIFO") == (
        f"Created {name} on broker-a, broker-b.\n"
    )
    (row,) = server.read("topic", "list", f"{name}*")
    assert (row["topic"], row["kind"], row["type"]) == (name, "user", "FIFO")
    assert (row["writeQueues"], row["brokers"]) == (6, ["broker-a", "broker-b"])
    found = server.read("topic", "describe", name)
    assert [each["permission"] for each in found["brokers"]] == ["RW-", "RW-"]
    assert found["brokers"][0]["addresses"] == {"0": server.brokers["broker-a"]}
    assert [(each["broker"], each["queue"]) for each in found["queues"]] == [
        (broker, queue) for broker in ("broker-a", "broker-b") for queue in range(3)
    ]
    changed = server.run("topic", "alter", name, "--perm", "r", "--type", "NORMAL", "--broker", "broker-b")
    assert changed.splitlines()[1:] == [
        "broker-b  perm          RW-     R--",
        "broker-b  message.type  FIFO    NORMAL",
    ]
    assert [each["permission"] for each in server.read("topic", "describe", name)["brokers"]] == [
        "RW-",
        "R--",
    ]
    assert server.read("topic", "alter", name, "--perm", "r", "--broker", "broker-b") == []
    assert server.run("topic", "delete", name, "--yes") == f"Deleted {name} on broker-a, broker-b.\n"
    assert server.read("topic", "list", name) == []


def test_a_topic_of_one_broker_keeps_its_route_when_another_broker_loses_it(
    server: LocalServer, name: str
) -> None:
    server.run("topic", "create", name)
    server.run("topic", "delete", name, "--yes", "--broker", "broker-a")
    assert [each["broker"] for each in server.read("topic", "describe", name)["brokers"]] == ["broker-b"]
    server.run("topic", "delete", name, "--yes")


def test_attributes_are_set_and_removed(server: LocalServer, name: str) -> None:
    server.run("topic", "create", name, "--attribute", "quota.send.messages=5000", "--broker", "broker-a")
    assert server.read("topic", "describe", name)["attributes"] == {"quota.send.messages": "5000"}
    rows = server.read("topic", "alter", name, "--remove-attribute", "quota.send.messages")
    assert rows == [{"broker": "broker-a", "setting": "quota.send.messages", "before": "5000", "now": None}]
    assert server.read("topic", "describe", name)["attributes"] == {}


def test_the_list_for_people(server: LocalServer, name: str) -> None:
    server.run("topic", "create", name, "--broker", "broker-a", "-q", "1200")
    assert server.run("topic", "list", name).splitlines() == [
        "TOPIC  TYPE  QUEUES  PERM  BROKERS".replace("TOPIC ", "TOPIC".ljust(len(name)) + " "),
        f"{name}  -      1,200  RW-   broker-a",
    ]
    assert server.run("topic", "list", name, "-o", "name") == f"{name}\n"
    assert "READ QUEUES" in server.run("topic", "list", name, "-o", "wide")
    assert "TBW102" in server.run("topic", "list", "--all")
    assert "TBW102" not in server.run("topic", "list")


def test_output_in_a_pipe_is_not_cut(server: LocalServer, name: str) -> None:
    long_name = name + "x" * 110
    server.run("topic", "create", long_name)
    assert any(line.startswith(long_name) for line in server.run("topic", "list").splitlines())


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("describe", "TBW10"), 1, 'topic "TBW10" does not exist; did you mean "TBW102"?'),
        (("create", "TBW102"), 1, 'change it with "rmq-gateway topic alter"'),
        (("create", "a b"), 2, 'TOPIC "a b": expected at most 127 characters'),
        (("create", "x", "--broker", "broker-z"), 1, '--broker: "broker-z" is not known; did you mean'),
        (("create", "x", "--cluster", "Nowhere"), 1, '--cluster: "Nowhere" is not known'),
        (("create", "x", "--attribute", "a"), 2, "expected KEY=VALUE"),
        (("create", "x", "--attribute", "no.such=1"), 1, "refused UPDATE_AND_CREATE_TOPIC"),
        (("alter", "TBW102"), 2, "Nothing to change"),
        (("alter", "absent", "-q", "1"), 1, 'topic "absent" does not exist'),
        (("delete", "absent", "-y"), 1, 'topic "absent" does not exist'),
        (("delete", "TBW102"), 2, "pass --yes"),
    ],
)
def test_refusals(server: LocalServer, arguments: tuple[str, ...], code: int, text: str) -> None:
    result = server.invoke("topic", *arguments)
    assert (result.exit_code, text in result.output) == (code, True), result.output


def test_an_existing_topic_satisfies_if_not_exists(server: LocalServer, name: str) -> None:
    server.run("topic", "create", name, "-q", "2")
    assert "exists on broker-a" in server.run("topic", "create", name, "-q", "7", "--if-not-exists")
    assert server.read("topic", "list", name)[0]["writeQueues"] == 4


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("orders", "user"),
        ("%RETRY%g", "retry"),
        ("%DLQ%g", "dead letters"),
        ("rmq_sys_wheel_timer", "system"),
        ("SCHEDULE_TOPIC_XXXX", "system"),
        ("DefaultCluster", "system"),
        ("DefaultCluster_REPLY_TOPIC", "system"),
        ("Mine_REPLY_TOPIC", "user"),
    ],
)
def test_kinds_of_topics(topic: str, kind: str) -> None:
    assert classify_topic(topic, {"DefaultCluster", "broker-a"}) == kind


def test_attribute_text() -> None:
    assert attribute_text({"a": "1"}, ["b"]) == "+a=1,-b"
    assert attribute_text({}) is None


def test_create_prints_json(server: LocalServer, name: str) -> None:
    brokers = ["broker-a", "broker-b"]
    assert server.read("topic", "create", name) == {"topic": name, "brokers": brokers, "created": True}
    again = server.read("topic", "create", name, "--if-not-exists")
    assert again == {"topic": name, "brokers": brokers, "created": False}
