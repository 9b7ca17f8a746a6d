"""ACL 2.0 and 1.0: the same requests on our server and on the official one, with stock clients and the admin tool.

Cases whose name ends in `_officially_unchecked` show where the official server is laxer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from compat_tests.cases.conftest import JAVA_CLIENTS, has_queues, stock_client
from compat_tests.cases.processes import EndedEarly, Gateway
from compat_tests.clients.driver import JavaClientError
from compat_tests.clients.programs import run_mqadmin
from compat_tests.clients.typed import (
    heartbeat_request,
    messages,
    pull,
    pull_request,
    send,
    send_request,
    topic_request,
)
from compat_tests.endpoints import Unavailable
from compat_tests.endpoints.official import OfficialEndpoint, access_control_settings
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually, split_address
from remoting.acl import Credentials, make_signer
from remoting.blocking import BlockingClient
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.heartbeat import HeartbeatData, ProducerData
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerConfig, UpdateBrokerConfig
from remoting.requests.auth import (
    AuthCreateAcl,
    AuthCreateUser,
    AuthDeleteAcl,
    AuthDeleteUser,
    AuthGetUser,
    AuthUpdateUser,
)
from remoting.requests.client import HeartBeat
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.namesrv import GetBrokerClusterInfo, PutKvConfig, RegisterBroker
from remoting.requests.query import ViewMessageById
from remoting.requests.topics import DeleteTopicInBroker

pytestmark = [pytest.mark.ours_only, pytest.mark.both_servers]

NO_PERMISSION = 16
ROOT, SECRET = "root", "open sesame 4711"
SETTINGS = access_control_settings(ROOT, SECRET)


class Server(Protocol):
    """The addresses of a server under test."""

    @property
    def namesrv(self) -> str: ...

    @property
    def broker(self) -> str: ...


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("ours")
    conf = directory / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in SETTINGS.items()))
    with Gateway(directory, "--memory", "-c", str(conf)) as process:
        yield process
        assert "Traceback" not in process.output()
        assert SECRET not in process.output()


@pytest.fixture(scope="module")
def official() -> Iterator[Server]:
    try:
        endpoint = OfficialEndpoint(SETTINGS)
    except Unavailable as missing:
        skip_or_fail(str(missing))
    with endpoint:
        yield endpoint


@pytest.fixture(params=["ours", "official"])
def either(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def dial(address: str, user: str | None = ROOT, secret: str = SECRET) -> BlockingClient:
    sign = None if user is None else make_signer(Credentials(user, secret))
    return BlockingClient(*split_address(address), timeout_s=15, sign=sign)


@contextmanager
def user(server: Server, name: str, *rules: tuple[str, str, str]) -> Iterator[BlockingClient]:
    """Create a user with rules (resource, actions, decision), and yield a client that signs as that user."""
    with dial(server.broker) as root:
        root.ask(AuthCreateUser(username=name, data=UserInfo(username=name, password=f"secret of {name}")))
        if rules:
            put_rules(root, name, *rules)
        with dial(server.broker, name, f"secret of {name}") as client:
            yield client
        root.ask(AuthDeleteUser(username=name))


def put_rules(
    root: BlockingClient, name: str, *rules: tuple[str, str, str], source_ips: tuple[str, ...] = ()
) -> None:
    entries = [
        PolicyEntryInfo(
            resource=resource, actions=actions.split(","), source_ips=list(source_ips), decision=decision
        )
        for resource, actions, decision in rules
    ]
    acl = AclInfo(subject=f"User:{name}", policies=[PolicyInfo(policy_type="Custom", entries=entries)])
    root.ask(AuthCreateAcl(subject=f"User:{name}", data=acl))


def denial(client: BlockingClient, request) -> str:
    """Return the remark of a denied request."""
    with pytest.raises(RequestError) as refused:
        client.ask(request)
    assert refused.value.code == NO_PERMISSION
    return refused.value.remark or ""


def create(server: Server, *topics: str) -> None:
    with dial(server.broker) as root:
        for topic in topics:
            root.ask(topic_request(topic, 1))


@pytest.mark.parametrize(
    ("name", "secret", "remark"),
    [
        (ROOT, "wrong", "check signature failed."),
        ("stranger", SECRET, "User:stranger is not found."),
        (None, "", "username cannot be null."),
    ],
)
def test_requests_that_nobody_known_has_signed(
    either: Server, name: str | None, secret: str, remark: str
) -> None:
    with dial(either.broker, name, secret) as client:
        for request in (
            topic_request("refused", 1),
            send_request("refused"),
            heartbeat_request("c", "g", "t"),
        ):
            assert denial(client, request) == remark


def test_publish_and_subscribe(either: Server) -> None:
    create(either, "acl-orders", "acl-bills")
    rules = [("Topic:acl-orders", "Pub,Sub", "Allow"), ("Group:acl-g*", "Sub", "Allow")]
    with user(either, "clerk", *rules) as clerk:
        assert send(clerk, "acl-orders", b"one").queue_offset == 0
        (found,) = messages(pull(clerk, "acl-orders", consumer_group="acl-group"))
        assert found.body == b"one"
        for request, resource in (
            (send_request("acl-bills"), "Topic:acl-bills"),
            (pull_request("acl-bills", 0, consumer_group="acl-group"), "Topic:acl-bills"),
            (pull_request("acl-orders", 0, consumer_group="other"), "Group:other"),
            (topic_request("acl-orders", 1), "Topic:acl-orders"),
            (DeleteTopicInBroker(topic="acl-orders"), "Topic:acl-orders"),
        ):
            remark = denial(clerk, request)
            assert remark.startswith(
                f"User:clerk has no permission to access {resource} from 127.0.0.1, no matched policies."
            )


def test_the_most_specific_rule_decides(either: Server) -> None:
    create(either, "acl-a", "acl-a-secret", "acl-b")
    rules = [
        ("Topic:*", "All", "Deny"),
        ("Topic:acl-*", "Pub", "Allow"),
        ("Topic:acl-a-*", "Pub", "Deny"),
        ("*", "All", "Allow"),
    ]
    with user(either, "specific", *rules) as client:
        send(client, "acl-a")
        assert "the decision is deny." in denial(client, send_request("acl-a-secret"))
        assert "the decision is deny." in denial(client, DeleteTopicInBroker(topic="acl-b"))


def test_source_addresses(either: Server) -> None:
    create(either, "acl-near")
    with user(either, "near") as client, dial(either.broker) as root:
        put_rules(root, "near", ("Topic:acl-near", "Pub", "Allow"), source_ips=("10.0.0.0/8",))
        assert "no matched policies" in denial(client, send_request("acl-near"))
        put_rules(root, "near", ("Topic:acl-near", "Pub", "Allow"), source_ips=("10.0.0.0/8", "127.0.0.0/8"))
        send(client, "acl-near")


def test_changes_while_running(either: Server) -> None:
    create(either, "acl-changing")
    with user(either, "changing") as client, dial(either.broker) as root:
        assert "no matched policies" in denial(client, send_request("acl-changing"))
        put_rules(root, "changing", ("Topic:acl-changing", "Pub", "Allow"))
        send(client, "acl-changing")
        root.ask(AuthUpdateUser(username="changing", data=UserInfo(user_status="disable")))
        assert denial(client, send_request("acl-changing")) == "User:changing is disabled."
        root.ask(
            AuthUpdateUser(username="changing", data=UserInfo(user_status="enable", password="a new one"))
        )
        assert denial(client, send_request("acl-changing")) == "check signature failed."
        with dial(either.broker, "changing", "a new one") as again:
            send(again, "acl-changing")
            root.ask(AuthDeleteAcl(subject="User:changing", resource="Topic:acl-changing"))
            assert "no matched policies" in denial(again, send_request("acl-changing"))


def test_refused_changes_of_accounts(either: Server) -> None:
    with (
        user(either, "admin-like", ("Cluster:*", "Update,Get", "Allow")) as client,
        dial(either.broker) as root,
    ):
        for asking, request, text in (
            (
                client,
                AuthUpdateUser(username=ROOT, data=UserInfo(password="mine now")),
                "only be update by super",
            ),
            (client, AuthDeleteUser(username=ROOT), "only be update by super user"),
            (root, AuthCreateUser(username=ROOT, data=UserInfo(password="x")), "The user is existed"),
            (root, AuthCreateUser(username="empty", data=UserInfo()), "password can not be blank"),
            (root, AuthUpdateUser(username="nobody", data=UserInfo(password="x")), "The user is not exist"),
            (root, AuthDeleteAcl(subject="User:nobody"), "The subject is not exist"),
        ):
            assert text in denial(asking, request)
        with pytest.raises(RequestError, match="can only be create by super user"):
            client.ask(AuthCreateUser(username="new", data=UserInfo(password="x", user_type="Super")))


def test_a_password_is_not_shown(ours: Server) -> None:
    """The official server answers it in plain."""
    with dial(ours.broker) as root:
        shown = root.ask(AuthGetUser(username=ROOT)).data
        assert (shown.username, shown.password, shown.user_type) == (ROOT, "******", "Super")
        assert SECRET not in root.ask(GetBrokerConfig()).body.decode()
        with pytest.raises(RequestError, match="not shown"):
            root.ask(AuthUpdateUser(username=ROOT, data=shown))


@pytest.mark.parametrize(
    "request_made",
    [
        UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name="acl-forbidden")),
        pytest.param(heartbeat_request("c", "acl-forbidden", "acl-forbidden"), id="heartbeat"),
    ],
)
def test_requests_about_groups_of_others(ours: Server, request_made) -> None:
    with user(ours, "nosy", ("Topic:mine", "Pub", "Allow")) as client:
        assert "Group:acl-forbidden" in denial(client, request_made)


def test_a_group_is_created_by_a_user_without_rights_officially_unchecked(official: Server) -> None:
    with user(official, "nosy") as client:
        client.ask(UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name="acl-forbidden")))


def test_settings_are_changed_by_a_user_without_rights_officially_unchecked(
    ours: Server, official: Server
) -> None:
    """UPDATE_BROKER_CONFIG has no header fields, for which the official server checks nothing."""
    request = UpdateBrokerConfig()
    request.body = b"brokerFastFailureEnable=true\n"
    with user(official, "nosy") as client:
        client.ask(request)
    with user(ours, "nosy") as client:
        assert "Cluster:DefaultCluster" in denial(client, request)


def test_a_message_is_read_by_its_offset_under_a_false_topic_officially_unchecked(
    ours: Server, official: Server
) -> None:
    for server in (official, ours):
        create(server, "acl-hidden", "acl-mine")
        with dial(server.broker) as root:
            place = messages_offset(root, "acl-hidden")
        with user(server, "nosy", ("Topic:acl-mine", "Get", "Allow")) as client:
            request = ViewMessageById(topic="acl-mine", offset=place)
            if server is official:
                assert b"hidden" in client.ask(request).body
            else:
                assert "Topic:acl-hidden" in denial(client, request)


def messages_offset(root: BlockingClient, topic: str) -> int:
    """Send a message and return its physical offset."""
    send(root, topic, b"hidden")
    (found,) = messages(pull(root, topic))
    return found.physical_offset


def test_a_producers_heartbeat_needs_a_right_to_publish(ours: Server) -> None:
    """The official server checks the consumers of a heartbeat only."""
    request = HeartBeat(data=HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name="p")]))
    with user(ours, "consumer-only", ("Topic:acl-any", "Sub", "Allow")) as client:
        assert "any topic or group" in denial(client, request)
    with user(ours, "producer", ("Topic:acl-any", "Pub", "Allow")) as client:
        client.ask(request)


def test_the_namesrv_is_guarded_too(ours: Server) -> None:
    """The official namesrv has no access control."""
    with dial(ours.namesrv, None) as stranger:
        for request in (
            GetBrokerClusterInfo(),
            PutKvConfig(namespace="n", key="k", value="v"),
            RegisterBroker(
                broker_name="broker-a",
                broker_addr="6.6.6.6:6",
                cluster_name="c",
                broker_id=0,
                ha_server_addr="6.6.6.6:7",
            ),
        ):
            assert denial(stranger, request) == "username cannot be null."
    with dial(ours.namesrv) as root:
        info = root.ask(GetBrokerClusterInfo()).data
        assert info.broker_addr_table["broker-a"].broker_addrs == {0: ours.broker}
    with (
        user(ours, "reader", ("Cluster:*", "Get", "Allow")),
        dial(ours.namesrv, "reader", "secret of reader") as reader,
    ):
        reader.ask(GetBrokerClusterInfo())
        assert "Cluster:DefaultCluster" in denial(reader, PutKvConfig(namespace="n", key="k", value="v"))


def signing(name: str, secret: str) -> dict[str, str]:
    """Return the system properties of a stock client that signs as this user."""
    return {"compat.access.key": name, "compat.secret.key": secret}


@pytest.mark.parametrize("version", JAVA_CLIENTS)
def test_stock_java_clients(ours: Server, version: str) -> None:
    topic = f"acl-java-{version.replace('.', '-')}"
    create(ours, topic, f"{topic}-other")
    name = f"java-{version}"
    rules = [(f"Topic:{topic}", "Pub,Sub,Get", "Allow"), (f"Group:g-{topic}", "Sub", "Allow")]
    with user(ours, name, *rules):
        with stock_client(ours.namesrv, version, signing(name, f"secret of {name}")) as client:
            with client.producer(f"p-{topic}") as producer:
                eventually(lambda: has_queues(producer, topic), 60)  # a new JVM's first request may time out
                assert [each["status"] for each in producer.send_numbered(topic, 20)] == ["SEND_OK"] * 20
                with pytest.raises(JavaClientError, match=r"no permission|No route info"):
                    producer.send({"topic": f"{topic}-other", "body": "x"})
            with client.push(f"g-{topic}", topic) as consumer:
                assert {each["body"] for each in consumer.received(20, timeout_s=60)} == set(
                    map(str, range(20))
                )
        with (
            stock_client(ours.namesrv, version, signing(name, "wrong")) as client,
            client.producer(f"q-{topic}") as producer,
            pytest.raises(JavaClientError),
        ):
            producer.send({"topic": topic, "body": "x"})


def test_the_admin_tools_commands(ours: Server, tmp_path: Path) -> None:
    home = tmp_path / "admin"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {ROOT}\nsecretKey: {SECRET}\n")

    def run(*command: str) -> str:
        return run_mqadmin(home, *command, "-n", ours.namesrv, "-b", ours.broker)

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


def test_accounts_survive_a_restart_and_are_private(tmp_path: Path) -> None:
    conf = tmp_path / "auth.conf"
    lines = {
        key: SETTINGS[key]
        for key in ("authenticationEnabled", "authorizationEnabled", "initAuthenticationUser")
    }
    conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    place = ["--store", str(tmp_path / "store"), "-c", str(conf)]
    with Gateway(tmp_path, *place) as process, dial(process.broker) as root:
        root.ask(AuthCreateUser(username="kept", data=UserInfo(password="secret of kept")))
        put_rules(root, "kept", ("Topic:kept", "Pub", "Allow"))
        process.kill()
    for file in (tmp_path / "store" / "config").glob("*s.json*"):
        if file.name.startswith(("users", "acls")):
            assert file.stat().st_mode & 0o077 == 0, file
    with Gateway(tmp_path, *place) as process, dial(process.broker) as root:
        root.ask(topic_request("kept", 1))
        with dial(process.broker, "kept", "secret of kept") as client:
            send(client, "kept")
        assert process.stop() == 0
        assert SECRET not in process.output()


def test_acl_1(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        "accounts:\n"
        "  - {accessKey: clerk-of-orders, secretKey: 12345678, topicPerms: [orders=PUB|SUB], groupPerms: [bill=SUB]}\n"
        "  - {accessKey: operator, secretKey: 12345678, admin: true}\n"
    )
    flags = ["--set", "aclEnable=true", "--set", f"plainAclFile={accounts}"]
    with Gateway(tmp_path, "--memory", *flags) as process:
        with dial(process.broker, "operator", "12345678") as operator:
            operator.ask(topic_request("orders", 1))
            operator.ask(topic_request("bills", 1))
        with dial(process.broker, "clerk-of-orders", "12345678") as clerk:
            send(clerk, "orders")
            assert len(messages(pull(clerk, "orders", consumer_group="bill"))) == 1
            assert "Topic:bills" in denial(clerk, send_request("bills"))
            assert "Topic:orders" in denial(clerk, DeleteTopicInBroker(topic="orders"))
            accounts.write_text(accounts.read_text().replace("orders=PUB|SUB", "orders=SUB, bills=PUB"))
            eventually(lambda: process.lines("plain ACL loaded again"))
            send(clerk, "bills")
            denial(clerk, send_request("orders"))
        with dial(process.broker, None) as stranger:
            assert denial(stranger, send_request("orders")) == "username cannot be null."


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("authorizationEnabled=true", "needs authenticationEnabled=true"),
        ("authenticationEnabled=true", "without any user"),
        ("aclEnable=true", "plainAclFile is not set"),
    ],
)
def test_settings_that_would_protect_nothing_are_refused(tmp_path: Path, setting: str, reason: str) -> None:
    with pytest.raises(EndedEarly) as ended:
        Gateway(tmp_path, "--memory", "--set", setting)
    assert ended.value.code == 2
    assert reason in ended.value.output
    assert "Traceback" not in ended.value.output
