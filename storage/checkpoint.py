"""The checkpoint file: the time up to which everything has been flushed."""

import struct

from storage.files import Files

_FIELDS = struct.Struct(">qqqqq")
_FILE_BYTES = 4096
_MARGIN_MS = 3000


class StoreCheckpoint:
    """Five 64-bit numbers at the start of a 4 KiB file. Source: StoreCheckpoint, 5.4.0.

    ``confirm_offset`` is used here for the physical offset below which queue entries are on the disk.
    """

    __slots__ = (
        "_file",
        "_files",
        "_path",
        "confirm_offset",
        "index_timestamp",
        "log_timestamp",
        "master_offset",
        "queues_timestamp",
    )

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._file = files.open_mapped(path, _FILE_BYTES)
        self._file.reserve(0, _FILE_BYTES)
        fields = _FIELDS.unpack_from(self._file.buffer)
        self.log_timestamp, self.queues_timestamp, self.index_timestamp = fields[:3]
        self.master_offset, self.confirm_offset = fields[3:]

    @property
    def safe_timestamp(self) -> int:
        """The time, in ms, up to which stored messages survive a power cut, in the log and in their queues.

        Source: StoreCheckpoint.getMinTimestamp, 5.4.0.
        """
        safe: int = min(self.log_timestamp, self.queues_timestamp) - _MARGIN_MS
        return max(0, safe)

    def write(self) -> None:
        """Block until the numbers are on the disk. They share one disk sector, so they change together."""
        _FIELDS.pack_into(
            self._file.buffer,
            0,
            self.log_timestamp,
            self.queues_timestamp,
            self.index_timestamp,
            self.master_offset,
            self.confirm_offset,
        )
        self._files.flush(self._path)

    def close(self) -> None:
        self._file.close()
