from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pytest
import trio

from gateway.broker.processors.log_expiry import expire_messages
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.crash_files import CrashFiles
from storage.store import MessageStore
from storage.tests.support import FakeClock

FILE_BYTES: Final = 8192


class FullDisk(CrashFiles):
    def disk_used_ratio(self, path: str) -> float:
        return 0.89


class StepsOfExpiry(trio.abc.Instrument):
    """Notes where the log begins after each step of a task."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.log_starts = [store.min_physical_offset]

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.log_starts.append(self._store.min_physical_offset)


def expire(store: MessageStore, max_files: int = 1, *, manual: bool = False) -> tuple[int, int, int]:
    """Let files expire as the broker does.

    Return how many were removed, how many at most at once, and the number of calls that may block.
    """
    blocking = []

    async def run_blocking(work: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        blocking.append(work)
        return work()

    steps = StepsOfExpiry(store)
    trio.run(partial(expire_messages, store, run_blocking, max_files, manual=manual), instruments=[steps])
    counts = [(end - start) // FILE_BYTES for start, end in pairwise(steps.log_starts)]
    return sum(counts), max(counts), len(blocking)


def opened() -> MessageStore:
    config = StoreConfig(root="/s", commit_log_file_bytes=FILE_BYTES, max_message_bytes=4096)
    return MessageStore.open(config, FullDisk(), FakeClock())


def append_files(store: MessageStore, count: int) -> None:
    for _ in range(2 * count):
        store.append(NewMessage("t", 0, bytes(3000), b""))


def test_a_checkpoint_is_written_when_an_expired_file_needs_one() -> None:
    store = opened()
    assert expire(store) == (0, 0, 0)
    append_files(store, 5)
    assert expire(store) == (1, 1, 1)
    assert expire(store) == (1, 1, 0), "the checkpoint covers all messages that were there"
    append_files(store, 5)
    assert [expire(store) for _ in range(3)] == [(1, 1, 0), (1, 1, 0), (1, 1, 1)]


@pytest.mark.parametrize("manual", [False, True])
def test_no_more_files_expire_than_the_maximum_and_one_at_a_time(manual: bool) -> None:
    """Freeing a gigabyte takes the system about 0.1 s."""
    store = opened()
    append_files(store, 4)
    store.write_checkpoint()
    append_files(store, 10)
    assert expire(store, 4, manual=manual) == (4, 1, 1)


def test_nothing_more_expires_once_the_store_is_closed() -> None:
    store = opened()
    append_files(store, 10)
    ran = []

    async def run_blocking(work: Callable[[], Any]) -> Any:
        ran.append(work)
        store.close()

    trio.run(expire_messages, store, run_blocking, 10)
    assert len(ran) == 1
    assert store.min_physical_offset == 0
