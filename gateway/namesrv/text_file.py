"""Small files that are replaced atomically, with the previous content beside them as .bak.

Theory of operation
-------------------
A write to the disk takes milliseconds, so none happens on the event loop. A table changes in memory at once; the
request that changed it calls `CoalescedFile.request_write` and waits for that write. `run` writes in a thread, one
write at a time: the requests that arrive meanwhile share the next write, so a flood of changes costs one write for each
trip to the disk. A write that fails is reported to every request that waited for it, and to those that arrived
meanwhile: their changes are undone, newest first, since an older state could not be restored below a newer change.

Invariant: the write that `request_write` returns begins after the call, so it contains every change made before.
"""

import logging
import math
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import trio

from gateway.runtime.run_blocking import RunBlocking

log = logging.getLogger(__name__)

RETRY_PAUSE_S: Final = 5.0
"""Longest time after a failed write before the next one."""

MAX_WAITING_CHANGES: Final = 5_000
"""Maximum number of requests that wait for one write. Only a disk that hangs makes so many wait."""


class TextFile(Protocol):
    """The file of a table: read once, replaced as a whole."""

    path: str

    def read(self) -> bytes | None:
        """Return the content, None when there is none yet."""
        ...

    def write(self, data: bytes) -> None:
        """Replace the content atomically: after a crash the file has the old or the new content."""
        ...


class AtomicTextFile:
    """A file that is replaced as a whole.

    Source: MixAll.string2File, 5.4.0; here the new content is flushed to the disk before it gets the file's name.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def read(self) -> bytes | None:
        """Return the content, or the backup's if the file is missing or empty; None when there is neither."""
        for path in (self.path, self.path + ".bak"):
            try:
                with open(path, "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                continue
            if data:
                return data
        return None

    def write(self, data: bytes) -> None:
        """Replace the content; it survives a power failure afterwards. Raises OSError when it cannot be written."""
        directory = os.path.dirname(self.path) or "."
        os.makedirs(directory, exist_ok=True)
        unfinished = self.path + ".tmp"
        try:
            with open(unfinished, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            # On a full disk it would take room, and a file of which a page could not be written must not be used again.
            with suppress(OSError):
                os.unlink(unfinished)
            raise
        if os.path.exists(self.path):
            os.replace(self.path, self.path + ".bak")
        os.replace(unfinished, self.path)
        _flush_directory(directory)


def _flush_directory(path: str) -> None:
    """Make renames in a directory durable, where the system can open directories."""
    with suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class StoreFailed(Exception):
    """A change could not be written to its file, and has been undone."""


class PendingWrite:
    """A write that has not ended; it covers the changes of every request that waits for it."""

    def __init__(self) -> None:
        self.requests = 0
        self.undo_steps: list[Callable[[], None]] = []
        self._ended = trio.Event()
        self._failure: Exception | None = None

    def end(self, failure: Exception | None) -> None:
        self._failure = failure
        self._ended.set()

    async def wait(self) -> None:
        """Wait until the content is on the disk. Raises StoreFailed."""
        await self._ended.wait()
        if self._failure is not None:
            # The text of an OSError names the file, which is for the log only.
            reason = self._failure.strerror if isinstance(self._failure, OSError) else None
            raise StoreFailed(reason or str(self._failure)) from self._failure


class CoalescedFile:
    """Writes the newest content of a table.

    ``take_content`` is called on the event loop and returns a function that encodes the content in a thread.
    """

    def __init__(
        self, file: TextFile, take_content: Callable[[], Callable[[], bytes]], run_blocking: RunBlocking
    ) -> None:
        self._file = file
        self._take_content = take_content
        self._run_blocking = run_blocking
        self._next = PendingWrite()
        self._changed = trio.Event()
        self._is_failing = False

    def request_write(self, undo: Callable[[], None] = lambda: None) -> PendingWrite:
        """Have `run` write the content as it is now, or newer. ``undo`` takes the change back if that fails."""
        self._changed.set()
        self._next.requests += 1
        self._next.undo_steps.append(undo)
        return self._next

    @property
    def is_full(self) -> bool:
        """True while as many requests as are allowed wait for the next write."""
        return self._next.requests >= MAX_WAITING_CHANGES

    @property
    def name(self) -> str:
        """The name of the file without its directory."""
        return os.path.basename(self._file.path)

    async def run(self) -> None:
        """Write after each request until cancelled, and then the changes that are not written yet.

        A write may fail after the file got its new content, for instance while the directory is flushed. The change is
        undone in memory, so the table is written again, at the latest after a pause.
        """
        try:
            while True:
                with trio.move_on_after(RETRY_PAUSE_S if self._is_failing else math.inf):
                    await self._changed.wait()
                await self._write()
        finally:
            if self._changed.is_set() or self._is_failing:
                with trio.CancelScope(shield=True):
                    await self._write()

    async def _write(self) -> None:
        pending, self._next, self._changed = self._next, PendingWrite(), trio.Event()
        encode, file = self._take_content(), self._file
        failure: Exception | None = None
        try:
            await self._run_blocking(lambda: file.write(encode()))
        except Exception as error:  # noqa: BLE001 - whatever it is, the waiting requests get it as their answer
            failure = error
            if not self._is_failing:
                log.error("file cannot be written", extra={"path": file.path, "reason": str(error)})
        finally:
            self._is_failing = failure is not None
            if failure is not None:
                self._undo(pending, failure)
            pending.end(failure)

    def _undo(self, pending: PendingWrite, failure: Exception) -> None:
        """Undo the changes of a write that failed, and those made since."""
        later, self._next, self._changed = self._next, PendingWrite(), trio.Event()
        for undo in reversed(pending.undo_steps + later.undo_steps):
            undo()
        later.end(failure)
