"""Appends records to capture files in blocks, starts new files, and deletes the oldest.

Synchronous, for a worker thread, one call at a time. A block is appended completely or not at all: after a failed write
the file is truncated to its last good size, and the records stay in the builder for the next attempt. A crash leaves a
file without index; readers then walk its blocks and report a torn last one.
"""

import errno
import logging
import time
from collections.abc import Callable

from codec.capture import BlockBuilder, CaptureBlock, CaptureRecord, encode_header, encode_index
from codec.errors import CaptureError
from gateway.shadow.capture.files import SUFFIX, AppendFile, CaptureFolder
from gateway.shadow.capture.settings import CaptureSettings

log = logging.getLogger(__name__)


class RotatedFiles:
    """Appends records to the newest file. A block that could not be written is kept and tried again."""

    def __init__(
        self,
        settings: CaptureSettings,
        folder: CaptureFolder,
        gateway: str,
        run: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._gateway = gateway
        self._run = run
        self._now_ms = now_ms
        self._builder = BlockBuilder()
        self._file: AppendFile | None = None
        self._name = ""
        self._size = 0
        self._created_ms = 0
        self._sequence = 0
        self._blocks: list[CaptureBlock] = []
        self.written_records = 0
        self.written_bytes = 0
        self.deleted_files = 0

    @property
    def pending_records(self) -> int:
        """Records of the block that was not written yet."""
        return self._builder.count

    def add_record(self, record: CaptureRecord) -> None:
        """Add a record and write the block when it is full. If it raises OSError, the record is kept and `flush` tries
        again."""
        try:
            self._builder.add_record(record)
        except CaptureError:  # The block holds the most texts it can, as with tens of thousands of clients.
            self.flush()
            self._builder.add_record(record)
        if self._builder.size_bytes >= self._settings.block_bytes:
            self.flush()

    def flush(self) -> None:
        """Write the records that are not written yet. If it raises OSError, they are kept."""
        if not self._builder.count:
            return
        if self._is_file_full() or self.is_file_expired():
            self._finish_file()
        if self._file is None:
            self._open_file()
        self._check_free_space()
        data, block = self._builder.build(self._size, self._settings.compression_level)
        # The builder is replaced after the write: a block that could not be written is tried again.
        self._append_or_undo(data)
        self._blocks.append(block)
        self.written_records += block.records
        self._builder = BlockBuilder()
        if self._settings.fsync == "block" and self._file is not None:
            self._file.sync()

    def is_file_expired(self) -> bool:
        """Return whether the open file has reached its maximum age."""
        return (
            self._file is not None and self._now_ms() - self._created_ms >= self._settings.file_age_s * 1000
        )

    def close_expired_file(self) -> None:
        """Close the open file if it has reached its maximum age, even when there is no traffic."""
        if self.is_file_expired():
            self._finish_file()

    def close(self) -> None:
        """Write pending records and the index, and close the file. Raises OSError if the records cannot be written."""
        try:
            self.flush()
        finally:
            self._finish_file()

    def _is_file_full(self) -> bool:
        grown = self._size + self._builder.size_bytes
        return bool(self._blocks) and grown > self._settings.file_bytes

    def _open_file(self) -> None:
        self._delete_oldest_files()
        self._created_ms = self._now_ms()
        header = encode_header(self._created_ms, self._gateway, self._run)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._created_ms / 1000))
        while self._file is None:
            self._sequence += 1
            self._name = f"capture-{stamp}{self._created_ms % 1000:03d}Z-{self._sequence:06d}{SUFFIX}"
            try:
                self._file = self._folder.create(self._name)
            except FileExistsError:
                continue
        self._size, self._blocks = 0, []
        try:
            self._append_or_undo(header)
        except OSError:
            self._abandon_file()
            self._folder.delete(self._name)
            raise

    def _delete_oldest_files(self) -> None:
        """Delete the oldest files until the next one fits into the limits."""
        sizes = self._list_sizes()
        names = list(sizes)
        total = sum(sizes.values()) + self._settings.file_bytes
        max_files, max_bytes = self._settings.max_files, self._settings.max_total_bytes
        while names and ((max_files and len(names) + 1 > max_files) or (max_bytes and total > max_bytes)):
            oldest = names.pop(0)
            self._folder.delete(oldest)
            total -= sizes[oldest]
            self.deleted_files += 1
            log.info("capture file deleted to keep the limits", extra={"file": oldest})

    def _list_sizes(self) -> dict[str, int]:
        try:
            return self._folder.sizes()
        except FileNotFoundError:
            return {}

    def _check_free_space(self) -> None:
        reserve = self._settings.reserve_bytes
        if reserve and self._folder.free_bytes() < reserve:
            raise OSError(errno.ENOSPC, f"less than {reserve} bytes (reserve_bytes) are free on the disk")

    def _append_or_undo(self, data: bytes) -> None:
        """Append all of the data or nothing; a file that cannot be truncated after a failed write is abandoned."""
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError:
            try:
                self._file.truncate(self._size)
            except OSError:
                self._abandon_file()
            raise
        self._size += len(data)
        self.written_bytes += len(data)

    def _finish_file(self) -> None:
        """Write the index of the open file and close it. If that fails, the file stays without one: readers walk its
        blocks."""
        if self._file is None:
            return
        try:
            self._append_or_undo(encode_index(self._size, self._blocks))
            if self._settings.fsync != "never" and self._file is not None:
                self._file.sync()
        except OSError as error:
            log.warning("capture file left without index", extra={"file": self._name, "reason": str(error)})
        self._abandon_file()

    def _abandon_file(self) -> None:
        file, self._file = self._file, None
        self._blocks = []
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            log.warning("capture file not closed", extra={"file": self._name, "reason": str(error)})
