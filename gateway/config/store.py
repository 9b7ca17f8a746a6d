"""Keys of one broker's message store: official MessageStoreConfig names and defaults."""

from dataclasses import dataclass

from gateway.config.keys import key

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MIB = 1024 * 1024
INT_MAX = 2**31 - 1
TIMER_SLOTS_MS = (100, 200, 500, 1000)
HOURS = r"([01]?[0-9]|2[0-3])(;([01]?[0-9]|2[0-3]))*"
DELAYS = r"[0-9]+[smhd]( [0-9]+[smhd])*"
DEFAULT_STORE = "~/rocketmq-gateway/store"
OFFICIAL_STORE = "~/store"
"""Default of the official broker, whose files a server that is only tried out must not continue."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Source: MessageStoreConfig, 5.4.0. Sizes in bytes, ratios in percent of the disk."""

    store_path_root_dir: str = key(
        "storePathRootDir",
        DEFAULT_STORE,
        f"directory of all files of this broker (official default: {OFFICIAL_STORE})",
        path=True,
    )
    store_path_commit_log: str = key(
        "storePathCommitLog", "", "directory of the commit log; empty is commitlog below the root", path=True
    )
    mapped_file_size_commit_log_bytes: int = key(
        "mappedFileSizeCommitLog", 1024 * MIB, "bytes of one commit log file", low=4096, high=2**31 - 1
    )
    mapped_file_size_consume_queue_bytes: int = key(
        "mappedFileSizeConsumeQueue",
        6_000_000,
        "bytes of one consume queue file, 20 a message",
        low=20,
        high=2**31 - 1,
    )
    offset_journal_bytes: int = key(
        "consumerOffsetJournalSize",
        32 * MIB,
        "bytes of the sparse file that keeps committed consumer offsets through SIGKILL, about 64 a queue and group "
        "(ours)",
        low=4096,
        high=2**31 - 1,
    )
    max_message_size_bytes: int = key(
        "maxMessageSize",
        4 * MIB,
        "maximum size of a message body and properties",
        low=1,
        high=512 * MIB,
        live=True,
    )
    max_messages_per_batch: int = key(
        "maxMsgsNumBatch", 64, "maximum number of keys looked up by one query", low=1, high=10_000, live=True
    )
    max_topic_length: int = key(
        "maxTopicLength",
        127,
        "maximum length of a topic name in bytes; more than 127 needs message version 2",
        low=1,
        high=32767,
    )
    flush_disk_type: str = key(
        "flushDiskType",
        "ASYNC_FLUSH",
        "SYNC_FLUSH answers a send when its message is on disk",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    flush_interval_commit_log_ms: int = key(
        "flushIntervalCommitLog", 500, "time between flushes with ASYNC_FLUSH", low=1, high=600_000, live=True
    )
    flush_commit_log_thorough_interval_ms: int = key(
        "flushCommitLogThoroughInterval",
        10_000,
        "time after which even a few bytes are flushed",
        low=0,
        high=600_000,
    )
    flush_interval_consume_queue_ms: int = key(
        "flushIntervalConsumeQueue", 1_000, "time between flushes of consume queues", low=1, high=600_000
    )
    sync_flush_timeout_ms: int = key(
        "syncFlushTimeout",
        5_000,
        "time after which a sync send that is not on disk is answered FLUSH_DISK_TIMEOUT",
        low=1,
        high=600_000,
        live=True,
    )
    put_message_timeout_ms: int = key(
        "putMessageTimeout",
        8_000,
        "longest time a send waits for the disk and for replicas",
        low=1,
        high=600_000,
    )
    delete_when: str = key(
        "deleteWhen",
        "04",
        "hours of the day at which expired files are deleted, 00..23 separated by ;",
        pattern=HOURS,
        live=True,
    )
    file_reserved_hours: int = key(
        "fileReservedTime", 72, "hours a full commit log file is kept", low=1, high=876_000, live=True
    )
    disk_max_used_ratio: int = key(
        "diskMaxUsedSpaceRatio",
        75,
        "disk use in percent above which the oldest files are deleted early",
        low=10,
        high=95,
        live=True,
    )
    disk_clean_forcibly_ratio: int = key(
        "diskSpaceCleanForciblyRatio",
        85,
        "disk use in percent above which files are deleted at any hour",
        low=10,
        high=99,
        live=True,
    )
    disk_warning_level_ratio: int = key(
        "diskSpaceWarningLevelRatio",
        90,
        "disk use in percent above which sends are refused",
        low=10,
        high=99,
        live=True,
    )
    clean_file_forcibly_enable: bool = key(
        "cleanFileForciblyEnable", True, "whether a nearly full disk removes unexpired files", live=True
    )
    clean_resource_interval_ms: int = key(
        "cleanResourceInterval", 10_000, "time between searches for files to delete", low=100, high=86_400_000
    )
    delete_files_max: int = key(
        "deleteFileBatchMax",
        10,
        "maximum number of commit log files deleted at once",
        low=1,
        high=50,
        live=True,
    )
    check_crc_on_recover: bool = key("checkCRCOnRecover", True, "whether recovery checks message bodies")
    message_index_enable: bool = key("messageIndexEnable", True, "whether messages can be found by key")
    max_hash_slots: int = key(
        "maxHashSlotNum", 5_000_000, "hash slots of one index file", low=1, high=100_000_000
    )
    max_index_entries: int = key(
        "maxIndexNum", 20_000_000, "entries of one index file", low=2, high=100_000_000
    )
    default_query_max: int = key(
        "defaultQueryMaxNum",
        32,
        "maximum number of messages that one query by key returns",
        low=1,
        high=10_000,
        live=True,
    )
    max_transfer_bytes_in_memory: int = key(
        "maxTransferBytesOnMessageInMemory",
        256 * 1024,
        "maximum size of the answer to a pull near the end of the log",
        low=1,
        high=64 * MIB,
        live=True,
    )
    max_transfer_count_in_memory: int = key(
        "maxTransferCountOnMessageInMemory",
        32,
        "maximum number of messages of one pull near the end of the log",
        low=1,
        high=10_000,
        live=True,
    )
    max_transfer_bytes_on_disk: int = key(
        "maxTransferBytesOnMessageInDisk",
        64 * 1024,
        "maximum size of the answer to a pull of old messages",
        low=1,
        high=64 * MIB,
        live=True,
    )
    max_transfer_count_on_disk: int = key(
        "maxTransferCountOnMessageInDisk",
        8,
        "maximum number of messages of one pull of old messages",
        low=1,
        high=10_000,
        live=True,
    )
    access_in_memory_max_ratio: int = key(
        "accessMessageInMemoryMaxRatio",
        40,
        "percentage of memory assumed to cache the end of the log",
        low=0,
        high=90,
        live=True,
    )
    max_filter_message_bytes: int = key(
        "maxFilterMessageSize",
        16_000,
        "bytes of queue entries that one pull filters; four times as many where they can be searched",
        low=20,
        high=MIB,
        live=True,
    )
    pull_batch_max_count: int = key(
        "pullBatchMaxMessageCount",
        160,
        "maximum number of messages a consumer may request at once",
        low=1,
        high=10_000,
    )
    message_delay_level: str = key(
        "messageDelayLevel",
        DELAY_LEVELS,
        "delays of levels 1, 2, …, separated by blanks; units s m h d",
        pattern=DELAYS,
    )
    flush_delay_offset_interval_ms: int = key(
        "flushDelayOffsetInterval", 10_000, "time between writes of delayOffset.json", low=100, high=600_000
    )
    timer_wheel_enable: bool = key("timerWheelEnable", True, "whether timer messages are accepted")
    timer_precision_ms: int = key(
        "timerPrecisionMs",
        1_000,
        "duration of one timer slot; rounded down to 1000, 500, 200 or 100",
        low=100,
        high=60_000,
    )
    timer_max_delay_s: int = key(
        "timerMaxDelaySec",
        259_200,
        "longest delay of a timer message",
        low=1,
        high=31_536_000,
        live=True,
    )
    timer_roll_window_slots: int = key(
        "timerRollWindowSlot",
        172_800,
        "number of slots after which a message that is due later is scheduled again",
        low=2,
        high=604_740,
    )
    timer_congest_num_each_slot: int = key(
        "timerCongestNumEachSlot",
        INT_MAX,
        "soft limit on timer messages due in one slot: above it new ones are rejected at random, above twice the "
        "limit always",
        low=1,
        high=INT_MAX,
        live=True,
    )
    timer_stop_enqueue: bool = key(
        "timerStopEnqueue", False, "whether timer messages stay unread in their topic", live=True
    )
    timer_flush_interval_ms: int = key(
        "timerFlushIntervalMs", 1_000, "time between flushes of the timer files", low=10, high=600_000
    )
    mapped_file_size_timer_log_bytes: int = key(
        "mappedFileSizeTimerLog", 100 * MIB, "size of one file of the timer log", low=4_096, high=1_024 * MIB
    )
    append_topic_for_timer_delete_key: bool = key(
        "appendTopicForTimerDeleteKey", False, "whether a recall applies to its own topic only", live=True
    )

    mirror_target: bool = key(
        "mirrorTarget",
        False,
        "whether a shadow gateway may store messages at the queue offsets of another broker (ours; set it before "
        "the first start: the commit log of a new store then begins so that an official broker can take it over)",
    )
    staged_publish: bool = key(
        "stagedPublish",
        False,
        "whether writers may stage messages that are published together when their batch is complete (ours)",
    )
    staged_max_bytes: int = key(
        "stagedMaxBytes",
        16 * 1024 * MIB,
        "maximum disk space of staged messages, in bytes (ours)",
        low=1 * MIB,
        high=1024 * 1024 * MIB,
    )
    staged_reserved_hours: int = key(
        "stagedReservedHours",
        72,
        "age at which unpublished staged messages are discarded (ours)",
        low=1,
        high=24 * 365,
    )

    @property
    def timer_slot_ms(self) -> int:
        """The effective precision. Source: MessageStoreConfig.setTimerPrecisionMs, 5.4.0."""
        return max((slot for slot in TIMER_SLOTS_MS if slot <= self.timer_precision_ms), default=100)

    @property
    def is_sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"
