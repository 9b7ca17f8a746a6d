from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from gateway.broker.messages.log_expiry import delete_expired_log_files
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.crash_files import CrashFiles
from storage.store import MessageStore
from storage.tests.support import FakeClock


class FullDisk(CrashFiles):
    def disk_used_ratio(self, path: str) -> float:
        return 0.89


def expire(store: MessageStore) -> tuple[int, int]:
    """Let one file expire as the broker does; return how many were removed, and the calls that may block."""
    blocking = []

    async def run_blocking(work: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        blocking.append(work)
        return work()

    delete_file = partial(store.delete_expired_log_files, max_files=1)
    return trio.run(delete_expired_log_files, store, run_blocking, delete_file), len(blocking)


def test_a_checkpoint_is_written_when_an_expired_file_needs_one() -> None:
    config = StoreConfig(root="/s", commit_log_file_bytes=8192, max_message_bytes=4096)
    store = MessageStore.open(config, FullDisk(), FakeClock())
    assert expire(store) == (0, 0)
    for _ in range(10):
        store.append(NewMessage("t", 0, bytes(3000), b""))
    assert expire(store) == (1, 1)
    assert expire(store) == (1, 0), "the checkpoint covers all messages that were there"
    for _ in range(10):
        store.append(NewMessage("t", 0, bytes(3000), b""))
    assert [expire(store) for _ in range(3)] == [(1, 0), (1, 0), (1, 1)]
