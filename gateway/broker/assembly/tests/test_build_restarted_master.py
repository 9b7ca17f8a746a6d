"""A master under a controller that was killed and leads again: nothing that it had delivered is delivered twice."""

import random

import pytest

from codec.properties import encode_properties
from codec.sysflag import TRANSACTION_COMMIT
from codec.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_GROUP, TRANS_HALF_TOPIC
from gateway.broker.assembly.build import BrokerBuilder
from gateway.broker.broker import Broker
from gateway.broker.delayed.timer_takeover import StoreRole
from gateway.config.process import BrokerConfig
from gateway.config.replication import SLAVE, SYNC_MASTER, ControlledRole
from gateway.tests.broker_fakes import FakeClock, run_inline
from gateway.tests.cluster import SMALL
from gateway.tests.configs import broker_config
from storage.append import NewMessage
from storage.crash_files import CrashFiles


def configure(members: set[int], *, epoch: int = 1, all_ack: bool = False) -> BrokerConfig:
    """Return the configuration of the replica 2: as a master, or with the epoch 0 as a broker without a role yet."""
    return broker_config(
        **SMALL,
        store_path_root_dir="/b",
        broker_role=SYNC_MASTER if epoch else SLAVE,
        broker_id=0 if epoch else 2,
        enable_controller_mode=True,
        all_ack_in_sync_state_set=all_ack,
        controlled=ControlledRole(2, epoch, frozenset(members), 1),
    )


def builder(files: CrashFiles, clock: FakeClock) -> BrokerBuilder:
    return BrokerBuilder(memory=False, clock=clock, run_blocking=run_inline, port=lambda: 10911, files=files)


def restart(files: CrashFiles, clock: FakeClock, members: set[int], *, all_ack: bool) -> Broker:
    """Open the store as the broker does: first without a role, closed cleanly, and then as the master."""
    builds = builder(files, clock)
    undecided = builds.build(configure(members, epoch=0, all_ack=all_ack))
    undecided.store.close()
    return builds.build(configure(members, all_ack=all_ack))


def send_delayed(broker: Broker, body: bytes) -> None:
    properties = {"DELAY": "1", "UNIQ_KEY": body.decode()}
    broker.writer.write(NewMessage("t", 0, body, properties))


def deliver_unconfirmed(files: CrashFiles, clock: FakeClock) -> Broker:
    """Return a master that has delivered a delayed message which the other replica, 3, has not confirmed."""
    master = builder(files, clock).build(configure({2}, all_ack=True))
    send_delayed(master, b"delivered")
    rule = master.replication.sync_state
    assert rule is not None
    rule.join("3", master.store.max_physical_offset)
    clock.pass_ms(5_000)
    master.delay_service.deliver_due(clock.now_ms())
    return master


@pytest.mark.parametrize("stops", [0, 1, 2])
@pytest.mark.parametrize("all_ack", [False, True])
def test_a_killed_master_delivers_no_delayed_message_twice(all_ack: bool, stops: int) -> None:
    """Also if it is started again, and stopped cleanly before it has a role."""
    files, clock = CrashFiles(), FakeClock()
    master = builder(files, clock).build(configure({2}, all_ack=all_ack))
    send_delayed(master, b"delivered")
    clock.pass_ms(5_000)
    master.delay_service.deliver_due(clock.now_ms())
    assert master.store.max_offset("t", 0) == 1
    send_delayed(master, b"waiting")
    clock.pass_ms(5_000)
    files = files.crash(random.Random(1), lose_unflushed=False)
    for _ in range(stops):
        builder(files, clock).build(configure({2}, epoch=0, all_ack=all_ack)).store.close()
    master = restart(files, clock, {2}, all_ack=all_ack)
    master.delay_service.deliver_due(clock.now_ms())
    assert master.store.max_offset("t", 0) == 2
    assert files.read_small("/b/config/unsettledCrash.json") is None


def test_deliveries_wait_for_confirmation_after_a_clean_stop_as_well() -> None:
    files, clock = CrashFiles(), FakeClock()
    end = deliver_unconfirmed(files, clock).store.max_physical_offset
    files = files.crash(random.Random(1), lose_unflushed=False)
    restart(files, clock, {2, 3}, all_ack=True).store.close()
    master = restart(files, clock, {2, 3}, all_ack=True)
    master.delay_service.deliver_due(clock.now_ms())
    assert master.store.max_physical_offset == end


def test_deliveries_wait_until_what_was_stored_before_the_crash_is_confirmed() -> None:
    files, clock = CrashFiles(), FakeClock()
    master = deliver_unconfirmed(files, clock)
    end = master.store.max_physical_offset
    assert (master.store.max_offset("t", 0), master.store.next_queue_offset("t", 0)) == (0, 1)
    files = files.crash(random.Random(1), lose_unflushed=False)
    master = restart(files, clock, {2, 3}, all_ack=True)
    assert (master.store.max_offset(SCHEDULE_TOPIC, 0), master.store.max_physical_offset) == (1, end)
    master.delay_service.deliver_due(clock.now_ms())
    assert master.store.max_physical_offset == end
    assert master.delay_service.next_due_ms() == clock.now_ms() + 100
    rule = master.replication.sync_state
    assert rule is not None
    rule.acknowledge(rule.join("3", 0), end)
    clock.pass_ms(100)
    master.delay_service.deliver_due(clock.now_ms())
    assert master.delay_service.offsets == {1: 1}
    assert master.store.max_physical_offset == end
    send_delayed(master, b"new")
    rule.acknowledge(rule.join("3", 0), master.store.max_physical_offset)
    clock.pass_ms(5_000)
    master.delay_service.deliver_due(clock.now_ms())
    assert master.store.next_queue_offset("t", 0) == 2


def test_a_crash_is_remembered_until_deliveries_have_gone_on() -> None:
    """The master may be built again, as for another kind of answers, while its messages are not confirmed yet."""
    files, clock = CrashFiles(), FakeClock()
    master = deliver_unconfirmed(files, clock)
    end = master.store.max_physical_offset
    builds = builder(files.crash(random.Random(1), lose_unflushed=False), clock)
    for _ in range(2):
        builds.build(configure({2, 3}, all_ack=True)).store.close()
    master = builds.build(configure({2, 3}, all_ack=True))
    master.delay_service.deliver_due(clock.now_ms())
    assert master.store.max_physical_offset == end


def without_entries(files: CrashFiles) -> CrashFiles:
    """Return the files after a power cut that took the queue entries, and no message."""
    files = files.crash(random.Random(1), lose_unflushed=False)
    files.delete_tree("/b/consumequeue")
    return files


def test_timer_messages_that_are_unconfirmed_again_are_not_chained_twice() -> None:
    files, clock = CrashFiles(), FakeClock()
    master = builder(files, clock).build(configure({2}, all_ack=True))
    properties = {"TIMER_DELIVER_MS": str(clock.now_ms() + 1500), "UNIQ_KEY": "U"}
    master.writer.write(NewMessage("t", 0, b"timed", properties))
    timers = master.timer_delivery
    assert timers is not None
    assert timers.read_topic(100) == 1
    clock.pass_ms(5_000)
    timers.deliver_due(100)
    master = builder(without_entries(files), clock).build(configure({2, 3}, all_ack=True))
    end = master.store.max_physical_offset
    assert (master.store.max_offset(TIMER_TOPIC, 0), master.store.next_queue_offset(TIMER_TOPIC, 0)) == (0, 1)
    assert master.store.next_queue_offset("t", 0) == 1
    timers, rule = master.timer_delivery, master.replication.sync_state
    assert timers is not None
    assert rule is not None
    for position in (0, end // 2, end):
        rule.acknowledge(rule.join("3", 0), position)
        assert (timers.read_topic(100), timers.behind_messages) == (0, 0)
        timers.deliver_due(100)
    assert master.store.max_physical_offset == end


def test_a_takeover_of_timers_goes_on_when_its_messages_are_unconfirmed_again() -> None:
    files, clock = CrashFiles(), FakeClock()
    master = builder(files, clock).build(configure({2}, all_ack=True))
    properties = {"TIMER_DELIVER_MS": str(clock.now_ms() + 1500), "UNIQ_KEY": "U"}
    master.writer.write(NewMessage("t", 0, b"delivered by the former master", properties))
    clock.pass_ms(60_000)
    master.replication.takeover.begin_takeover(clock.now_ms(), 1)
    master = builder(without_entries(files), clock).build(configure({2, 3}, all_ack=True))
    end = master.store.max_physical_offset
    timers, rule = master.timer_delivery, master.replication.sync_state
    assert timers is not None
    assert rule is not None
    for position in (0, end):
        assert master.replication.takeover.role is StoreRole.TAKING_OVER
        rule.acknowledge(rule.join("3", 0), position)
        timers.read_topic(100)
        timers.deliver_due(100)
    assert master.replication.takeover.role is StoreRole.MASTER
    assert master.store.max_physical_offset == end


def test_a_commit_is_found_once_it_is_confirmed_again() -> None:
    files, clock = CrashFiles(), FakeClock()
    master = builder(files, clock).build(configure({2}, all_ack=True))
    half = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "U", "REAL_TOPIC": "t", "REAL_QID": "0"}
    properties = encode_properties(half)
    born_ms = clock.now_ms()
    half_end = sum(
        master.store.append(NewMessage(TRANS_HALF_TOPIC, 0, b"x", properties, born_timestamp=born_ms))[1:3]
    )
    master.store.append(
        NewMessage("t", 0, b"x", properties, sys_flag=TRANSACTION_COMMIT, born_timestamp=born_ms)
    )
    clock.pass_ms(30_000)
    master = builder(without_entries(files), clock).build(configure({2, 3}, all_ack=True))
    end = master.store.max_physical_offset
    rule = master.replication.sync_state
    assert rule is not None
    for position in (0, half_end, end):
        rule.acknowledge(rule.join("3", 0), position)
        list(master.transaction_checks.run_round())
        assert master.store.next_queue_offset(TRANS_HALF_TOPIC, 0) == 1
        walked = master.offsets.query_offset(TRANS_GROUP, TRANS_HALF_TOPIC, 0)
        assert walked == (1 if position == end else -1)


@pytest.mark.parametrize("deletes", [False, True])
def test_a_topic_whose_messages_are_unconfirmed_is_there_again(deletes: bool) -> None:
    """Also if its deletion was announced: the messages may be those of a topic that was created afterwards."""
    files, clock = CrashFiles(), FakeClock()
    master = builder(files, clock).build(configure({2, 3}, all_ack=True))
    master.topics.persist()
    clock.pass_ms(1)
    master.topics.create_for_send("fresh", "TBW102", 4)
    master.store.append(NewMessage("fresh", 0, b"x", b""))
    if deletes:
        master.store.announce_deletions(["fresh"])
    files = files.crash(random.Random(1), lose_unflushed=False)
    master = restart(files, clock, {2, 3}, all_ack=True)
    assert (master.store.max_offset("fresh", 0), master.store.next_queue_offset("fresh", 0)) == (0, 1)
    assert "fresh" in master.topics
