"""Replicas under a controller: `cluster replicas`, `cluster controllers`, and changes of the master through it."""

import json
import random
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.admin import replica_sets
from gateway.admin.controllers import LOWEST_PRIORITY, parse_peers
from gateway.admin.replica_sets import ReplicaSet, ReplicaState
from gateway.admin.tests.controlled_cluster import (
    CLUSTER,
    CONTROLLERS,
    NAME,
    ControlledCluster,
    address_of,
)
from gateway.commands import cli
from gateway.controller.broker_set import BrokerSet
from gateway.controller.election import choose_successor, key_of
from gateway.controller.liveness import Heartbeat, Liveness
from remoting.requests.controller import ControllerElectMaster, ControllerGetMetadataInfo

ONE, TWO, THREE = map(address_of, (1, 2, 3))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, [*arguments], catch_exceptions=False)


def rows_of(*arguments: str, code: int = 0) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def verdicts(cluster: ControlledCluster, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> dict[int, str]:
    cluster.install(monkeypatch)
    return {row["id"]: row["election"] for row in rows_of("cluster", "replicas", code=code)}


def test_roles_epochs_and_the_set_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ControlledCluster(logs={1: (3, 900), 2: (3, 900), 3: (2, 400)}, sync_set=(1, 2))
    cluster.install(monkeypatch)
    first, second, third = rows_of("cluster", "replicas")
    assert first == {
        "broker": NAME, "cluster": CLUSTER, "id": 1, "address": ONE, "role": "master", "alive": True, "inSync": True,
        "epoch": 3, "logEnd": 900, "behindBytes": None, "priority": None, "masterEpoch": 1, "syncSetEpoch": 2,
        "next": False, "election": "is the master", "problem": None,
    }  # fmt: skip
    assert (second["role"], second["next"], second["election"]) == ("slave", True, "would be elected")
    assert (third["inSync"], third["epoch"], third["behindBytes"]) == (False, 2, 500)
    assert third["election"] == "not in sync: 500 bytes behind the master"
    table = run("cluster", "replicas", "-o", "wide")
    assert "MASTER EPOCH" in table.stdout
    assert "SET EPOCH" in table.stdout


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (ControlledCluster(logs={1: (3, 9), 2: (2, 900), 3: (3, 5)}),
         f"{THREE} comes first: its log has messages of epoch 3, this one's ends with epoch 2"),
        (ControlledCluster(logs={1: (3, 900), 2: (3, 880), 3: (3, 2880)}),
         f"{THREE} comes first: its log is 2,000 bytes longer"),
        (ControlledCluster(priorities={2: 5, 3: 1}),
         f"{THREE} comes first: its brokerElectionPriority is lower (1, not 5)"),
        (ControlledCluster(down={TWO}),
         f"{THREE} comes first: how far the log of this one reaches is not known"),
        (ControlledCluster(dead={2}), "dead: the controller gets no heartbeats of it"),
        (ControlledCluster(sync_set=(1, 3)), "not in sync: the master has not reported it yet"),
    ],
)  # fmt: skip
def test_why_a_replica_would_not_be_elected(
    cluster: ControlledCluster, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = verdicts(cluster, monkeypatch)
    assert (shown[1], shown[2], shown[3]) == ("is the master", expected, "would be elected")


def test_equal_candidates_are_told_apart_by_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = verdicts(ControlledCluster(), monkeypatch)
    assert shown[2] == "would be elected"
    assert shown[3] == f"{TWO} comes first: both are equal, and its id is lower"


def test_a_master_that_nobody_could_replace_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ControlledCluster(sync_set=(1, 2), dead={2}, logs={1: (1, 50), 2: (1, 50), 3: (1, 20)})
    cluster.install(monkeypatch)
    result = run("cluster", "replicas")
    assert result.exit_code == 3
    assert (
        f"{NAME}: nobody could replace the master: {TWO} is dead: the controller gets no heartbeats of it; {THREE} is "
        "not in sync: 30 bytes behind the master"
    ) in result.stdout


def test_without_a_live_master(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = verdicts(ControlledCluster(dead={1, 2}, sync_set=(1, 2)), monkeypatch, code=3)
    assert shown[1] == "dead: the controller gets no heartbeats of this master"
    cluster = ControlledCluster(master=None, dead={1}, sync_set=(1,))
    assert verdicts(cluster, monkeypatch, code=3)[2] == "not in sync"
    assert "there is no live master" in run("cluster", "replicas").stdout


def test_an_unclean_election_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = verdicts(ControlledCluster(sync_set=(1,), unclean=True), monkeypatch)
    assert shown[2] == (
        "would be elected although it is not in sync (enableElectUncleanMaster): messages that it lacks would be lost"
    )
    assert shown[3] == "not in sync: the master has not reported it yet"


def test_what_a_broker_says_of_itself_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ControlledCluster(
        reasons={1: "no answer of its controllers"},
        runtime={2: {"replicationTrouble": "the disk is full"}},
        down={THREE},
    )
    cluster.install(monkeypatch)
    problems = [row["problem"] for row in rows_of("cluster", "replicas")]
    assert problems == ["no answer of its controllers", "the disk is full", f"{THREE}: connection refused"]
    assert "PROBLEM" in run("cluster", "replicas").stdout


def test_controllers_are_found_through_brokers_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ControlledCluster(leader=CONTROLLERS[2], down={CONTROLLERS[0], ONE, TWO})
    cluster.install(monkeypatch)
    assert [row["id"] for row in rows_of("cluster", "replicas")] == [1, 2, 3]
    cluster.down |= {THREE}
    result = run("cluster", "replicas")
    assert result.exit_code == 1
    assert "cannot be reached" in result.output
    assert [row["alive"] for row in rows_of("cluster", "replicas", "--controller", "c1:9878;c2:9878")] == [
        True
    ] * 3
    assert [row["id"] for row in rows_of("cluster", "replicas", NAME, "--controller", "c2:9878")] == [1, 2, 3]


def test_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ControlledCluster(down={CONTROLLERS[1]})
    cluster.install(monkeypatch)
    rows = rows_of("cluster", "controllers", code=3)
    assert [(row["controller"], row["address"], row["leads"], row["problem"]) for row in rows] == [
        ("n0", "c0:9878", True, None),
        ("n1", "c1:9878", False, "connection refused"),
        ("n2", "c2:9878", False, None),
    ]
    cluster.down = set()
    # A controller that was not named is known from the answers of the others.
    assert len(rows_of("cluster", "controllers", "--controller", "c2:9878")) == 3
    cluster.leader = None
    assert not any(row["leads"] for row in rows_of("cluster", "controllers", code=3))


@pytest.mark.parametrize(
    ("changes", "arguments", "text"),
    [
        ({"controlled": False}, (), "no broker is in controller mode (enableControllerMode)"),
        ({"controlled": False}, (NAME,), f"{NAME} is not in controller mode"),
        ({}, ("broker-b",), 'broker "broker-b" is not registered'),
        ({"leader": None}, (), "no controller leads at present"),
        ({"down": set(CONTROLLERS)}, (), "no controller answers (c0:9878: connection refused"),
        ({"down": {CONTROLLERS[0]}}, (), "the controller c0:9878 leads, but does not answer"),
    ],
)
def test_what_cannot_be_shown(
    changes: dict[str, Any], arguments: tuple[str, ...], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ControlledCluster(**changes).install(monkeypatch)
    result = run("cluster", "replicas", *arguments)
    assert result.exit_code == 1
    assert text in result.output


def test_a_name_that_its_controller_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    ControlledCluster().install(monkeypatch)
    result = run("cluster", "replicas", "other", "--controller", CONTROLLERS[0])
    assert result.exit_code == 3
    assert "other: its controller knows no replica of it: see the log of the broker" in result.stdout


def test_a_leader_that_changes_meanwhile_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ControlledCluster(leader=CONTROLLERS[0])
    cluster.install(monkeypatch)
    answer = cluster.answer

    def change_leader(address: str, request: Any) -> Any:
        reply = answer(address, request)
        if address == CONTROLLERS[0] and cluster.leader == address and len(cluster.requests) > 4:
            cluster.leader = CONTROLLERS[1]
        return reply

    monkeypatch.setattr(cluster, "answer", change_leader)
    assert len(rows_of("cluster", "replicas")) == 3


# -- health ----------------------------------------------------------------------------------------------------------


def health(
    cluster: ControlledCluster, monkeypatch: pytest.MonkeyPatch
) -> dict[tuple[str, str], tuple[bool, str]]:
    cluster.install(monkeypatch)
    result = run("cluster", "health", "--json")
    assert result.exit_code in (0, 3), result.output
    checks = json.loads(result.stdout)
    return {(check["subject"], check["check"]): (check["passed"], check["detail"]) for check in checks}


def test_health_checks_controllers_and_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = health(ControlledCluster(), monkeypatch)
    assert all(passed for passed, _ in checks.values()), checks
    assert checks["controller c0:9878", "answers"] == (True, "")
    assert checks["controllers c0:9878, c1:9878, c2:9878", "one of them leads"] == (True, "")
    assert checks[f"broker {NAME}", "has a master that could be replaced"] == (True, "")

    checks = health(ControlledCluster(sync_set=(1, 2), down={CONTROLLERS[2]}), monkeypatch)
    assert checks["controller c2:9878", "answers"] == (False, "connection refused")
    assert checks[f"broker {NAME}", "has all replicas alive and in sync"] == (
        False,
        f"{THREE} is not in sync: the master has not reported it yet",
    )
    assert checks[f"broker {NAME}", "has a master that could be replaced"] == (True, "")

    checks = health(ControlledCluster(leader=None), monkeypatch)
    passed, detail = checks["controllers c0:9878, c1:9878, c2:9878", "one of them leads"]
    assert not passed
    assert "no controller leads at present" in detail


def test_health_asks_each_controller_once_which_one_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ControlledCluster()
    health(cluster, monkeypatch)
    addresses = [
        address for address, request in cluster.requests if isinstance(request, ControllerGetMetadataInfo)
    ]
    assert sorted(addresses) == sorted(CONTROLLERS)


def test_health_of_brokers_without_a_controller_has_no_such_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = health(ControlledCluster(controlled=False), monkeypatch)
    assert not [subject for subject, _ in checks if subject.startswith("controller")]


# -- changing the master ---------------------------------------------------------------------------------------------


def elections(cluster: ControlledCluster) -> list[int]:
    """Return the ids that were designated."""
    requests = [request for _, request in cluster.requests if isinstance(request, ControllerElectMaster)]
    assert all(request.designate_elect and request.cluster_name == CLUSTER for request in requests)
    return [request.broker_id for request in requests]


@pytest.mark.parametrize(
    ("arguments", "elected"),
    [
        (("promote", THREE), [3]),
        (("promote", NAME), [2]),
        (("promote", ONE), []),  # the master already
        (("demote", ONE), [2]),
        (("demote", TWO), []),  # a slave already
    ],
)
def test_the_controller_changes_the_master(
    arguments: tuple[str, ...], elected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ControlledCluster()
    cluster.install(monkeypatch)
    rows = rows_of("broker", *arguments, "--yes")
    assert elections(cluster) == elected
    (master,) = elected or [1]
    assert cluster.broker_set.master_id == master
    assert {row["id"]: row["role"] for row in rows} == {
        broker_id: "master" if broker_id == master else "slave" for broker_id in (1, 2, 3)
    }


def test_a_live_master_of_this_project_hands_over_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ControlledCluster(hands_over=True)
    cluster.install(monkeypatch)
    rows_of("broker", "promote", THREE, "--yes")
    asked = [(address, type(request).__name__) for address, request in cluster.requests]
    assert (ONE, "HandOverBroker") in asked
    assert elections(cluster) == []
    assert cluster.broker_set.master_id == 3
    # The new one is alone in sync until the others have caught up.
    assert run("broker", "promote", TWO, "--yes").exit_code == 1


@pytest.mark.parametrize(
    ("changes", "arguments", "code", "text"),
    [
        ({"sync_set": (1, 2)}, ("promote", THREE), 1,
         f"{THREE} cannot become master of {NAME}: not in sync: the master has not reported it yet. Wait until it is "
         "in sync"),
        ({"dead": {3}}, ("promote", THREE), 1, "Start it, and wait until it is in sync"),
        ({"sync_set": (1,)}, ("promote", NAME), 1, "nobody could replace the master"),
        ({"sync_set": (1,)}, ("demote", ONE), 1, "Start, or wait for, another replica"),
        ({}, ("promote", THREE, "--role", "SYNC_MASTER"), 2, "masters wait for the replicas in sync"),
        ({}, ("promote", THREE, "--force"), 2, "set enableElectUncleanMaster=true at the controller"),
        ({}, ("demote", ONE, "--id", "2"), 2, "which chooses the ids of brokers"),
        ({}, ("demote", ONE, "--master", "h:1"), 2, "which tells slaves their master"),
        ({"leader": None}, ("promote", THREE), 1, "no controller leads at present"),
    ],
)  # fmt: skip
def test_what_a_controller_would_refuse(
    changes: dict[str, Any], arguments: tuple[str, ...], code: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ControlledCluster(**changes)
    cluster.install(monkeypatch)
    result = run("broker", *arguments, "--yes")
    assert result.exit_code == code
    assert text in " ".join(result.output.split())
    assert elections(cluster) == []


def test_an_address_that_the_controller_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    ControlledCluster().install(monkeypatch)
    result = run("broker", "promote", "other:10911", "--yes")
    assert result.exit_code == 1
    assert f"is not a replica of {NAME} at its controller, which knows {ONE}, {TWO}, {THREE}" in result.output


def test_a_change_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ControlledCluster()
    cluster.install(monkeypatch)
    result = run("broker", "promote", THREE)
    assert result.exit_code == 2
    assert "pass --yes" in result.output
    assert elections(cluster) == []


def test_a_master_that_does_not_register_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_sets, "REGISTRATION_TIMEOUT_S", 0.0)
    ControlledCluster(registers=False).install(monkeypatch)
    result = run("broker", "promote", THREE, "--yes")
    assert result.exit_code == 1
    assert f"the controller elected {THREE}, but the namesrv does not name it as master" in result.output


# -- the policy ------------------------------------------------------------------------------------------------------


def test_the_successor_is_the_one_that_our_controller_would_elect() -> None:
    """The same facts, as heartbeats at the controller and as answers of replicas, lead to the same result."""
    random_source = random.Random(40)
    elected = set()
    for _ in range(2_000):
        ids = range(1, random_source.randint(1, 4) + 1)
        broker_set = BrokerSet("C", "b")
        for broker_id in ids:
            broker_set = broker_set.with_replica(broker_id, f"h:{broker_id}", str(broker_id))
        broker_set = broker_set.with_master(random_source.choice(ids)).with_sync_set(
            broker_id for broker_id in ids if random_source.random() < 0.7
        )
        if random_source.random() < 0.2:
            broker_set = broker_set.without_master()
        unclean = random_source.random() < 0.3
        liveness, states = Liveness(lambda: 0.0), []
        for broker_id in ids:
            epoch, log_end = random_source.randint(1, 2), random_source.randint(0, 2)
            priority = random_source.choice([1, 2, LOWEST_PRIORITY])
            is_alive = random_source.random() < 0.7
            if is_alive:
                heartbeat = Heartbeat("h", epoch=epoch, max_offset=log_end, election_priority=priority)
                liveness.record(key_of(broker_set, broker_id), heartbeat)
            states.append(
                ReplicaState(
                    broker_id,
                    f"h:{broker_id}",
                    is_master=broker_id == broker_set.master_id,
                    is_alive=is_alive,
                    is_in_sync=broker_id in broker_set.sync_set,
                    epoch=epoch,
                    log_end=log_end,
                    priority=priority,
                )
            )
        successor = ReplicaSet("b", "C", tuple(states), may_be_unclean=unclean).successor
        expected = choose_successor(broker_set, liveness, may_be_unclean=unclean)
        assert (None if successor is None else successor.broker_id) == expected
        elected.add(expected)
    assert elected == {None, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n0:10.0.0.1:9878;n1:h:2;", {"10.0.0.1:9878": "n0", "h:2": "n1"}),
        ("127.0.0.1:9878", {"127.0.0.1:9878": ""}),
        ("[::1]:9878;n1:[::1]:9879", {"[::1]:9878": "", "[::1]:9879": "n1"}),
        ("", {}),
    ],
)
def test_peers_of_official_and_our_controllers(text: str, expected: dict[str, str]) -> None:
    assert parse_peers(text) == expected
