"""The project's own command line as a client of any server: run in this process, by its installed entry point."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from click.testing import CliRunner, Result


@cache
def load_command() -> Any:
    """Return the command `rmq-gateway` as it is installed."""
    (entry_point,) = entry_points(group="console_scripts", name="rmq-gateway")
    return entry_point.load()


@dataclass(frozen=True)
class CommandLine:
    """Commands against one namesrv."""

    namesrv: str

    def invoke(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        """Run a command and return its result, whatever its exit code."""
        command = [*arguments, "--namesrv", self.namesrv, "--timeout", "30"]
        return CliRunner().invoke(load_command(), command, input=stdin, catch_exceptions=False)

    def run(self, *arguments: str, stdin: str | bytes | None = None, code: int = 0) -> str:
        """Run a command, check its exit code, and return what it printed on standard output."""
        result = self.invoke(*arguments, stdin=stdin)
        assert result.exit_code == code, result.output
        return result.stdout

    def read(self, *arguments: str) -> Any:
        """Run a command with --json and return the value."""
        return json.loads(self.run(*arguments, "--json"))

    def read_lines(self, *arguments: str, stdin: str | bytes | None = None) -> list[Any]:
        """Run a command with --json that prints a JSON object a line."""
        return [json.loads(line) for line in self.run(*arguments, "--json", stdin=stdin).splitlines()]
