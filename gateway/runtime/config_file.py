"""A JSON file of the broker's configuration directory: read with the official fallback, written atomically.

Each table knows the format of its own file. A table that changes is not written at once: the change marks it as dirty,
and `ChangingTable.save_changes` writes all changes together. Encoding a large table takes a second, so it is done in
slices between which other tasks run; a thread writes the bytes.
"""

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Protocol, TypeVar

import trio

from codec.constants import ResponseCode
from gateway.runtime.run_blocking import RunBlocking
from remoting.errors import RequestError
from storage.errors import StoreFull
from storage.files import NEW_SUFFIX

log = logging.getLogger(__name__)

T = TypeVar("T")


class SmallFiles(Protocol):
    """The part of the file system that a configuration file needs."""

    def read_small(self, path: str) -> bytes | None:
        """Return the whole file, None without one."""
        ...

    def write_small(self, path: str, data: bytes, backup: str | None = None) -> None:
        """Replace the file atomically: after a crash it holds the old content or the new.

        With ``backup`` the previous content stays under that name.
        """
        ...

    def replace_small(self, path: str, data: bytes, backup: str | None) -> None:
        """Replace the file so that it survives a killed process; a power failure before `flush_small` may tear it."""
        ...

    def flush_small(self, path: str) -> None:
        """Block until replaced content is on the disk."""
        ...


class ConfigFile:
    """A file such as ``config/topics.json``. Source: ConfigManager, 5.4.0.

    ``.bak`` is the previous content or, while content is being written to the disk, the last one that is safe from a
    power failure. ``is_expected``: the store was used before, so that a missing file is worth a line in the log.

    ``flush_store`` is for a file of progress through messages: it blocks until the messages stored so far are on the
    disk, and each save calls it first. Otherwise a power failure could leave the progress and lose the messages written
    because of it, such as the copy of a half message or the retry of a popped one.
    """

    def __init__(
        self,
        files: SmallFiles,
        path: str,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
        *,
        is_expected: bool = False,
        flush_store: Callable[[], object] | None = None,
    ) -> None:
        self._files = files
        self._flush_store = flush_store
        self._is_expected = is_expected
        self.is_missing = False
        self.path = path
        self.run_blocking = run_blocking
        self.is_behind = False
        # The path of the content that survives a power failure; unknown for content found at the start.
        self._whole = ""
        # Content was found in the file itself: a process killed before it waited for the disk may have left it.
        self._is_found = False
        # The file was found torn, so that it must not replace the backup that was read instead.
        self._is_torn = False
        self._replaced = 0

    def load(self, parse: Callable[[bytes], T]) -> T | None:
        """Return the parsed content, or the backup's if the file is missing, empty or unreadable; None without either.

        Reading anything but the file itself is logged in one line. A missing file is written at the next save.
        Deviation: the official broker deletes a file that is empty or cannot be parsed, and starts with an empty table.
        Here the file stays, and without a readable backup ValueError is raised.
        """
        present = self._files.read_small(self.path)
        if present is None:
            # A process killed within `replace` leaves the new content, a power failure within the first `save`
            # a part of it.
            with suppress(ValueError, RequestError):
                if new := self._files.read_small(self.path + NEW_SUFFIX):
                    return parse(new)
        faults = []
        for path in (self.path, self.path + ".bak"):
            data = present if path == self.path else self._files.read_small(path)
            try:
                if data is None:
                    continue
                if not data.strip():
                    raise ValueError("it is empty")
                parsed = parse(data)
            except (ValueError, RequestError) as error:
                faults.append(f"{path} cannot be read: {error}")
            else:
                self._is_found = path == self.path
                self._is_torn = path != self.path and present is not None
                if path != self.path:
                    reason = faults[0] if faults else f"{self.path} is missing"
                    log.warning("table read from its backup", extra={"path": path, "reason": reason})
                return parsed
        if faults:
            raise ValueError(
                f"{'; '.join(faults)}. Restore it from a copy, or delete it (and its .bak) to begin with an empty table"
            )
        self.is_missing = True
        if self._is_expected:
            log.warning("table is missing, beginning with an empty one", extra={"path": self.path})
        return None

    def save(self, data: bytes) -> None:
        """Replace the content. Raises StoreFull, OSError if it cannot be written."""
        if self._flush_store is not None:
            self._flush_store()
        self._files.write_small(self.path, data, None if self._is_torn else self.path + ".bak")
        self._whole = self.path
        self._is_torn = False
        self.is_missing = False

    def replace(self, data: bytes) -> None:
        """Replace the content without waiting for the disk, if a power failure leaves other content to read.

        After a power failure the content is the new one or, until `mark_flushed`, the one on the disk before.
        """
        if not self._whole:
            self.save(data)
            return
        backup = self.path + ".bak"
        self._files.replace_small(self.path, data, backup if self._whole == self.path else None)
        self._whole = backup
        self._replaced += 1

    def unflushed_mark(self) -> int | None:
        """Return a mark of the present content; None if it is safe from a power failure, or there is none."""
        is_safe = self._whole == self.path or not (self._whole or self._is_found)
        return None if self.is_behind or is_safe else self._replaced

    def wait_for_disk(self) -> None:
        """Block until the present content is on the disk. Thread-safe; raises OSError."""
        self._files.flush_small(self.path)

    def mark_flushed(self, mark: int) -> None:
        """Record that the content with this mark, from `unflushed_mark`, is on the disk."""
        if mark == self._replaced:
            self._whole = self.path

    def flush(self) -> bool:
        """Wait for the disk if necessary. Return False, after logging it, if the content must be written again.

        A second flush of the same file would prove nothing, see `storage/flush_guard.py`.
        """
        mark = self.unflushed_mark()
        if mark is None:
            return True
        if not self._try(self.wait_for_disk):
            return False
        self.mark_flushed(mark)
        return True

    def try_save(self, data: bytes) -> None:
        """Call `save`; a failure is logged once and sets `is_behind`.

        For tables whose changes take effect even if they cannot be written: a full disk must not stop work that needs
        no space. Source: ConfigManager.persist, 5.4.0, which logs the failure.
        """
        self._try(lambda: self.save(data))

    def report_failure(self, error: Exception) -> None:
        """Log that the content was not written: once, until a write succeeds again."""
        if not self.is_behind:
            log.error("configuration file not written", extra={"path": self.path, "reason": str(error)})
        self.is_behind = True

    def _try(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except (StoreFull, OSError) as error:
            self.report_failure(error)
            return False
        self.is_behind = False
        return True


def replace_entry(table: dict[str, T], key: str, value: T | None) -> None:
    """Set an entry of a table, or remove it if ``value`` is None."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


class ChangingTable:
    """Base of tables that change continually: written at intervals and when the broker stops.

    A subclass sets ``_dirty`` when it changes, and implements `to_json` or, if it may grow large, `encode_slices`.
    """

    def __init__(self, file: ConfigFile) -> None:
        self.file = file
        self._dirty = False
        # Two tasks save. Two threads that write one file at once could leave parts of both contents.
        self._saving = trio.Lock()

    @property
    def is_dirty(self) -> bool:
        """True if something changed since the last write."""
        return self._dirty

    def to_json(self) -> bytes:
        """Return the content of the file."""
        return b"".join(self.encode_slices())

    def encode_slices(self) -> Iterator[bytes]:
        """Yield the content of the file in parts, each encoded in about a millisecond. The table may change between."""
        yield self.to_json()

    def prepare_save(self) -> None:
        """Remove entries that need not be saved."""

    def persist(self) -> None:
        """Write the file if something changed since the last write. Raises StoreFull, OSError.

        A missing file of a table without changes is written, too; there a failure loses nothing, and is only logged.
        """
        self.prepare_save()
        if self._dirty:
            content = self.to_json()
            self._dirty = False
            try:
                self._write(content)
            except BaseException:
                self._dirty = True
                raise
        elif self.file.is_missing:
            self.file.try_save(self.to_json())

    async def save_changes(self) -> None:
        """Write the file as `persist` does, while other tasks run. Every change made before the call is written.

        Raises StoreFull, OSError; then the next call tries again.
        """
        async with self._saving:
            self.prepare_save()
            has_changes = self._dirty
            if has_changes or self.file.is_missing:
                self._dirty = False
                try:
                    content = await self.encode()
                    await self.file.run_blocking(partial(self._write, content))
                except BaseException:
                    # A missing file alone leaves nothing to lose: a stop that cannot write it either must not fail.
                    self._dirty |= has_changes
                    raise

    async def encode(self) -> bytes:
        """Return the content of the file, encoded in slices between which other tasks run."""
        parts = []
        for part in self.encode_slices():
            parts.append(part)
            await trio.lowlevel.checkpoint()
        return b"".join(parts)

    def _write(self, data: bytes) -> None:
        self.file.save(data)


class SettingsTable(ChangingTable):
    """Base of tables of settings, such as topics: written soon after a change, and before an administrator's answer.

    Once written, the file survives a killed process; after the next `settle` also a power failure.

    A change that an administrator is told of is made within `stored_change`: if it cannot be written, it is undone and
    refused. A change that the broker makes by itself, such as a topic created by a send, stays in effect, and the next
    save tries again. Deviation: the official broker logs that a file cannot be written, and confirms the change.
    Source: ConfigManager.persist, 5.4.0.

    Several changes share one write. If it fails, all changes since the last write are undone, newest first, those that
    came during the write included: an older state could not be restored below a newer change.
    """

    def __init__(self, file: ConfigFile) -> None:
        super().__init__(file)
        self._changed = trio.Event()
        # How to undo the changes that are not in the file yet, oldest first.
        self._undo_steps: list[Callable[[], None]] = []
        self._failed_saves = 0
        self._last_failure = ""

    def note_change(self, undo: Callable[[], None] | None = None) -> None:
        """Record that the table differs from its file. ``undo`` takes the change back if it cannot be written."""
        if undo is not None:
            self._undo_steps.append(undo)
        self._dirty = True
        self._changed.set()

    @asynccontextmanager
    async def stored_change(self) -> AsyncIterator[None]:
        """Write the changes made within the context before it ends. If that fails, undo them and raise RequestError."""
        failed_saves = self._failed_saves
        yield
        if self._failed_saves == failed_saves:
            await self.save_changes()
        elif self._undo_steps:
            # Another request's write failed meanwhile, and undid the first part of these changes. The rest is undone
            # between two writes: a running one counts the undo steps of the changes that it covers.
            async with self._saving:
                self._undo_changes(self._last_failure)
        if self._failed_saves != failed_saves:
            name = os.path.basename(self.file.path)
            remark = (
                f"the change was not stored and is undone: {name} cannot be written ({self._last_failure})"
            )
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)

    def _undo_changes(self, reason: str) -> None:
        steps, self._undo_steps = self._undo_steps, []
        self._failed_saves += 1
        self._last_failure = reason
        for step in reversed(steps):
            step()
        if steps:
            log.warning(
                "changes that cannot be stored undone", extra={"path": self.file.path, "changes": len(steps)}
            )
        self.note_change()

    async def wait_until_dirty(self) -> None:
        """Wait until there is something to save."""
        while not self._dirty:
            self._changed = trio.Event()
            await self._changed.wait()

    def _write(self, data: bytes) -> None:
        self.file.replace(data)
        self.file.is_behind = False

    def persist(self) -> None:
        """Write the file if something changed, and wait for the disk. A failure is logged."""
        with self._failures_logged():
            super().persist()
            self._undo_steps.clear()
        if not self.file.flush():
            self._dirty = True

    async def save_changes(self) -> None:
        """Write the file if something changed. Every change made before the call is written.

        If the disk fails, that is logged, and the changes are undone that have a way to be undone.
        """
        async with self._saving:
            self.prepare_save()
            if not self._dirty and not self.file.is_missing:
                return
            covered = len(self._undo_steps)
            self._dirty = False
            try:
                content = await self.encode()
                await self.file.run_blocking(partial(self._write, content))
            except (StoreFull, OSError) as error:
                self.file.report_failure(error)
                self._undo_changes(
                    error.reason if isinstance(error, StoreFull) else error.strerror or str(error)
                )
            except BaseException:
                self._dirty = True
                raise
            else:
                del self._undo_steps[:covered]

    async def settle(self) -> None:
        """Wait in a thread until what was written is safe from a power failure. A failure is logged."""
        async with self._saving:
            mark = self.file.unflushed_mark()
            if mark is not None:
                with self._failures_logged():
                    await self.file.run_blocking(self.file.wait_for_disk)
                    self.file.mark_flushed(mark)

    @contextmanager
    def _failures_logged(self) -> Iterator[None]:
        try:
            yield
        except (StoreFull, OSError) as error:
            self.note_change()
            self.file.report_failure(error)
