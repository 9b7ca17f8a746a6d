"""Brokers of a cluster with their state, and checks of the cluster's health."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from codec.java_numbers import parse_integer_or
from gateway.admin.client import MASTER_ID
from gateway.admin.errors import AdminError
from remoting.bodies.routes import ClusterInfo
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.namesrv import GetBrokerClusterInfo

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

MAX_DISK_RATIO: Final = 0.85
"""Above it brokers delete old messages at any hour; above 0.9 official brokers refuse messages."""
MAX_INDEX_BACKLOG_BYTES: Final = 64 * 1024 * 1024
"""Maximum number of stored bytes that are not in the queues yet, and so not readable."""
STORE_TROUBLE: Final = "storeTrouble"
"""The entry of the runtime information with the reason why our broker refuses messages at present."""
REPLICATION_TROUBLE: Final = "replicationTrouble"
"""The entry of the runtime information with the reason why a slave of ours cannot copy its master, or two slaves of
one have the same id."""
MAX_REPLICA_GAP_BYTES: Final = 256 * 1024 * 1024
"""At this distance from its master a slave is no longer in sync. Source: haMaxGapNotInSync, 5.4.0."""
MAX_QUEUE_WAIT_MS: Final = 1000
"""Official brokers refuse sends that wait for longer than 200 ms by default."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check: its subject, the result, and for a failed one the reason with advice."""

    subject: str
    check: str
    passed: bool
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the check as a row."""
        return {"subject": self.subject, "check": self.check, "passed": self.passed, "detail": self.detail}


def describe_brokers(client: "AdminClient") -> list[dict[str, Any]]:
    """Return a row for each address of each broker; ``problem`` is the reason why its state could not be read."""
    addresses = [
        (cluster, name, number, address)
        for cluster, names in sorted(client.cluster.cluster_addr_table.items())
        for name in sorted(names)
        if name in client.cluster.broker_addr_table
        for number, address in sorted(client.cluster.broker_addr_table[name].broker_addrs.items())
    ]

    def read(address: str) -> tuple[Mapping[str, str], str]:
        try:
            return client.ask(address, GetBrokerRuntimeInfo()).data.table, ""
        except AdminError as problem:
            return {}, str(problem)

    answers = client.map_brokers([address for *_, address in addresses], read)
    rows = [
        broker_row(cluster, name, number, address, table, problem)
        for (cluster, name, number, address), (table, problem) in zip(addresses, answers, strict=True)
    ]
    compare_replicas(rows)
    return rows


def compare_replicas(rows: list[dict[str, Any]]) -> None:
    """Set how far each replica is behind its master: the difference between the ends of their logs.

    That works for official brokers as well. The ends are not of the same moment, so a small difference means nothing,
    and a small negative one is shown as 0.
    """
    masters = {row["broker"]: row["logEnd"] for row in rows if row["id"] == MASTER_ID}
    for row in rows:
        master_end = masters.get(row["broker"])
        if row["id"] == MASTER_ID or master_end is None or row["logEnd"] is None:
            continue
        behind = master_end - row["logEnd"]
        row["behindBytes"] = max(0, behind)
        if -behind >= MAX_REPLICA_GAP_BYTES and not row["replicationTrouble"]:
            row["replicationTrouble"] = f"its log reaches {-behind:,} bytes beyond that of its master"


def replication_verdict(row: Mapping[str, Any]) -> str:
    """Return why a replica is not well: it cannot copy its master, or is far behind; "" for one that is.

    A master is not if two of its slaves have one id.
    """
    if row["replicationTrouble"]:
        return str(row["replicationTrouble"])
    behind = row["behindBytes"] or 0
    return f"{behind:,} bytes behind its master" if behind >= MAX_REPLICA_GAP_BYTES else ""


def broker_row(
    cluster: str, name: str, number: int, address: str, table: Mapping[str, str], problem: str
) -> dict[str, Any]:
    """Return the row of one broker from its runtime information."""
    return {
        "cluster": cluster,
        "broker": name,
        "id": number,
        "role": "master" if number == MASTER_ID else "replica",
        "address": address,
        "version": table.get("brokerVersionDesc"),
        "inPerSecond": first_number(table.get("putTps")),
        "outPerSecond": first_number(table.get("getTransferredTps") or table.get("getTransferedTps")),
        "diskUsedRatio": first_number(table.get("commitLogDiskRatio")),
        "bootMs": parse_integer_or(table.get("bootTimestamp", ""), 0) or None,
        "messagesToday": _difference(table, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        "unreadableBytes": parse_integer_or(table.get("dispatchBehindBytes", ""), 0) if table else None,
        "sendWaitMs": parse_integer_or(table.get("sendThreadPoolQueueHeadWaitTimeMills", ""), 0)
        if table
        else None,
        "remotingClients": _optional_number(table, "remotingClients"),
        "grpcClients": _optional_number(table, "grpcClients"),
        "refusalReason": table.get(STORE_TROUBLE),
        "logEnd": parse_integer_or(table.get("commitLogMaxOffset", ""), -1) if table else None,
        "behindBytes": None,
        "behindMs": _optional_number(table, "slaveBehindMs") if number != MASTER_ID else None,
        "slaves": _optional_number(table, "slaves"),
        "slavesInSync": _optional_number(table, "slavesInSync"),
        "replicationTrouble": table.get(REPLICATION_TROUBLE),
        "problem": problem or None,
    }


def first_number(text: str | None) -> float | None:
    """Return the first number of a text: that over 10 s, of rates over 10 s, 1 min and 10 min."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return None


def _optional_number(table: Mapping[str, str], name: str) -> int | None:
    """Return a number; None where it is missing, or negative because the broker does not know it."""
    value = parse_integer_or(table.get(name, ""), -1)
    return value if value >= 0 else None


def _difference(table: Mapping[str, str], now: str, before: str) -> int | None:
    if now not in table:
        return None
    return parse_integer_or(table[now], 0) - parse_integer_or(table.get(before, ""), 0)


def check_cluster(client: "AdminClient") -> list[HealthCheck]:
    """Return all checks of a cluster, failed ones included. Raises NotReached if no namesrv answers."""
    checks = []
    views: dict[str, ClusterInfo] = {}
    for address in client.namesrvs:
        try:
            views[address] = client.ask(address, GetBrokerClusterInfo()).data
            checks.append(HealthCheck(f"namesrv {address}", "answers", True))
        except AdminError as problem:
            checks.append(HealthCheck(f"namesrv {address}", "answers", False, str(problem)))
    checks += _compare_views(views)
    checks += _check_names(client.cluster)
    for row in describe_brokers(client):
        checks += check_broker(row)
    return checks


def _compare_views(views: Mapping[str, ClusterInfo]) -> Iterator[HealthCheck]:
    tables = {
        address: {
            (name, number): broker_address
            for name, data in view.broker_addr_table.items()
            for number, broker_address in data.broker_addrs.items()
        }
        for address, view in views.items()
    }
    everything = {entry for table in tables.values() for entry in table.items()}
    if len(tables) < 2:
        return
    for address, table in tables.items():
        missing = sorted({name for (name, number), _ in everything - set(table.items())})
        yield HealthCheck(
            f"namesrv {address}",
            "knows the same brokers as the others",
            not missing,
            f"lacks {', '.join(missing)}: set all namesrvs in namesrvAddr of each broker" if missing else "",
        )


def _check_names(cluster: ClusterInfo) -> Iterator[HealthCheck]:
    names = cluster.broker_addr_table
    if not names:
        yield HealthCheck(
            "cluster", "has brokers", False, "no broker is registered: start one, or see its log"
        )
    for name, data in sorted(names.items()):
        passed = MASTER_ID in data.broker_addrs
        detail = "" if passed else "messages of its queues can only be read until the master returns"
        yield HealthCheck(f"broker {name}", "has a master", passed, detail)


def check_broker(row: Mapping[str, Any]) -> Iterator[HealthCheck]:
    """Yield the checks of one broker's row."""
    subject = f"broker {row['broker']} ({row['address']})"
    yield HealthCheck(subject, "answers", row["problem"] is None, row["problem"] or "")
    if row["problem"] is not None:
        return
    ratio = row["diskUsedRatio"]
    if ratio is not None and ratio >= 0:
        yield HealthCheck(
            subject,
            f"disk is less than {MAX_DISK_RATIO:.0%} full",
            ratio < MAX_DISK_RATIO,
            ""
            if ratio < MAX_DISK_RATIO
            else f"{ratio:.0%} is used: old messages are deleted early; add space or reduce fileReservedTime",
        )
    refusal_reason = row.get("refusalReason")
    detail = "" if refusal_reason is None else f"messages are refused: {refusal_reason}"
    yield HealthCheck(subject, "takes messages", refusal_reason is None, detail)
    unreadable_bytes = row["unreadableBytes"]
    passed = unreadable_bytes < MAX_INDEX_BACKLOG_BYTES
    detail = (
        ""
        if passed
        else f"{unreadable_bytes:,} stored bytes are not readable yet: the broker is overloaded or recovers"
    )
    yield HealthCheck(subject, "stored messages are readable", passed, detail)
    wait_ms = row["sendWaitMs"]
    passed = wait_ms < MAX_QUEUE_WAIT_MS
    yield HealthCheck(
        subject, "sends do not wait", passed, "" if passed else f"the oldest send waits for {wait_ms:,} ms"
    )
    verdict = replication_verdict(row)
    if row["id"] != MASTER_ID:
        yield HealthCheck(subject, "copies its master", not verdict, verdict)
    elif row["slaves"]:
        yield HealthCheck(subject, "has one slave of each broker id", not verdict, verdict)
