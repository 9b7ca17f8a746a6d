"""`rmq-gateway broker status`, `promote` and `demote` against masters without slaves; the rest is in acceptance/."""

import json
from typing import Any

import click
import pytest
from click.testing import Result

from codec.constants import ResponseCode
from gateway.admin.client import AdminClient
from gateway.admin.errors import Refused
from gateway.admin.tests.local_server import LocalServer
from gateway.commands import cli
from remoting.declare import Request
from remoting.requests.roles import BrokerRoleReply, BrokerRoleStatus, ChangeBrokerRole, GetBrokerRole


def test_the_roles_of_brokers(server: LocalServer) -> None:
    rows = server.read("broker", "status")
    assert [(row["broker"], row["id"], row["role"], row["state"]) for row in rows] == [
        ("broker-a", 0, "ASYNC_MASTER", "serving"),
        ("broker-b", 0, "ASYNC_MASTER", "serving"),
    ]
    assert [row["address"] for row in rows] == [server.brokers["broker-a"], server.brokers["broker-b"]]
    assert "BYTES BEHIND" in server.run("broker", "status")


def test_a_broker_that_is_master_already_stays_one(server: LocalServer) -> None:
    address = server.brokers["broker-a"]
    (row,) = json.loads(server.run("broker", "promote", address, "--yes", "--json"))
    assert (row["role"], row["id"], row["address"]) == ("ASYNC_MASTER", 0, address)


@pytest.mark.parametrize(
    ("own_role", "master_role", "options", "expected"),
    [
        ("SLAVE", "SYNC_MASTER", (), "SYNC_MASTER"),
        ("SLAVE", "SYNC_MASTER", ("--role", "ASYNC_MASTER"), "ASYNC_MASTER"),
        ("SLAVE", "", (), "ASYNC_MASTER"),
        ("SYNC_MASTER", "", (), "SYNC_MASTER"),
    ],
)
def test_a_new_master_has_the_role_of_the_former_one(
    server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    own_role: str,
    master_role: str,
    options: tuple[str, ...],
    expected: str,
) -> None:
    orders = []
    status = BrokerRoleStatus(
        broker_name="b", cluster="c", broker_role=own_role, broker_id=1, is_serving=True, state="copying"
    )
    status.master_role = master_role

    def answer(client: AdminClient, address: str, request: Request[Any], **more: Any) -> Any:
        if isinstance(request, ChangeBrokerRole):
            orders.append(request.broker_role)
        return BrokerRoleReply(data=status)

    monkeypatch.setattr(AdminClient, "ask", answer)
    result = server.invoke("broker", "promote", "127.0.0.1:1", "--force", "--yes", *options)
    assert result.exit_code == 0, result.output
    assert orders == [expected]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("promote", "broker-a", "--yes"), "broker-a has 0 registered slaves"),
        (("promote", "127.0.0.1:1", "--yes"), "127.0.0.1:1"),
    ],
)
def test_changes_that_cannot_be(server: LocalServer, arguments: tuple[str, ...], text: str) -> None:
    result = server.invoke("broker", *arguments)
    assert result.exit_code == 1
    assert text in result.output


def test_the_only_master_is_not_demoted(server: LocalServer) -> None:
    result = server.invoke("broker", "demote", server.brokers["broker-b"], "--yes")
    assert result.exit_code == 1
    assert "no other master of broker-b is registered" in result.output
    assert server.read("broker", "status")[1]["role"] == "ASYNC_MASTER"


def test_changes_are_confirmed(server: LocalServer) -> None:
    for arguments in (("promote", server.brokers["broker-a"]), ("demote", server.brokers["broker-a"])):
        result = server.invoke("broker", *arguments)
        assert result.exit_code == 2
        assert "pass --yes" in result.output


@pytest.mark.parametrize("name", sorted(cli.BROKER_COMMANDS))
def test_the_list_of_commands_shows_their_help(name: str) -> None:
    group = cli.main.commands["broker"]
    assert isinstance(group, cli.LazyGroup)
    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert cli.BROKER_COMMANDS[name].help == command.get_short_help_str(limit=cli.MAX_HELP_CHARS)


def status_of(server: LocalServer, monkeypatch: pytest.MonkeyPatch, answer: BrokerRoleStatus | int) -> Result:
    """Run `broker status` where every broker gives one answer."""

    ask = AdminClient.ask

    def answer_role(client: AdminClient, address: str, request: Request[Any], **more: Any) -> Any:
        if not isinstance(request, GetBrokerRole):
            return ask(client, address, request, **more)
        if isinstance(answer, int):
            raise Refused(address, request, answer, "refused")
        return BrokerRoleReply(data=answer)

    monkeypatch.setattr(AdminClient, "ask", answer_role)
    return server.invoke("broker", "status", "--json")


@pytest.mark.parametrize("state", ["looking for the master", "comparing"])
def test_a_slave_that_does_not_copy_is_a_problem(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    slave = BrokerRoleStatus(
        broker_name="broker-a", cluster="c", broker_role="SLAVE", broker_id=1, is_serving=True, state=state
    )
    result = status_of(server, monkeypatch, slave)
    assert result.exit_code == 3
    assert [row["problem"] for row in json.loads(result.stdout)] == [state] * 2
    slave.state = "copying"
    assert status_of(server, monkeypatch, slave).exit_code == 0


def test_an_official_broker_is_not_a_problem(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    result = status_of(server, monkeypatch, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [(row["role"], row["state"], row["problem"]) for row in rows] == [("master", "official", "")] * 2
    assert status_of(server, monkeypatch, ResponseCode.NO_PERMISSION).exit_code == 3
