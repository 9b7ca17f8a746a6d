"""Removes commit log files that have expired, and the index files that point into them.

`MessageStore.hide_expired_entries` does the same for consume queues, of which there may be a hundred thousand. The
broker calls `Retention.delete_expired` about every ten seconds; it may be called at any time.

**Invariant.** A log file is deleted only when the checkpoint on the disk covers it. After a crash recovery drops the
queue entries of later messages and derives them from the log again. Without their file, a queue whose messages were all
in it would go back to an earlier end, and give out the same offsets twice. A store in memory (``retained_bytes``) needs
no checkpoint, because it is never recovered.
"""

import time
from dataclasses import dataclass

from codec.java_numbers import parse_integer_or
from storage.checkpoint import StoreCheckpoint
from storage.clock import Clock
from storage.commit_log import CommitLog
from storage.config import StoreConfig
from storage.files import Files
from storage.index import MessageIndex

_HOUR_MS = 3_600_000


@dataclass(slots=True)
class Retention:
    """The retention rules of one store; ``config`` is replaced when its settings change.

    ``awaits_checkpoint``: the last call kept an expired file, because no checkpoint covers it yet.
    Source: DefaultMessageStore.CleanCommitLogService, 5.4.0.
    """

    config: StoreConfig
    files: Files
    clock: Clock
    commit_log: CommitLog
    index: MessageIndex
    checkpoint: StoreCheckpoint
    awaits_checkpoint: bool = False

    def disk_used_percent(self) -> float:
        """Return the used part of the commit log's disk, in percent."""
        return self.files.disk_used_ratio(self.config.commit_log_path) * 100

    def is_disk_full(self, used_percent: float) -> bool:
        """Return True if the disk is so full that messages must be refused."""
        return used_percent > self.config.disk_warning_percent

    def delete_expired(self, used_percent: float, manual: bool, max_files: int | None) -> int:
        """Remove expired files; return the number of commit log files removed.

        Files older than ``file_reserved_hours`` are removed in the ``delete_when`` hours of the local day, when the
        disk is fuller than ``disk_max_used_percent``, or on request (``manual``). Above
        ``disk_clean_forcibly_percent`` the oldest files are removed whatever their age. The written file always
        stays, and so does a file that the checkpoint does not cover yet. At most ``max_files`` are removed; None means
        ``delete_files_max``.
        Deviation: a file's age counts from the first message of the next file, or from the file's modification time
        if that is later; the official broker goes by the modification time alone.
        """
        config = self.config
        self.awaits_checkpoint = False
        forced = config.clean_forcibly_enable and used_percent > config.disk_clean_forcibly_percent
        deleted = 0
        if manual or forced or used_percent > config.disk_max_used_percent or self._is_delete_hour():
            expired_before_ms = self.clock.now_ms() - config.file_reserved_hours * _HOUR_MS
            max_files = config.delete_files_max if max_files is None else max_files
            while deleted < max_files and (forced or self._first_file_ended_before(expired_before_ms)):
                end = self.commit_log.first_base + self.commit_log.file_bytes
                if end > self.checkpoint.durable_confirm_offset:
                    # The file cannot be covered while its last message is not confirmed.
                    self.awaits_checkpoint = end <= self.commit_log.readable_until
                    break
                if not self._delete_first_file():
                    break
                deleted += 1
        if deleted:
            self.index.delete_before(self.commit_log.first_base)
        return deleted + self.keep_within_bytes()

    def keep_within_bytes(self) -> int:
        """Remove the oldest files while the log is longer than the ``retained_bytes`` setting; 0 means no limit.

        Return the number of files removed.
        """
        deleted = 0
        if self.config.retained_bytes:
            commit_log = self.commit_log
            while commit_log.max_offset - commit_log.first_base > self.config.retained_bytes:
                if not self._delete_first_file():
                    break
                deleted += 1
            if deleted:
                self.index.delete_before(self.commit_log.first_base)
        return deleted

    def _is_delete_hour(self) -> bool:
        hour = time.localtime(self.clock.now_ms() / 1000).tm_hour
        return any(parse_integer_or(part.strip(), -1) == hour for part in self.config.delete_when.split(";"))

    def _first_file_ended_before(self, timestamp_ms: int) -> bool:
        commit_log = self.commit_log
        ended_ms = commit_log.first_store_timestamp(commit_log.first_base + commit_log.file_bytes)
        if ended_ms is None or ended_ms > timestamp_ms:
            return False
        # A message that was appended with another broker's store timestamp may look older than it is here, so the
        # file's modification time must be old enough as well.
        return self.files.modified_ms(commit_log.path(commit_log.first_base)) <= timestamp_ms

    def _delete_first_file(self) -> bool:
        if self.commit_log.first_base >= self.commit_log.base:
            return False
        if self.commit_log.first_base + self.commit_log.file_bytes > self.commit_log.readable_until:
            return False  # where entries are built later, the queues may still lack some of this file
        self.commit_log.delete_first()
        return True
