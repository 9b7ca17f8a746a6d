"""`rmq-gateway broker status`, `promote` and `demote` against masters without slaves; the rest is in acceptance/."""

import json

import click
import pytest

from gateway.admin.tests.local_server import LocalServer
from gateway.commands import cli


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
