"""ACL 2.0 and 1.0: the same requests on our server and on the official one.

Stock clients are in `test_acl_clients.py`. Cases whose name ends in `_officially_unchecked` show where the official
server is laxer.
"""

from pathlib import Path

import pytest

from acceptance.secured import (
    ROOT,
    SECRET,
    SETTINGS,
    Server,
    create_topics,
    create_user,
    denial,
    dial,
    put_rules,
    write_private,
)
from compat_tests.clients.command_line import CommandLine
from compat_tests.clients.typed import (
    heartbeat_request,
    messages,
    pull,
    pull_request,
    send,
    send_request,
    topic_request,
)
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.bodies.auth import UserInfo
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.heartbeat import HeartbeatData, ProducerData
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerConfig, UpdateBrokerConfig
from remoting.requests.auth import (
    AuthCreateUser,
    AuthDeleteAcl,
    AuthDeleteUser,
    AuthGetUser,
    AuthUpdateUser,
)
from remoting.requests.client import GetProducerConnectionList, HeartBeat
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.namesrv import GetBrokerClusterInfo, PutKvConfig, RegisterBroker
from remoting.requests.query import ViewMessageById
from remoting.requests.topics import DeleteTopicInBroker
from tools.processes import Gateway, ProcessEndedEarly

pytestmark = pytest.mark.both_servers


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
    create_topics(either, "acl-orders", "acl-bills")
    rules = [("Topic:acl-orders", "Pub,Sub", "Allow"), ("Group:acl-g*", "Sub", "Allow")]
    with create_user(either, "clerk", *rules) as clerk:
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
    create_topics(either, "acl-a", "acl-a-secret", "acl-b")
    rules = [
        ("Topic:*", "All", "Deny"),
        ("Topic:acl-*", "Pub", "Allow"),
        ("Topic:acl-a-*", "Pub", "Deny"),
        ("*", "All", "Allow"),
    ]
    with create_user(either, "specific", *rules) as client:
        send(client, "acl-a")
        assert "the decision is deny." in denial(client, send_request("acl-a-secret"))
        assert "the decision is deny." in denial(client, DeleteTopicInBroker(topic="acl-b"))


def test_source_addresses(either: Server) -> None:
    create_topics(either, "acl-near")
    with create_user(either, "near") as client, dial(either.broker) as root:
        put_rules(root, "near", ("Topic:acl-near", "Pub", "Allow"), source_ips=("10.0.0.0/8",))
        assert "no matched policies" in denial(client, send_request("acl-near"))
        put_rules(root, "near", ("Topic:acl-near", "Pub", "Allow"), source_ips=("10.0.0.0/8", "127.0.0.0/8"))
        send(client, "acl-near")


def test_changes_while_running(either: Server) -> None:
    create_topics(either, "acl-changing")
    with create_user(either, "changing") as client, dial(either.broker) as root:
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
        create_user(either, "admin-like", ("Cluster:*", "Update,Get", "Allow")) as client,
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
    with create_user(ours, "nosy", ("Topic:mine", "Pub", "Allow")) as client:
        assert "Group:acl-forbidden" in denial(client, request_made)


def test_a_group_is_created_by_a_user_without_rights_officially_unchecked(official: Server) -> None:
    with create_user(official, "nosy") as client:
        client.ask(UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name="acl-forbidden")))


def test_settings_are_changed_by_a_user_without_rights_officially_unchecked(
    ours: Server, official: Server
) -> None:
    """UPDATE_BROKER_CONFIG has no header fields, for which the official server checks nothing."""
    request = UpdateBrokerConfig()
    request.body = b"brokerFastFailureEnable=true\n"
    with create_user(official, "nosy") as client:
        client.ask(request)
    with create_user(ours, "nosy") as client:
        assert "Cluster:DefaultCluster" in denial(client, request)


def test_a_message_is_read_by_its_offset_under_a_false_topic_officially_unchecked(
    ours: Server, official: Server
) -> None:
    for server in (official, ours):
        create_topics(server, "acl-hidden", "acl-mine")
        with dial(server.broker) as root:
            place = messages_offset(root, "acl-hidden")
        with create_user(server, "nosy", ("Topic:acl-mine", "Get", "Allow")) as client:
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


def test_a_producer_announces_itself_without_a_right_to_publish(either: Server) -> None:
    """Stock Java consumers list a producer group in their heartbeats. Here, it is not asked about half messages."""
    request = HeartBeat(data=HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name="p")]))
    listing = GetProducerConnectionList(producer_group="p")
    with create_user(either, "consumer-only", ("Topic:acl-any", "Sub", "Allow")) as client:
        client.ask(request)
        with dial(either.broker) as root:
            if isinstance(either, Gateway):
                with pytest.raises(RequestError, match="not exist"):
                    root.ask(listing)
            else:
                assert len(root.ask(listing).data.connection_set) == 1
    with (
        create_user(either, "producer", ("Topic:acl-any", "Pub", "Allow")) as client,
        dial(either.broker) as root,
    ):
        client.ask(request)
        assert root.ask(listing).data.connection_set


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
        create_user(ours, "reader", ("Cluster:*", "Get", "Allow")),
        dial(ours.namesrv, "reader", "secret of reader") as reader,
    ):
        reader.ask(GetBrokerClusterInfo())
        assert "Cluster:DefaultCluster" in denial(reader, PutKvConfig(namespace="n", key="k", value="v"))


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


def test_accounts_of_acl_1_become_users(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        "accounts:\n"
        "  - {accessKey: clerk-of-orders, secretKey: 12345678, topicPerms: [orders=PUB], groupPerms: [bill=SUB]}\n"
    )
    conf = tmp_path / "broker.conf"
    more = {"migrateAuthFromV1Enabled": "true", "plainAclFile": str(accounts)}
    write_private(conf, "".join(f"{key}={value}\n" for key, value in {**SETTINGS, **more}.items()))
    with Gateway(tmp_path, "--memory", "-c", str(conf)) as process:
        with dial(process.broker) as root:
            root.ask(topic_request("orders", 1))
            root.ask(topic_request("bills", 1))
        with dial(process.broker, "clerk-of-orders", "12345678") as clerk:
            send(clerk, "orders")
            assert "Topic:bills" in denial(clerk, send_request("bills"))


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("authorizationEnabled=true", "needs authenticationEnabled=true"),
        ("authenticationEnabled=true", "without any user"),
        ("aclEnable=true", "plainAclFile is not set"),
    ],
)
def test_settings_that_would_protect_nothing_are_refused(tmp_path: Path, setting: str, reason: str) -> None:
    with pytest.raises(ProcessEndedEarly) as ended:
        Gateway(tmp_path, "--memory", "--set", setting)
    assert ended.value.code == 2
    assert reason in ended.value.output
    assert "Traceback" not in ended.value.output


def test_the_command_line_signs_its_requests(either: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    command = CommandLine(either.namesrv)
    refused = command.invoke("topic", "create", "signed_by_command")
    assert refused.exit_code == 1
    assert "--access-key" in refused.stderr
    monkeypatch.setenv("RMQ_GATEWAY_CLIENT_ACCESS_KEY", ROOT)
    monkeypatch.setenv("RMQ_GATEWAY_CLIENT_SECRET_KEY", "wrong")
    assert command.invoke("topic", "create", "signed_by_command").exit_code == 1
    monkeypatch.setenv("RMQ_GATEWAY_CLIENT_SECRET_KEY", SECRET)
    command.run("topic", "create", "signed_by_command", "-q", "1")
    command.run("produce", "signed_by_command", "a", "-k", "k")
    eventually(lambda: command.run("consume", "signed_by_command") == "a\n", 30)
    config = command.run("broker", "config", "get")
    assert SECRET not in config
    assert "initAuthenticationUser" in config
