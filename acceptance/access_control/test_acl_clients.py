"""Access control with stock clients, on our server and on the official one.

Java 4.9.8 and 5.4.0 sign with `AclClientRPCHook`, Go and Node with their own code, and the admin tool with its hook.
One JVM of each version serves the whole file: each of its clients has keys of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from acceptance.secured import (
    ROOT,
    SECRET,
    Server,
    create_topics,
    create_user,
    denial,
    dial,
    put_rules,
    secret_of,
)
from compat_tests.cases.conftest import has_queues, stock_client, warm_up
from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.java_api import JavaClient, JavaProducer
from compat_tests.clients.programs import ProgramResult, run_go, run_mqadmin, run_node
from compat_tests.clients.typed import send, topic_request
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually
from remoting.acl import Credentials
from remoting.blocking import BlockingClient
from remoting.bodies.auth import UserInfo
from remoting.errors import RequestError
from remoting.requests.auth import AuthDeleteAcl, AuthUpdateUser
from remoting.requests.client import GetConsumerListByGroup
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.topics import GetTopicConfig
from tools.processes import Gateway

pytestmark = pytest.mark.both_servers

COUNT = 10
ROOT_KEYS = Credentials(ROOT, SECRET)
PROGRAMS = {"go": run_go, "node": run_node}
TIMEOUT_S = 150


@pytest.fixture(scope="module")
def java4(ours: Server) -> Iterator[JavaClient]:
    with stock_client(ours.namesrv, "4.9.8") as client:
        warm_up(client.acting_as(ours.namesrv, ROOT_KEYS))
        yield client


@pytest.fixture(scope="module")
def java5(ours: Server) -> Iterator[JavaClient]:
    with stock_client(ours.namesrv, "5.4.0") as client:
        warm_up(client.acting_as(ours.namesrv, ROOT_KEYS))
        yield client


@pytest.fixture(params=["java4", "java5"])
def java(request: pytest.FixtureRequest) -> JavaClient:
    found: JavaClient = request.getfixturevalue(request.param)
    return found


def keys_of(name: str) -> Credentials:
    return Credentials(name, secret_of(name))


def run_program(name: str, server: Server, topic: str, *more: str, keys: Credentials | None) -> ProgramResult:
    """Run the Go or the Node program, or skip the case if this machine lacks what it needs."""
    try:
        return PROGRAMS[name](server.namesrv, topic, COUNT, TIMEOUT_S, *more, credentials=keys)
    except Unavailable as missing:
        skip_or_fail(str(missing))


def error_of(action: Callable[[], object]) -> str:
    """Return the text with which a stock client reports that an action is refused."""
    with pytest.raises((JavaClientError, AssertionError)) as refused:
        action()
    return str(refused.value)


def assert_denied(server: Server, keys: Credentials | None, text: str, remark: str) -> None:
    """Assert that a client was refused for a reason.

    Our namesrv refuses as well, which clients report as a missing route. The official one refuses nobody.
    """
    if isinstance(server, Gateway):
        assert remark in denied_route(server, keys, "t-refused")
    elif not text.startswith("node"):  # which tells no reason
        assert remark in text


def denied_route(server: Server, keys: Credentials | None, topic: str) -> str:
    """Return why our namesrv tells the owner of these keys no route of a topic."""
    user, secret = (None, "") if keys is None else (keys.access_key, keys.secret_key)
    with dial(server.namesrv, user, secret) as client:
        return denial(client, GetRouteInfoByTopic(topic=topic))


# -- keys ---------------------------------------------------------------------------------------------------------


def test_java_with_its_right_key(either: Server, java: JavaClient) -> None:
    """A user with the rights to publish and subscribe, and with none besides, sends and consumes."""
    name = f"java-{java.version.replace('.', '')}"
    topic, group = f"t-{name}", f"g-{name}"
    create_topics(either, topic)
    rules = [(f"Topic:{topic}", "Pub,Sub", "Allow"), (f"Group:{group}", "Sub", "Allow")]
    with create_user(either, name, *rules):
        client = java.acting_as(either.namesrv, keys_of(name))
        with client.producer(f"p-{name}") as producer:
            eventually(lambda: has_queues(producer, topic), 30)
            assert [each["status"] for each in producer.send_numbered(topic, COUNT)] == ["SEND_OK"] * COUNT
        with client.push(group, topic) as consumer:
            assert {each["body"] for each in consumer.received(COUNT, timeout_s=60)} == set(
                map(str, range(COUNT))
            )


CONSUMER_KINDS: dict[str, dict[str, Any]] = {
    "push": {},
    "ordered": {"orderly": True},
    "broadcast": {"settings": {"messageModel": "BROADCASTING"}},
    "pop": {"settings": {"clientRebalance": False}},
    "traced": {"trace": True},
    "responder": {"reply": True},
}


@contextmanager
def least_rights(server: Server, name: str) -> Iterator[tuple[str, str]]:
    """Yield a topic and a group; the user of this name may only consume them."""
    topic, group = f"t-{name}", f"g-{name}"
    create_topics(server, topic)
    with create_user(server, name, (f"Topic:{topic}", "Sub", "Allow"), (f"Group:{group}", "Sub", "Allow")):
        yield topic, group


@pytest.mark.parametrize("kind", CONSUMER_KINDS)
def test_java_consumers_with_least_rights(ours: Server, java: JavaClient, kind: str) -> None:
    """Every kind of consumer needs Sub on its topic and its group, and nothing else."""
    name = f"least-{kind}-{java.version.replace('.', '')}"
    with least_rights(ours, name) as (topic, group):
        if kind == "pop":
            if java.version == "4.9.8":
                pytest.skip("the 4.9.8 client has its own way to pop")
            root = java.acting_as(ours.namesrv, ROOT_KEYS)
            root.run_mqadmin(*f"setConsumeMode -b {ours.broker} -t {topic} -g {group} -m POP -q 8".split())
        client = java.acting_as(ours.namesrv, keys_of(name))
        with client.push(group, topic, **CONSUMER_KINDS[kind]) as consumer:
            with dial(ours.broker) as root_client:
                eventually(lambda: has_member(root_client, group), 60)
            if kind == "responder":
                asking = java.acting_as(ours.namesrv, ROOT_KEYS)
                # The broker knows the client that waits for a reply from its heartbeats.
                with asking.producer(f"p-{name}", heartbeatBrokerInterval=500) as producer:
                    eventually(lambda: has_queues(producer, topic), 30)

                    def ask() -> str:
                        try:
                            return producer.request({"topic": topic, "body": "question"}, 2)
                        except JavaClientError:
                            return ""

                    assert eventually(ask, 60) == "re: question"
                return
            with java.acting_as(ours.namesrv, ROOT_KEYS).producer(f"p-{name}") as producer:
                eventually(lambda: has_queues(producer, topic), 30)

                def arrives() -> bool:
                    producer.send_numbered(topic, 1)
                    return bool(consumer.received(1, timeout_s=5))

                eventually(arrives, 90)


def has_member(client: BlockingClient, group: str) -> bool:
    """Return True if a group has a member: its heartbeat was accepted."""
    try:
        return bool(client.ask(GetConsumerListByGroup(consumer_group=group)).data.consumer_id_list)
    except RequestError:
        return False


def test_java_pull_consumers_with_least_rights(ours: Server, java: JavaClient) -> None:
    name = f"least-pull-{java.version.replace('.', '')}"
    with least_rights(ours, name) as (topic, group):
        with dial(ours.broker) as root:
            send(root, topic, b"x")
        client = java.acting_as(ours.namesrv, keys_of(name))
        queue = {"topic": topic, "broker": "broker-a", "queue": 0}
        with client.pull(group) as consumer:
            assert consumer.pull(queue, 0)["status"] == "FOUND"
            assert consumer.offsets(queue)["max"] == 1
        with client.lite(f"{group}", topic, name=f"lite-{name}", assign=[queue]) as lite:
            lite.call("seek", queue=queue, offset=0)
            assert len(lite.poll(1, 30)) == 1


def test_java_consumers_with_least_rights_of_acl_1(tmp_path: Path, java: JavaClient) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        "accounts:\n"
        "  - {accessKey: consumer, secretKey: 12345678, topicPerms: [t-plain=SUB], groupPerms: [g-plain=SUB]}\n"
        "  - {accessKey: operator, secretKey: 12345678, admin: true}\n"
    )
    flags = ["--set", "aclEnable=true", "--set", f"plainAclFile={accounts}"]
    with (
        Gateway(tmp_path, "--memory", *flags) as process,
        dial(process.broker, "operator", "12345678") as operator,
    ):
        operator.ask(topic_request("t-plain", 1))
        for options in ({}, {"orderly": True}):
            client = java.acting_as(process.namesrv, Credentials("consumer", "12345678"))
            with client.push("g-plain", "t-plain", **options) as consumer:
                eventually(lambda: has_member(operator, "g-plain"), 60)
                send(operator, "t-plain", b"x")
                assert consumer.received(1, timeout_s=60)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_with_their_right_key(either: Server, program: str) -> None:
    topic = f"t-{program}"
    create_topics(either, topic)
    rules = [(f"Topic:{topic}", "Pub,Sub", "Allow"), (f"Group:{topic}_group", "Sub", "Allow")]
    with create_user(either, program, *rules):
        result = run_program(program, either, topic, keys=keys_of(program))
        assert result == ProgramResult(sent=COUNT, distinct=COUNT, deliveries=COUNT)


REFUSED_KEYS = {
    "wrong key": (Credentials(ROOT, "not the secret"), "check signature failed."),
    "unknown user": (Credentials("stranger", SECRET), "User:stranger is not found."),
    "no key": (None, "username cannot be null."),
}


@pytest.mark.parametrize("case", REFUSED_KEYS)
def test_java_is_refused_without_the_right_key(either: Server, java: JavaClient, case: str) -> None:
    keys, remark = REFUSED_KEYS[case]
    create_topics(either, "t-refused")
    with java.acting_as(either.namesrv, keys).producer("p-refused") as producer:
        text = error_of(lambda: producer.send({"topic": "t-refused", "body": "x"}))
    assert_denied(either, keys, text, remark)


@pytest.mark.parametrize("case", REFUSED_KEYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_refused_without_the_right_key(either: Server, program: str, case: str) -> None:
    keys, remark = REFUSED_KEYS[case]
    create_topics(either, "t-refused")
    text = error_of(lambda: run_program(program, either, "t-refused", "send", keys=keys))
    assert_denied(either, keys, text, remark)


# -- actions ------------------------------------------------------------------------------------------------------


def test_publishing_and_subscribing_are_allowed_one_by_one(either: Server, java: JavaClient) -> None:
    name = f"actions-{java.version.replace('.', '')}"
    topic, group = f"t-{name}", f"g-{name}"
    create_topics(either, topic)
    with create_user(either, name, (f"Topic:{topic}", "Get", "Allow")), dial(either.broker) as root:
        client = java.acting_as(either.namesrv, keys_of(name))
        # Our server asks for a right to publish anything before a producer may announce itself.
        put_rules(root, name, ("Topic:elsewhere", "Pub", "Allow"), (f"Group:{group}", "Sub", "Allow"))
        with client.producer(f"p-{name}") as producer, client.pull(group) as consumer:
            eventually(lambda: has_queues(producer, topic), 30)
            queue = {"topic": topic, "broker": "broker-a", "queue": 0}
            send = {"topic": topic, "body": "x"}
            for allowed, denied in (("Sub", "Pub"), ("Pub", "Sub")):
                put_rules(root, name, (f"Topic:{topic}", f"{allowed},Get", "Allow"))
                if denied == "Pub":
                    assert consumer.pull(queue, 0)["status"] in ("FOUND", "NO_NEW_MSG", "NO_MATCHED_MSG")
                    assert f"Topic:{topic}" in error_of(lambda: producer.send(send))
                else:
                    assert producer.send(send)[0]["status"] == "SEND_OK"
                    assert f"Topic:{topic}" in error_of(lambda: consumer.pull(queue, 0))
            put_rules(root, name, (f"Topic:{topic}", "Pub,Sub", "Allow"), (f"Group:{group}", "Get", "Allow"))
            assert f"Group:{group}" in error_of(lambda: consumer.pull(queue, 0))


def commands_of_actions(server: Server) -> dict[str, tuple[str, list[str]]]:
    """Return a command of the admin tool for each action, with the resource that it needs."""
    at = ["-b", server.broker]
    return {
        "Create": ("Topic:acl-made", ["updateTopic", *at, "-t", "acl-made"]),
        "Delete": ("Group:acl-gone", ["deleteSubGroup", *at, "-g", "acl-gone"]),
        "Update": ("Cluster:*", ["createUser", *at, "-u", "acl-made", "-p", "secret"]),
        "Get": ("Cluster:*", ["getUser", *at, "-u", ROOT]),
    }


@pytest.mark.parametrize("action", ["Create", "Delete", "Update", "Get"])
def test_administrative_actions(either: Server, java5: JavaClient, action: str) -> None:
    """Each action is denied to a user who has all others, and allowed to one who has it alone."""
    resource, command = commands_of_actions(either)[action]
    others = ",".join(
        each for each in ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List") if each != action
    )
    with create_user(either, "operator", (resource, others, "Allow")), dial(either.broker) as root:
        tool = java5.acting_as(either.namesrv, keys_of("operator"))
        denied = tool.run_mqadmin(*command)
        assert "CODE: 16" in denied
        assert "no permission" in denied
        put_rules(root, "operator", (resource, action, "Allow"))
        allowed = tool.run_mqadmin(*command)
        assert "no permission" not in allowed
        assert "CODE" not in allowed


def test_listing_officially_unchecked(ours: Server, official: Server, java5: JavaClient) -> None:
    """The official namesrv lists topics for everybody."""
    assert "TBW102" in java5.acting_as(official.namesrv).run_mqadmin("topicList")
    with (
        create_user(ours, "lister", ("Cluster:*", "Create,Update,Delete", "Allow")),
        dial(ours.broker) as root,
    ):
        tool = java5.acting_as(ours.namesrv, keys_of("lister"))
        denied = tool.run_mqadmin("topicList")
        assert "no permission to access Cluster:DefaultCluster" in denied
        assert "TBW102" not in denied
        put_rules(root, "lister", ("Cluster:*", "List", "Allow"))
        assert "TBW102" in tool.run_mqadmin("topicList")


def test_the_namesrv_is_changed_by_everybody_officially_unchecked(
    ours: Server, official: Server, java5: JavaClient
) -> None:
    command = ["updateKvConfig", "-s", "attack", "-k", "key", "-v", "value"]
    assert "success" in java5.acting_as(official.namesrv).run_mqadmin(*command)
    assert "username cannot be null" in java5.acting_as(ours.namesrv).run_mqadmin(*command)


# -- rules --------------------------------------------------------------------------------------------------------


def test_prefix_and_deny_rules(either: Server, java: JavaClient) -> None:
    create_topics(either, "acl-open-1", "acl-open-secret", "acl-closed")
    rules = [
        ("Topic:*", "All", "Deny"),
        ("Topic:acl-*", "Get", "Allow"),
        ("Topic:acl-open-*", "Pub,Get", "Allow"),
        ("Topic:acl-open-secret", "Pub", "Deny"),
    ]
    with create_user(either, "prefixed", *rules):
        client = java.acting_as(either.namesrv, keys_of("prefixed"))
        with client.producer("p-prefixed") as producer:
            eventually(lambda: has_queues(producer, "acl-open-1"), 30)
            assert producer.send({"topic": "acl-open-1", "body": "x"})[0]["status"] == "SEND_OK"
            assert "the decision is deny" in denied_send(either, producer, "acl-open-secret")
            assert "no permission" in denied_send(either, producer, "acl-closed")


def denied_send(server: Server, producer: JavaProducer, topic: str) -> str:
    """Return why a send to a topic is denied; a client that gets no route does not tell, but our namesrv does."""
    text = error_of(lambda: producer.send({"topic": topic, "body": "x"}))
    if isinstance(server, Gateway) and "No route info" in text:
        return denied_route(server, keys_of("prefixed"), topic)
    return text


def test_source_addresses(either: Server, java: JavaClient) -> None:
    create_topics(either, "acl-sources")
    with create_user(either, "near", ("Topic:elsewhere", "Pub", "Allow")), dial(either.broker) as root:
        put_rules(root, "near", ("Topic:acl-source*", "Get", "Allow"))  # to know where to send
        with java.acting_as(either.namesrv, keys_of("near")).producer("p-near") as producer:
            eventually(lambda: has_queues(producer, "acl-sources"), 30)
            for ranges, is_allowed in ((("10.0.0.0/8",), False), (("10.0.0.0/8", "127.0.0.1"), True)):
                put_rules(root, "near", ("Topic:acl-sources", "Pub", "Allow"), source_ips=ranges)
                if is_allowed:
                    assert producer.send({"topic": "acl-sources", "body": "x"})[0]["status"] == "SEND_OK"
                else:
                    text = error_of(lambda: producer.send({"topic": "acl-sources", "body": "x"}))
                    assert "from 127.0.0.1, no matched policies" in text


def test_changes_while_clients_run(either: Server, java: JavaClient) -> None:
    name = f"changing-{java.version.replace('.', '')}"
    topic, group = f"t-{name}", f"g-{name}"
    create_topics(either, topic)
    rules = [(f"Topic:{topic}", "Pub,Sub", "Allow"), (f"Group:{group}", "Sub", "Allow")]
    with create_user(either, name, *rules), dial(either.broker) as root:
        client = java.acting_as(either.namesrv, keys_of(name))
        with client.producer(f"p-{name}") as producer, client.push(group, topic) as consumer:
            eventually(lambda: has_queues(producer, topic), 30)
            message = {"topic": topic, "body": "x"}
            producer.send(message)
            assert len(consumer.received(1, timeout_s=60)) == 1
            root.ask(AuthUpdateUser(username=name, data=UserInfo(user_status="disable")))
            assert f"User:{name} is disabled." in error_of(lambda: producer.send(message))
            root.ask(AuthUpdateUser(username=name, data=UserInfo(user_status="enable")))
            root.ask(AuthDeleteAcl(subject=f"User:{name}", resource=f"Topic:{topic}"))
            assert "no matched policies" in error_of(lambda: producer.send(message))
            put_rules(root, name, rules[0])
            producer.send(message)
            assert len(consumer.received(2, timeout_s=60)) == 2


# -- the admin tool -----------------------------------------------------------------------------------------------


def test_the_admin_tools_commands_about_users_and_policies(ours: Server, java5: JavaClient) -> None:
    tool = java5.acting_as(ours.namesrv, ROOT_KEYS)

    def run(*command: str) -> str:
        return tool.run_mqadmin(*command, "-b", ours.broker)

    assert "success" in run("createUser", "-u", "tool", "-p", "secret of tool")
    assert "success" in run(
        "createAcl", "-s", "User:tool", "-r", "Topic:tools,Group:g*", "-a", "Pub,Sub", "-d", "Allow"
    )
    for listing in (run("getAcl", "-s", "User:tool"), run("listAcl", "-s", "tool")):
        assert "Topic:tools" in listing
        assert "Group:g*" in listing
    assert "success" in run("updateAcl", "-s", "User:tool", "-r", "Topic:tools", "-a", "Pub", "-d", "Deny")
    assert "Deny" in run("getAcl", "-s", "User:tool")
    assert "success" in run("updateUser", "-u", "tool", "-s", "disable")
    for listing in (run("getUser", "-u", "tool"), run("listUser", "-f", "tool")):
        assert "disable" in listing
        assert "secret of tool" not in listing
    assert "success" in run("deleteAcl", "-s", "User:tool", "-r", "Topic:tools")
    assert "Topic:tools" not in run("listAcl")
    assert "success" in run("deleteUser", "-u", "tool")
    assert "tool" not in run("listUser")


def test_passwords_are_shown_officially_unchecked(official: Server, java5: JavaClient) -> None:
    """Whoever may read about the cluster reads the passwords of super users."""
    with create_user(official, "reader", ("Cluster:*", "Get", "Allow")):
        tool = java5.acting_as(official.namesrv, keys_of("reader"))
        assert SECRET in tool.run_mqadmin("getUser", "-b", official.broker, "-u", ROOT)


def test_the_admin_tool_signs_with_its_own_file(ours: Server, tmp_path: Path) -> None:
    home = tmp_path / "admin"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {ROOT}\nsecretKey: {SECRET}\n")
    command = ["updateTopic", "-t", "acl-tools-file", "-b", ours.broker, "-n", ours.namesrv]
    assert "success" in run_mqadmin(home, *command)
    with dial(ours.broker) as root:
        assert root.ask(GetTopicConfig(topic="acl-tools-file")).data is not None
