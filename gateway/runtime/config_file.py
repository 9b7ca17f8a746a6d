"""One JSON file of the broker's configuration directory: read with the official fallback, written atomically.

Not responsible for what is in it (each table knows its own format) nor for when it is written.
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
    """What a configuration file needs of the file system."""

    def read_small(self, path: str) -> bytes | None:
        """The whole file, None when there is none."""
        ...

    def write_small(self, path: str, data: bytes) -> None:
        """Replaces the file atomically: after a crash it holds the old content or the new."""
        ...

    def replace_small(self, path: str, data: bytes, backup: str | None) -> None:
        """The same for a process that is killed; a power cut before `flush_small` may tear the file."""
        ...

    def flush_small(self, path: str) -> None:
        """Blocks until what was replaced is on the disk."""
        ...


class ConfigFile:
    """A file such as ``config/topics.json``. Source: ConfigManager, 5.4.0.

    Deviation: ``.bak`` is no copy of what was there before each change, but the last content that a power cut
    cannot tear, while the disk still works on a newer one.
    """

    def __init__(self, files: SmallFiles, path: str) -> None:
        self._files = files
        self.path = path
        self.is_behind = False
        # The path of what no power cut takes away; of what is found at the start nobody knows.
        self._whole = ""
        self._replaced = 0

    def load(self, parse: Callable[[bytes], T]) -> T | None:
        """The parsed content; the backup's when the file is missing, empty or unreadable; None when neither
        is there.

        Deviation: a file that cannot be parsed is kept, the official broker deletes it; and when the backup
        cannot be parsed either, ValueError says so instead of a start with empty tables.
        """
        if self._files.read_small(self.path) is None:
            # Who was killed within `replace` left the new content; a power cut within the first `save`, a part of it.
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
        """Replaces the content. Raises StoreFull, OSError when the disk refuses."""
        self._files.write_small(self.path, data)
        self._whole = self.path

    def replace(self, data: bytes) -> None:
        """The same, and does not wait for the disk where there is content to fall back to.

        After a power cut the content is the new one or, until `settled`, what was on the disk before.
        """
        if not self._whole:
            self.save(data)
            return
        backup = self.path + ".bak"
        self._files.replace_small(self.path, data, backup if self._whole == self.path else None)
        self._whole = backup
        self._replaced += 1

    def unflushed_mark(self) -> int | None:
        """A mark of the present content, None when no power cut can take it away any more, or none was written."""
        return None if self.is_behind or self._whole in (self.path, "") else self._replaced

    def wait_for_disk(self) -> None:
        """Blocks until the present content is on the disk. Thread safe; raises OSError."""
        self._files.flush_small(self.path)

    def mark_flushed(self, mark: int) -> None:
        """The disk was waited for after `unsettled` gave this mark."""
        if mark == self._replaced:
            self._whole = self.path

    def flush(self) -> None:
        """Waits for the disk where that is still to be done; when it refuses, that is said."""
        mark = self.unflushed_mark()
        if mark is not None and self._try(self.wait_for_disk):
            self.mark_flushed(mark)

    def try_replace(self, data: bytes) -> None:
        """`replace`; when the disk refuses, that is said once and `is_behind` set."""
        self._try(lambda: self.replace(data))

    def try_save(self, data: bytes) -> None:
        """`save`; when the disk refuses, that is said once and `is_behind` set.

        For tables whose changes count all the same: a full disk must not end what needs no room.
        Source: ConfigManager.persist, 5.4.0, which logs the failure.
        """
        self._try(lambda: self.save(data))

    def report_failure(self, error: Exception) -> None:
        """The disk did not take the content: said once, until something was written again."""
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
    """What one file keeps and what changes all the time: written now and then, and when the broker stops."""

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        self._dirty = False

    def to_json(self) -> bytes:
        """The content of the file."""
        raise NotImplementedError

    def persist(self) -> None:
        """Writes the file when something changed since the last time. Raises StoreFull, OSError."""
        data = self.take_unsaved()
        if data is not None:
            self.save(data)

    def take_unsaved(self) -> bytes | None:
        """The file's new content, None when nothing changed; what `save`, which may run in a thread, writes."""
        if not self._dirty:
            return None
        self._dirty = False
        return self.to_json()

    def save(self, data: bytes) -> None:
        """Writes the file; after a failure the next `persist` tries again."""
        try:
            self._file.save(data)
        except BaseException:
            self._dirty = True
            raise
