"""`rmq-gateway completion`: scripts, where they are installed, and the answers that shells get."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.admin.commands.completion import SHELLS, VARIABLE, script_file
from gateway.admin.tests.local_server import LocalServer
from gateway.commands import cli


def run(*arguments: str, code: int = 0, **environment: str) -> str:
    result = CliRunner(env=environment).invoke(cli.main, ["completion", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_asks_the_program(shell: str) -> None:
    script = run("show", shell)
    assert f"{VARIABLE}={shell}_complete" in script
    assert "rmq-gateway" in script


@pytest.mark.parametrize("shell", SHELLS)
def test_install(shell: str, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": "", "SHELL": f"/bin/{shell}"}
    text = run("install", **home)
    file = script_file(shell, home)
    assert tmp_path in file.parents
    assert f"Wrote {file}." in text
    assert file.read_text() == run("show", shell)
    assert ("fpath" in text) == (shell == "zsh")


def test_an_unknown_shell_and_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    assert "pass one of bash, zsh, fish" in run("show", SHELL="/bin/csh", code=2)
    (tmp_path / ".local").write_text("a file")
    text = run("install", "bash", HOME=str(tmp_path), XDG_DATA_HOME="", code=1)
    assert "completion show bash" in text


def complete(words: str, **environment: str) -> list[str]:
    """Return the answers that a shell gets for the last word."""
    given = {
        **os.environ,
        **environment,
        VARIABLE: "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", "from gateway.commands.cli import main; main(prog_name='rmq-gateway')"],
        env=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rmq-gateway top", ["plain,topic"]),
        ("rmq-gateway topic cre", ["plain,create"]),
        ("rmq-gateway topic list --na", ["plain,--namesrv"]),
    ],
)
def test_commands_and_options(words: str, expected: list[str]) -> None:
    assert complete(words) == expected


def test_names_of_the_cluster(server: LocalServer, name: str) -> None:
    server.run("topic", "create", name, "--broker", "broker-a")
    server.run("produce", name, "x")
    server.run("consume", name, "--group", f"{name}_group")
    at = f"--namesrv {server.namesrv}"
    assert complete(f"rmq-gateway topic describe {at} {name}") == [f"plain,{name}"]
    assert complete(f"rmq-gateway consume {at} {name}") == [f"plain,{name}"]
    assert complete(f"rmq-gateway group describe {at} {name}") == [f"plain,{name}_group"]
    assert complete(f"rmq-gateway broker config get {at} --broker brok") == [
        "plain,broker-a",
        "plain,broker-b",
    ]
    variable = {"RMQ_GATEWAY_CLIENT_NAMESRV": server.namesrv}
    assert complete(f"rmq-gateway topic delete {name}", **variable) == [f"plain,{name}"]


def test_a_cluster_that_does_not_answer_completes_nothing() -> None:
    assert complete("rmq-gateway topic describe --namesrv 127.0.0.1:1 a") == []
