"""Ends all flushing of a store after the first flush that failed.

Theory of operation
-------------------
**Problem.** When the disk refuses bytes, the system reports it to one flush. After that it may have dropped them, or
count them as written while they are only in its cache. A second flush of the same file then succeeds and proves
nothing ("fsyncgate"); a message that it seems to cover vanishes at the next power cut, or when the cache is needed for
something else.

**Invariant.** After a flush that failed, no flush of this store succeeds, so that nothing is acknowledged or recorded
as durable that the failed one covered.

**Steps.**

1. `FlushGuard.stop` remembers the reason. Every later flush raises FlushFailed, the checkpoint stays as it is, and the
   commit log refuses appends. Reads go on.
2. It writes to the abort file that a flush failed. The store stays marked as not cleanly closed.
3. The next opening makes the system forget what it caches of the store's files (`forget_cached_files`), so that they
   are read from the disk, and recovers as after a power cut. It fails while the disk still refuses to be written.

If step 2 fails as well, it is tried again with every later flush. If the process ends before it succeeds, the next
opening does not know of the failure; the log therefore says that the machine, and with it the cache, has to be started
anew.

Small files that are replaced as a whole need none of this: another try writes another file (`Files.write_small`).
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from storage.config import StoreConfig
from storage.errors import FlushFailed, StoreFull
from storage.files import Files
from storage.recovery import REBUILDING

log = logging.getLogger(__name__)

T = TypeVar("T")

FLUSH_FAILED: Final = b"a flush failed"
"""Content of the abort file, or its end, after a flush that failed."""


def forget_cached_files(config: StoreConfig, files: Files) -> None:
    """Have the files read from the disk if a flush failed in the last run. Raises FlushFailed."""
    if FLUSH_FAILED in (files.read_small(config.abort_path) or b""):
        log.warning("a flush failed in the last run, reading the disk", extra={"root": config.root})
        for directory in (config.root, config.commit_log_path):
            files.reread_from_disk(directory)


class FlushGuard:
    """Runs the flushes of one store, until one fails.

    ``failure`` is the error of the flush that failed, None before. ``refuse_appends`` is called with it. Thread
    safe.
    """

    def __init__(
        self, config: StoreConfig, files: Files, refuse_appends: Callable[[FlushFailed], None]
    ) -> None:
        self.failure: FlushFailed | None = None
        self._config = config
        self._files = files
        self._refuse_appends = refuse_appends
        self._lock = threading.Lock()
        self._noted = False

    def run(self, flush: Callable[[], T]) -> T:
        """Return what ``flush`` returns. Raises FlushFailed if it fails, or any has failed before."""
        self.check()
        try:
            return flush()
        except FlushFailed as error:
            self.stop(error)
            raise

    def check(self) -> None:
        """Raise FlushFailed if a flush has failed. It may wait for the disk then, to record the failure."""
        if self.failure is not None:
            with self._lock:
                self._note_for_next_opening()
            raise FlushFailed(str(self.failure), self.failure.reason)

    def stop(self, error: FlushFailed) -> None:
        """Make all later flushes fail, because of this error."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
            self._refuse_appends(error)
            log.error(
                "the store takes no more messages: check the disk, then restart the broker",
                extra={"root": self._config.root, "reason": str(error)},
            )
            self._note_for_next_opening()
            if not self._noted:
                log.error(
                    "the failed flush cannot be noted in the store: restart the machine, not only the broker",
                    extra={"path": self._config.abort_path},
                )

    def _note_for_next_opening(self) -> None:
        path = self._config.abort_path
        if self._noted:
            return
        abort_mark = self._files.read_small(path) or b""
        mark = REBUILDING + b", " + FLUSH_FAILED if abort_mark.startswith(REBUILDING) else FLUSH_FAILED
        with suppress(StoreFull, OSError):
            self._files.write_small(path, mark)
            self._noted = True
            log.info("the failed flush is noted in the store", extra={"path": path})
