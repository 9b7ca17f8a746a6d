"""The commands `rmq-gateway broker status`, `promote` and `demote`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient
    from gateway.admin.replica_sets import ControlledTarget, ReplicaState


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
    from gateway.admin.output import TableColumn, print_rows, problem_column

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
        problem_column(rows),
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
    nothing is lost. A slave whose master is gone takes over without it. Under a controller, that one elects the slave,
    which must be in sync; of a broker name it is the slave that would be elected if the master died.
    """
    from gateway.admin.broker_roles import find_replica, list_roles
    from gateway.admin.broker_roles import promote as promote_slave
    from gateway.admin.replica_sets import choose_new_master, find_controlled_broker

    with connection.open() as client:
        controlled = find_controlled_broker(client, slave)
        if controlled is not None:
            _refuse_options({"--role": broker_role, "--force": force}, controlled.replica_set.name)
            _elect(client, controlled, choose_new_master(controlled), yes, output)
            return
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
    broker_id: int | None,
    ha_master_address: str,
    force: bool,
    yes: bool,
    output: str,
) -> None:
    """Make a master a slave, such as a former master that is back.

    Its log is cut after the last message that the new master has as well. What is cut is kept in damaged/ in its store.
    Under a controller, that one elects another replica in sync; a broker that is not the master stays as it is.
    """
    from gateway.admin.broker_roles import demote as demote_master
    from gateway.admin.replica_sets import choose_successor, find_controlled_broker

    with connection.open() as client:
        controlled = find_controlled_broker(client, address)
        if controlled is not None:
            options = {"--id": broker_id, "--master": ha_master_address, "--force": force}
            _refuse_options(options, controlled.replica_set.name)
            _elect(client, controlled, choose_successor(controlled), yes, output)
            return
        confirm(f"Make {address} a slave?", yes)
        status = demote_master(
            client, address, broker_id or 1, ha_master_address=ha_master_address, force=force
        )
    _print_change(address, status, output)


def _refuse_options(options: Mapping[str, Any], name: str) -> None:
    """Refuse options that make no sense under a controller."""
    for option, value in options.items():
        if value:
            raise click.UsageError(f"{option}: {_UNDER_A_CONTROLLER[option].format(name=name)}")


_UNDER_A_CONTROLLER: Final = {
    "--role": "{name} is under a controller, whose masters wait for the replicas in sync; there is no other kind. "
    "Leave the option out",
    "--force": "{name} is under a controller, which elects only replicas in sync, because others lack messages. If "
    "none of them comes back, set enableElectUncleanMaster=true at the controller; it then elects another one by "
    "itself, and the messages that this one lacks are lost",
    "--id": "{name} is under a controller, which chooses the ids of brokers. Leave the option out",
    "--master": "{name} is under a controller, which tells slaves their master. Leave the option out",
}


def _elect(
    client: "AdminClient",
    controlled: "ControlledTarget",
    replica: "ReplicaState | None",
    yes: bool,
    output: str,
) -> None:
    """Have the controller elect a replica, and print the replicas afterwards; None changes nothing."""
    from gateway.admin.output import TableColumn, print_rows
    from gateway.admin.replica_sets import elect

    name = controlled.replica_set.name
    master = replica or controlled.replica_set.master
    if replica is not None and not replica.is_master:
        confirm(f"Have the controller make {replica.address} the master of {name}?", yes)
        elect(client, controlled, replica)
    rows = [
        {
            "broker": name,
            "id": state.broker_id,
            "role": "master" if master is not None and state.address == master.address else "slave",
            "address": state.address,
        }
        for state in controlled.replica_set.replicas
    ]
    print_rows(rows, [TableColumn(key, key) for key in rows[0]], output)


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
