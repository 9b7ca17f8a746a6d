"""Helpers of the store's tests: a fake clock, small files, threads and kills at a chosen instruction."""

import itertools
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from storage.config import StoreConfig
from storage.crash_files import CrashFiles, ProcessKilled
from storage.store import MessageStore


class FakeClock:
    """A clock that moves only by `advance`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def advance(self, milliseconds: int) -> None:
        self._now_ms += milliseconds

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000


THREAD_TIMEOUT_S = 60.0


def small_config(**changes: object) -> StoreConfig:
    """Build settings with files so small that a few messages fill them."""
    settings: dict[str, object] = {
        "root": "/s",
        "commit_log_file_bytes": 8192,
        "consume_queue_file_entries": 5,
        "index_slots": 8,
        "index_entries": 32,
        "max_message_bytes": 4096,
        "reserve_commit_log_bytes": 1000,
        "reserve_queue_bytes": 40,
        "max_open_queue_files": 4,
    }
    return StoreConfig(**(settings | changes))


def run_interrupted(work: Callable[[], object], step: int, other: Callable[[], object]) -> bool:
    """Run ``work``, and ``other`` before its instruction number ``step``; return False if it has not so many.

    Only instructions of the store's modules count. ``other`` stands for another thread, or is `kill_process`.
    """
    steps_left = step

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal steps_left
        if "/storage/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps_left -= 1
            if steps_left == -1:
                sys.settrace(None)
                other()
        return trace if steps_left >= 0 else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps_left < 0


class NoticedLock:
    """A lock that calls ``note_wait`` before a thread waits for it."""

    def __init__(self, note_wait: Callable[[], None]) -> None:
        self._note_wait = note_wait
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._note_wait()
            assert self._lock.acquire(timeout=THREAD_TIMEOUT_S)

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def run_beside(
    store: MessageStore, work: Callable[[], object], step: int, other: Callable[[], object]
) -> bool:
    """Do what `run_interrupted` does with ``other`` in a thread of its own, which may wait for a deletion of topics.

    Then ``work`` goes on, and ``other`` as soon as it can.
    """
    ended_or_waits = threading.Event()
    problems: list[BaseException] = []

    def run_other() -> None:
        try:
            other()
        except BaseException as problem:  # noqa: BLE001 - raised by the thread of the test
            problems.append(problem)
        finally:
            ended_or_waits.set()

    def start_other() -> None:
        thread.start()
        assert ended_or_waits.wait(THREAD_TIMEOUT_S)

    thread = threading.Thread(target=run_other)
    for name in ("_lock", "_ends_lock"):
        setattr(store._deleted_topics, name, NoticedLock(ended_or_waits.set))
    is_interrupted = run_interrupted(work, step, start_other)
    if is_interrupted:
        thread.join(THREAD_TIMEOUT_S)
        assert not thread.is_alive()
    if problems:
        raise problems[0]
    return is_interrupted


def states_during(work: Callable[[], object], files: CrashFiles) -> list[CrashFiles]:
    """Run ``work``; return the files as a killed process would leave them, one after another.

    The files are compared before every instruction of the store's modules, and at the end. Only states that differ
    count, which are few, so that a test can try much with each of them.
    """
    states: list[CrashFiles] = []

    def note_state() -> None:
        if not states or not files.equals(states[-1]):
            states.append(copy_of_killed(files))

    def trace(frame: FrameType, event: str, argument: object) -> object:
        if "/storage/" not in frame.f_code.co_filename or frame.f_code.co_filename == files_module:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            note_state()
        return trace

    files_module = type(files).equals.__code__.co_filename
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    note_state()
    return states


def kill_process() -> None:
    """End the process: whoever runs this sees `ProcessKilled`, and the files stay as they are."""
    raise ProcessKilled


class WatchedFiles(CrashFiles):
    """Files that call ``before_operation`` before each operation, so that a test can crash a copy at any of them.

    Operations of the copies, and of ``before_operation`` itself, are not reported.
    """

    def __init__(self, capacity_bytes: int = 1 << 62) -> None:
        super().__init__(capacity_bytes)
        self.before_operation: Callable[[], object] | None = None

    def _begin_operation(self) -> None:
        super()._begin_operation()
        watcher, self.before_operation = self.before_operation, None
        if watcher is not None:
            watcher()
            self.before_operation = watcher


def copy_of_killed(files: CrashFiles) -> CrashFiles:
    """Return the files as the end of the process leaves them now."""
    return files.crash(random.Random(0), lose_unflushed=False)


class RecordedBuffer(bytearray):
    """The content of a mapped file that notes its changes, for tests that kill the process inside of one."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.changes: list[tuple[int, bytes, bytes]] = []  # place, bytes before, bytes after

    def __setitem__(self, position: Any, value: Any) -> None:
        if isinstance(position, slice) and isinstance(value, bytes):
            self.changes.append((position.start or 0, bytes(self[position]), value))
        super().__setitem__(position, value)


class LockIsHeld(Exception):
    """The other thread has come to a lock that is held, and waits."""


class HandoverLock:
    """A lock that calls ``hand_over`` before it is taken and after it was released, where other threads take turns."""

    def __init__(self, hand_over: Callable[[], None]) -> None:
        self._hand_over = hand_over
        self._is_held = False

    def __enter__(self) -> None:
        self._hand_over()
        if self._is_held:
            raise LockIsHeld
        self._is_held = True

    def __exit__(self, *error: object) -> None:
        self._is_held = False
        self._hand_over()


def hand_over_locks(
    store: MessageStore, work: Callable[[], object], at: int, other: Callable[[], object]
) -> bool:
    """Run ``work``, and ``other`` as another thread where a lock of the store is taken or released the ``at``-th time.

    Return False if there are not so many such places. ``other`` ends where it would wait for a lock.
    """
    turns = itertools.count()

    def hand_over() -> None:
        if next(turns) == at:
            with suppress(LockIsHeld):
                other()

    names = ("_flush_lock", "_checkpoint_lock")
    locks = {name: getattr(store, name) for name in names}
    try:
        for name in names:
            setattr(store, name, HandoverLock(hand_over))
        work()
    finally:
        for name, lock in locks.items():
            setattr(store, name, lock)
    return next(turns) > at
