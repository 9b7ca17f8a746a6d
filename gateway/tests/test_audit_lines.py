"""Every audited request leaves one line in the audit log of a whole broker or namesrv, whoever sends it; no other does.

The users have passwords that must be in none of the lines.
"""

import json
import logging
from collections.abc import Callable
from typing import Any, Final, cast

import pytest
import trio

from codec.command import Command
from codec.constants import ResponseCode
from gateway.auth.access_control import AccessControl
from gateway.auth.account_table import ACLS_FILE, USERS_FILE, PolicyTable, User, UserTable, UserType
from gateway.auth.accounts import StoredAccounts
from gateway.auth.audit import ACCEPTED, DONE, EVENT, INTERRUPTED, REFUSED, AuditLog
from gateway.auth.audited_requests import AUDITED, NOT_AUDITED, describe_request
from gateway.auth.request_needs import NEEDS, NeedContext, find_needs
from gateway.auth.resources import Action
from gateway.broker.assembly.role_control import ROLE_REQUESTS
from gateway.broker.assembly.role_control import handlers as role_handlers
from gateway.broker.processors import all_handlers
from gateway.controller.processors import handlers as controller_handlers
from gateway.namesrv.processors import handlers as namesrv_handlers
from gateway.namesrv.registration import Registration
from gateway.runtime.config_file import ConfigFile
from gateway.runtime.run_blocking import RunBlocking
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.cluster import Cluster, Node, inline, settle, simulated
from gateway.tests.extreme_values import usual_body, usual_headers
from gateway.tests.test_extreme_requests import SETTINGS, name_of, usual_commands
from remoting.acl import Credentials, make_signer, sign_request
from remoting.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from remoting.bodies.queues import DataVersion
from remoting.bodies.registration import RegisterBrokerBody
from remoting.bodies.topics import TopicConfig, TopicConfigAndMappingSerializeWrapper
from remoting.connection import Connection
from remoting.declare import REQUESTS
from remoting.errors import RequestError
from remoting.requests.admin import UpdateBrokerConfig
from remoting.requests.auth import AuthCreateAcl, AuthCreateUser, AuthUpdateUser
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.namesrv import PutKvConfig, RegisterBroker, UnregisterBroker, UpdateNamesrvConfig
from remoting.requests.topics import DeleteTopicInBroker
from storage.files import MemoryFiles

ROOT: Final = Credentials("root", "open sesame 4711")
CLERK: Final = Credentials("clerk", "clerk's own 0815")
NEW_PASSWORD: Final = "a new one 1234"
SECRETS: Final = (ROOT.secret_key, CLERK.secret_key, NEW_PASSWORD)
CLIENT_HOST: Final = "10.1.0.1"
CONTROLLED: Final = controller_handlers.request_codes()
"""Requests to controllers, whose service is tested by itself."""
CHANGES: Final = {Action.CREATE, Action.UPDATE, Action.DELETE}


def make_accounts(run_blocking: RunBlocking = inline) -> StoredAccounts:
    files = MemoryFiles()
    accounts = StoredAccounts(
        UserTable(ConfigFile(files, USERS_FILE, run_blocking)),
        PolicyTable(ConfigFile(files, ACLS_FILE, run_blocking)),
    )
    accounts.users.put(User(ROOT.access_key, ROOT.secret_key, UserType.SUPER))
    accounts.users.put(User(CLERK.access_key, CLERK.secret_key))
    return accounts


async def add_server(cluster: Cluster, code: int, accounts: StoredAccounts | None = None) -> Node:
    """Start the broker or namesrv that serves a code, where audited requests must be signed, and no others."""
    accounts = accounts or make_accounts()
    control = AccessControl(
        accounts,
        NeedContext("DefaultCluster"),
        authorizes=True,
        unauthenticated_codes=frozenset(NEEDS.keys() - AUDITED.keys()),
    )
    if code in namesrv_handlers.request_codes():
        return await cluster.namesrv(guard=AuditLog("namesrv", control.find_signer).guard(control.protect))
    guard = AuditLog("broker-a", control.find_signer).guard(control.protect)
    return await cluster.add_broker(guard=guard, accounts=accounts, **SETTINGS)


async def audited_commands(cluster: Cluster, node: Node, code: int) -> list[Command]:
    """Return commands of a code that the server accepts, or nearly so."""
    data = UserInfo(username="alice", password=NEW_PASSWORD)
    if code == AuthCreateUser.code:
        return [AuthCreateUser(username="alice", data=data).to_command()]
    if code == AuthUpdateUser.code:
        return [AuthUpdateUser(username="alice", data=data).to_command()]
    if code not in namesrv_handlers.request_codes():
        return await usual_commands(cluster, node, code)
    request = REQUESTS[code]
    body = b"orderMessageEnable=true" if request is UpdateNamesrvConfig else b""
    typed = RegisterBrokerBody if request is RegisterBroker else request.BODY
    if typed is not None:
        body = json.dumps(usual_body(typed)).encode()
    return [Command(code, ext=ext, body=body) for ext in usual_headers(request, {})]


def signed(command: Command, credentials: Credentials | None) -> Command:
    copy = Command(command.code, ext=dict(command.ext), body=command.body)
    if credentials is not None:
        sign_request(copy, credentials)
    return copy


def take_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the data of the audit lines since the last call."""
    lines = [vars(record) for record in caplog.records if record.getMessage() == EVENT]
    caplog.clear()
    return lines


@pytest.mark.parametrize("code", sorted(AUDITED.keys() - CONTROLLED), ids=name_of)
@simulated
async def test_every_audited_request_leaves_one_line(
    cluster: Cluster, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = await add_server(cluster, code)
    usual = await audited_commands(cluster, node, code)
    client = cluster.dial(node.address, host=CLIENT_HOST)
    take_lines(caplog)
    malformed = Command(code), Command(code, body=b'{"password":"' + NEW_PASSWORD.encode())
    for command in (*usual, *malformed):
        for credentials in (CLERK, None, ROOT):
            answer = await client.ask_command(signed(command, credentials), 30)
            (line,) = take_lines(caplog)
            assert (line["request"], line["remote"]) == (REQUESTS[code].NAME, CLIENT_HOST)
            assert line.get("by") == (credentials.access_key if credentials else None)
            assert "claims" not in line
            assert not any(secret in str(line) for secret in SECRETS)
            if answer.code:
                assert (line["result"], line["code"]) == (REFUSED, answer.code)
                assert line["reason"] == answer.remark
            else:
                assert line["result"] in (DONE, ACCEPTED)
            if credentials is None or (credentials is CLERK and command in usual):
                assert answer.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("code", sorted(AUDITED.keys() & CONTROLLED), ids=name_of)
def test_audited_requests_to_controllers_leave_a_line(code: int, caplog: pytest.LogCaptureFixture) -> None:
    """The controller's handlers are bound with these observers, and with this guard."""
    caplog.set_level(logging.INFO)
    guard, connection = AuditLog("controller").guard(), cast(Connection, FakeConnection())

    def refuse(_: Connection, command: Command) -> bytes | None:
        raise RequestError(ResponseCode.NO_PERMISSION, "no")

    guard.observed[code](connection, Command(code))(None)
    with pytest.raises(RequestError):
        guard.protect(code, refuse)(connection, Command(code))
    lines = take_lines(caplog)
    assert [(line["request"], line["result"]) for line in lines] == [
        (REQUESTS[code].NAME, DONE),
        (REQUESTS[code].NAME, REFUSED),
    ]


@simulated
async def test_no_other_request_leaves_a_line(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = await cluster.add_broker(guard=AuditLog("broker-a").guard(), **SETTINGS)
    client = cluster.dial(node.address)
    for code in sorted((all_handlers().request_codes() | ROLE_REQUESTS) - AUDITED.keys()):
        for command in await usual_commands(cluster, node, code):
            client.send_command(command)
            await settle()
    assert take_lines(caplog) == []


def test_handlers_of_other_requests_stay_as_they_are():
    """The path of messages pays nothing for the audit log."""

    def handle(connection: Connection, command: Command) -> bytes | None:
        return None

    guard = AuditLog("broker-a").guard()
    for code in NEEDS.keys() - AUDITED.keys():
        assert guard.protect(code, handle) is handle
    assert guard.observed.keys() == AUDITED.keys()


def test_whatever_needs_create_update_or_delete_is_declared():
    """A request is audited, or there is a reason why it is not."""
    assert not AUDITED.keys() & NOT_AUDITED.keys()
    for code in NEEDS:
        try:
            needs = find_needs(Command(code, body=b"{}"), NeedContext("c")) or []
        except RequestError:
            needs = []
        if any(CHANGES.intersection(need.actions) for need in needs):
            assert code in AUDITED or code in NOT_AUDITED, name_of(code)
    served = all_handlers().request_codes() | namesrv_handlers.request_codes() | ROLE_REQUESTS | CONTROLLED
    served |= role_handlers.request_codes()
    assert served >= AUDITED.keys() | NOT_AUDITED.keys()


@simulated
async def test_registrations_leave_a_line_when_they_change_something(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = await cluster.namesrv(guard=AuditLog("namesrv").guard())
    client = cluster.dial(node.address)
    first = RegisterBroker(
        broker_name="b", broker_addr="10.0.0.5:1", cluster_name="c", ha_server_addr="10.0.0.5:2", broker_id=0
    )
    for _ in range(3):
        await client.ask(first)
    moved = RegisterBroker.from_command(first.to_command())
    moved.broker_addr = "10.0.0.6:1"
    await client.ask(moved)
    await client.ask(
        UnregisterBroker(broker_name="b", broker_addr="10.0.0.6:1", cluster_name="c", broker_id=0)
    )
    refused = RegisterBroker.from_command(first.to_command())
    refused.broker_addr = "nowhere"
    with pytest.raises(RequestError):
        await client.ask(refused)
    lines = take_lines(caplog)
    assert [(line["request"], line["result"]) for line in lines] == [
        ("REGISTER_BROKER", DONE),
        ("REGISTER_BROKER", DONE),
        ("UNREGISTER_BROKER", DONE),
        ("REGISTER_BROKER", REFUSED),
    ]
    assert "brokerAddr=10.0.0.5:1" in lines[0]["change"]
    assert "brokerAddr=10.0.0.6:1" in lines[1]["change"]


@simulated
async def test_a_name_without_a_valid_signature_is_a_claim(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = await add_server(cluster, DeleteTopicInBroker.code)
    client = cluster.dial(node.address)
    command = DeleteTopicInBroker(topic="orders").to_command()
    sign_request(command, Credentials("root", "guess"))
    await client.ask_command(command, 30)
    (line,) = take_lines(caplog)
    assert (line["claims"], line["result"]) == ("root", REFUSED)
    assert "by" not in line


@simulated
async def test_a_change_whose_sender_disconnects_leaves_a_line(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = await add_server(cluster, AuthCreateUser.code, make_accounts(write_forever))
    client = cluster.dial(node.address)
    data = UserInfo(username="alice", password=NEW_PASSWORD)
    client.send_command(signed(AuthCreateUser(username="alice", data=data).to_command(), ROOT), print)
    await settle()
    assert take_lines(caplog) == []
    client.close()
    await settle()
    (line,) = take_lines(caplog)
    assert (line["by"], line["result"]) == ("root", INTERRUPTED)
    assert "username=alice" in line["change"]


async def write_forever(work: Callable[[], Any]) -> Any:
    """Stand for a disk that does not answer."""
    await trio.sleep_forever()


def test_lines_say_what_changes_and_no_secret():
    group = UpdateAndCreateSubscriptionGroup.code
    user = UserInfo(password=NEW_PASSWORD, user_type="Normal")
    for request, text in (
        (DeleteTopicInBroker(topic="orders"), "topic=orders"),
        (PutKvConfig(namespace="n", key="k", value=NEW_PASSWORD), "namespace=n; key=k"),
        (AuthCreateUser(username="al", data=user), "username=al; type=Normal; password=given"),
        (
            AuthCreateAcl(subject="User:al", data=rules()),
            "subject=User:al; Allow Pub|Sub on Topic:orders from 10.0.0.0/8",
        ),
    ):
        assert describe_request(request.to_command()) == text
    settings = f"maxMessageSize=4096\ntls.server.keyPassword={NEW_PASSWORD}\n".encode()
    assert describe_request(Command(UpdateBrokerConfig.code, body=settings)) == (
        "maxMessageSize=4096; tls.server.keyPassword"
    )
    undeclared = Command(DeleteTopicInBroker.code, ext={"topic": "orders", "password": NEW_PASSWORD})
    assert describe_request(undeclared) == "topic=orders"
    assert describe_request(Command(group, body=b"x" * 20_000)) == "a body of 20000 bytes"
    assert describe_request(Command(group, body=b"[")) == "a body that cannot be read"


def rules() -> AclInfo:
    entry = PolicyEntryInfo(
        resource="Topic:orders", actions=["Pub", "Sub"], source_ips=["10.0.0.0/8"], decision="Allow"
    )
    return AclInfo(subject="User:al", policies=[PolicyInfo(policy_type="Custom", entries=[entry])])


@simulated
async def test_only_credentials_succeed_an_elected_master_of_the_namesrvs_process(cluster: Cluster) -> None:
    """A newer epoch takes the place of a local broker that a controller elected; a stranger may not register at all."""
    node = await add_server(cluster, RegisterBroker.code)
    routes = node.service.routes
    version = DataVersion(state_version=1)
    local = Registration("c", "b", 0, "10.0.0.5:1", data_version=version, is_elected=True)
    routes.register_local(local, ())
    topics = {name: TopicConfig(topic_name=name) for name in ("T", "U")}
    wrapper = TopicConfigAndMappingSerializeWrapper(
        data_version=DataVersion(state_version=2), topic_config_table=topics
    )
    request = RegisterBroker(
        broker_name="b", broker_addr="10.0.0.6:1", cluster_name="c", ha_server_addr="10.0.0.6:2", broker_id=0
    )
    request.body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=[]).to_json()
    client = cluster.dial(node.address)
    for sign in (None, make_signer(CLERK)):
        with pytest.raises(RequestError) as refusal:
            await client.ask(request, sign=sign)
        assert refusal.value.code == ResponseCode.NO_PERMISSION
    assert routes.broker_member_group("c", "b", "").broker_addrs == {0: "10.0.0.5:1"}
    await client.ask(request, sign=make_signer(ROOT))
    assert routes.broker_member_group("c", "b", "").broker_addrs == {0: "10.0.0.6:1"}
