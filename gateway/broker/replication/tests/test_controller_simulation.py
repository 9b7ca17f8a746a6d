"""Some seeds of whole brokers under simulated controllers; `make simulate SEEDS=10000` runs more."""

import os

import pytest

from gateway.broker.replication.tests.controlled_simulation.story import run_seed
from gateway.tests.seeds import run_seeds, trace_seed

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "24"))
SEEDS_PER_TEST = 6


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_laws_hold_whatever_happens(first: int) -> None:
    seeds = range(first, min(first + SEEDS_PER_TEST, SEEDS))
    run_seeds(run_seed, seeds, "gateway.broker.replication.tests.controlled_simulation")


def test_a_seed_replays_exactly() -> None:
    (first_outcome, first), (second_outcome, second) = trace_seed(run_seed, 4), trace_seed(run_seed, 4)
    assert first_outcome == second_outcome
    assert first == second
    assert len(first) > 5
