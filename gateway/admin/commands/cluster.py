"""The command `rmq-gateway cluster`: brokers with their state, and the health of the whole."""

from collections.abc import Mapping
from typing import Any

import click

from gateway.admin.commands.options import ClusterGroup, ConnectionFlags, cluster_options, output_options
from toolkit.exit_codes import ExitCode


@click.group(cls=ClusterGroup)
def cluster() -> None:
    """Show the brokers of a cluster, and check their health."""


@cluster.command()
@output_options("name")
@cluster_options
def info(connection: ConnectionFlags, output: str) -> None:
    """Show all brokers: addresses, versions, rates, disks."""
    from gateway.admin.cluster_health import describe_brokers, replication_verdict
    from gateway.admin.output import TableColumn, print_rows
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
        TableColumn(
            "problem", "problem", wide=not any(row["problem"] for row in rows), style=lambda row: "red"
        ),
    ]
    print_rows(rows, columns, output, empty="No broker is registered.")


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
    """Check namesrvs and brokers.

    Ends with 0 if all checks pass and with 3 if one fails.
    """
    from gateway.admin.cluster_health import check_cluster
    from gateway.admin.output import TableColumn, print_rows

    with connection.open() as client:
        checks = check_cluster(client)
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
