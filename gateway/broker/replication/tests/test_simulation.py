"""Some hundred seeds of the simulation of replication; `make simulate SEEDS=10000` runs more."""

import os
import random

import pytest
import trio

from gateway.broker.replication.tests.simulation.brokers import SimBroker
from gateway.broker.replication.tests.simulation.history import History
from gateway.broker.replication.tests.simulation.network import Network
from gateway.broker.replication.tests.simulation.story import run_seed
from gateway.config.replication import Role
from gateway.tests.seeds import quiet_servers, run_seeded, run_seeds, trace_seed

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


def test_a_process_that_died_at_work_is_not_spared() -> None:
    """A thread that waits for a slow disk puts its end off; nobody would start the broker again after that."""
    randomness = random.Random(1)
    broker = SimBroker(
        "A", 1, Network(randomness), randomness, {}, history=History(), note_role=lambda broker: None,
        choose_id=lambda broker: 1, trace=lambda event: None,
    )  # fmt: skip

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.run_process, Role.MASTER)
            while not broker.is_serving:
                await trio.sleep(0.1)
            broker.files.operations_left = 1000
            broker.spare()
            assert broker.files.operations_left is None
            assert broker.is_serving
            broker.disk_delay_s = 60.0
            await trio.sleep(10)
            died_s = trio.current_time()
            broker.files.operations_left = 0
            broker.spare()
            assert not broker.is_up
            await broker.wait_ended()
            assert trio.current_time() == died_s
            nursery.cancel_scope.cancel()

    with quiet_servers():
        run_seeded(1, run)
