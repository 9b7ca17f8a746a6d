"""Flags become configuration; help, version and mistakes."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gateway.commands import cli
from gateway.config.process import ServeConfig


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServeConfig]:
    """Configurations the command line would have run."""
    configurations: list[ServeConfig] = []
    monkeypatch.setattr(cli, "run_configuration", configurations.append)
    for name in ("NAMESRV_ADDR", "RMQ_GATEWAY_BROKERS"):
        monkeypatch.delenv(name, raising=False)
    return configurations


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(cli.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(cli.main, arguments, catch_exceptions=False)
    assert result.exit_code != 0
    return result.output


def test_serve(started: list[ServeConfig], tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    invoke("serve", "--port", "0", "--broker-port", "0", "--brokers", "2", "--store", store, "--host", "::1")
    (config,) = started
    assert config.namesrv is not None
    assert config.namesrv.listen_port == 0
    assert config.namesrv.kv_config_path == str(tmp_path / "s" / "namesrv" / "kvConfig.json")
    assert config.namesrv.config_store_path == str(tmp_path / "s" / "namesrv" / "namesrv.properties")
    assert [each.store.store_path_root_dir for each in config.brokers] == [
        f"{store}/broker-a",
        f"{store}/broker-b",
    ]
    assert config.host == "::1"
    assert not config.process.processes


def test_brokers_in_processes_of_their_own(started: list[ServeConfig], tmp_path: Path) -> None:
    invoke("serve", "--brokers", "2", "--processes", "--store", str(tmp_path))
    (config,) = started
    assert (config.process.processes, config.process.brokers) == (True, 2)


def test_named_flags_win_over_set(started: list[ServeConfig], tmp_path: Path) -> None:
    ready = str(tmp_path / "ready")
    arguments = ["serve", "--memory", "--advertise", "h", "--set", "brokerIP1=x", "--set", "regionId=r"]
    invoke(*arguments, "--ready-file", ready, "--log-level", "debug")
    (config,) = started
    assert (config.brokers[0].broker_ip, config.brokers[0].region_id) == ("h", "r")
    assert (config.memory, config.process.ready_file, config.process.log_level) == (True, ready, "debug")


def test_namesrv_and_broker_apart(started: list[ServeConfig]) -> None:
    invoke("namesrv", "--port", "1234")
    invoke("broker", "-n", "a:1;b:2", "--port", "4321")
    namesrv, broker = started
    assert namesrv.namesrv is not None
    assert (namesrv.namesrv.listen_port, namesrv.brokers) == (1234, ())
    assert (broker.namesrv, broker.brokers[0].namesrv_addr, broker.brokers[0].listen_port) == (
        None,
        "a:1;b:2",
        4321,
    )


def test_serve_registers_elsewhere_by_a_flag(started: list[ServeConfig]) -> None:
    invoke("serve", "--register-at", "a:1; b:2")
    assert started[0].brokers[0].namesrv_addr == "a:1;b:2"
    assert started[0].namesrv is not None
    assert '--register-at: namesrvAddr: invalid value "a,b"' in refused("serve", "--register-at", "a,b")


def test_environment_and_files(
    started: list[ServeConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broker.conf").write_text("brokerName=file\nregionId=file\n")
    monkeypatch.setenv("RMQ_GATEWAY_REGION_ID", "environment")
    invoke("serve", "-c", str(tmp_path / "broker.conf"))
    broker = started[0].brokers[0]
    assert (broker.broker_name, broker.region_id) == ("file", "environment")


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("role", ["serve", "broker"])
def test_flags_that_contradict_each_other_are_refused(role: str, tmp_path: Path) -> None:
    output = refused(role, "--memory", "--store", str(tmp_path))
    assert output == (
        "Error: --memory and --store contradict each other: in memory nothing is written to disk. "
        "Pass one of them\n"
    )


@pytest.mark.usefixtures("started")
def test_strict_refuses_unknown_keys_of_files(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("flushDisk=SYNC_FLUSH\n")
    invoke("serve", "-c", str(tmp_path / "broker.conf"))
    assert "did you mean flushDiskType?" in refused("serve", "--strict", "-c", str(tmp_path / "broker.conf"))


@pytest.mark.usefixtures("started")
def test_mistakes_are_one_line() -> None:
    output = refused("serve", "--port", "http")
    assert (
        output
        == 'Error: --port: listenPort: invalid value "http" (expected a whole number from 0 to 65535)\n'
    )
    assert "No such option" in refused("serve", "--prot", "1")


def test_config_prints_table_and_examples() -> None:
    assert "| `brokerName` | `broker-a` |" in invoke("config")
    assert "#listenPort=9876\n" in invoke("config", "--example", "namesrv")


def test_help_names_every_command() -> None:
    assert all(word in invoke("--help") for word in ("serve", "namesrv", "broker", "config"))


def test_our_own_packages_are_found_first() -> None:
    assert cli.foreign_packages() == []


def test_a_package_of_somebody_else_is_refused(
    started: list[ServeConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "codek").mkdir()
    (tmp_path / "codek" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert cli.foreign_packages(("codec", "codek")) == [f"codek at {tmp_path / 'codek'}"]
    monkeypatch.setattr(cli, "foreign_packages", lambda: ["codec at /elsewhere"])
    assert "codec at /elsewhere" in refused("serve")
    assert started == []


def test_messages_name_the_flag_as_it_is_written() -> None:
    assert 'Error: --namesrv: namesrvAddr: invalid value "bad"' in refused("broker", "-n", "bad")


def test_commands_of_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by an entry point, imported when asked for."""
    (tmp_path / "brought_by_a_test.py").write_text(
        "import click\n@click.command()\ndef greet():\n    click.echo('hello')\n"
    )
    metadata = tmp_path / "brought-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[rmq_gateway.commands]\ngreet = brought_by_a_test:greet\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "greet" in cli.main.list_commands(cli.main.make_context("rmq-gateway", [], resilient_parsing=True))
    assert "brought_by_a_test" not in sys.modules
    assert invoke("greet") == "hello\n"
    assert "No such command" in refused("no-such-command")


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_lists_of_commands_show_the_help_of_the_commands(name: str) -> None:
    command = cli.main.get_command(click.Context(cli.main), name)
    assert command is not None
    assert cli.COMMANDS[name].help == command.get_short_help_str(limit=cli.MAX_HELP_CHARS)


@pytest.mark.parametrize(("group", "lazy"), [("broker", cli.BROKER_CONFIG), ("namesrv", cli.NAMESRV_CONFIG)])
def test_servers_have_a_subcommand_for_their_settings(group: str, lazy: cli.LazyCommand) -> None:
    server = cli.main.commands[group]
    assert isinstance(server, cli.LazyGroup)
    config = server.get_command(click.Context(server), "config")
    assert config is not None
    assert lazy.help == config.get_short_help_str(limit=cli.MAX_HELP_CHARS)
    assert lazy.help in invoke(group, "--help")


@pytest.mark.parametrize(("word", "command"), [("topics", "topic"), ("mesage", "message"), ("serv", "serve")])
def test_a_misspelt_command_gets_a_suggestion(word: str, command: str) -> None:
    assert f"Did you mean '{command}'?" in refused(word, "list")
    assert "Did you mean" not in refused("zzzzzz")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["config"], ["--help"]])
def test_output_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        run = subprocess.run(
            [sys.executable, "-m", "gateway.commands.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert run.returncode == 1
    assert run.stderr == "Error: the output cannot be written: No space left on device.\n"


def test_the_text_of_an_error_cannot_control_a_terminal() -> None:
    @cli.main.command("fail-in-test")
    def fail() -> None:
        raise click.ClickException("topic \x1b[2J\x9b\x07 does not exist\nTry another one.")

    try:
        done = CliRunner().invoke(cli.main, ["fail-in-test"])
    finally:
        del cli.main.commands["fail-in-test"]
    assert done.exit_code == 1
    assert done.output == "Error: topic \\x1b[2J\\x9b\\x07 does not exist\nTry another one.\n"


def resolve_without_suggestion(group: click.Group, context: click.Context, words: list[str]) -> Any:
    """Do what click 8.1 does."""
    command = group.get_command(context, words[0])
    if command is None:
        context.fail(f"No such command {words[0]!r}.")
    return words[0], command, words[1:]


def groups_below(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the path of each group of commands, with the names of its commands."""
    context = click.Context(group)
    names = group.list_commands(context)
    yield path, names
    for name in names:
        if isinstance(command := group.get_command(context, name), click.Group):
            yield from groups_below(command, *path, name)


@pytest.mark.parametrize(("path", "names"), list(groups_below(cli.main)), ids=lambda value: " ".join(value))
def test_a_misspelt_word_below_a_group_gets_a_suggestion(
    path: tuple[str, ...], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with click before 8.3, which makes no suggestions."""
    monkeypatch.setattr(click.Group, "resolve_command", resolve_without_suggestion)
    word = max(names, key=len)
    output = refused(*path, word[:-1] + "~")
    assert f"No such command '{word[:-1]}~'" in output
    assert "id you mean" in output
    assert "Did you mean" not in refused(*path, "zzzzzz")
