"""The benchmark of replication: which arrangements it measures, in which order, and what it prints."""

import pytest
from click.testing import CliRunner

from tools.bench import replication
from tools.bench.loads import QUICK, Figures, LoadDurations, LoadFailed
from tools.bench.replica_arrangements import CONTROLLED, PAIRS, Measured, ReplicatedGroup

MASTER = Measured("m", "n:1", "m:1", (1,))


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[list[str], str]:
    """Run the command with played measurements; return the arrangements in turn, and what it prints."""
    arrangements: list[str] = []

    def measure(name: str, durations: LoadDurations) -> Figures:
        arrangements.append(name)
        assert (durations == QUICK) == ("--quick" in words)
        figures = {"rate": 1000.0 * len(arrangements), "master_us": 5.0}
        return figures | ({"second_slave_us": 7.0, "set_changes": 0.0} if name in CONTROLLED else {})

    monkeypatch.setattr(replication, "measure", measure)
    result = CliRunner().invoke(replication.main, words)
    assert result.exit_code == 0, result.output
    return arrangements, result.output


def test_groups_under_controllers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    arrangements, printed = run(monkeypatch, "--controlled", "--rounds", "2")
    assert arrangements == list(CONTROLLED) * 2
    assert "| figure | ours-controlled | official-controlled |" in printed
    # Medians of the rounds 1 and 3, and 2 and 4.
    assert "| 64 threads of 128 B, messages/s | 2,000 | 3,000 |" in printed
    assert "| changes of the set of replicas in sync | 0 | 0 |" in printed


def test_pairs_are_measured_without_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    arrangements, printed = run(monkeypatch, "--quick")
    assert arrangements == list(PAIRS)
    assert "set of replicas" not in printed


def test_one_arrangement_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--only", "official-controlled", "--rounds", "1")[0] == ["official-controlled"]


def test_a_master_that_was_replaced_ends_the_measurement() -> None:
    """Nobody answers at the port of this controller."""
    with pytest.raises(LoadFailed, match="m:1 is not the master any more"):
        replication._set_epoch(ReplicatedGroup(MASTER, controller="127.0.0.1:9"))
    assert replication._set_epoch(ReplicatedGroup(MASTER)) == 0
