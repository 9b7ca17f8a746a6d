"""Expires files of the commit log without blocking the broker, neither by a checkpoint nor by many files at once."""

import trio

from gateway.runtime.run_blocking import RunBlocking
from storage.store import MessageStore


async def expire_log_files(
    store: MessageStore, run_blocking: RunBlocking, max_files: int, *, manual: bool = False
) -> None:
    """Delete at most ``max_files`` expired files; `hide_expired_entries` should follow.

    Other tasks may run after each file, because freeing a gigabyte takes the system about 0.1 s. A checkpoint is
    written as soon as an expired file needs one: until the next regular checkpoint the disk might become full. With
    ``manual`` the hour and the use of the disk do not matter. Raises FlushFailed.
    """
    for _ in range(max_files):
        deleted = store.delete_expired_log_files(manual, max_files=1)
        if not deleted and store.expiry_awaits_checkpoint:
            await run_blocking(store.write_checkpoint)
            deleted = store.delete_expired_log_files(manual, max_files=1)
        if not deleted:
            return
        await trio.lowlevel.checkpoint()
