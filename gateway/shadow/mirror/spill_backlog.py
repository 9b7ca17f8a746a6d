"""A backlog with files behind it: what waits long is on disk, comes back in order, and outlives the process.

While all is well nothing is written. From the first failure of the target on, or when memory is half full, everything
that waits is in the files, also what memory has room for, until the target takes it and memory holds the rest; so a
process that is killed leaves what it owed. What is over is noted before the next go begins: the next process looks at
the target for what may be there (`finding.IN_DOUBT`) and repeats nothing else.
Memory holds at most `queue_bytes`, a quarter of that on its way to disk, and what one read brings back.
Not responsible for the files' layout (spill).
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Final

import trio

from gateway.runtime.run_blocking import RunBlocking
from gateway.shadow.mirror.backlog import BACKLOG_FULL, Backlog, BacklogEntry
from gateway.shadow.mirror.duplicate_check import MAX_IN_DOUBT_MESSAGES, mark_maybe_delivered
from gateway.shadow.mirror.exchange_codec import decode_exchange, encode_exchange
from gateway.shadow.mirror.settings import MirrorSettings
from gateway.shadow.mirror.spill_queue import SpillQueue, SpillRecovery
from gateway.shadow.traffic.subject import subject_of

log = logging.getLogger(__name__)

MAX_READ_BYTES: Final = 1024 * 1024
MAX_WRITE_MESSAGES: Final = 5_000


class SpillBacklog(Backlog):
    """First in, first out: what was taken, memory, then the files, then `_tail`, which is on its way there.

    ``owner`` says what the directory's files are for; what an earlier process left for another owner is set aside.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        directory: str,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
        owner: str = "",
    ) -> None:
        super().__init__(settings.queue_messages, settings.queue_bytes)
        self._run_blocking = run_blocking
        self._spill_queue = SpillQueue(directory, settings.spill_bytes, settings.spill_file_bytes, owner)
        self._out: deque[BacklogEntry] = deque()
        self._tail: deque[BacklogEntry] = deque()
        self._tail_bytes = 0
        self._tail_limit = settings.queue_bytes // 4
        self._writing = 0
        self._changed = trio.Event()
        self._opened = trio.Event()
        self._on_disk = False
        """Whether everything that comes goes to the files."""
        self._uncovered: deque[BacklogEntry] = deque()
        """What came before that and is not there yet."""
        self._logged = 0
        """Entries in memory, or taken, that are in the files as well."""
        self._failed = False
        """Whether the target failed with what it was given last."""
        self._unnoted = False
        self._noting = False
        self._in_doubt = 0
        self.spilled = 0
        self.unidentified = 0

    def __len__(self) -> int:
        return len(self._queue) + self.spilled + self._writing + len(self._tail)

    @property
    def on_disk(self) -> int:  # type: ignore[override] # it never is set
        """See `Backlog`."""
        return self.spilled + self._logged

    @property
    def _is_open(self) -> bool:
        return self._opened.is_set()

    # -- the stream's side --------------------------------------------------------------------------------------

    @property
    def can_take(self) -> bool:
        """See `Backlog`. Nothing is taken while it is not noted what is over."""
        return bool(self._queue) and not self._unnoted and not self._noting

    def append(self, entry: BacklogEntry) -> bool:
        """See `Backlog`."""
        waits = self._tail or self._writing or self._on_disk or not self._is_open
        if not waits and self._has_room(entry):
            self._append_to_memory(entry)
            if self._is_half_full:
                self._cover()
            return True
        if self._tail_bytes + entry.size > self._tail_limit:
            self.dropped(entry, BACKLOG_FULL)
            return False
        self._tail.append(entry)
        self._tail_bytes += entry.size
        self._changed.set()
        return True

    def take_entries(self, count: int) -> list[BacklogEntry]:
        """See `Backlog`. No more messages than the next process could look for, but at least one exchange."""
        if self._logged:
            count = min(count, self._few_enough())
        taken = super().take_entries(count)
        self._out.extend(taken)
        return taken

    def _few_enough(self) -> int:
        messages = 0
        for number, entry in enumerate(self._queue):
            messages += entry.subject.count
            if messages > MAX_IN_DOUBT_MESSAGES:
                return max(1, number)
        return len(self._queue)

    def put_back(self, entries: list[BacklogEntry]) -> None:
        """See `Backlog`. The target has failed: from now on everything is kept on disk."""
        super().put_back(entries)
        for entry in entries:
            self._out.remove(entry)
        self._failed = True
        self._cover()

    def finish_entry(self, entry: BacklogEntry) -> None:
        """See `Backlog`."""
        super().finish_entry(entry)
        self._out.remove(entry)
        entry.is_finished, self._failed = True, False
        if entry.sequence >= 0:
            self._logged -= 1
            self._unnoted = True
        if self._unnoted or self._on_disk or self._tail:
            self._changed.set()

    @property
    def _is_half_full(self) -> bool:
        return self.size_bytes * 2 > self._max_bytes or len(self._queue) * 2 > self._max_messages

    def _cover(self) -> None:
        """From now on everything is written, what waits already first."""
        if self._on_disk or not self._is_open:
            return
        self._on_disk = True
        self._uncovered = deque(entry for entry in chain(self._out, self._queue) if entry.sequence < 0)
        self._changed.set()

    # -- the files' side ----------------------------------------------------------------------------------------

    async def wait_until_opened(self) -> None:
        """See `Backlog`."""
        await self._opened.wait()

    async def run(self, ready: Callable[[], None]) -> None:
        """Moves what waits, until cancelled; may be called again after it failed."""
        if not self._is_open:
            await self._open()
        while True:
            if self._unnoted:
                await self._note()
                ready()
            elif self._uncovered:
                await self._write_uncovered()
            elif self.spilled and not self._is_half_full:
                await self._read()
                ready()
            elif self._tail:
                await self._move_tail()
                ready()
            else:
                self._leave_disk()
                self._changed = trio.Event()
                await self._changed.wait()

    def _leave_disk(self) -> None:
        """What comes now stays in memory, behind all that is on disk, if the target takes what it gets."""
        if not (self.spilled or self._uncovered or self._failed or self._is_half_full):
            self._on_disk = False

    async def _open(self) -> None:
        left = SpillRecovery()
        try:
            left = await self._run_blocking(self._spill_queue.recover)
        except OSError as problem:
            log.warning("spill directory cannot be used", extra={"reason": str(problem)})
        for text in left.problems:
            log.error("what an earlier run left on disk is damaged", extra={"reason": text})
        if left.set_aside_as:
            log.error("what is on disk is for another configuration", extra={"set_aside": left.set_aside_as})
        if left.count or left.torn_tail:
            self.resumed(left.count + left.torn_tail)
        if left.torn_tail:
            self.lost(1, "; ".join(left.problems))
        if left.count:
            log.info("going on with what an earlier run left on disk", extra={"exchanges": left.count})
            self._on_disk = True
            self.spilled = self.unidentified = left.count
            self._in_doubt = MAX_IN_DOUBT_MESSAGES
        self._opened.set()

    async def _note(self) -> None:
        self._unnoted, self._noting = False, True
        try:
            await self._run_blocking(partial(self._spill_queue.save_position, self._first()))
        except OSError as problem:
            log.error("after a crash much would be mirrored again", extra={"reason": str(problem)})
        finally:
            self._noting = False

    def _first(self) -> int:
        """What goes on after a crash begins with the first that is not over."""
        if self._logged:
            for entry in chain(self._out, self._queue):
                if entry.sequence >= 0:
                    return entry.sequence
        return self._spill_queue.read_sequence

    async def _write_uncovered(self) -> None:
        count = min(len(self._uncovered), MAX_WRITE_MESSAGES)
        entries = [
            entry for entry in (self._uncovered.popleft() for _ in range(count)) if not entry.is_finished
        ]
        try:
            first = await self._run_blocking(partial(self._append_all, entries))
        except Exception as problem:  # noqa: BLE001 - whatever it is, memory still has them
            self._uncovered.clear()
            log.error("what waits in memory is not on disk", extra={"reason": str(problem)})
            return
        self._number(entries, first)

    def _number(self, entries: list[BacklogEntry], first: int) -> None:
        """These are in the files and in memory."""
        for sequence, entry in enumerate(entries, first):
            entry.sequence = sequence
            self._logged += not entry.is_finished
            self._unnoted |= entry.is_finished
        self._spill_queue.skip_to(first + len(entries))

    async def _move_tail(self) -> None:
        if self._has_room(self._tail[0]):
            self._leave_disk()
        if self._on_disk:
            await self._write()
        elif self._has_room(self._tail[0]):
            while self._tail and self._has_room(self._tail[0]):
                self._append_to_memory(self._from_tail())
            if self._is_half_full:
                self._cover()
        else:
            self._cover()

    def _from_tail(self) -> BacklogEntry:
        entry = self._tail.popleft()
        self._tail_bytes -= entry.size
        return entry

    async def _write(self) -> None:
        entries = [self._tail.popleft() for _ in range(min(len(self._tail), MAX_WRITE_MESSAGES))]
        self._writing = len(entries)
        problem: Exception | None = None
        first = -1
        try:
            first = await self._run_blocking(partial(self._append_all, entries))
        except Exception as error:  # noqa: BLE001 - whatever it is, they are counted
            problem = error
        except trio.Cancelled:  # before anything was written
            self._tail.extendleft(reversed(entries))
            self._writing = 0
            raise
        self._writing = 0
        self._tail_bytes -= sum(entry.size for entry in entries)
        if problem is None:
            self._written(entries, first)
            return
        for entry in entries:
            if not self.spilled and self._has_room(entry):
                self._append_to_memory(entry)
            else:
                self.dropped(entry, f"not kept on disk: {problem}")

    def _written(self, entries: list[BacklogEntry], first: int) -> None:
        """What memory has room for need not be read again, if nothing before it has to be."""
        known = 0
        while not self.spilled and known < len(entries) and self._has_room(entries[known]):
            self._append_to_memory(entries[known])
            known += 1
        if known:
            self._number(entries[:known], first)
        self.spilled += len(entries) - known

    def _append_all(self, entries: list[BacklogEntry]) -> int:
        return self._spill_queue.append_records([encode_exchange(entry.exchange) for entry in entries])

    async def _read(self) -> None:
        found = await self._run_blocking(partial(self._spill_queue.read_records, MAX_READ_BYTES))
        self.spilled -= len(found.records) + found.lost
        for sequence, payload in found.records:
            try:
                exchange = decode_exchange(payload)
                entry = BacklogEntry(exchange, subject_of(exchange))
            except Exception as problem:  # noqa: BLE001 - of another version of this program, perhaps
                self._lose(1, f"an exchange in {found.path} is not understood: {problem!r}")
                continue
            entry.sequence = sequence
            self._logged += 1
            self._know(entry)
            self._append_to_memory(entry)
        if found.lost:
            self._lose(found.lost, f"{found.path} is damaged: {found.lost} exchanges are lost")

    def _lose(self, count: int, reason: str) -> None:
        log.error("exchanges on disk are lost", extra={"reason": reason})
        self.unidentified = max(0, self.unidentified - count)
        self._unnoted = True
        self.lost(count, reason)

    def _know(self, entry: BacklogEntry) -> None:
        """What an earlier process left, and perhaps brought to the target in its last moment."""
        if not self.unidentified:
            return
        self.unidentified -= 1
        entry.resumed = True
        self.known(entry)
        if self._in_doubt > 0:
            self._in_doubt -= entry.subject.count
            mark_maybe_delivered(entry.exchange, entry.subject.count)

    def close(self) -> None:
        """Writes what is in no file yet, so that the next process goes on with it; blocks."""
        waiting = [entry for entry in chain(self._out, self._queue, self._tail) if entry.sequence < 0]
        if not self._is_open:
            return
        try:
            self._spill_queue.save_position(self._first())
            if waiting:
                self._append_all(waiting)
        except OSError as problem:
            reason = {"count": len(waiting), "reason": str(problem)}
            log.error("what waits is not kept on disk at the end", extra=reason)
