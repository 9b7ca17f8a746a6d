"""A slave that becomes the master goes on with what the former master had begun: half messages, pops, offsets."""

from copy import copy

import pytest

from codec.topics import TRANS_GROUP
from gateway.broker.delayed.tests.test_timer_takeover import copy_log
from gateway.broker.pop.receipts import REVIVE_GROUP, SEEN_GROUP
from gateway.tests.broker_fakes import FakeClock
from gateway.tests.broker_world import World
from gateway.tests.popping import pop_request
from gateway.tests.transacting import half_message
from storage.cut import cut_store
from storage.files import MemoryFiles
from storage.store import MessageStore
from storage.timer_checkpoint import TimerPosition

RETRY = "%RETRY%g_t"
ALL_GROUPS = ("g", TRANS_GROUP, SEEN_GROUP, REVIVE_GROUP)


def master() -> World:
    world = World(MemoryFiles(), FakeClock(), timer_wheel_enable=False)
    world.topic()
    world.beat(None, "t", group="g", producers=["p"])
    return world


def copy_tables(source: World, slave: World) -> None:
    """Copy what a table synchronisation copies."""
    ours, other = slave.broker, source.broker
    ours.topics.adopt({name: copy(topic) for name, topic in other.topics.table.items()}, other.topics.version)
    ours.groups.adopt(other.groups.table, other.groups.forbidden, other.groups.version)
    ours.offsets.merge(other.offsets.table)
    ours.delay_service.adopt(other.delay_service.to_json())
    ours.pop.state.ordered_pops.adopt(other.pop.state.ordered_pops.to_json())


def slave_of(source: World) -> World:
    slave = World(MemoryFiles(), source.clock, timer_wheel_enable=False, broker_role="SLAVE", broker_id=1)
    copy_log(source, slave)
    copy_tables(source, slave)
    return slave


def promoted(slave: World) -> World:
    broker = slave.broker
    for table in (broker.topics, broker.groups, broker.offsets, broker.delay_service):
        table.persist()
    broker.pop.state.ordered_pops.persist()
    broker.store.close()
    new = World(slave.files, slave.clock, timer_wheel_enable=False)
    new.beat(new.connection, "t", group="g", producers=["p"])
    return new


def check(world: World) -> list[str | None]:
    """Ask producers about open transactions; return the ids of the half messages."""
    list(world.broker.transaction_checks.run_round())
    return [question.msg_id for question in world.connection.told if hasattr(question, "msg_id")]


def test_an_open_transaction_is_checked_after_a_promotion() -> None:
    old = master()
    old.ask(half_message("U", old.clock.now_ms(), b"half"))
    new = promoted(slave_of(old))
    new.clock.pass_ms(30_000)
    assert check(new) == ["U"]


def test_a_transaction_that_was_asked_about_is_asked_about_again() -> None:
    old = master()
    old.ask(half_message("U", old.clock.now_ms(), b"half"))
    old.beat(old.connection, "t", group="g", producers=["p"])
    old.clock.pass_ms(30_000)
    assert check(old) == ["U"]
    new = promoted(slave_of(old))
    new.clock.pass_ms(60_000)
    assert check(new) == ["U"]


def test_a_popped_message_comes_again_after_its_time() -> None:
    old = master()
    old.put(body=b"popped")
    old.ask(pop_request("t", "g", queue_id=0))
    old.broker.pop.state.reviver.commit_offsets()
    new = promoted(slave_of(old))
    assert new.broker.offsets.query_offset("g", "t", 0) == 1
    new.broker.pop.run_due()
    assert new.stored(RETRY) == []
    new.clock.pass_ms(60_000)
    new.broker.pop.run_due()
    assert [message.body for message in new.stored(RETRY)] == [b"popped"]


def test_a_message_that_was_revived_is_not_revived_twice() -> None:
    old = master()
    old.put(body=b"popped")
    old.ask(pop_request("t", "g", queue_id=0))
    old.clock.pass_ms(60_000)
    old.broker.pop.run_due()
    old.broker.pop.state.reviver.commit_offsets()
    assert len(old.stored(RETRY)) == 1
    new = promoted(slave_of(old))
    new.broker.pop.run_due()
    new.clock.pass_ms(600_000)
    new.broker.pop.run_due()
    assert len(new.stored(RETRY)) == 1


def test_offsets_beyond_the_messages_that_were_copied_are_limited() -> None:
    """The tables were copied after the last message."""
    old = master()
    old.put(body=b"1")
    slave = slave_of(old)
    old.put(body=b"2")
    old.broker.offsets.commit_offset("g", "t", 0, 2)
    copy_tables(old, slave)
    assert slave.broker.offsets.query_offset("g", "t", 0) == 2
    new = promoted(slave)
    assert new.broker.offsets.query_offset("g", "t", 0) == 1


def test_a_slave_keeps_offsets_that_are_ahead_of_its_log_through_a_crash() -> None:
    old = master()
    old.put(body=b"1")
    slave = slave_of(old)
    slave.broker.offsets.merge({"t@g": {0: 7}, f"x@{REVIVE_GROUP}": {0: 3}})
    slave.broker.offsets.persist()
    slave.broker.store.close(clean=False)
    again = World(slave.files, slave.clock, timer_wheel_enable=False, broker_role="SLAVE", broker_id=1)
    assert again.broker.offsets.query_offset("g", "t", 0) == 7


def slave_after_cut(old: World, end: int, *, killed: bool = False) -> World:
    """Return a slave that had the whole log and progress of a master, and whose log was cut then."""
    slave = slave_of(old)
    broker, store = slave.broker, slave.broker.store
    broker.replication.takeover.note_checkpoint(TimerPosition(1, 0, 5).pack())
    for table in (broker.topics, broker.groups, broker.offsets, broker.delay_service):
        table.persist()
    broker.replication.takeover.persist()
    store.close()
    cut_store(store.config, slave.files, end)
    if killed:  # before the tables are built
        MessageStore.open(store.config, slave.files, slave.clock).close(clean=False)
    return World(slave.files, slave.clock, timer_wheel_enable=False, broker_role="SLAVE", broker_id=1)


@pytest.mark.parametrize("killed", [False, True])
def test_a_slave_forgets_the_progress_of_messages_that_were_cut(killed: bool) -> None:
    old = master()
    old.put(body=b"1")
    end = old.broker.store.max_physical_offset
    old.put(body=b"2")
    old.put(body=b"delayed", properties={"DELAY": "1"})
    old.clock.pass_ms(5_000)
    old.broker.delay_service.deliver_due(old.clock.now_ms())
    assert old.broker.delay_service.offsets == {1: 1}
    for group, offset in (("g", 2), (TRANS_GROUP, 2), (SEEN_GROUP, 2), (REVIVE_GROUP, 1)):
        old.broker.offsets.commit_offset(group, "t", 0, offset)
    slave = slave_after_cut(old, end, killed=killed)
    offsets = {group: slave.broker.offsets.query_offset(group, "t", 0) for group in ALL_GROUPS}
    # What was decided and revived after the cut is undone, also of messages before it: these groups begin anew.
    assert offsets == {"g": 1, TRANS_GROUP: 0, SEEN_GROUP: 1, REVIVE_GROUP: -1}
    assert slave.broker.delay_service.offsets == {1: 0}
    assert slave.broker.delay_service.next_due_ms() is None
    assert slave.broker.replication.takeover.queue_offset == -1
    # Only once: from now on the tables may be ahead of the log.
    slave.broker.offsets.merge({"t@g": {0: 9}})
    slave.broker.offsets.persist()
    slave.broker.store.close(clean=False)
    again = World(slave.files, slave.clock, timer_wheel_enable=False, broker_role="SLAVE", broker_id=1)
    assert again.broker.offsets.query_offset("g", "t", 0) == 9


def test_a_delivery_that_was_cut_is_made_after_the_next_promotion() -> None:
    """A master delivers what its slave has, but dies before it has the delivery, and takes over once more later."""
    old = master()
    old.put(body=b"early", properties={"DELAY": "1"})
    old.clock.pass_ms(5_000)
    old.broker.delay_service.deliver_due(old.clock.now_ms())
    old.clock.pass_ms(600_000)
    old.put(body=b"late", properties={"DELAY": "1"})
    end = old.broker.store.max_physical_offset
    old.clock.pass_ms(5_000)
    old.broker.delay_service.deliver_due(old.clock.now_ms())
    assert old.broker.delay_service.offsets == {1: 2}
    assert [message.body for message in old.stored("t")] == [b"early", b"late"]
    new = promoted(slave_after_cut(old, end))
    assert [message.body for message in new.stored("t")] == [b"early"]
    new.broker.delay_service.deliver_due(new.clock.now_ms())
    assert [message.body for message in new.stored("t")] == [b"early", b"late"]


def test_a_popped_message_whose_revival_was_cut_is_revived_after_the_next_promotion() -> None:
    old = master()
    old.put(body=b"popped")
    old.ask(pop_request("t", "g", queue_id=0))
    old.put(body=b"other")
    end = old.broker.store.max_physical_offset
    old.clock.pass_ms(60_000)
    old.broker.pop.run_due()
    old.broker.pop.state.reviver.commit_offsets()
    assert len(old.stored(RETRY)) == 1
    new = promoted(slave_after_cut(old, end))
    new.clock.pass_ms(60_000)
    new.broker.pop.run_due()
    assert [message.body for message in new.stored(RETRY)] == [b"popped"]
