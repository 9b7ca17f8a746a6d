"""Settings of one store: its paths and the sizes of its parts.

`gateway/broker/messages/store_settings.py` fills them from broker.conf.
"""

import os
from dataclasses import dataclass

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def _physical_memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # not available on every platform
        return 8 << 30


LIVE_SETTINGS = (
    "max_message_bytes",
    "delete_when",
    "delete_files_max",
    "file_reserved_hours",
    "disk_max_used_percent",
    "disk_warning_percent",
    "disk_clean_forcibly_percent",
    "clean_forcibly_enable",
    "max_query_messages",
    "max_filter_message_bytes",
    "max_transfer_bytes_in_memory",
    "max_transfer_count_in_memory",
    "max_transfer_bytes_on_disk",
    "max_transfer_count_on_disk",
    "access_in_memory_percent",
)
"""Settings that `MessageStore.reconfigure` may change while the store is open."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Settings of one store. The comment after each names its official broker.conf key.

    Source: MessageStoreConfig, 5.4.0 (names and defaults).
    """

    root: str  # storePathRootDir
    commit_log_dir: str = ""  # storePathCommitLog; empty: <root>/commitlog
    commit_log_file_bytes: int = 1 << 30  # mappedFileSizeCommitLog
    consume_queue_file_entries: int = 300_000  # mappedFileSizeConsumeQueue / 20
    index_slots: int = 5_000_000  # maxHashSlotNum
    index_entries: int = 20_000_000  # maxIndexNum
    message_index_enable: bool = True  # messageIndexEnable
    max_message_bytes: int = 4 << 20  # maxMessageSize
    sync_flush: bool = False  # flushDiskType=SYNC_FLUSH
    flush_queues_interval_ms: int = 1000  # flushIntervalConsumeQueue
    delete_when: str = "04"  # deleteWhen: hours of the local day, separated by ;
    file_reserved_hours: int = 72  # fileReservedTime
    delete_files_max: int = 10  # deleteFileBatchMax
    disk_max_used_percent: int = 75  # diskMaxUsedSpaceRatio
    disk_warning_percent: int = 90  # diskSpaceWarningLevelRatio
    disk_clean_forcibly_percent: int = 85  # diskSpaceCleanForciblyRatio
    clean_forcibly_enable: bool = True  # cleanFileForciblyEnable
    max_filter_message_bytes: int = 16_000  # maxFilterMessageSize: queue entries read per call, in bytes
    max_transfer_bytes_in_memory: int = 256 << 10  # maxTransferBytesOnMessageInMemory
    max_transfer_count_in_memory: int = 32  # maxTransferCountOnMessageInMemory
    max_transfer_bytes_on_disk: int = 64 << 10  # maxTransferBytesOnMessageInDisk
    max_transfer_count_on_disk: int = 8  # maxTransferCountOnMessageInDisk
    access_in_memory_percent: int = 40  # accessMessageInMemoryMaxRatio
    physical_memory_bytes: int = _physical_memory_bytes()
    max_query_messages: int = 64  # maxMsgsNumBatch
    delay_levels: str = DEFAULT_DELAY_LEVELS  # messageDelayLevel
    check_crc_on_recover: bool = True  # checkCRCOnRecover
    # Settings without an official key.
    follows_master: bool = False  # the log is a copy of a master's, and may end before what is known of that
    awaits_confirmation: bool = False  # messages are readable once they are confirmed: confirmed_store
    log_is_confirmed: bool = False  # the whole log is confirmed when the store is opened
    start_at_second_file: bool = False  # for offset-preserving targets, see Recovery._initial_base
    reserve_commit_log_bytes: int = (
        16 << 20
    )  # disk space allocated ahead of the end, so that a full disk is an error
    reserve_queue_bytes: int = 64 << 10  # the same for each consume queue
    max_keys_per_message: int = 256  # keys of a message that are indexed
    max_open_queue_files: int = 4096  # consume queue files kept mapped
    retained_bytes: int = (
        0  # maximum commit log size, whatever its age; 0: unbounded. Set for stores in memory.
    )

    @property
    def commit_log_path(self) -> str:
        return self.commit_log_dir or self.root + "/commitlog"

    @property
    def consume_queue_path(self) -> str:
        return self.root + "/consumequeue"

    @property
    def index_path(self) -> str:
        return self.root + "/index"

    @property
    def checkpoint_path(self) -> str:
        return self.root + "/checkpoint"

    @property
    def abort_path(self) -> str:
        return self.root + "/abort"

    @property
    def config_path(self) -> str:
        return self.root + "/config"

    @property
    def access_in_memory_bytes(self) -> int:
        """Distance from the end of the log up to which a message counts as being in memory."""
        return self.physical_memory_bytes * self.access_in_memory_percent // 100


def memory_config(
    retained_bytes: int = 64 << 20, *, root: str = "/memory", file_bytes: int = 0
) -> StoreConfig:
    """Build the settings of a store in memory that keeps the last ``retained_bytes`` of messages or so.

    Index files are small and the commit log rolls often, so that old messages make room early.
    """
    return StoreConfig(
        root=root,
        commit_log_file_bytes=file_bytes or max(1 << 20, retained_bytes // 8),
        max_message_bytes=min(4 << 20, (file_bytes or max(1 << 20, retained_bytes // 8)) // 2),
        consume_queue_file_entries=16_384,
        index_slots=65_536,
        index_entries=262_144,
        retained_bytes=retained_bytes,
    )
