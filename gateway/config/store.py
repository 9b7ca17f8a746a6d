"""Keys of one broker's message store: official MessageStoreConfig names and defaults.

It does not open or size any file: gateway.server hands these values to the storage package.
"""

from dataclasses import dataclass

from gateway.config.keys import key

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MIB = 1024 * 1024
INT_MAX = 2**31 - 1
TIMER_SLOTS_MS = (100, 200, 500, 1000)
HOURS = r"([01]?[0-9]|2[0-3])(;([01]?[0-9]|2[0-3]))*"
DELAYS = r"[0-9]+[smhd]( [0-9]+[smhd])*"
DEFAULT_STORE = "~/store"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Source: MessageStoreConfig, 5.4.0. Sizes in bytes, ratios in percent of the disk."""

    store_path_root_dir: str = key(
        "storePathRootDir", DEFAULT_STORE, "directory of all files of this broker", path=True
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
    max_message_size_bytes: int = key(
        "maxMessageSize",
        4 * MIB,
        "largest message body and properties accepted",
        low=1,
        high=512 * MIB,
        live=True,
    )
    max_messages_per_batch: int = key(
        "maxMsgsNumBatch", 64, "most keys looked up by one query", low=1, high=10_000, live=True
    )
    max_topic_length: int = key(
        "maxTopicLength",
        127,
        "longest topic name in bytes; above 127 needs message version 2",
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
        "flushIntervalCommitLog", 500, "time between flushes with ASYNC_FLUSH", low=1, high=600_000
    )
    flush_commit_log_thorough_interval_ms: int = key(
        "flushCommitLogThoroughInterval",
        10_000,
        "time after which few bytes are flushed too",
        low=0,
        high=600_000,
    )
    flush_interval_consume_queue_ms: int = key(
        "flushIntervalConsumeQueue", 1_000, "time between flushes of consume queues", low=1, high=600_000
    )
    sync_flush_timeout_ms: int = key(
        "syncFlushTimeout",
        5_000,
        "a sync send not on disk by then gets FLUSH_DISK_TIMEOUT",
        low=1,
        high=600_000,
    )
    put_message_timeout_ms: int = key(
        "putMessageTimeout", 8_000, "longest time a send waits for disk and copies", low=1, high=600_000
    )
    delete_when: str = key(
        "deleteWhen", "04", "hours of the day at which old files go, 00..23 separated by ;", pattern=HOURS
    )
    file_reserved_hours: int = key(
        "fileReservedTime", 72, "hours a full commit log file is kept", low=1, high=876_000, live=True
    )
    disk_max_used_ratio: int = key(
        "diskMaxUsedSpaceRatio",
        75,
        "disk use above which the oldest files go early",
        low=10,
        high=95,
        live=True,
    )
    disk_clean_forcibly_ratio: int = key(
        "diskSpaceCleanForciblyRatio",
        85,
        "disk use above which files go at any hour",
        low=10,
        high=99,
        live=True,
    )
    disk_warning_level_ratio: int = key(
        "diskSpaceWarningLevelRatio", 90, "disk use above which sends are refused", low=10, high=99, live=True
    )
    clean_file_forcibly_enable: bool = key(
        "cleanFileForciblyEnable", True, "whether a nearly full disk removes unexpired files", live=True
    )
    clean_resource_interval_ms: int = key(
        "cleanResourceInterval", 10_000, "time between looks for files to remove", low=100, high=86_400_000
    )
    delete_files_max: int = key(
        "deleteFileBatchMax", 10, "most commit log files removed at once", low=1, high=50
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
        "defaultQueryMaxNum", 32, "most messages one query by key returns", low=1, high=10_000
    )
    max_transfer_bytes_in_memory: int = key(
        "maxTransferBytesOnMessageInMemory",
        256 * 1024,
        "most bytes of one pull near the end",
        low=1,
        high=64 * MIB,
    )
    max_transfer_count_in_memory: int = key(
        "maxTransferCountOnMessageInMemory", 32, "most messages of one pull near the end", low=1, high=10_000
    )
    max_transfer_bytes_on_disk: int = key(
        "maxTransferBytesOnMessageInDisk",
        64 * 1024,
        "most bytes of one pull of old messages",
        low=1,
        high=64 * MIB,
    )
    max_transfer_count_on_disk: int = key(
        "maxTransferCountOnMessageInDisk", 8, "most messages of one pull of old messages", low=1, high=10_000
    )
    access_in_memory_max_ratio: int = key(
        "accessMessageInMemoryMaxRatio",
        40,
        "percent of memory taken as cached end of the log",
        low=1,
        high=90,
    )
    max_filter_message_bytes: int = key(
        "maxFilterMessageSize",
        16_000,
        "bytes of queue entries one pull looks at for its filter; four times as many where it can search them",
        low=20,
        high=MIB,
    )
    pull_batch_max_count: int = key(
        "pullBatchMaxMessageCount", 160, "most messages a consumer may ask for at once", low=1, high=10_000
    )
    message_delay_level: str = key(
        "messageDelayLevel", DELAY_LEVELS, "delays of levels 1, 2, …; units s m h d", pattern=DELAYS
    )
    flush_delay_offset_interval_ms: int = key(
        "flushDelayOffsetInterval", 10_000, "time between writes of delayOffset.json", low=100, high=600_000
    )
    timer_wheel_enable: bool = key(
        "timerWheelEnable", True, "whether messages for an arbitrary time are taken"
    )
    timer_precision_ms: int = key(
        "timerPrecisionMs",
        1_000,
        "span of one slot on the disk; counts as the next of 1000, 500, 200, 100 below",
        low=100,
        high=60_000,
    )
    timer_max_delay_s: int = key(
        "timerMaxDelaySec",
        259_200,
        "furthest time a message may be delayed",
        low=1,
        high=31_536_000,
        live=True,
    )
    timer_roll_window_slots: int = key(
        "timerRollWindowSlot",
        172_800,
        "a message further ahead than so many times the precision is looked at again on the way",
        low=2,
        high=604_740,
    )
    timer_congest_num_each_slot: int = key(
        "timerCongestNumEachSlot",
        INT_MAX,
        "messages for one moment above which more are refused by chance, above the double all",
        low=1,
        high=INT_MAX,
        live=True,
    )
    timer_stop_enqueue: bool = key(
        "timerStopEnqueue", False, "whether timer messages stay unread in their topic", live=True
    )
    timer_flush_interval_ms: int = key(
        "timerFlushIntervalMs", 1_000, "time between flushes of the timer's files", low=10, high=600_000
    )
    mapped_file_size_timer_log_bytes: int = key(
        "mappedFileSizeTimerLog", 100 * MIB, "size of one file of the timer log", low=4_096, high=1_024 * MIB
    )
    append_topic_for_timer_delete_key: bool = key(
        "appendTopicForTimerDeleteKey", False, "whether a recall counts for its topic only", live=True
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
        "whether writers may stage messages that appear, once, when their batch is complete (ours)",
    )
    staged_max_bytes: int = key(
        "stagedMaxBytes",
        16 * 1024 * MIB,
        "what staged messages may take on the disk (ours)",
        low=1 * MIB,
        high=1024 * 1024 * MIB,
    )
    staged_reserved_hours: int = key(
        "stagedReservedHours",
        72,
        "age at which staged messages that were never published are forgotten (ours)",
        low=1,
        high=24 * 365,
    )

    @property
    def timer_slot_ms(self) -> int:
        """The precision that counts. Source: MessageStoreConfig.setTimerPrecisionMs, 5.4.0."""
        return max((slot for slot in TIMER_SLOTS_MS if slot <= self.timer_precision_ms), default=100)

    @property
    def is_sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"
