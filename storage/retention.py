"""Decides which commit log files have lived long enough and removes them with what points at them.

Not responsible for when it is called: the broker does that every ten seconds or so, and may do it at any
time.
"""

import logging
import time
from typing import TYPE_CHECKING

from storage.recovery import store_timestamp_of

if TYPE_CHECKING:
    from storage.store import MessageStore

log = logging.getLogger(__name__)

_HOUR_MS = 3_600_000


def clean(store: "MessageStore", manual: bool = False, most: int | None = None) -> int:
    """Removes expired files; returns how many commit log files went.

    Files older than file_reserved_hours go in the delete_when hours of the local day, when the disk is
    fuller than disk_max_used_percent, or when asked (`manual`). Above disk_clean_forcibly_percent the oldest
    go whatever their age. The written file always stays. At most `most` files go, delete_files_max by default.
    Source: DefaultMessageStore.CleanCommitLogService, 5.4.0.
    Deviation: a file is as old as the first message of the next file says, or younger if it was modified later;
    the official broker goes by the modification time alone.
    """
    config = store.config
    used = store.files.disk_used_ratio(config.commit_log_path) * 100
    _note_full(store, used > min(config.disk_warning_percent, 90))
    forced = config.clean_forcibly_enable and used > min(config.disk_clean_forcibly_percent, 85)
    deleted = 0
    if manual or forced or used > config.disk_max_used_percent or _is_delete_hour(config.delete_when, store):
        expired_before = store.clock.now_ms() - config.file_reserved_hours * _HOUR_MS
        most = config.delete_files_max if most is None else most
        while deleted < most and (forced or _first_ended_before(store, expired_before)):
            if not _delete_first(store):
                break
            deleted += 1
    if deleted:
        _forget_deleted(store)
    return deleted + keep_within_bytes(store)


def _note_full(store: "MessageStore", full: bool) -> None:
    if full and not store.disk_full:
        log.warning("the disk is full: messages are refused", extra={"path": store.config.commit_log_path})
    if store.disk_full and not full:
        log.info("the disk has room again", extra={"path": store.config.commit_log_path})
    store.disk_full = full


def keep_within_bytes(store: "MessageStore") -> int:
    """Removes the oldest files while more than retained_bytes are kept; 0 there means no bound."""
    deleted = 0
    if store.config.retained_bytes:
        commit_log = store.commit_log
        while commit_log.max_offset - commit_log.first_base > store.config.retained_bytes and _delete_first(
            store
        ):
            deleted += 1
        if deleted:
            _forget_deleted(store)
    return deleted


def _is_delete_hour(delete_when: str, store: "MessageStore") -> bool:
    hour = time.localtime(store.clock.now_ms() / 1000).tm_hour
    return any(part.strip().isdigit() and int(part) == hour for part in delete_when.split(";"))


def _first_ended_before(store: "MessageStore", timestamp_ms: int) -> bool:
    commit_log = store.commit_log
    following = commit_log.message_at(commit_log.first_base + commit_log.file_bytes)
    if following is None or store_timestamp_of(following) > timestamp_ms:
        return False
    # Messages that kept the time of another broker say nothing about those before them; the file's own time does.
    return store.files.modified_ms(commit_log.path(commit_log.first_base)) <= timestamp_ms


def _delete_first(store: "MessageStore") -> bool:
    if store.commit_log.first_base >= store.commit_log.base:
        return False
    store.commit_log.delete_first()
    return True


def _forget_deleted(store: "MessageStore") -> None:
    first = store.commit_log.first_base
    for queue in store.all_queues():
        queue.delete_before(first)
    store.index.delete_before(first)
