"""Some seeds of whole brokers under simulated controllers; `make simulate SEEDS=10000` runs more."""

import os

import pytest

from gateway.broker.replication.tests.controlled_simulation.laws import ElectionLaws
from gateway.broker.replication.tests.controlled_simulation.story import run_seed
from gateway.tests.seeds import run_seeds, trace_seed

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "36"))
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


def test_a_master_that_lacks_an_epoch_has_lost_what_was_stored_in_it_however_long_its_log_is() -> None:
    """Replica 1 was elected without the end of epoch 2, and then replica 2 again, which has not heard of epoch 3."""
    laws = ElectionLaws(may_be_unclean=True, clocks_stop=False)
    for epoch, log_end in ((1, 0), (2, 500), (3, 700), (4, 900)):
        laws.note_epoch(epoch, log_end)
    laws.note_epoch(3, 800)  # opened again
    assert laws.end_of_common_log(4, {1, 2}, 900) == 700
    assert laws.end_of_common_log(4, {1, 2, 3}, 900) == 900
    assert laws.end_of_common_log(4, {1, 3}, 900) == 500
    assert laws.end_of_common_log(3, {1, 2}, 650) == 650
