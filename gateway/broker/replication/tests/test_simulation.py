"""Some hundred seeds of the simulation of replication; `make simulate SEEDS=10000` runs more."""

import os
import random
from collections.abc import Awaitable, Callable

import pytest
import trio

from gateway.broker.replication.tests.simulation.brokers import SimBroker
from gateway.broker.replication.tests.simulation.clients import DELAYED, ENDED
from gateway.broker.replication.tests.simulation.history import History, Queue
from gateway.broker.replication.tests.simulation.network import Network
from gateway.broker.replication.tests.simulation.story import run_seed
from gateway.config.replication import Role
from gateway.tests.seeds import quiet_servers, run_seeded, run_seeds, trace_seed
from storage.crash_files import ProcessKilled

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


def new_broker() -> SimBroker:
    """Return a broker whose process was not started yet."""
    randomness = random.Random(1)
    return SimBroker(
        "A", 1, Network(randomness), randomness, {}, history=History(), note_role=lambda broker: None,
        choose_id=lambda broker: 1, trace=lambda event: None,
    )  # fmt: skip


def run_serving(story: Callable[[SimBroker], Awaitable[None]]) -> None:
    """Run a story with a broker that serves. The broker dies in the story, and must have ended at once."""
    broker = new_broker()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.run_process, Role.MASTER)
            while not broker.is_serving:
                await trio.sleep(0.1)
            await story(broker)
            died_s = trio.current_time()
            await broker.wait_ended()
            assert trio.current_time() == died_s
            nursery.cancel_scope.cancel()

    with quiet_servers():
        run_seeded(1, run)


async def slow_the_disk(broker: SimBroker) -> None:
    """Have a thread of the broker wait for its disk: an exception beside it does not end the thread."""
    broker.disk_delay_s = 60.0
    await trio.sleep(10)


def test_a_process_that_dies_in_a_file_operation_has_ended_at_once() -> None:
    async def die(broker: SimBroker) -> None:
        await slow_the_disk(broker)
        broker.files.operations_left = 0
        assert broker.is_serving, "it lives until it begins an operation"
        with pytest.raises(ProcessKilled):
            broker.files.reserve("file", 1)
        broker.files.operations_left = None
        assert broker.is_killed
        assert not broker.is_serving

    run_serving(die)


def test_a_process_that_died_at_work_is_not_spared() -> None:
    """A thread that waits for a slow disk puts its end off; nobody would start the broker again after that."""

    async def die(broker: SimBroker) -> None:
        broker.files.operations_left = 1000
        broker.spare()
        assert broker.files.operations_left is None
        assert broker.is_serving
        await slow_the_disk(broker)
        broker.files.operations_left = 0
        broker.spare()
        assert not broker.is_up

    run_serving(die)


def history_of_resent(body: bytes, queue: Queue) -> History:
    """Return a history in which a message was stored between 500 and 700 perhaps, and at 900, acknowledged, again."""
    history = History()
    for earlier_body, end in ((b"p1-0 plain ", 500), (b"p1-1 plain ", 700)):
        history.note_attempt(earlier_body, ("a", 0))
        history.note_answer(earlier_body, 0, end, end, 0)
        if end == 500:
            history.note_attempt(body, queue)
    history.note_attempt(body, queue)
    history.note_answer(body, 0, 0, 900, 0, waits=True)
    return history


@pytest.mark.parametrize(("expired_end", "is_missing"), [(0, True), (500, True), (600, False), (1000, False)])
def test_a_transaction_that_was_sent_again_may_have_come_earlier(expired_end: int, is_missing: bool) -> None:
    """Its first copy may have been committed although its send was not answered: the second one is dropped then."""
    body = b"p0-1 asked "
    history = history_of_resent(body, ENDED)
    assert history.missing(set(), expired_end) == [body] * is_missing
    assert not history.missing({body}, expired_end)


@pytest.mark.parametrize("expired_end", [0, 600, 899])
def test_a_delayed_message_that_was_sent_again_comes_again(expired_end: int) -> None:
    body = b"p0-1 level "
    assert history_of_resent(body, DELAYED).missing(set(), expired_end) == [body]
    assert not history_of_resent(body, DELAYED).missing(set(), 900)


def test_a_transaction_that_was_sent_once_comes_after_its_half_message() -> None:
    body = b"p0-1 asked "
    history = History()
    history.note_attempt(body, ENDED)
    history.note_answer(body, 0, 0, 900, 0, waits=True)
    assert history.missing(set(), 899) == [body]
    assert not history.missing(set(), 900)
