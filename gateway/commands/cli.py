"""The command line `rmq-gateway`: turns flags and files into a ServeConfig, which `gateway.process.server` runs.

The servers are imported only by the commands that start one.
"""

import errno
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from toolkit.command_group import SuggestingGroup
from toolkit.printable import LINES_AND_TABS, printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

OUR_PACKAGES = ("codec", "toolkit", "remoting", "storage", "gateway", "spark")
Function = Callable[..., Any]


def foreign_packages(packages: tuple[str, ...] = OUR_PACKAGES) -> list[str]:
    """Return our packages that Python would import from another distribution, as `name at place`."""
    home = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    problems = []
    for name in packages:
        spec = importlib.util.find_spec(name)
        places = (
            [*(spec.submodule_search_locations or ()), spec.origin or "no file"] if spec else ["no place"]
        )
        if os.path.realpath(places[0]) != os.path.realpath(os.path.join(home, name)):
            problems.append(f"{name} at {places[0]}")
    return problems


def refuse_foreign_packages() -> None:
    """Exit with an error if a package of another distribution would be imported under one of our names."""
    packages = foreign_packages()
    if packages:
        raise click.ClickException(
            f"packages of another distribution shadow ours: {', '.join(packages)}. "
            "Install rmq-gateway into an environment of its own."
        )


def _option(*names: str, **settings: Any) -> Callable[[Function], Function]:
    return click.option(*names, **settings)


def common_options(function: Function) -> Function:
    """Add the flags of every command that starts a server."""
    options = [
        _option(
            "-c",
            "--config",
            "files",
            multiple=True,
            metavar="FILE",
            help="Configuration file, such as broker.conf or namesrv.conf; repeatable.",
        ),
        _option(
            "--set",
            "sets",
            multiple=True,
            metavar="KEY=VALUE",
            help="Set one key listed by `rmq-gateway config`; repeatable.",
        ),
        _option("--strict", is_flag=True, help="Refuse unknown keys in configuration files, too."),
        _option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen on (default: 127.0.0.1 for serve, else 0.0.0.0).",
        ),
        _option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            help="Lowest level to log (info).",
        ),
        _option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            help="Form of log lines: text, or one JSON object per line (text).",
        ),
        _option(
            "--ready-file", metavar="PATH", help="File to write the ready line to, besides standard output."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def broker_options(function: Function) -> Function:
    """Add the flags of the commands that start brokers."""
    options = [
        _option(
            "--memory",
            is_flag=True,
            default=None,
            help="Keep messages in memory; nothing is written to disk.",
        ),
        _option(
            "--store",
            metavar="DIR",
            help="Directory of all files (default: ~/rocketmq-gateway/store); several brokers use a subdirectory each.",
        ),
        _option(
            "--advertise",
            metavar="HOST|auto",
            help="Address that clients are told to use; auto: the one they connected to.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


class LazyCommand(NamedTuple):
    """A command that is imported when it is used: its place, "module:variable", and its line in lists of commands."""

    place: str
    help: str


class LazyGroup(SuggestingGroup):
    """A group whose commands are imported when they are used, and not for help and completion of the group."""

    def __init__(self, *arguments: Any, lazy: Mapping[str, LazyCommand], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._lazy = lazy

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(context), *self._lazy})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return a command, importing it; None for an unknown name."""
        if name not in self._lazy:
            return super().get_command(context, name)
        module, _, variable = self._lazy[name].place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), variable or name)
        return command

    def describe_commands(self, context: click.Context, start: str = "") -> list[tuple[str, str]]:
        """Return names that begin with a text, each with its help."""
        described = []
        for name in self.list_commands(context):
            if not name.startswith(start):
                continue
            if name in self._lazy:
                described.append((name, self._lazy[name].help))
            elif (command := self.get_command(context, name)) is not None:
                described.append((name, command.get_short_help_str(limit=MAX_HELP_CHARS)))
        return described

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(self.describe_commands(ctx))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return the commands and options that begin with a text."""
        from click.shell_completion import CompletionItem

        items = [CompletionItem(name, help=text) for name, text in self.describe_commands(ctx, incomplete)]
        return items + click.Command.shell_complete(self, ctx, incomplete)


class _Commands(LazyGroup):
    """All commands: ours, and those that other packages register as entry points of a group."""

    ENTRY_POINTS = "rmq_gateway.commands"

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run the command line. Output that cannot be written, as on a full disk, is one line and exit code 1."""
        try:
            try:
                return super().main(*args, **settings)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                raise
            # What is buffered cannot be written either, and the interpreter would try it at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            click.echo(f"Error: the output cannot be written: {os.strerror(error.errno)}.", err=True)
            from toolkit.exit_codes import ExitCode

            sys.exit(ExitCode.FAILED)

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *self._brought().names})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        own = super().get_command(context, name)
        return own or next((entry_point.load() for entry_point in self._brought(name=name)), None)

    def invoke(self, context: click.Context) -> Any:
        """Run a command; the text of an error may come from a server, and is made printable."""
        try:
            return super().invoke(context)
        except click.ClickException as error:
            # The same error, because its class decides about the exit code and the lines around the text.
            vars(error).update(message=printable(error.message, LINES_AND_TABS))
            raise

    def _brought(self, **options: Any) -> Any:
        """Return the entry points of other packages."""
        from importlib.metadata import entry_points  # slow to import, and servers start without it

        return entry_points(group=self.ENTRY_POINTS, **options)


COMMANDS: Final = {
    "acl": LazyCommand(
        "gateway.admin.commands.acl",
        "List, create, change and delete access rules of users, and explain decisions.",
    ),
    "capture": LazyCommand(
        "gateway.shadow.commands.capture",
        "Inspect capture files of a shadow gateway; a folder stands for all files in it.",
    ),
    "cert": LazyCommand(
        "gateway.commands.cert",
        "Create a certificate in DIRECTORY, signed by the development authority there.",
    ),
    "cluster": LazyCommand(
        "gateway.admin.commands.cluster",
        "Show the brokers and controllers of a cluster, and check their health.",
    ),
    "completion": LazyCommand(
        "gateway.admin.commands.completion",
        "Show or install the completion of commands and options in your shell.",
    ),
    "consume": LazyCommand(
        "gateway.admin.commands.consume",
        "Print messages of TOPIC, up to the end as it is now, or with --follow until Ctrl-C.",
    ),
    "debug": LazyCommand(
        "gateway.admin.commands.debug", "Collect information about a cluster that misbehaves."
    ),
    "dlq": LazyCommand("gateway.admin.commands.dlq", "List dead letters, look at them, and send them again."),
    "docs": LazyCommand(
        "gateway.commands.docs", "Print the document PAGE, for example how-to/serve; without PAGE, list all."
    ),
    "group": LazyCommand(
        "gateway.admin.commands.group", "List, describe, create, change, move and delete consumer groups."
    ),
    "message": LazyCommand("gateway.admin.commands.message", "Find messages by id, key, place or time."),
    "produce": LazyCommand(
        "gateway.admin.commands.produce",
        "Send messages to TOPIC: each VALUE, or without any the lines of a file or of standard input.",
    ),
    "replay": LazyCommand(
        "gateway.shadow.commands.capture", "Replay captured requests against another cluster."
    ),
    "shadow": LazyCommand(
        "gateway.shadow.commands.root",
        "Run a gateway between clients and a cluster, which prepares the move to another cluster.",
    ),
    "store": LazyCommand(
        "gateway.commands.store.commands",
        "Inspect, verify, dump, repair and back up the store folder of this broker or an official one.",
    ),
    "topic": LazyCommand("gateway.admin.commands.topic", "List, describe, create, change and delete topics."),
    "user": LazyCommand(
        "gateway.admin.commands.user", "List, describe, create, change and delete the users of brokers."
    ),
}
"""Our commands outside this module. A test compares each text with the help of the command."""
MAX_HELP_CHARS: Final = 100
_SERVER_CONFIG: Final = "gateway.admin.commands.server_config"
BROKER_CONFIG: Final = LazyCommand(
    f"{_SERVER_CONFIG}:broker_config", "Read and change settings of running brokers."
)
_BROKER_ROLES: Final = "gateway.admin.commands.broker_roles"
BROKER_COMMANDS: Final = {
    "config": BROKER_CONFIG,
    "demote": LazyCommand(_BROKER_ROLES, "Make a master a slave, such as a former master that is back."),
    "promote": LazyCommand(_BROKER_ROLES, "Make a slave the master of its name."),
    "status": LazyCommand(_BROKER_ROLES, "Show masters and slaves, and how far slaves are behind."),
}
NAMESRV_CONFIG: Final = LazyCommand(
    f"{_SERVER_CONFIG}:namesrv_config", "Read and change settings of running namesrvs."
)


@click.group(cls=_Commands, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rocketmq-gateway", prog_name="rmq-gateway")
def main() -> None:
    """A server that speaks Apache RocketMQ's remoting protocol."""


@main.command()
@click.option("--port", metavar="PORT", help="Port of the namesrv (default: 9876); 0 for a free one.")
@click.option(
    "--broker-port", metavar="PORT", help="Port of the first broker (default: 10911); 0 for free ones."
)
@click.option("--brokers", metavar="N", help="Number of brokers (default: 1); their ports are 10 apart.")
@click.option(
    "--replicas",
    metavar="N",
    help="Number of brokers per name (default: 1): a master and its slaves, each a process with its own store.",
)
@click.option(
    "--processes",
    is_flag=True,
    default=None,
    help="Run each broker in a process of its own, to use more than one core.",
)
@click.option(
    "--grpc-port",
    metavar="PORT",
    help="Port of the gRPC protocol of 5.x clients (default: none; 8081 at the official Proxy); 0 for a free one.",
)
@click.option(
    "--control",
    metavar="PORT",
    help="Port of an HTTP API for tests (time, faults, reset); 0 for a free one. Needs --memory.",
)
@click.option(
    "--register-at",
    metavar="HOST:PORT[;HOST:PORT]",
    help="Further namesrvs to register the brokers with. namesrvAddr in a file is ignored.",
)
@broker_options
@common_options
def serve(**options: Any) -> None:
    """Run a namesrv and brokers, in one process unless --processes is given."""
    start_servers("serve", options)


@main.group(cls=LazyGroup, lazy={"config": NAMESRV_CONFIG}, invoke_without_command=True)
@click.option("--port", metavar="PORT", help="Port (default: 9876); 0 for a free one.")
@click.option(
    "--memory",
    is_flag=True,
    default=None,
    help="Keep the KV configuration in memory; nothing is written to disk.",
)
@common_options
@click.pass_context
def namesrv(context: click.Context, /, **options: Any) -> None:
    """Run a namesrv only, or read and change the settings of running namesrvs."""
    if context.invoked_subcommand is None:
        start_servers("namesrv", options)


@main.group(cls=LazyGroup, lazy=BROKER_COMMANDS, invoke_without_command=True)
@click.option(
    "-n",
    "--namesrv",
    "namesrv_addr",
    metavar="HOST:PORT[;HOST:PORT]",
    help="Addresses of the namesrvs to register with.",
)
@click.option(
    "--port", "--broker-port", "broker_port", metavar="PORT", help="Port (default: 10911); 0 for a free one."
)
@broker_options
@common_options
@click.pass_context
def broker(context: click.Context, /, **options: Any) -> None:
    """Run a broker only, or read and change the settings and roles of running brokers."""
    if context.invoked_subcommand is None:
        start_servers("broker", options)


@main.command()
@click.option(
    "--memory", is_flag=True, default=None, help="Keep the state in memory; nothing is written to disk."
)
@common_options
def controller(**options: Any) -> None:
    """Run a controller, which elects the masters of brokers in controller mode."""
    start_servers("controller", options)


@main.command()
@click.option(
    "-n",
    "--namesrv",
    "namesrv_addr",
    metavar="HOST:PORT[;HOST:PORT]",
    help="Addresses of the namesrvs of the cluster.",
)
@click.option(
    "--port",
    "--grpc-port",
    "grpc_port",
    metavar="PORT",
    help="Port of the gRPC protocol (default: 8081); 0 for a free one.",
)
@common_options
def proxy(**options: Any) -> None:
    """Serve 5.x clients (gRPC) in front of a cluster, of this server or of official brokers of 5.x."""
    start_servers("proxy", options)


@main.command()
@click.option(
    "--example",
    type=click.Choice(["broker", "namesrv", "controller"]),
    help="Print a commented example file instead.",
)
def config(example: str | None) -> None:
    """Print every configuration key with its default, range and meaning."""
    from gateway.config.docs import example_file, reference

    click.echo(example_file(example) if example else reference(), nl=False)


FLAG_KEYS = {
    "broker_port": "broker.listenPort",
    "port": "namesrv.listenPort",
    "namesrv_addr": "broker.namesrvAddr",
    "register_at": "broker.namesrvAddr",
    "brokers": "brokers",
    "control": "controlPort",
    "grpc_port": "grpcServerPort",
    "processes": "brokerProcesses",
    "replicas": "brokerReplicas",
    "memory": "memoryStore",
    "store": "storePathRootDir",
    "advertise": "brokerIP1",
    "host": "bindAddress",
    "log_level": "logLevel",
    "log_format": "logFormat",
    "ready_file": "readyFile",
}


def _flag_of(name: str) -> str:
    """Return a flag as the user wrote it, for messages."""
    return "--namesrv" if name == "namesrv_addr" else "--" + name.replace("_", "-")


def namesrv_files(directory: str) -> list[Any]:
    """Return the namesrv's two files below the --store directory, so that two servers do not share them."""
    from gateway.config.sources import SourceValue

    names = {"kvConfigPath": "kvConfig.json", "configStorePath": "namesrv.properties"}
    return [SourceValue(key, os.path.join(directory, name), "--store") for key, name in names.items()]


def start_servers(role: Any, options: dict[str, Any]) -> None:
    """Build the configuration and run the servers until a signal stops them."""
    from gateway.config.sources import ConfigError, SourceValue, load_config
    from toolkit.exit_codes import ConfigurationError

    refuse_foreign_packages()
    flags = [
        SourceValue(FLAG_KEYS[name], "true" if value is True else str(value), _flag_of(name))
        for name, value in options.items()
        if name in FLAG_KEYS and value is not None
    ]
    if role == "serve" and options.get("store"):
        flags[:0] = namesrv_files(os.path.join(options["store"], "namesrv"))
    try:
        configuration = load_config(
            role, options["files"], os.environ, options["sets"], flags, strict=options["strict"]
        )
    except ConfigError as problem:
        raise ConfigurationError(str(problem)) from problem
    run_configuration(configuration)


def run_configuration(configuration: Any) -> None:
    """Set up logging, log notices about the configuration, and run the servers."""
    gc.disable()  # it would examine the objects of imports again and again, until `tune_garbage_collector`
    import logging

    from gateway.runtime.logs import set_up_logging

    process = configuration.process
    set_up_logging(process.log_level, log_format=process.log_format)
    for notice in configuration.notices:
        logging.getLogger(__name__).warning("configuration: %s", notice)
    # A room above this one, so it is named and not imported.
    module = "gateway.process.server" if process.control_port < 0 else "gateway.testing.control_server"
    sys.exit(importlib.import_module(module).run(configuration))


if __name__ == "__main__":
    main()
