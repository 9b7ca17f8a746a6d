"""Conversion of a broker's configuration into the settings of its store."""

import math
from dataclasses import replace

from gateway.config.process import BrokerConfig
from gateway.config.replication import Role
from gateway.runtime.file_limit import within_file_limit
from storage.config import StoreConfig, memory_config
from storage.layout import QUEUE_ENTRY_BYTES

MAX_OPEN_QUEUE_FILES = 4096


def build_store_config(config: BrokerConfig, *, memory: bool) -> StoreConfig:
    """Return the store's settings: on disk below ``storePathRootDir``, or in memory with a bounded size."""
    settings = _disk_store_config(config)
    return _with_memory_limits(settings) if memory else settings


def changed_store_config(current: StoreConfig, config: BrokerConfig) -> StoreConfig:
    """Return the settings of an open store after a change of the broker's configuration."""
    return build_store_config(config, memory=current.retained_bytes > 0)


def _with_memory_limits(settings: StoreConfig) -> StoreConfig:
    """Return the settings with small files, of which the oldest are dropped beyond a fixed total size."""
    bounded = memory_config()
    return replace(
        settings,
        root=bounded.root,
        commit_log_dir=bounded.commit_log_dir,
        commit_log_file_bytes=bounded.commit_log_file_bytes,
        consume_queue_file_entries=bounded.consume_queue_file_entries,
        index_slots=bounded.index_slots,
        index_entries=bounded.index_entries,
        retained_bytes=bounded.retained_bytes,
        max_message_bytes=min(settings.max_message_bytes, bounded.max_message_bytes),
    )


def _awaits_confirmation(config: BrokerConfig) -> bool:
    """Return True if messages are readable once all replicas in sync have them."""
    settings = config.replication
    return settings.enable_controller_mode and settings.all_ack_in_sync_state_set


def _is_elected(config: BrokerConfig) -> bool:
    """Return True for a master that is the only replica in sync: nobody else can be elected, so its log is the log."""
    controlled = config.controlled
    return (
        controlled is not None
        and config.role is Role.MASTER
        and controlled.sync_set == {controlled.broker_id}
    )


def _disk_store_config(config: BrokerConfig) -> StoreConfig:
    return StoreConfig(
        root=config.store.store_path_root_dir,
        commit_log_dir=config.store.store_path_commit_log,
        commit_log_file_bytes=config.store.mapped_file_size_commit_log_bytes,
        consume_queue_file_entries=math.ceil(
            config.store.mapped_file_size_consume_queue_bytes / QUEUE_ENTRY_BYTES
        ),
        index_slots=config.store.max_hash_slots,
        index_entries=config.store.max_index_entries,
        message_index_enable=config.store.message_index_enable,
        max_message_bytes=config.store.max_message_size_bytes,
        sync_flush=config.store.is_sync_flush,
        flush_queues_interval_ms=config.store.flush_interval_consume_queue_ms,
        delete_when=config.store.delete_when,
        file_reserved_hours=config.store.file_reserved_hours,
        delete_files_max=config.store.delete_files_max,
        disk_max_used_percent=config.store.disk_max_used_ratio,
        disk_warning_percent=config.store.disk_warning_level_ratio,
        disk_clean_forcibly_percent=config.store.disk_clean_forcibly_ratio,
        clean_forcibly_enable=config.store.clean_file_forcibly_enable,
        max_filter_message_bytes=config.store.max_filter_message_bytes,
        max_transfer_bytes_in_memory=config.store.max_transfer_bytes_in_memory,
        max_transfer_count_in_memory=config.store.max_transfer_count_in_memory,
        max_transfer_bytes_on_disk=config.store.max_transfer_bytes_on_disk,
        max_transfer_count_on_disk=config.store.max_transfer_count_on_disk,
        access_in_memory_percent=config.store.access_in_memory_max_ratio,
        max_query_messages=config.store.max_messages_per_batch,
        delay_levels=config.store.message_delay_level,
        check_crc_on_recover=config.store.check_crc_on_recover,
        max_keys_per_message=config.limits.max_keys_per_message,
        follows_master=config.role is Role.SLAVE,
        awaits_confirmation=_awaits_confirmation(config),
        log_is_confirmed=_is_elected(config),
        start_at_second_file=config.store.mirror_target,
        max_open_queue_files=within_file_limit(MAX_OPEN_QUEUE_FILES, share=4),
    )
