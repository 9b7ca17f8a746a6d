"""Some seeds of whole brokers under simulated controllers; `make simulate SEEDS=10000` runs more."""

import logging
import os
from collections.abc import Iterator

import pytest

from gateway.broker.replication.tests.controlled_simulation.story import run_seed

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "24"))
SEEDS_PER_TEST = 6


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_laws_hold_whatever_happens(first: int) -> None:
    """The seed that fails is the last one printed; the simulation's command replays it."""
    for seed in range(first, min(first + SEEDS_PER_TEST, SEEDS)):
        print(f"python -m gateway.broker.replication.tests.controlled_simulation --trace --seed {seed}")
        run_seed(seed)


def test_a_seed_replays_exactly() -> None:
    first, second = [], []
    assert run_seed(4, first.append) == run_seed(4, second.append)
    assert first == second
    assert len(first) > 5
