"""Every command that asks servers ends with 1 when none answers, and with 2 for a wrong command line."""

import socket
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from gateway.admin.commands.options import ClusterCommand
from gateway.commands import cli
from toolkit.exit_codes import ExitCode

ROOMS = ("topic", "group", "cluster", "produce", "consume", "message", "dlq", "debug")
"""Commands of the command line whose subcommands all ask servers; those of `broker` and `namesrv` also run them."""
NOBODY = "HOST:PORT"
"""Stands for the address of a broker that does not answer, for commands that ask it without a namesrv."""
ARGUMENTS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("topic", "list"): (),
    ("topic", "describe"): ("t",),
    ("topic", "create"): ("t",),
    ("topic", "alter"): ("t", "--perm", "r"),
    ("topic", "delete"): ("t", "--yes"),
    ("group", "list"): (),
    ("group", "describe"): ("g",),
    ("group", "seek"): ("g", "-t", "t", "--to", "earliest", "--yes"),
    ("group", "create"): ("g",),
    ("group", "alter"): ("g", "--retries", "3"),
    ("group", "delete"): ("g", "--yes"),
    ("cluster", "info"): (),
    ("cluster", "health"): (),
    ("cluster", "replicas"): (),
    ("cluster", "controllers"): (),
    ("produce",): ("t", "x"),
    ("consume",): ("t",),
    ("message", "get"): ("t", "ID"),
    ("message", "find"): ("t", "--key", "k"),
    ("dlq", "list"): (),
    ("dlq", "peek"): ("g",),
    ("dlq", "resend"): ("g", "--yes"),
    ("debug", "bundle"): (),
    ("broker", "status"): (),
    ("broker", "promote"): ("b", "--yes"),
    ("broker", "demote"): (NOBODY, "--yes"),
    ("broker", "config", "get"): (),
    ("broker", "config", "set"): ("fileReservedTime=48", "--yes"),
    ("namesrv", "config", "get"): (),
    ("namesrv", "config", "set"): ("enableTopicList=true", "--yes"),
}
"""The least that each command needs to ask a server."""


def commands_below(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands_below(found, (*path, name))
    elif isinstance(command, ClusterCommand):
        yield path


def test_no_command_is_missing_here() -> None:
    context = click.Context(cli.main)
    found = set()
    for room in (*ROOMS, "broker", "namesrv"):
        command = cli.main.get_command(context, room)
        assert command is not None
        found |= set(commands_below(command, (room,)))
    assert found == set(ARGUMENTS)


@pytest.fixture(scope="module")
def closed_port() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("command", ARGUMENTS, ids=" ".join)
def test_nobody_answers(
    command: tuple[str, ...], closed_port: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [closed_port if text == NOBODY else text for text in ARGUMENTS[command]]
    result = CliRunner().invoke(cli.main, [*command, *arguments, "--namesrv", closed_port])
    if command == ("cluster", "health"):  # whose verdict it is
        assert result.exit_code in (ExitCode.FAILED, ExitCode.REFUSED)
    else:
        assert result.exit_code == ExitCode.FAILED, result.output
    assert closed_port in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ARGUMENTS, ids=" ".join)
def test_a_wrong_option(command: tuple[str, ...], closed_port: str) -> None:
    result = CliRunner().invoke(cli.main, [*command, *ARGUMENTS[command], "--timeout", "soon"])
    assert result.exit_code == ExitCode.USAGE, result.output
    assert "--timeout" in result.output
