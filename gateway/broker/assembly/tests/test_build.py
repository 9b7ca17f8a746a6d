import random

import pytest

from gateway.broker.assembly.build import BrokerBuilder
from gateway.tests.cluster import SMALL, SimClock, inline
from gateway.tests.configs import broker_config
from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.files import DiskFiles, MemoryFiles


def build(files=None, memory=False, **settings):
    config = broker_config(**{"store_path_root_dir": "/b", **SMALL, **settings})
    return BrokerBuilder(
        memory=memory, clock=SimClock(), run_blocking=inline, port=lambda: 10911, files=files
    ).build(config)


def test_parts_share_one_store_and_go_by_the_configuration():
    broker = build(
        MemoryFiles(), flush_disk_type="SYNC_FLUSH", auto_create_topic_enable=False, broker_name="b7",
        broker_cluster_name="c7", message_delay_level="1s 2s", broker_ip="10.0.0.5",
    )  # fmt: skip
    assert broker.group_commit.synchronous
    assert broker.delay_service.max_level == 2
    assert "TBW102" not in broker.topics
    assert {"b7", "c7"} <= set(broker.topics.table)
    assert broker.hosts.own_address() == ("10.0.0.5", 10911)
    assert broker.writer.scheduler is broker.delay_service


def test_the_tables_are_where_the_official_broker_keeps_them():
    files = MemoryFiles()
    broker = build(files)
    broker.topics.create_for_send_back("orders", 3)
    broker.groups.find_or_create("GID")
    broker.offsets.commit_offset("GID", "orders", 0, 5)
    for table in (broker.topics, broker.groups, broker.offsets, broker.delay_service):
        table.persist()
    broker.store.close()
    assert {"topics.json", "subscriptionGroup.json", "consumerOffset.json"} <= set(files.list("/b/config"))
    again = build(files)
    assert again.topics.get("orders").write_queue_nums == 3
    assert again.offsets.query_offset("GID", "orders", 0) == 5
    assert "GID" in again.groups


def test_on_disk_messages_are_found_again(tmp_path):
    broker = build(DiskFiles(), store_path_root_dir=str(tmp_path))
    broker.store.append(NewMessage("t", 0, b"x", b""))
    broker.store.close()
    assert (tmp_path / "commitlog").is_dir()
    assert build(DiskFiles(), store_path_root_dir=str(tmp_path)).store.max_offset("t", 0) == 1


def test_in_memory_nothing_touches_the_disk(tmp_path):
    broker = build(memory=True, store_path_root_dir=str(tmp_path / "never"))
    broker.store.append(NewMessage("t", 0, b"x", b""))
    broker.store.close()
    assert not (tmp_path / "never").exists()


def test_what_cannot_be_built_leaves_the_store_closed(tmp_path):
    settings = {"store_path_root_dir": str(tmp_path)}
    with pytest.raises(ValueError, match=r"invalid|messageDelayLevel"):
        build(DiskFiles(), message_delay_level="soon", **settings)
    build(DiskFiles(), **settings).store.close()


@pytest.mark.parametrize("same_boot", [False, True])
def test_after_lost_writes_no_group_skips_the_messages_that_come_next(same_boot):
    """Also when a disk went away and came back while the machine stayed up.

    The offsets are those that an official broker saves, which does not flush the messages before.
    """
    files = CrashFiles()
    broker = build(files)
    for body in (b"flushed", b"lost"):
        broker.store.append(NewMessage("orders", 0, body, b""))
        if body == b"flushed":
            broker.store.write_checkpoint()
    broker.offsets.commit_offset("GID", "orders", 0, 2)
    broker.offsets.commit_offset("GID", "never flushed", 0, 1)
    files.small["/b/config/consumerOffset.json"] = broker.offsets.to_json()
    # Seed 2 loses the second message.
    lost = files.crash(random.Random(2))
    if same_boot:
        lost.small["/b/abort"] = lost.boot_id().encode()
    after = build(lost)
    assert after.store.max_offset("orders", 0) == 1
    assert after.offsets.query_offset("GID", "orders", 0) == 1
    assert after.offsets.query_offset("GID", "never flushed", 0) == 0
    killed = after.store.files.crash(random.Random(0), lose_unflushed=False)
    assert build(killed).offsets.query_offset("GID", "orders", 0) == 1


def test_after_a_killed_process_offsets_are_as_they_were():
    files = CrashFiles()
    broker = build(files)
    for body in (b"one", b"two"):
        broker.store.append(NewMessage("orders", 0, body, b""))
    broker.offsets.commit_offset("GID", "orders", 0, 2)
    broker.offsets.persist()
    after = build(files.crash(random.Random(2), lose_unflushed=False))
    assert after.offsets.query_offset("GID", "orders", 0) == 2


def test_a_broker_with_staged_batches_serves_no_slaves():
    assert "stagedPublish" in build(MemoryFiles(), staged_publish=True).replication.server.refusal
    assert build(MemoryFiles()).replication.server.refusal is None
