"""The checkpoint file: the time and the physical offset up to which everything has been flushed."""

import struct

from storage.files import Files

CHECKPOINT_FIELDS = struct.Struct(">qqqqq")
"""Times of log, queues and index (ms), master flushed offset, confirmed physical offset."""
CONFIRM_OFFSET_AT = 32
_TIMES = struct.Struct(">qq")
_OFFSETS = struct.Struct(">qq")
_TIME = struct.Struct(">q")
_INDEX_TIME_AT = 16
_OFFSETS_AT = 24
_INDEX_FLUSHED_AT = CHECKPOINT_FIELDS.size
_FILE_BYTES = 4096
_MARGIN_MS = 3000


class StoreCheckpoint:
    """Numbers at the start of a 4 KiB file: five official ones, and one of ours. Source: StoreCheckpoint, 5.4.0.

    ``log_timestamp`` and ``queues_timestamp``: messages stored up to this time, in ms, are on the disk, and an official
    broker that recovers the store need not index them. ``confirm_offset``: messages below this physical offset are on
    the disk together with their queue entries; 0 if that is not known. ``durable_confirm_offset`` is the one that the
    file on the disk has.

    ``index_timestamp`` is the end time of the index files, whether they are on the disk or not: after a crash an
    official broker deletes each file that ends later. ``index_flushed_until`` is ours: the time up to which they are on
    the disk. An official broker does not raise it, so after one it is too low, which is harmless.
    """

    __slots__ = (
        "_file",
        "_files",
        "_path",
        "confirm_offset",
        "durable_confirm_offset",
        "index_flushed_until",
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
        buffer = self._file.buffer
        fields = CHECKPOINT_FIELDS.unpack_from(buffer)
        self.log_timestamp, self.queues_timestamp, self.index_timestamp = fields[:3]
        self.master_offset, self.confirm_offset = fields[3:]
        self.durable_confirm_offset: int = self.confirm_offset
        (flushed_until,) = _TIME.unpack_from(buffer, _INDEX_FLUSHED_AT)
        self.index_flushed_until = flushed_until or self.index_timestamp

    @property
    def safe_timestamp(self) -> int:
        """The time, in ms, up to which stored messages survive a power cut, in the log and in their queues.

        Source: StoreCheckpoint.getMinTimestamp, 5.4.0.
        """
        safe: int = min(self.log_timestamp, self.queues_timestamp) - _MARGIN_MS
        return max(0, safe)

    def announce_index_end(self, end_ms: int) -> None:
        """Raise ``index_timestamp`` before an index file says that it ends at this time, without waiting for the disk.

        The thread that builds the index writes this field and no other.
        """
        if end_ms > self.index_timestamp:
            self.index_timestamp = end_ms
            _TIME.pack_into(self._file.buffer, _INDEX_TIME_AT, end_ms)

    def lower(self, confirm_offset: int, time_ms: int) -> None:
        """Block until the checkpoint covers nothing from a physical offset and a time on."""
        self.confirm_offset = min(self.confirm_offset, confirm_offset)
        self.log_timestamp = min(self.log_timestamp, time_ms)
        self.queues_timestamp = min(self.queues_timestamp, time_ms)
        self.index_timestamp = min(self.index_timestamp, time_ms)
        self.index_flushed_until = min(self.index_flushed_until, time_ms)
        _TIME.pack_into(self._file.buffer, _INDEX_TIME_AT, self.index_timestamp)
        self.write()

    def write(self) -> None:
        """Block until the numbers are on the disk. They share one disk sector, so they change together."""
        buffer = self._file.buffer
        confirm_offset = self.confirm_offset
        # Lowered before, raised after: retention reads it in another thread.
        self.durable_confirm_offset = min(self.durable_confirm_offset, confirm_offset)
        _TIMES.pack_into(buffer, 0, self.log_timestamp, self.queues_timestamp)
        _OFFSETS.pack_into(buffer, _OFFSETS_AT, self.master_offset, confirm_offset)
        _TIME.pack_into(buffer, _INDEX_FLUSHED_AT, self.index_flushed_until)
        self._files.flush(self._path)
        self.durable_confirm_offset = confirm_offset

    def close(self) -> None:
        self._file.close()
