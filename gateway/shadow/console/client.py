"""The commands' client of a running gateway: finds its console by the configuration, and exchanges JSON with it."""

import tomllib
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import click
import orjson

from gateway.console.settings import ConsoleSettings
from gateway.shadow.clusters.cluster import split_address
from toolkit.exit_codes import ConfigurationError
from toolkit.toml_tables import load_table

WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class ConsoleUnreachable(click.ClickException):
    """No console answers at the address."""


class ConsoleRefused(click.ClickException):
    """The console answered with an error; ``status`` is the HTTP status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class ConsoleClient:
    """Sends requests to a console. click shows both errors as they are, and ends the command with exit code 1."""

    def __init__(self, host: str, port: int, token: str = "", timeout_s: float = 600.0) -> None:
        self.host = WILDCARD_HOSTS.get(host, host)
        self.port = port
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s

    def get(self, path: str, **query: str | int | float) -> dict[str, Any]:
        """Return the answer to a GET request. Raises ConsoleUnreachable, ConsoleRefused."""
        return self._send_request("GET", f"{path}?{urlencode(query)}" if query else path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer to a POST request. Raises ConsoleUnreachable, ConsoleRefused."""
        return self._send_request("POST", path, orjson.dumps(body or {}))

    def _send_request(self, method: str, target: str, body: bytes | None) -> dict[str, Any]:
        connection = HTTPConnection(self.host, self.port, timeout=self._timeout_s)
        try:
            connection.request(method, target, body, {**self._headers, "Content-Type": "application/json"})
            answer = connection.getresponse()
            status, data = answer.status, orjson.loads(answer.read())
        except (OSError, HTTPException, orjson.JSONDecodeError) as error:
            raise ConsoleUnreachable(
                f"no shadow gateway answers at {self.host}:{self.port}: {error}"
            ) from error
        finally:
            connection.close()
        if status != 200:
            raise ConsoleRefused(str(data.get("error", data)), status)
        return cast(dict[str, Any], data)


def make_console_client(
    file: str | Path | None, address: str | None = None, timeout_s: float = 600.0
) -> ConsoleClient:
    """Return a client for the gateway that runs with a configuration file.

    ``address`` ("host:port") replaces the configured one. Raises ConfigurationError if the file cannot be used,
    UsageError if neither is given.
    """
    if not file and not address:
        raise click.UsageError("no gateway selected: pass -c FILE or --console HOST:PORT")
    try:
        table = tomllib.loads(Path(file).read_text()).get("console", {}) if file else {}
        settings = load_table(ConsoleSettings, table, "console")
        host, port = split_address(address) if address else (settings.host, settings.port)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file or address}: {error}") from error
    if not settings.enabled and not address:
        raise ConfigurationError(
            f"{file}: [console] enabled = false; set it to true, or pass --console HOST:PORT"
        )
    return ConsoleClient(host, port, settings.token, timeout_s)


def console_options(function: Any) -> Any:
    """Add the options of commands that use a console: parameters `file` and `address`, for `console_from_options`."""
    at = click.option(
        "--console",
        "address",
        metavar="HOST:PORT",
        help="Address of the console, if it differs from the configuration.",
    )
    return click.option(
        "-c", "--config", "file", metavar="FILE", help="Configuration file of the gateway (shadow.toml)."
    )(at(function))


def console_from_options(file: str | None, address: str | None) -> ConsoleClient:
    """Return the client that `console_options` selected.

    Without -c the file is that of `rmq-gateway shadow -c`. Raises ClickException.
    """
    given = click.get_current_context().obj or {}
    return make_console_client(file or given.get("file"), address)
