"""A broker under a controller is built with the epochs of its log, and speaks AutoSwitchHA."""

import random

import pytest

from gateway.broker.assembly.build import BrokerBuilder
from gateway.broker.broker import Broker
from gateway.broker.processors.admin import get_epoch_cache
from gateway.config.process import BrokerConfig
from gateway.config.replication import SLAVE, SYNC_MASTER, ControlledRole
from gateway.tests.cluster import SMALL, SimClock, inline
from gateway.tests.configs import broker_config
from remoting.requests.ha import GetBrokerEpochCache
from storage.append import NewMessage
from storage.crash_files import CrashFiles


def configure(role: str, epoch: int) -> BrokerConfig:
    """Return the configuration of the replica 2 in an epoch."""
    return broker_config(
        **SMALL,
        store_path_root_dir="/b",
        broker_role=role,
        broker_id=0 if role == SYNC_MASTER else 2,
        enable_controller_mode=True,
        controlled=ControlledRole(2, epoch, frozenset({2}), 1),
        broker_name="a",
        broker_cluster_name="C",
    )


def builder(files: CrashFiles) -> BrokerBuilder:
    return BrokerBuilder(memory=False, clock=SimClock(), run_blocking=inline, port=lambda: 10911, files=files)


def epochs_of(broker: Broker) -> list[tuple[int, int]]:
    assert broker.replication.epochs is not None
    return [(entry.epoch, entry.start) for entry in broker.replication.epochs.entries]


def store_message(broker: Broker) -> int:
    broker.store.append(NewMessage("t", 0, b"x" * 100, b""))
    return broker.store.max_physical_offset


def test_a_master_begins_its_epoch_at_the_end_of_its_log() -> None:
    files = CrashFiles()
    first = builder(files).build(configure(SYNC_MASTER, 1))
    assert epochs_of(first) == [(1, 0)]
    end = store_message(first)
    first.store.close()
    again = builder(files)
    broker = again.build(configure(SYNC_MASTER, 1))
    assert epochs_of(broker) == [(1, 0)]
    broker.store.close()
    assert epochs_of(again.build(configure(SYNC_MASTER, 4))) == [(1, 0), (4, end)]


def test_a_slave_begins_no_epoch() -> None:
    files = CrashFiles()
    broker = builder(files).build(configure(SLAVE, 3))
    assert epochs_of(broker) == []
    assert broker.replication.slave is not None


@pytest.mark.parametrize("loses_power", [False, True])
def test_after_a_loss_of_power_the_same_epoch_begins_anew(loses_power: bool) -> None:
    """Its last messages may be gone, and slaves that have them would take the new ones for the same."""
    files = CrashFiles()
    master = builder(files).build(configure(SYNC_MASTER, 1))
    store_message(master)
    master.store.write_checkpoint()
    store_message(master)
    files = files.crash(random.Random(2), lose_unflushed=loses_power)
    builds = builder(files)
    # The broker has no role until a controller gives it one.
    undecided = builds.build(configure(SLAVE, 1))
    end = undecided.store.max_physical_offset
    undecided.store.close()
    assert epochs_of(builds.build(configure(SYNC_MASTER, 1))) == [(1, end if loses_power else 0)]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_loss_of_power_is_remembered_if_the_broker_ends_before_it_has_a_role(is_killed: bool) -> None:
    files = CrashFiles()
    master = builder(files).build(configure(SYNC_MASTER, 1))
    store_message(master)
    master.store.write_checkpoint()
    store_message(master)
    files = files.crash(random.Random(2), lose_unflushed=True)
    undecided = builder(files).build(configure(SLAVE, 0))
    end = undecided.store.max_physical_offset
    if is_killed:
        files = files.crash(random.Random(3), lose_unflushed=False)
    else:
        undecided.store.close()
    builds = builder(files)
    builds.build(configure(SLAVE, 0)).store.close()
    master = builds.build(configure(SYNC_MASTER, 1))
    assert epochs_of(master) == [(1, end)]
    store_message(master)
    master.store.close()
    # It is dealt with.
    assert epochs_of(builder(files).build(configure(SYNC_MASTER, 1))) == [(1, end)]


def test_epochs_of_lost_messages_are_forgotten() -> None:
    files = CrashFiles()
    master = builder(files).build(configure(SYNC_MASTER, 1))
    end = store_message(master)
    assert master.replication.epochs is not None
    master.replication.epochs.append(2, end + 500)
    master.store.close()
    assert epochs_of(builder(files).build(configure(SLAVE, 3))) == [(1, 0)]


def test_the_request_for_the_epochs() -> None:
    """The answer is that of an official broker 5.4.0, but for the end of the log."""
    files = CrashFiles()
    master = builder(files).build(configure(SYNC_MASTER, 1))
    end = store_message(master)
    assert master.replication.epochs is not None
    master.replication.epochs.append(5, end)
    cache = get_epoch_cache(master, GetBrokerEpochCache()).data
    assert (cache.cluster_name, cache.broker_name, cache.broker_id, cache.max_offset) == ("C", "a", 0, end)
    assert [(entry.epoch, entry.start_offset, entry.end_offset) for entry in cache.epoch_list] == [
        (1, 0, end),
        (5, end, 9223372036854775807),
    ]
