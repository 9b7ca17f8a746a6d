"""One direction of mirroring: its destination, check-back producer, and the state that must survive the process.

A mirror usually sends what the primary answered to the target. While the target leads a topic (mode target-primary), it
sends what the target answered back to the primary. So there are two directions, each with an offset map, half messages
and a producer of its own.

The state file is one line with the CRC-32 of the rest in hexadecimal, then JSON. It is replaced as a whole.
"""

import logging
import os
from functools import partial
from zlib import crc32

import orjson
import trio

from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.mirror.check_back_producer import CheckBackProducer, MakeCluster
from gateway.shadow.mirror.half_messages import HalfMessages
from gateway.shadow.mirror.offset_map import OffsetMap
from gateway.shadow.mirror.settings import MirrorSettings
from gateway.shadow.traffic.exchange import Side

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
            # Cancelled: written here, without a thread, because no await can succeed any more.
            if self._saved_changes != self._changes:
                _replace_file(self._path, self.encode_state())

    async def _save_file(self) -> None:
        # Read before the state is encoded: what changes while the thread writes is saved next time.
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
        # Synced before it takes the old file's place: after a power failure there is one of the two, and it is whole.
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


class MirrorDirection:
    """The cluster that one side's exchanges are written to, with the state and the producer for it.

    ``suffix`` is appended to the name of the state file, which the constructor reads.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        client_id: str,
        suffix: str,
        make_destination: MakeCluster,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
    ) -> None:
        path = settings.state_file and settings.state_file + suffix
        halves = HalfMessages(settings.half_messages)
        interval_s = settings.state_interval_ms / 1000
        self.state = MirrorState(OffsetMap(settings.offset_runs), halves, path, interval_s, run_blocking)
        self.producer = CheckBackProducer(client_id, halves, make_destination)
        self.destination = self.producer.target
        self.tasks = TaskSupervisor("mirror back" if suffix else "mirror forth")
        self.state.load_file()

    async def run(self) -> None:
        """Write the state file and send the producer's heartbeats, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tasks.keep_running, "save the mirror state", self.state.run)
            nursery.start_soon(self.tasks.keep_running, "heartbeats as a producer", self.producer.run)


def make_directions(
    settings: MirrorSettings,
    client_id: str,
    make_primary: MakeCluster,
    make_target: MakeCluster,
    run_blocking: RunBlocking = trio.to_thread.run_sync,
) -> dict[Side, MirrorDirection]:
    """Return both directions, keyed by the side whose exchanges are written to the other side."""
    return {
        Side.PRIMARY: MirrorDirection(settings, client_id, "", make_target, run_blocking),
        Side.TARGET: MirrorDirection(settings, client_id, ".back", make_primary, run_blocking),
    }
