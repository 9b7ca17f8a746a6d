"""`rmq-gateway cluster …`, and the verdicts about brokers that are not well."""

import socket
from typing import Any

import pytest

from gateway.admin.cluster_health import (
    broker_row,
    check_broker,
    compare_replicas,
    first_number,
    replication_verdict,
)
from gateway.admin.commands.cluster import _clients_text
from gateway.admin.tests.local_server import LocalServer


def test_info(server: LocalServer) -> None:
    rows = server.read("cluster", "info")
    assert [(each["broker"], each["id"], each["role"]) for each in rows] == [
        ("broker-a", 0, "master"),
        ("broker-b", 0, "master"),
    ]
    assert rows[0]["address"] == server.brokers["broker-a"]
    assert rows[0]["version"] == "V5_4_0"
    assert "PROBLEM" not in server.run("cluster", "info")
    assert "SEND WAIT MS" in server.run("cluster", "info", "-o", "wide")


def test_a_healthy_cluster(server: LocalServer) -> None:
    checks = server.read("cluster", "health")
    assert all(each["passed"] for each in checks)
    assert {each["check"] for each in checks} >= {"answers", "has a master", "stored messages are readable"}


def test_a_namesrv_that_is_down_is_a_verdict(server: LocalServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{taken.getsockname()[1]}"
        result = server.invoke("cluster", "health", "--namesrv", dead)
    assert result.exit_code == 3
    assert "FAILED" in result.stdout
    assert f"namesrv {dead} cannot be reached" in result.stdout


def row(**table: str) -> dict[str, Any]:
    return broker_row("c", "b", 0, "h:1", {"brokerVersionDesc": "V5_3_0", **table}, "")


@pytest.mark.parametrize(
    ("table", "failed"),
    [
        ({}, []),
        (
            {
                "commitLogDiskRatio": "0.5",
                "dispatchBehindBytes": "10",
                "sendThreadPoolQueueHeadWaitTimeMills": "3",
            },
            [],
        ),
        ({"commitLogDiskRatio": "0.9"}, ["90% is used: old messages are deleted early"]),
        ({"commitLogDiskRatio": "-1"}, []),
        ({"dispatchBehindBytes": str(1 << 30)}, ["1,073,741,824 stored bytes are not readable yet"]),
        ({"storeTrouble": "no room on disk"}, ["messages are refused: no room on disk"]),
        ({"sendThreadPoolQueueHeadWaitTimeMills": "5000"}, ["the oldest send waits for 5,000 ms"]),
    ],
)
def test_verdicts_about_a_broker(table: dict[str, str], failed: list[str]) -> None:
    found = [each.detail for each in check_broker(row(**table)) if not each.passed]
    assert len(found) == len(failed)
    assert all(text.startswith(start) for text, start in zip(found, failed, strict=True)), found


def test_a_broker_that_does_not_answer_has_one_failed_check() -> None:
    checks = list(check_broker(broker_row("c", "b", 0, "h:1", {}, "cannot be reached")))
    assert [(each.check, each.passed, each.detail) for each in checks] == [
        ("answers", False, "cannot be reached")
    ]


def test_clients_by_protocol_which_official_brokers_do_not_tell() -> None:
    our_row, official_row = row(remotingClients="4", grpcClients="0"), row()
    assert (our_row["remotingClients"], our_row["grpcClients"]) == (4, 0)
    assert (official_row["remotingClients"], official_row["grpcClients"]) == (None, None)
    assert [_clients_text(broker) for broker in (our_row, official_row)] == ["4", None]
    assert _clients_text(row(remotingClients="1200", grpcClients="34")) == "1,234, 34 by gRPC"


def test_rates_of_several_spans() -> None:
    assert first_number("12.5 3.0 1.0") == 12.5
    assert (first_number(""), first_number(None), first_number("x")) == (None, None, None)


def replica_rows(master_end: int, replica_end: int, **table: str) -> list[dict[str, Any]]:
    """Return the rows of a master and its replica, compared."""
    rows = [
        broker_row("c", "b", 0, "h:1", {"commitLogMaxOffset": str(master_end)}, ""),
        broker_row("c", "b", 1, "h:2", {"commitLogMaxOffset": str(replica_end), **table}, ""),
    ]
    compare_replicas(rows)
    return rows


@pytest.mark.parametrize(
    ("ends", "table", "behind", "verdict"),
    [
        ((1000, 1000), {}, 0, ""),
        ((1000, 900), {}, 100, ""),
        ((1000, 1200), {}, 0, ""),
        ((1 << 30, 0), {}, 1 << 30, "1,073,741,824 bytes behind its master"),
        ((0, 1 << 30), {}, 0, "its log reaches 1,073,741,824 bytes beyond that of its master"),
        ((9, 9), {"replicationTrouble": "it differs"}, 0, "it differs"),
    ],
)
def test_verdicts_about_a_replica(
    ends: tuple[int, int], table: dict[str, str], behind: int, verdict: str
) -> None:
    master, replica = replica_rows(*ends, **table)
    assert (master["behindBytes"], replica["behindBytes"]) == (None, behind)
    assert replication_verdict(replica) == verdict
    (check,) = [each for each in check_broker(replica) if each.check == "copies its master"]
    assert (check.passed, check.detail) == (not verdict, verdict)
    assert "copies its master" not in [each.check for each in check_broker(master)]


def test_a_replica_whose_master_does_not_answer_is_not_compared() -> None:
    rows = [
        broker_row("c", "b", 0, "h:1", {}, "cannot be reached"),
        broker_row("c", "b", 1, "h:2", {"commitLogMaxOffset": "5"}, ""),
    ]
    compare_replicas(rows)
    assert rows[1]["behindBytes"] is None
    assert replication_verdict(rows[1]) == ""
