"""A slave that becomes the master delivers the timer messages and delays that the former master had not delivered."""

from typing import Any

import pytest

from gateway.broker.delayed.tests.test_timer_delivery import NOW, World
from gateway.broker.delayed.timer_takeover import StoreRole, TakeoverState
from gateway.runtime.config_file import ConfigFile
from remoting.requests.timers import GetTimerCheckPoint
from storage.files import MemoryFiles
from storage.replica_log import ReplicaLog

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def master() -> World:
    return World()


def slave_of(master: World, files: MemoryFiles | None = None) -> World:
    """Return a slave with all messages of the master, which knows nothing of its timers."""
    slave = World(files or MemoryFiles(), master.clock, broker_role="SLAVE", broker_id=1)
    copy_log(master, slave)
    return slave


def copy_log(master: World, slave: World) -> None:
    log, replica = master.broker.store.commit_log, ReplicaLog(slave.broker.store)
    while replica.end < log.max_offset:
        view, base, end = log.file_containing(replica.end)
        replica.receive(replica.end, view[replica.end - base : end - base])
    while replica.undispatched_bytes:
        replica.dispatch(100)


def sync_timers(master: World, slave: World) -> None:
    save_timers(master)
    slave.broker.replication.takeover.note_checkpoint(master.ask(GetTimerCheckPoint()).body)


def save_timers(world: World) -> None:
    """Write the checkpoint, as every second."""
    unsaved = world.timers.take_unsaved()
    world.timers.save(unsaved)


def promoted(slave: World, **settings: Any) -> World:
    slave.broker.replication.takeover.persist()
    slave.broker.delay_service.persist()
    slave.broker.store.close()
    return World(slave.files, slave.clock, **settings)


def test_a_slave_has_no_timers_of_its_own(master: World) -> None:
    master.later(NOW + 1500)
    slave = slave_of(master)
    assert slave.timers is None
    assert slave.broker.delay_service.next_due_ms() is None
    assert slave.broker.replication.takeover.role is StoreRole.SLAVE


def test_waiting_messages_are_delivered_after_a_promotion_and_others_are_not(master: World) -> None:
    master.later(NOW + 1500, "early")
    master.later(NOW + 5500, "late")
    master.turn()
    assert master.at(NOW + 3000) == ["early"]
    slave = slave_of(master)
    sync_timers(master, slave)
    new = promoted(slave)
    assert new.at(NOW + 5499) == ["early"]
    assert new.at(NOW + 5500) == ["early", "late"]
    assert new.broker.replication.takeover.role is StoreRole.MASTER


def test_what_was_delivered_after_the_last_checkpoint_is_not_delivered_twice(master: World) -> None:
    master.later(NOW + 1500, "first")
    master.later(NOW + 2500, "second")
    master.later(NOW + 3500, "third")
    master.turn()
    slave = slave_of(master)
    sync_timers(master, slave)
    assert master.at(NOW + 2600) == ["first", "second"]
    copy_log(master, slave)
    new = promoted(slave)
    new.clock.ms = NOW + 60_000
    assert new.at(NOW + 60_000) == ["first", "second", "third"]


def test_what_was_due_after_the_end_of_the_master_is_delivered(master: World) -> None:
    master.later(NOW + 1500, "due while nobody was master")
    master.turn()
    slave = slave_of(master)
    sync_timers(master, slave)
    new = promoted(slave)
    assert new.at(NOW + 10_000) == ["due while nobody was master"]


def test_a_message_that_came_after_the_last_checkpoint_is_delivered_once(master: World) -> None:
    slave = slave_of(master)
    sync_timers(master, slave)
    master.later(NOW + 1500, "delivered")
    master.later(NOW + 9500, "waiting")
    master.turn()
    assert master.at(NOW + 1600) == ["delivered"]
    copy_log(master, slave)
    new = promoted(slave)
    assert new.at(NOW + 9500) == ["delivered", "waiting"]


def test_a_recall_counts_after_a_promotion() -> None:
    master = World(recall_message_enable=True)
    master.later(NOW + 5500, "U1")
    master.later(NOW + 5500, "recall", TIMER_DEL_UNIQKEY="U1")
    master.turn()
    slave = slave_of(master)
    sync_timers(master, slave)
    assert promoted(slave).at(NOW + 6000) == []


def test_a_recall_that_counted_before_a_promotion_counts_after_it() -> None:
    master = World(recall_message_enable=True)
    master.later(NOW + 1500, "U1")
    master.later(NOW + 1500, "recall", TIMER_DEL_UNIQKEY="U1")
    master.later(NOW + 2500, "delivered")
    master.turn()
    assert master.at(NOW + 4000) == ["delivered"]
    slave = slave_of(master)
    sync_timers(master, slave)
    assert promoted(slave).at(NOW + 9000) == ["delivered"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_message_that_waits_for_a_clock_that_was_set_back_is_delivered_after_a_promotion(
    master: World, is_restarted: bool
) -> None:
    """Its slot is finished at the master: it waits in a later one."""
    master.later(NOW + 1500, "before")
    master.later(NOW + 3500, "also before")
    master.turn()
    assert master.at(NOW + 4600) == ["before", "also before"]
    master.clock.ms = NOW + 1800
    master.later(NOW + 2600, "after")
    master.turn()
    if is_restarted:
        save_timers(master)
        master = World(master.files, master.clock)
    slave = slave_of(master)
    sync_timers(master, slave)
    assert slave.broker.replication.takeover.read_ms <= NOW + 2600
    new = promoted(slave)
    assert new.at(NOW + 2599) == ["before", "also before"]
    # By the clock of now the second one was delivered before its time: it comes twice, and nothing is lost.
    assert new.at(NOW + 9000) == ["before", "also before", "after", "also before"]


def test_a_message_that_waited_for_a_clock_does_not_hold_the_checkpoint_back_later(master: World) -> None:
    master.later(NOW + 3500, "before")
    master.turn()
    assert master.at(NOW + 4600) == ["before"]
    master.clock.ms = NOW + 1800
    master.later(NOW + 2600, "after")
    master.later(NOW + 9500, "later")
    master.turn()
    assert master.at(NOW + 9600) == ["before", "after", "later"]
    slave = slave_of(master)
    sync_timers(master, slave)
    assert slave.broker.replication.takeover.read_ms > NOW + 8000


def test_a_recall_of_a_message_that_waits_for_a_clock_counts() -> None:
    master = World(recall_message_enable=True)
    master.later(NOW + 3500, "before")
    master.turn()
    assert master.at(NOW + 4600) == ["before"]
    master.clock.ms = NOW + 1800
    master.later(NOW + 2600, "U1")
    master.later(NOW + 2600, "recall", TIMER_DEL_UNIQKEY="U1")
    master.turn()
    assert master.at(NOW + 9000) == ["before"]


def test_a_rolled_message_is_delivered_once() -> None:
    """Beyond the window of the wheel the master writes a copy, and the original is still in the log."""
    master = World(timer_roll_window_slots=36 * 3600)
    master.later(NOW + 2 * DAY_MS, "far")
    master.turn()
    slave = slave_of(master)
    assert master.at(NOW + DAY_MS + 60_000) == []
    master.turn()
    copy_log(master, slave)
    sync_timers(master, slave)
    assert len(slave.stored("rmq_sys_wheel_timer")) == 2
    new = promoted(slave)
    new.turn()
    assert new.at(NOW + 2 * DAY_MS + 1000) == ["far"]


def test_a_crash_while_the_wheel_is_built_loses_and_repeats_nothing(master: World) -> None:
    for number in range(10):
        master.later(NOW + 1500 + number * 1000, f"m{number}")
    master.turn()
    assert master.at(NOW + 3500) == ["m0", "m1", "m2"]
    slave = slave_of(master)
    sync_timers(master, slave)
    new = promoted(slave)
    new.broker.store.close()
    again = World(new.files, new.clock)
    assert again.broker.replication.takeover.role is StoreRole.TAKING_OVER
    assert again.at(NOW + 60_000) == [f"m{number}" for number in range(10)]


def test_a_former_master_forgets_its_wheel(master: World) -> None:
    """It comes back as slave: what was delivered meanwhile, and what it has not seen, is in the log only."""
    master.later(NOW + 5500, "old")
    master.turn()
    save_timers(master)
    files = master.files
    other = promoted(slave_synced(master))
    assert other.at(NOW + 6000) == ["old"]
    other.later(NOW + 9500, "new")
    other.turn()
    master.broker.store.close()
    back = World(files, other.clock, broker_role="SLAVE", broker_id=1)
    copy_log(other, back)
    sync_timers(other, back)
    again = promoted(back)
    assert again.at(NOW + 9500) == ["old", "new"]


def slave_synced(master: World) -> World:
    slave = slave_of(master)
    sync_timers(master, slave)
    return slave


def test_an_unknown_checkpoint_is_estimated(master: World) -> None:
    master.later(NOW + 1500, "early")
    master.later(NOW + 60_500, "late")
    master.turn()
    assert master.at(NOW + 30_000) == ["early"]
    new = promoted(slave_of(master))
    assert new.at(NOW + 61_000) == ["early", "late"]


def test_a_checkpoint_is_estimated_by_the_clock_of_the_last_master(master: World) -> None:
    """The clock of one before it was ahead."""
    master.clock.ms = NOW + 600_000
    master.put("other")
    master.clock.ms = NOW
    master.later(NOW + 1500, "early")
    master.later(NOW + 40_500, "late")
    master.turn()
    assert master.at(NOW + 30_000) == ["early"]
    new = promoted(slave_of(master))
    assert new.at(NOW + 41_000) == ["early", "late"]


def test_delayed_messages_that_the_master_delivered_are_not_delivered_twice(master: World) -> None:
    for key in ("a", "b"):
        master.put(body=key.encode(), properties={"DELAY": "1", "UNIQ_KEY": key})
        master.clock.pass_ms(500)
    slave = slave_of(master)
    master.clock.ms = NOW + 1000
    master.broker.delay_service.deliver_due(NOW + 1000)
    assert master.bodies() == ["a"]
    copy_log(master, slave)
    new = promoted(slave)
    new.clock.ms = NOW + 60_000
    new.broker.delay_service.deliver_due(new.clock.now_ms())
    assert new.bodies() == ["a", "b"]


def test_many_keys_of_pops_are_written_in_turns() -> None:
    file = ConfigFile(MemoryFiles(), "/takeover.json")
    state = TakeoverState(file)
    for count in (0, 1, 5000):
        keys = {f"topic@{number} ünd" for number in range(count)}
        state.replace_popped_keys(keys)
        state.note_master_role(f"SYNC_MASTER {count}")
        state.persist()
        assert max(map(len, state.encode_slices())) < 50_000
        saved = TakeoverState(file)
        assert (saved.popped_keys, saved.master_role) == (keys, f"SYNC_MASTER {count}")
