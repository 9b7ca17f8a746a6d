"""The commands `rmq-gateway broker status`, `promote` and `demote`."""

from collections.abc import Mapping
from typing import Any

import click

from gateway.admin.commands.options import (
    ClusterCommand,
    ConnectionFlags,
    cluster_options,
    confirm,
    confirm_option,
    output_options,
)
from toolkit.exit_codes import ExitCode


@click.command(cls=ClusterCommand)
@output_options()
@cluster_options
def status(connection: ConnectionFlags, output: str) -> None:
    """Show masters and slaves, and how far slaves are behind.

    Ends with 3 if a broker has a problem: it does not answer, is fenced, or does not copy its master.
    """
    from gateway.admin.broker_roles import list_roles

    with connection.open() as client:
        rows = list_roles(client)
    _print_roles(rows, output)
    if any(row["problem"] for row in rows):
        raise SystemExit(ExitCode.REFUSED)


def _print_roles(rows: list[dict[str, Any]], output: str) -> None:
    from gateway.admin.output import TableColumn, print_rows

    def style(row: Mapping[str, Any]) -> str:
        return "red" if row["problem"] else ""

    columns = [
        TableColumn("broker", "broker"),
        TableColumn("id", "id"),
        TableColumn("role", "role"),
        TableColumn("address", "address"),
        TableColumn("state", "state", style=style),
        TableColumn("behindBytes", "bytes behind", style=style),
        TableColumn("logStart", "log start", wide=True),
        TableColumn("logEnd", "log end", wide=True),
        TableColumn("master", "master", wide=True),
        TableColumn(
            "problem", "problem", wide=not any(row["problem"] for row in rows), style=lambda row: "red"
        ),
    ]
    print_rows(rows, columns, output, empty="No broker is registered.")


@click.command(cls=ClusterCommand)
@click.argument("slave", metavar="BROKER")
@click.option(
    "--role",
    "broker_role",
    type=click.Choice(["ASYNC_MASTER", "SYNC_MASTER"]),
    help="Role of the new master (default: that of the former one; ASYNC_MASTER if that was an official broker).",
)
@click.option(
    "--force",
    is_flag=True,
    help="Take over without asking the master. Stop it first: the messages that only it has are not at the new one.",
)
@confirm_option
@output_options()
@cluster_options
def promote(
    connection: ConnectionFlags, slave: str, broker_role: str | None, force: bool, yes: bool, output: str
) -> None:
    """Make a slave the master of its name.

    BROKER is the slave's address (host:port), or a broker name with one slave. A master that is alive hands over, and
    nothing is lost. A slave whose master is gone takes over without it.
    """
    from gateway.admin.broker_roles import find_replica, list_roles
    from gateway.admin.broker_roles import promote as promote_slave

    with connection.open() as client:
        address = find_replica(client, slave, () if ":" in slave else list_roles(client))
        confirm(f"Make {address} the master{' without asking the present one' if force else ''}?", yes)
        status = promote_slave(client, address, broker_role=broker_role, force=force)
    _print_change(address, status, output)


@click.command(cls=ClusterCommand)
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--id",
    "broker_id",
    type=click.IntRange(1),
    default=1,
    help="brokerId of the new slave, not used by another broker of its name (default: 1).",
)
@click.option(
    "--master",
    "ha_master_address",
    metavar="HOST:PORT",
    default="",
    help="HA address of the master to follow (default: the one that the namesrv names).",
)
@click.option("--force", is_flag=True, help="Demote even if no other master is registered.")
@confirm_option
@output_options()
@cluster_options
def demote(
    connection: ConnectionFlags,
    address: str,
    broker_id: int,
    ha_master_address: str,
    force: bool,
    yes: bool,
    output: str,
) -> None:
    """Make a master a slave, such as a former master that is back.

    Its log is cut after the last message that the new master has as well. What is cut is kept in damaged/ in its store.
    """
    from gateway.admin.broker_roles import demote as demote_master

    with connection.open() as client:
        confirm(f"Make {address} a slave?", yes)
        status = demote_master(client, address, broker_id, ha_master_address=ha_master_address, force=force)
    _print_change(address, status, output)


def _print_change(address: str, status: Any, output: str) -> None:
    from gateway.admin.output import TableColumn, print_rows

    row = {
        "broker": status.broker_name,
        "id": status.broker_id,
        "role": status.broker_role,
        "address": address,
        "state": status.state,
    }
    print_rows([row], [TableColumn(name, name) for name in row], output)
