"""Some hundred seeds of the simulation of replication; `make simulate SEEDS=10000` runs more."""

import os

import pytest

from gateway.broker.replication.tests.simulation.story import run_seed
from gateway.tests.seeds import run_seeds, trace_seed

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "120"))
SEEDS_PER_TEST = 20


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_laws_hold_whatever_happens(first: int) -> None:
    seeds = range(first, min(first + SEEDS_PER_TEST, SEEDS))
    run_seeds(run_seed, seeds, "gateway.broker.replication.tests.simulation")


@pytest.mark.parametrize("seed", [3, 11])
def test_a_seed_replays_exactly(seed: int) -> None:
    (first_outcome, first), (second_outcome, second) = trace_seed(run_seed, seed), trace_seed(run_seed, seed)
    assert first_outcome == second_outcome
    assert first == second
    assert len(first) > 5
