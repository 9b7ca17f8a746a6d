"""The state file of one mirror direction: offset map and half messages, which must survive the process.

The file is one line with the CRC-32 of the rest in hexadecimal, then JSON. It is replaced as a whole.
"""

import logging
import os
from functools import partial
from zlib import crc32

import orjson
import trio

from gateway.runtime.run_blocking import RunBlocking
from gateway.shadow.mirror.half_messages import HalfMessages
from gateway.shadow.mirror.offset_map import OffsetMap

log = logging.getLogger(__name__)

STATE_VERSION = 1


class MirrorState:
    """The offset map and half messages of a direction; without a path they are in memory only."""

    def __init__(
        self,
        offsets: OffsetMap,
        halves: HalfMessages,
        path: str = "",
        interval_s: float = 5.0,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
    ) -> None:
        self.offsets = offsets
        self.halves = halves
        self._path = path
        self._run_blocking = run_blocking
        self._interval_s = interval_s
        self._saved_changes = 0

    @property
    def _changes(self) -> int:
        return self.offsets.changes + self.halves.changes

    def load_file(self) -> None:
        """Read the file. A missing file leaves everything empty; so does a damaged one, which is logged."""
        try:
            with open(self._path, "rb") as file:
                self.decode_state(file.read())
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError) as problem:
            log.warning("cannot read the mirror state", extra={"path": self._path, "reason": str(problem)})
        self._saved_changes = self._changes

    def decode_state(self, data: bytes) -> None:
        """Load the content of a state file. Raises ValueError, TypeError or KeyError when it is damaged."""
        checksum, _, text = data.partition(b"\n")
        if checksum != b"%08x" % crc32(text):
            raise ValueError("the checksum does not match")
        values = orjson.loads(text)
        if values["version"] != STATE_VERSION:
            raise ValueError(f"unknown version {values['version']}")
        self.offsets.load_rows(values["offsets"])
        self.halves.load_rows(values["halves"])

    def encode_state(self) -> bytes:
        """Return the content of the state file."""
        text = orjson.dumps(
            {"version": STATE_VERSION, "offsets": self.offsets.dump_rows(), "halves": self.halves.dump_rows()}
        )
        return b"%08x\n%b" % (crc32(text), text)

    async def run(self) -> None:
        """Write the file at intervals when something has changed, and once more when cancelled."""
        if not self._path:
            await trio.sleep_forever()
        try:
            while True:
                await trio.sleep(self._interval_s)
                await self._save_file()
        finally:
            if self._saved_changes != self._changes:
                _replace_file(self._path, self.encode_state())

    async def _save_file(self) -> None:
        changes = self._changes
        if changes == self._saved_changes:
            return
        try:
            await self._run_blocking(partial(_replace_file, self._path, self.encode_state()))
        except OSError as problem:
            log.warning("cannot write the mirror state", extra={"path": self._path, "reason": str(problem)})
        else:
            self._saved_changes = changes


def _replace_file(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".new", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)
