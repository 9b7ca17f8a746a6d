"""Expires messages without blocking the broker, neither by a checkpoint nor by many files or queues at once."""

from collections.abc import Awaitable, Callable

import trio

from gateway.broker.processors.turns import run_in_slices
from storage.store import MessageStore


async def expire_messages(
    store: MessageStore,
    run_blocking: Callable[[Callable[[], None]], Awaitable[None]],
    max_files: int,
    *,
    manual: bool = False,
) -> None:
    """Delete at most ``max_files`` expired files of the commit log, and the queue entries of deleted messages.

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
            break
        await trio.lowlevel.checkpoint()
    await run_in_slices(store.hide_expired_entries())
