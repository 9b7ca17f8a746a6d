"""The command `rmq-gateway cluster`: brokers with their state, replicas under controllers, the health of the whole."""

from collections.abc import Mapping
from typing import Any, Final

import click

from gateway.admin.commands.options import (
    ClusterGroup,
    ConnectionFlags,
    cluster_options,
    complete_names,
    output_options,
)
from toolkit.exit_codes import ExitCode


@click.group(cls=ClusterGroup)
def cluster() -> None:
    """Show the brokers and controllers of a cluster, and check their health."""


@cluster.command()
@output_options("name")
@cluster_options
def info(connection: ConnectionFlags, output: str) -> None:
    """Show all brokers: addresses, versions, rates, disks."""
    from gateway.admin.cluster_health import describe_brokers, replication_verdict
    from gateway.admin.output import TableColumn, print_rows, problem_column
    from toolkit.times import format_time

    with connection.open() as client:
        rows = describe_brokers(client)
    verdicts = {row["address"]: replication_verdict(row) for row in rows}
    has_replicas = any(row["id"] or row["slaves"] for row in rows)
    if output != "json":
        for row in rows:
            ratio = row["diskUsedRatio"]
            row |= {
                "replication": verdicts[row["address"]] or _replication_text(row),
                "disk": f"{ratio:.0%}" if ratio is not None and ratio >= 0 else None,
                "started": format_time(row["bootMs"]),
                "clients": _clients_text(row),
            }
    columns = [
        TableColumn("broker", "broker"),
        TableColumn("cluster", "cluster"),
        TableColumn("id", "id"),
        TableColumn("role", "role", wide=not has_replicas),
        TableColumn("address", "address"),
        TableColumn("version", "version"),
        TableColumn("inPerSecond", "in/s"),
        TableColumn("outPerSecond", "out/s"),
        TableColumn("messagesToday", "today"),
        TableColumn("clients", "clients"),
        TableColumn("disk", "disk"),
        TableColumn(
            "replication",
            "replication",
            wide=not has_replicas,
            style=lambda row: "bold red" if verdicts[row["address"]] else "",
        ),
        TableColumn("started", "started", wide=True),
        TableColumn("unreadableBytes", "unreadable bytes", wide=True),
        TableColumn("sendWaitMs", "send wait ms", wide=True),
        problem_column(rows),
    ]
    print_rows(rows, columns, output, empty="No broker is registered.")


def _clients_text(row: Mapping[str, Any]) -> str | None:
    """Return the number of connected clients, and how many of them speak gRPC; None for official brokers."""
    remoting_clients, grpc_clients = row["remotingClients"], row["grpcClients"]
    if remoting_clients is None or grpc_clients is None:
        return None
    return f"{remoting_clients + grpc_clients:,}" + (f", {grpc_clients:,} by gRPC" if grpc_clients else "")


def _replication_text(row: Mapping[str, Any]) -> str | None:
    """Return how far a replica is behind, and the slaves of a master; None without any."""
    if row["behindBytes"] is not None:
        age = f", {row['behindMs']:,} ms" if row["behindMs"] else ""
        return f"{row['behindBytes']:,} bytes{age} behind" if row["behindBytes"] else "in sync"
    if row["slaves"]:
        return f"{row['slavesInSync']} of {row['slaves']} slaves in sync"
    return None


@cluster.command()
@output_options()
@cluster_options
def health(connection: ConnectionFlags, output: str) -> None:
    """Check namesrvs, brokers and controllers.

    Ends with 0 if all checks pass and with 3 if one fails.
    """
    from gateway.admin.cluster_health import check_cluster
    from gateway.admin.output import TableColumn, print_rows
    from gateway.admin.replica_sets import check_controllers

    with connection.open() as client:
        checks = [*check_cluster(client), *check_controllers(client)]
    rows = [check.to_dict() for check in checks]
    if output != "json":
        for row in rows:
            row["verdict"] = "ok" if row["passed"] else "FAILED"
    columns = [
        TableColumn("subject", "subject"),
        TableColumn("check", "check"),
        TableColumn("verdict", "verdict", style=lambda row: "green" if row["passed"] else "bold red"),
        TableColumn("detail", "detail", wide=all(check.passed for check in checks)),
    ]
    print_rows(rows, columns, output)
    if not all(check.passed for check in checks):
        raise SystemExit(ExitCode.REFUSED)


_controller_option: Final = click.option(
    "--controller",
    "controllers",
    multiple=True,
    metavar="HOST:PORT",
    help="Address of a controller; repeatable, or several with ; between them (default: those that brokers name).",
)


@cluster.command()
@click.argument("brokers", nargs=-1, metavar="[BROKER]...", shell_complete=complete_names("broker"))
@_controller_option
@output_options()
@cluster_options
def replicas(
    connection: ConnectionFlags, brokers: tuple[str, ...], controllers: tuple[str, ...], output: str
) -> None:
    """Show the replicas of brokers under a controller: roles, epochs, who is in sync, who would be elected next.

    BROKER is a broker name; without any, all in controller mode are shown. For each replica ELECTION says whether it
    would replace a master that dies, or why not. Ends with 3 if there is no live master, or if nobody could replace it.
    """
    from gateway.admin.output import TableColumn, print_rows, print_warning, problem_column
    from gateway.admin.replica_sets import list_replica_sets

    with connection.open() as client:
        sets = list_replica_sets(client, brokers, controllers)
    rows = [row for replica_set in sets for row in replica_set.rows()]
    troubles = {replica_set.name: replica_set.trouble for replica_set in sets if replica_set.trouble}

    def style(row: Mapping[str, Any]) -> str:
        if not row["alive"] or row["problem"]:
            return "red"
        return "green" if row["next"] else ""

    columns = [
        TableColumn("broker", "broker"),
        TableColumn("id", "id"),
        TableColumn("role", "role"),
        TableColumn("address", "address"),
        TableColumn("alive", "alive", style=style),
        TableColumn("inSync", "in sync", style=style),
        TableColumn("masterEpoch", "master epoch"),
        TableColumn("epoch", "log epoch"),
        TableColumn("logEnd", "log end"),
        TableColumn("election", "election", style=style),
        TableColumn("behindBytes", "bytes behind", wide=True),
        TableColumn("priority", "priority", wide=True),
        TableColumn("syncSetEpoch", "set epoch", wide=True),
        problem_column(rows),
    ]
    print_rows(rows, columns, output, empty="The controller knows no replica of these brokers.")
    if output != "json":
        for name, trouble in troubles.items():
            print_warning(f"{name}: {trouble}")
    if troubles:
        raise SystemExit(ExitCode.REFUSED)


@cluster.command("controllers")
@_controller_option
@output_options()
@cluster_options
def show_controllers(connection: ConnectionFlags, controllers: tuple[str, ...], output: str) -> None:
    """Show the controllers of brokers in controller mode, and which one leads.

    Ends with 3 if one does not answer, or none leads.
    """
    from gateway.admin.output import TableColumn, print_rows, problem_column
    from gateway.admin.replica_sets import list_controllers

    with connection.open() as client:
        groups = list_controllers(client, controllers)
    rows = [row for group in groups for row in group]
    columns = [
        TableColumn("controller", "controller"),
        TableColumn("address", "address"),
        TableColumn("group", "group"),
        TableColumn("leads", "leads", style=lambda row: "green" if row["leads"] else ""),
        TableColumn("leader", "leader", wide=True),
        problem_column(rows),
    ]
    print_rows(rows, columns, output)
    if any(row["problem"] for row in rows) or not all(any(row["leads"] for row in group) for group in groups):
        raise SystemExit(ExitCode.REFUSED)
