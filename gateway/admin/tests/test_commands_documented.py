"""The commands in the guide exist with their options, and its first minute works."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.admin.commands import options
from gateway.admin.formats import PARTS
from gateway.admin.settings import ConnectionSettings
from gateway.admin.tests.local_server import LocalServer
from gateway.commands import cli
from toolkit.settings import settings_of

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "how-to" / "command-line.md").read_text()


def documented_commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each command of the program in the shell blocks of a document."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&<")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, "|"]:
                if set(word) <= set("|&<"):
                    if words[:1] == ["rmq-gateway"]:
                        yield words[1:]
                    words = []
                else:
                    words.append(word)


@pytest.mark.parametrize("command", list(documented_commands(GUIDE)), ids=" ".join)
def test_a_command_exists_with_its_options(command: list[str]) -> None:
    result = CliRunner().invoke(cli.main, [*command, "--help"], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_the_first_minute(server: LocalServer) -> None:
    (start, *commands) = documented_commands(GUIDE.partition("## Choose a cluster")[0])
    assert start[0] == "serve"
    *_, last = [server.run(*command) for command in commands]
    assert sorted(line.split(maxsplit=2)[2] for line in last.splitlines()) == ["1 hello", "1 world"]
    server.run("topic", "delete", "orders", "--yes")


def test_every_setting_of_a_connection_has_a_flag_and_is_documented() -> None:
    flags = set(options._CONNECTION_NAMES) - {"profile", "profiles"}
    assert flags == set(settings_of(ConnectionSettings)) - {"secret_key"}, "a secret is never an argument"
    for name in settings_of(ConnectionSettings):
        assert name.removesuffix("_s") in GUIDE.lower().replace("-", "_")


def test_every_part_of_a_format_is_documented() -> None:
    help_text = CliRunner().invoke(cli.main, ["consume", "--help"]).output
    for name in PARTS:
        assert f"%{name}" in help_text
        assert f"`%{name}`" in GUIDE or f"`%{name}%`" in GUIDE or name == "%"
