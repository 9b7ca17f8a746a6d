import resource
from dataclasses import fields

from gateway.broker.messages.store_settings import build_store_config
from gateway.tests.configs import broker_config
from storage.config import StoreConfig


def test_the_defaults_of_both_sides_agree(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1 << 20, 1 << 20))
    made, plain = (
        build_store_config(broker_config(), memory=False),
        StoreConfig(root=broker_config().store.store_path_root_dir),
    )
    differing = {
        item.name for item in fields(StoreConfig) if getattr(made, item.name) != getattr(plain, item.name)
    }
    assert not differing


def test_what_is_configured_reaches_the_store():
    config = broker_config(
        store_path_root_dir="/data", mapped_file_size_commit_log_bytes=1 << 20,
        mapped_file_size_consume_queue_bytes=6000, flush_disk_type="SYNC_FLUSH", file_reserved_hours=5,
        max_message_size_bytes=99, message_delay_level="1s 2s", disk_warning_level_ratio=80, max_hash_slots=7,
    )  # fmt: skip
    made = build_store_config(config, memory=False)
    assert (made.root, made.commit_log_file_bytes, made.consume_queue_file_entries) == ("/data", 1 << 20, 300)
    assert (made.sync_flush, made.file_reserved_hours, made.max_message_bytes) == (True, 5, 99)
    assert (made.delay_levels, made.disk_warning_percent, made.index_slots) == ("1s 2s", 80, 7)


def test_a_consume_queue_file_is_rounded_up_to_whole_entries():
    """Source: MessageStoreConfig.getMappedFileSizeConsumeQueue, 5.4.0."""
    config = broker_config(mapped_file_size_consume_queue_bytes=6001)
    assert build_store_config(config, memory=False).consume_queue_file_entries == 301


def test_a_store_in_memory_is_bounded():
    made = build_store_config(broker_config(), memory=True)
    assert 0 < made.retained_bytes <= 256 << 20
    assert made.commit_log_file_bytes * 2 <= made.retained_bytes


def test_a_store_in_memory_heeds_what_is_configured():
    made = build_store_config(
        broker_config(max_message_size_bytes=99, message_index_enable=False), memory=True
    )
    assert (made.max_message_bytes, made.message_index_enable) == (99, False)
