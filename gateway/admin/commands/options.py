"""The options that commands about a cluster share, the connection they open, and their errors.

Imported by every command, also for its help: it must not import anything slow.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from toolkit.command_group import SuggestingGroup
from toolkit.exit_codes import ConfigurationError
from toolkit.printable import printable

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

Function = Callable[..., Any]


class ConnectionOption(click.Option):
    """An option that help lists below "Connection", after the command's own ones."""


class ClusterCommand(click.Command):
    """A command that asks servers: its help has two lists of options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the two lists."""
        lists: dict[str, list[tuple[str, str]]] = {"Options": [], "Connection": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                is_connection = isinstance(parameter, ConnectionOption)
                lists["Connection" if is_connection else "Options"].append(record)
        for title, records in lists.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class ClusterGroup(SuggestingGroup):
    """A group of commands that ask servers."""

    command_class = ClusterCommand


_CONNECTION_OPTIONS: Final = (
    (
        ("--namesrv",),
        {
            "multiple": True,
            "metavar": "HOST:PORT",
            "help": "Address of a namesrv; repeatable, or several with ; between them (default: 127.0.0.1:9876).",
        },
    ),
    (
        ("--address-server",),
        {
            "metavar": "HOST[:PORT]",
            "help": "Address server that lists the namesrvs, or its URL; instead of --namesrv.",
        },
    ),
    (("--profile",), {"metavar": "NAME", "help": "Table of the profiles file with these settings."}),
    (
        ("--profiles",),
        {"metavar": "FILE", "help": "Profiles file (default: profiles.toml of your settings)."},
    ),
    (
        ("--timeout", "timeout_s"),
        {
            "type": click.FloatRange(0.01, 3600),
            "metavar": "SECONDS",
            "help": "Maximum time for connecting and for each answer (default: 5).",
        },
    ),
    (("--tls",), {"is_flag": True, "help": "Connect with TLS; the options below imply it."}),
    (("--tls-ca",), {"metavar": "FILE", "help": "Authority that signs the servers' certificates (PEM)."}),
    (("--tls-cert",), {"metavar": "FILE", "help": "Certificate of this client (PEM)."}),
    (("--tls-key",), {"metavar": "FILE", "help": "Private key of the certificate (PEM)."}),
    (("--tls-server-name",), {"metavar": "NAME", "help": "Name that the servers' certificates must have."}),
    (("--tls-insecure",), {"is_flag": True, "help": "Accept any certificate."}),
    (("--access-key",), {"metavar": "NAME", "help": "Access key of the user that signs requests."}),
    (("--secret-key-file",), {"metavar": "FILE", "help": "File with the user's secret."}),
    (("--security-token-file",), {"metavar": "FILE", "help": "File with a security token."}),
)
_CONNECTION_NAMES: Final = tuple(names[-1].lstrip("-").replace("-", "_") for names, _ in _CONNECTION_OPTIONS)


class ConnectionFlags:
    """The connection flags of one command line."""

    def __init__(self, flags: dict[str, Any]) -> None:
        self._flags = flags

    @contextmanager
    def open(self) -> "Iterator[AdminClient]":
        """Open a client for the block, with the settings of flags, environment and profile.

        An error of the settings ends the command with 2, one of a server with 1.
        """
        from gateway.admin.client import AdminClient
        from gateway.admin.errors import AdminError
        from gateway.admin.settings import load_settings
        from toolkit.settings import SettingsError

        try:
            with AdminClient(load_settings(self._flags)) as client:
                yield client
        except SettingsError as error:
            raise ConfigurationError(str(error)) from error
        except AdminError as error:
            raise click.ClickException(str(error)) from error


def cluster_options(function: Function) -> Function:
    """Add the connection flags; the function receives them as ``connection``."""

    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        flags = {name: arguments.pop(name) for name in _CONNECTION_NAMES}
        return function(connection=ConnectionFlags(flags), **arguments)

    decorated: Function = call
    for names, settings in reversed(_CONNECTION_OPTIONS):
        decorated = click.option(*names, cls=ConnectionOption, **settings)(decorated)
    return decorated


def complete_names(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a function that completes the names of topics, groups or brokers by asking the cluster."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from gateway.admin.name_completion import find_names

        flags = {name: context.params.get(name) for name in _CONNECTION_NAMES}
        return find_names(kind, flags, incomplete)

    return complete


def output_options(*formats: str) -> Callable[[Function], Function]:
    """Add -o and --json; the function receives the format as ``output``: table, wide, json, or one of ``formats``."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(as_json: bool, output: str, **arguments: Any) -> Any:
            return function(output="json" if as_json else output, **arguments)

        decorated: Function = click.option("--json", "as_json", is_flag=True, help="Short for -o json.")(call)
        choices = ("table", "wide", *formats, "json")
        return click.option(
            "-o",
            "--output",
            type=click.Choice(choices),
            default="table",
            metavar="FORMAT",
            help=f"Output: {', '.join(choices[:-1])} or json (default: table).",
        )(decorated)

    return decorate


def parse_pairs(setting: str, texts: Iterable[str], form: str = "KEY=VALUE") -> dict[str, str]:
    """Return the pairs of repeated values ``key=value``. Raises UsageError, which names the setting."""
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise click.UsageError(f'{setting} "{text}": expected {form}'.strip())
        pairs[key.strip()] = value
    return pairs


def brokers_option(help_text: str) -> Callable[[Function], Function]:
    """Add a repeatable --broker; the function receives the names as ``brokers``."""
    return click.option(
        "--broker",
        "brokers",
        multiple=True,
        shell_complete=complete_names("broker"),
        metavar="NAME",
        help=help_text,
    )


def placement_options(function: Function) -> Function:
    """Add --broker and --cluster, which choose brokers."""
    with_cluster = click.option("--cluster", metavar="NAME", help="Only the brokers of this cluster.")(
        function
    )
    return brokers_option("Only this broker; repeatable.")(with_cluster)


def queues_option(function: Function) -> Function:
    """Add a repeatable --queue; the function receives the numbers as ``queues``."""
    return click.option(
        "--queue",
        "queues",
        type=click.IntRange(0),
        multiple=True,
        metavar="N",
        help="Only this queue; repeatable.",
    )(function)


def parse_place(option: str, text: str) -> tuple[str, int | None]:
    """Return "earliest" or "latest", or else "" and a time in ms, from an option's text. Raises UsageError."""
    from gateway.admin.consuming import EARLIEST, LATEST
    from toolkit.option_types import PastTimeType

    if text in (EARLIEST, LATEST):
        return text, None
    try:
        return "", PastTimeType().convert(text, None, None)
    except click.BadParameter as error:
        raise click.UsageError(
            f"{option}: {error.message}; or earliest, latest, or a duration such as 15m"
        ) from None


def confirm_option(function: Function) -> Function:
    """Add --yes, which skips the question of `confirm`."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(function)


def confirm(question: str, yes: bool) -> None:
    """Ask on the terminal unless --yes is given; a no ends the command. Without a terminal, --yes is required."""
    if yes:
        return
    import sys

    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to ask on: pass --yes.")
    if not click.confirm(printable(question), err=True):
        raise click.ClickException("Not confirmed; nothing was changed.")
