"""Saved progress covers nothing that a power cut takes: what was done comes again, or its result is on the disk."""

from collections.abc import Callable

import pytest

from gateway.tests.broker_fakes import FakeClock
from gateway.tests.broker_world import World
from gateway.tests.cluster import SMALL
from gateway.tests.popping import pop_request
from gateway.tests.transacting import half_message
from storage.crash_files import CrashFiles

RETRY = "%RETRY%g_t"


def build(files: CrashFiles, clock: FakeClock) -> World:
    world = World(files, clock, timer_wheel_enable=False, **SMALL)
    world.topic()
    world.beat(None, "t", group="g", producers=["p"])
    return world


def check_half_message(world: World) -> Callable[[World], bool]:
    """Have a copy of a half message written, whose original is done with then."""
    world.ask(half_message("U", world.clock.now_ms(), b"half"))
    world.broker.store.flush()
    world.clock.pass_ms(30_000)
    list(world.broker.transaction_checks.run_round())

    def is_asked_about(after: World) -> bool:
        after.beat(after.connection, group=None, producers=["p"])
        after.clock.pass_ms(30_000)
        list(after.broker.transaction_checks.run_round())
        return [question.msg_id for question in after.connection.told] == ["U"]

    return is_asked_about


def revive_popped_message(world: World) -> Callable[[World], bool]:
    world.put(body=b"popped")
    world.ask(pop_request("t", "g", queue_id=0))
    world.broker.store.flush()
    world.clock.pass_ms(60_000)
    world.broker.pop.run_due()
    assert len(world.stored(RETRY)) == 1
    world.broker.pop.state.reviver.commit_offsets()

    def is_there_again(after: World) -> bool:
        after.broker.pop.run_due()
        return [message.body for message in after.stored(RETRY)] == [b"popped"]

    return is_there_again


def deliver_delayed_message(world: World) -> Callable[[World], bool]:
    world.put(body=b"delayed", properties={"DELAY": "1"})
    world.broker.store.flush()
    world.clock.pass_ms(5_000)
    world.broker.delay_service.deliver_due(world.clock.now_ms())
    assert len(world.stored("t")) == 1

    def is_delivered(after: World) -> bool:
        after.broker.delay_service.deliver_due(after.clock.now_ms())
        return [message.body for message in after.stored("t")] == [b"delayed"]

    return is_delivered


@pytest.mark.parametrize("work", [check_half_message, revive_popped_message, deliver_delayed_message])
def test_saved_progress_does_not_outlive_its_messages(
    work: Callable[[World], Callable[[World], bool]],
) -> None:
    """Power fails right after the tables were saved, before the kernel has written anything by itself."""
    files, clock = CrashFiles(), FakeClock()
    world = build(files, clock)
    is_kept = work(world)
    world.broker.offsets.persist()
    world.broker.delay_service.persist()
    assert is_kept(build(files.cut_power(lambda path: False), clock))
