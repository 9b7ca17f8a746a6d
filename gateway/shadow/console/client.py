"""The commands' client of a running gateway: finds its console by the configuration, and exchanges JSON with it.

Name and password of a console user come from a file or the environment, never from the command line, where other users
of the machine would see them. They are sent over TLS or to this machine only, unless the configuration says otherwise.
"""

import base64
import os
import re
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlencode

import click
import orjson

from codec.hosts import parse_host
from gateway.config.keys import CONSOLE_ENVIRONMENT_PREFIX
from gateway.http_server.settings import ConsoleSettings, is_loopback
from toolkit.exit_codes import ConfigurationError
from toolkit.toml_tables import load_table, parse_toml

WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
LOGIN_VARIABLE: Final = f"{CONSOLE_ENVIRONMENT_PREFIX}LOGIN"
LOGIN_FILE_VARIABLE: Final = f"{CONSOLE_ENVIRONMENT_PREFIX}LOGIN_FILE"
HTTPS_PREFIX: Final = "https://"
_CERTIFICATE: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_LOGIN_FILE: Final = "gateway.shadow.console.login_file"
_AUTHORITY: Final = "gateway.shadow.console.authority"
"""Keys of click's context under which the options of `console_options` are found."""


class ConsoleUnreachable(click.ClickException):
    """No console answers at the address."""


class ConsoleNotTrusted(click.ClickException):
    """A server answers at the address, and its certificate is not accepted."""


class ConsoleRefused(click.ClickException):
    """The console answered with an error; ``status`` is the HTTP status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class ConsoleClient:
    """Sends requests to a console. click shows the three errors as they are, and ends the command with exit code 1."""

    def __init__(
        self,
        host: str,
        port: int,
        token: str = "",
        timeout_s: float = 600.0,
        *,
        login: str = "",
        context: ssl.SSLContext | None = None,
    ) -> None:
        """``login`` is "name:password"; with a context the console is reached by TLS."""
        self.host = WILDCARD_HOSTS.get(host, host)
        self.port = port
        self._headers = {"X-Requested-With": "rmq-gateway"}
        if login:
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        elif token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout_s = timeout_s
        self._context = context

    def get(self, path: str, **query: str | int | float) -> dict[str, Any]:
        """Return the answer to a GET request. Raises ConsoleUnreachable, ConsoleNotTrusted, ConsoleRefused."""
        return self._send_request("GET", f"{path}?{urlencode(query)}" if query else path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer to a POST request. Raises ConsoleUnreachable, ConsoleNotTrusted, ConsoleRefused."""
        return self._send_request("POST", path, orjson.dumps(body or {}))

    def _new_connection(self) -> HTTPConnection:
        if self._context is None:
            return HTTPConnection(self.host, self.port, timeout=self._timeout_s)
        return HTTPSConnection(self.host, self.port, timeout=self._timeout_s, context=self._context)

    def _send_request(self, method: str, target: str, body: bytes | None) -> dict[str, Any]:
        connection = self._new_connection()
        try:
            connection.request(method, target, body, {**self._headers, "Content-Type": "application/json"})
            answer = connection.getresponse()
            status, data = answer.status, orjson.loads(answer.read())
        except ssl.SSLCertVerificationError as error:
            raise ConsoleNotTrusted(
                f"the certificate of {self.host}:{self.port} is not accepted: {error.verify_message}. Name the "
                "authority that signed it with --console-ca, and use an address that is in the certificate."
            ) from error
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
    file: str | Path | None,
    address: str | None = None,
    timeout_s: float = 600.0,
    *,
    login: str = "",
    authority: str = "",
) -> ConsoleClient:
    """Return a client for the gateway that runs with a configuration file.

    ``address`` ("host:port" or "https://host:port") replaces the configured one. ``login`` is "name:password",
    ``authority`` the file of the authority that signed the console's certificate. Raises ConfigurationError if the file
    cannot be used or the login would be sent readably, UsageError if neither file nor address is given.
    """
    if not file and not address:
        raise click.UsageError("no gateway selected: pass -c FILE or --console HOST:PORT")
    try:
        table = parse_toml(Path(file).read_text()).get("console", {}) if file else {}
        settings = load_table(ConsoleSettings, table, "console")
        encrypted = settings.tls.mode == "enforcing" or bool(address and address.startswith(HTTPS_PREFIX))
        plain_address = (address or "").removeprefix(HTTPS_PREFIX)
        host, port = parse_host(plain_address) if address else (settings.host, settings.port)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file or address}: {error}") from error
    if not settings.enabled and not address:
        raise ConfigurationError(
            f"{file}: [console] enabled = false; set it to true, or pass --console HOST:PORT"
        )
    is_here = is_loopback(WILDCARD_HOSTS.get(host, host))
    if (login or settings.token) and not encrypted and not is_here and not settings.plain_http:
        raise ConfigurationError(
            f"credentials would be sent to {host} in the clear: use --console https://HOST:PORT, or set "
            "[console] plain_http = true"
        )
    context = make_context(settings, authority) if encrypted else None
    return ConsoleClient(host, port, settings.token, timeout_s, login=login, context=context)


def make_context(settings: ConsoleSettings, authority: str) -> ssl.SSLContext:
    """Return the context that verifies a console.

    Without an authority, and with a certificate in the configuration, exactly this certificate is accepted: neither
    the system's authorities nor further certificates of the file count. Raises ConfigurationError.
    """
    certificate = settings.tls.certificate
    name, file = ("--console-ca", authority) if authority else ("[console.tls] certificate", certificate)
    try:
        if authority or not certificate:
            return ssl.create_default_context(cafile=authority or None)
        context = ssl.create_default_context(cadata=read_first_certificate(certificate))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name} {file}: {getattr(error, 'strerror', None) or error}") from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def read_first_certificate(file: str) -> str:
    """Return the first certificate of a PEM file: the server's own. Raises OSError, ValueError."""
    match = _CERTIFICATE.search(Path(file).read_text())
    if match is None:
        raise ValueError("holds no certificate in PEM form")
    return match[0]


def read_login(file: str) -> str:
    """Return "name:password" from a file that only its owner can read, or else from the environment; "" for neither.

    Raises ConfigurationError.
    """
    if not file:
        login = os.environ.get(LOGIN_VARIABLE, "")
        if login and ":" not in login:
            raise ConfigurationError(f"{LOGIN_VARIABLE} must be NAME:PASSWORD")
        return login
    try:
        if Path(file).stat().st_mode & 0o077:
            raise ConfigurationError(f"{file} can be read by others: chmod 600 {file}")
        login = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: {error}") from error
    if ":" not in login:
        raise ConfigurationError(f"{file} must contain NAME:PASSWORD")
    return login


def console_options(function: Any) -> Any:
    """Add the options of commands that use a console: parameters `file` and `address`, for `console_from_options`."""
    at = click.option(
        "--console",
        "address",
        metavar="[https://]HOST:PORT",
        help="Address of the console, if it differs from the configuration.",
    )
    login = click.option(
        "--login-file",
        metavar="FILE",
        envvar=LOGIN_FILE_VARIABLE,
        expose_value=False,
        callback=lambda context, _, value: context.meta.update({_LOGIN_FILE: value or ""}),
        help=f"File with NAME:PASSWORD of a console user, mode 600. Without it: the variable {LOGIN_VARIABLE}.",
    )
    authority = click.option(
        "--console-ca",
        metavar="FILE",
        expose_value=False,
        callback=lambda context, _, value: context.meta.update({_AUTHORITY: value or ""}),
        help="PEM file of the authority of the console's certificate, if it is not in the configuration.",
    )
    function = login(authority(function))
    return click.option(
        "-c", "--config", "file", metavar="FILE", help="Configuration file of the gateway (shadow.toml)."
    )(at(function))


def console_from_options(file: str | None, address: str | None) -> ConsoleClient:
    """Return the client that `console_options` selected.

    Without -c the file is that of `rmq-gateway shadow -c`. Raises ClickException.
    """
    context = click.get_current_context()
    settings = context.obj or {}
    login = read_login(context.meta.get(_LOGIN_FILE, ""))
    authority = context.meta.get(_AUTHORITY, "")
    return make_console_client(file or settings.get("file"), address, login=login, authority=authority)
