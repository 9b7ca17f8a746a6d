"""The commands `rmq-gateway broker config` and `rmq-gateway namesrv config`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gateway.admin.commands.options import (
    ClusterGroup,
    ConnectionFlags,
    brokers_option,
    cluster_options,
    confirm,
    confirm_option,
    output_options,
    parse_pairs,
)
from toolkit.exit_codes import ExitCode

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient


@click.group("config", cls=ClusterGroup)
def broker_config() -> None:
    """Read and change settings of running brokers."""


@click.group("config", cls=ClusterGroup)
def namesrv_config() -> None:
    """Read and change settings of running namesrvs."""


@broker_config.command("get")
@click.argument("pattern", metavar="[KEY]", default="*")
@brokers_option("Only this broker; repeatable.")
@output_options()
@cluster_options
def get_broker(connection: ConnectionFlags, pattern: str, brokers: tuple[str, ...], output: str) -> None:
    """Show settings whose names match KEY (shell pattern, ignoring case); secrets are masked."""
    from gateway.admin.server_config import read_broker_config, rows_of_config

    with connection.open() as client:
        rows = [
            row
            for name in client.choose_brokers(brokers)
            for row in rows_of_config(name, read_broker_config(client, name), pattern)
        ]
    _print_settings(rows, output)


@namesrv_config.command("get")
@click.argument("pattern", metavar="[KEY]", default="*")
@output_options()
@cluster_options
def get_namesrv(connection: ConnectionFlags, pattern: str, output: str) -> None:
    """Show settings whose names match KEY (shell pattern, ignoring case); secrets are masked."""
    from gateway.admin.server_config import read_namesrv_config, rows_of_config

    with connection.open() as client:
        rows = [
            row
            for address in client.namesrvs
            for row in rows_of_config(address, read_namesrv_config(client, address), pattern)
        ]
    _print_settings(rows, output)


def _print_settings(rows: list[dict[str, Any]], output: str) -> None:
    from gateway.admin.output import TableColumn, print_rows

    is_one = len({row["server"] for row in rows}) == 1
    columns = [
        TableColumn("server", "server", wide=is_one),
        TableColumn("key", "key"),
        TableColumn("value", "value"),
    ]
    print_rows(rows, columns, output, empty="No setting has such a name.")
    if not rows:
        raise SystemExit(ExitCode.NOTHING)


@broker_config.command("set")
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
@brokers_option("Only this broker; repeatable (default: all).")
@confirm_option
@output_options()
@cluster_options
def set_broker(
    connection: ConnectionFlags, settings: tuple[str, ...], brokers: tuple[str, ...], yes: bool, output: str
) -> None:
    """Change settings of brokers while they run, and show the old and new values.

    Ends with 3 if a broker did not apply a setting.
    """
    from gateway.admin.server_config import read_broker_config, update_broker_config

    with connection.open() as client:
        chosen = client.choose_brokers(brokers)
        _change(client, chosen, settings, yes, output, read_broker_config, update_broker_config)


@namesrv_config.command("set")
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
@confirm_option
@output_options()
@cluster_options
def set_namesrv(connection: ConnectionFlags, settings: tuple[str, ...], yes: bool, output: str) -> None:
    """Change settings of all given namesrvs while they run, and show the old and new values.

    Ends with 3 if a namesrv did not apply a setting.
    """
    from gateway.admin.server_config import read_namesrv_config, update_namesrv_config

    with connection.open() as client:
        _change(
            client, list(client.namesrvs), settings, yes, output, read_namesrv_config, update_namesrv_config
        )


def _change(
    client: "AdminClient",
    servers: list[str],
    settings: tuple[str, ...],
    yes: bool,
    output: str,
    read: "Callable[[AdminClient, str], dict[str, str]]",
    update: "Callable[[AdminClient, str, dict[str, str]], None]",
) -> None:
    from gateway.admin.output import TableColumn, print_rows
    from gateway.admin.server_config import compare_config

    changes = parse_pairs("setting", settings)
    confirm(f"Change {', '.join(changes)} of {', '.join(servers)}?", yes)
    rows: list[dict[str, Any]] = []
    for server in servers:
        before = read(client, server)
        update(client, server, changes)
        rows += compare_config(server, before, read(client, server), changes)
    columns = [
        TableColumn("server", "server"),
        TableColumn("key", "key"),
        TableColumn("before", "before"),
        TableColumn("now", "now"),
        TableColumn("applied", "applied", style=lambda row: "" if row["applied"] else "bold red"),
    ]
    print_rows(rows, columns, output)
    if not all(row["applied"] for row in rows):
        raise SystemExit(ExitCode.REFUSED)
