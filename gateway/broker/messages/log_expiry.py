"""Deletes expired log files without blocking the broker while a checkpoint is written for them."""

from collections.abc import Callable

from gateway.runtime.run_blocking import RunBlocking
from storage.store import MessageStore


async def delete_expired_log_files(
    store: MessageStore, run_blocking: RunBlocking, delete_files: Callable[[], int]
) -> int:
    """Return how many files ``delete_files``, a call of `MessageStore.delete_expired_log_files`, has removed.

    Where it keeps files until a checkpoint covers them, the checkpoint is written and it is called again. Otherwise a
    disk that fills up within the time between two checkpoints would go on doing so. Raises FlushFailed.
    """
    deleted = delete_files()
    if store.expiry_awaits_checkpoint:
        await run_blocking(store.write_checkpoint)
        deleted += delete_files()
    return deleted
