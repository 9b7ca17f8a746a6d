"""A backlog with files behind it: what memory has no room for waits on disk, and comes back in order.

Memory holds at most `queue_bytes`, a quarter of that on its way to disk, and what one read brings back.
Not responsible for the files' layout (spill).
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from gateway.shadow.mirror.backlog import NO_ROOM, Backlog, Entry
from gateway.shadow.mirror.blocking import RunBlocking
from gateway.shadow.mirror.settings import Mirroring
from gateway.shadow.mirror.spill import SpillDamaged, SpillFiles, decode, encode
from gateway.shadow.mirror.subject import subject_of

log = logging.getLogger(__name__)

READ_BYTES: Final = 1024 * 1024
WRITE_MESSAGES: Final = 5_000


class SpillingBacklog(Backlog):
    """First in, first out: memory, then the files, then `_tail`, which is on its way there.

    What an earlier process left in the directory is deleted: nobody knows how much of it was mirrored.
    """

    def __init__(
        self, settings: Mirroring, directory: str, run_blocking: RunBlocking = trio.to_thread.run_sync
    ) -> None:
        super().__init__(settings.queue_messages, settings.queue_bytes)
        self._run_blocking = run_blocking
        self._files = SpillFiles(directory, settings.spill_bytes, settings.spill_file_bytes)
        self._tail: deque[Entry] = deque()
        self._tail_bytes = 0
        self._tail_limit = settings.queue_bytes // 4
        self._writing = 0
        self._changed = trio.Event()
        self.spilled = 0

    def __len__(self) -> int:
        return len(self._queue) + self.spilled + self._writing + len(self._tail)

    def put(self, entry: Entry) -> bool:
        """See `Backlog`."""
        if not self.spilled and not self._writing and not self._tail and self._has_room(entry):
            self._append(entry)
            return True
        if self._tail_bytes + entry.size > self._tail_limit:
            self.dropped(entry, NO_ROOM)
            return False
        self._tail.append(entry)
        self._tail_bytes += entry.size
        self._changed.set()
        return True

    def done(self, entry: Entry) -> None:
        """See `Backlog`."""
        super().done(entry)
        if self.spilled or self._tail:
            self._changed.set()

    async def run(self, ready: Callable[[], None]) -> None:
        """Moves what waits, until cancelled."""
        await self._prepare()
        while True:
            if self._tail and not self.spilled and self._has_room(self._tail[0]):
                self._shortcut()
                ready()
            elif (
                self.spilled
                and self.bytes * 2 <= self._max_bytes
                and len(self._queue) * 2 <= self._max_messages
            ):
                await self._read()
                ready()
            elif self._tail:
                await self._write()
            else:
                self._changed = trio.Event()
                await self._changed.wait()

    async def _prepare(self) -> None:
        try:
            left = await self._run_blocking(self._files.clear)
        except OSError as problem:
            log.warning("spill directory cannot be used", extra={"reason": str(problem)})
        else:
            if left:
                log.warning("what an earlier run left on disk is not mirrored", extra={"files": left})

    def _shortcut(self) -> None:
        """Nothing is on disk, and there is room again."""
        while self._tail and self._has_room(self._tail[0]):
            entry = self._tail.popleft()
            self._tail_bytes -= entry.size
            self._append(entry)

    async def _write(self) -> None:
        entries = [self._tail.popleft() for _ in range(min(len(self._tail), WRITE_MESSAGES))]
        self._writing = len(entries)
        try:
            await self._run_blocking(partial(self._append_all, entries))
        except OSError as problem:
            self._forget(entries)
            for entry in entries:
                self.dropped(entry, f"not kept on disk: {problem}")
        else:
            self._forget(entries)
            self.spilled += len(entries)

    def _forget(self, entries: list[Entry]) -> None:
        self._writing = 0
        self._tail_bytes -= sum(entry.size for entry in entries)

    def _append_all(self, entries: list[Entry]) -> None:
        self._files.append([encode(entry.exchange) for entry in entries])

    async def _read(self) -> None:
        try:
            payloads = await self._run_blocking(partial(self._files.read, READ_BYTES))
        except SpillDamaged as problem:
            log.error("exchanges on disk are lost", extra={"reason": str(problem)})
            self.spilled -= problem.lost
            self.lost(problem.lost, str(problem))
            return
        self.spilled -= len(payloads)
        for payload in payloads:
            exchange = decode(payload)
            self._append(Entry(exchange, subject_of(exchange)))
