"""A JSON file of the broker's configuration directory: read with the official fallback, written atomically.

Each table knows the format of its own file.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

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

    def write_small(self, path: str, data: bytes) -> None:
        """Replace the file atomically: after a crash it holds the old content or the new."""
        ...

    def replace_small(self, path: str, data: bytes, backup: str | None) -> None:
        """Replace the file so that it survives a killed process; a power failure before `flush_small` may tear it."""
        ...

    def flush_small(self, path: str) -> None:
        """Block until replaced content is on the disk."""
        ...


class ConfigFile:
    """A file such as ``config/topics.json``. Source: ConfigManager, 5.4.0.

    Deviation: ``.bak`` is not a copy of the previous content, but the last content that is safe from a power failure
    while newer content is still being written to the disk.
    """

    def __init__(self, files: SmallFiles, path: str) -> None:
        self._files = files
        self.path = path
        self.is_behind = False
        # The path of the content that survives a power failure; unknown for content found at the start.
        self._whole = ""
        self._replaced = 0

    def load(self, parse: Callable[[bytes], T]) -> T | None:
        """Return the parsed content, or the backup's if the file is missing, empty or unreadable; None without either.

        Deviation: a file that cannot be parsed stays, while the official broker deletes it. If the backup cannot be
        parsed either, ValueError is raised instead of starting with empty tables.
        """
        if self._files.read_small(self.path) is None:
            # A process killed within `replace` leaves the new content, a power failure within the first `save`
            # a part of it.
            with suppress(ValueError, RequestError):
                if new := self._files.read_small(self.path + NEW_SUFFIX):
                    return parse(new)
        fault: ValueError | None = None
        for path in (self.path, self.path + ".bak"):
            data = self._files.read_small(path)
            if not data:
                continue
            try:
                return parse(data)
            except (ValueError, RequestError) as error:
                log.error("configuration file cannot be read", extra={"path": path, "reason": str(error)})
                fault = ValueError(f"{path} cannot be read: {error}")
        if fault is not None:
            raise fault
        return None

    def save(self, data: bytes) -> None:
        """Replace the content. Raises StoreFull, OSError if it cannot be written."""
        self._files.write_small(self.path, data)
        self._whole = self.path

    def replace(self, data: bytes) -> None:
        """Replace the content without waiting for the disk, if there is content to fall back to.

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
        """Return a mark of the present content; None if it is safe from a power failure or nothing was written."""
        return None if self.is_behind or self._whole in (self.path, "") else self._replaced

    def wait_for_disk(self) -> None:
        """Block until the present content is on the disk. Thread-safe; raises OSError."""
        self._files.flush_small(self.path)

    def mark_flushed(self, mark: int) -> None:
        """Record that the content with this mark, from `unflushed_mark`, is on the disk."""
        if mark == self._replaced:
            self._whole = self.path

    def flush(self) -> None:
        """Wait for the disk if necessary; a failure is logged."""
        mark = self.unflushed_mark()
        if mark is not None and self._try(self.wait_for_disk):
            self.mark_flushed(mark)

    def try_replace(self, data: bytes) -> None:
        """Call `replace`; a failure is logged once and sets `is_behind`."""
        self._try(lambda: self.replace(data))

    def try_save(self, data: bytes) -> None:
        """Call `save`; a failure is logged once and sets `is_behind`.

        For tables whose changes take effect all the same: a full disk must not stop work that needs no space.
        Source: ConfigManager.persist, 5.4.0, which logs the failure.
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


class ChangingTable:
    """Base of tables that change all the time: written at intervals and when the broker stops."""

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        self._dirty = False

    def to_json(self) -> bytes:
        """Return the content of the file."""
        raise NotImplementedError

    def persist(self) -> None:
        """Write the file if something changed since the last write. Raises StoreFull, OSError."""
        data = self.take_unsaved()
        if data is not None:
            self.save(data)

    def take_unsaved(self) -> bytes | None:
        """Return the new content for `save`, which may run in a thread; None if nothing changed."""
        if not self._dirty:
            return None
        self._dirty = False
        return self.to_json()

    def save(self, data: bytes) -> None:
        """Write the file; after a failure the next `persist` tries again."""
        try:
            self._file.save(data)
        except BaseException:
            self._dirty = True
            raise
