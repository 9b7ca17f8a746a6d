"""A backlog that writes to disk while the target is in trouble, and that the next process resumes.

Theory of operation
-------------------
Problem: a target that is down must cost neither the primary's clients nor the messages it misses, and a gateway that is
killed meanwhile must not lose the messages that the target has not got yet. But while all is well, nothing should be
written at all.

An entry is in one of four places, in the order in which entries leave: *in flight* (taken by the stream), in the
*memory* queue, *only on disk* (`spilled`), or in the *tail*, which waits to be written. Entries in flight and in memory
may be on disk too.

Invariant: entries leave in the order in which they were appended, and once spilling has started, every entry is written
to the spill queue before any later one.

1. In memory-only mode `append` puts entries into memory. Nothing is written.
2. When the target fails (`put_back`) or memory is half full, `_start_spilling` switches over: entries already in memory
   are written first (`_unwritten`), and new ones go to the tail and from there to disk.
3. `run` moves entries in this priority: save the position, write `_unwritten`, read spilled records back while memory
   is less than half full, write the tail.
4. When nothing is only on disk and the target takes entries again, the backlog returns to memory-only mode.

The *position* in the spill queue says where the next process resumes. It is saved after each batch with finished
records, and `can_take` is False until that has happened. So a killed process leaves at most one batch in doubt: written
to the target, perhaps, but not recorded as finished. A batch therefore holds at most `MAX_IN_DOUBT_MESSAGES` messages,
and the next process marks that number of its first messages as possible duplicates: the writer searches the target for
them before it sends them.

After SIGKILL the next process lacks entries that were only in memory or in the tail; `mirror.py` notices the gap by the
next queue offset. After an orderly end (`close`) nothing is missing.

Memory is bounded by `queue_bytes`, plus a quarter of that for the tail, plus one read of `MAX_READ_BYTES`.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from struct import Struct
from typing import Final

import trio

from gateway.runtime.run_blocking import RunBlocking
from gateway.shadow.mirror.backlog import BACKLOG_FULL, Backlog, BacklogEntry, BacklogListener
from gateway.shadow.mirror.settings import MirrorSettings
from gateway.shadow.mirror.spill_queue import SpillQueue, SpillRecovery
from gateway.shadow.traffic.exchange import Exchange, Side
from gateway.shadow.traffic.subject import subject_of

MAX_READ_BYTES: Final = 1024 * 1024
MAX_WRITE_MESSAGES: Final = 5_000
_HEAD: Final = Struct(">iqqdddBIIHHH")
"""Code, connection, wall clock (ms), times of request, forwarding and answer (s), flags, sizes of the two frames and
of the three texts."""
_HAS_ANSWER, _REVERSE, _BY_TARGET = 1, 2, 4
MAX_IN_DOUBT_MESSAGES: Final = 1_024
"""Maximum number of messages per stream that a killed process may have delivered without having recorded it."""


class SpillBacklog(Backlog):
    """A `Backlog` with a spill queue on disk.

    ``owner`` describes the target and rule that the directory's records belong to; records of another owner are set
    aside.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        listener: BacklogListener,
        directory: str,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
        owner: str = "",
    ) -> None:
        super().__init__(settings.queue_messages, settings.queue_bytes, listener)
        self._run_blocking = run_blocking
        self._spill_queue = SpillQueue(directory, settings.spill_bytes, settings.spill_file_bytes, owner)
        self._in_flight: deque[BacklogEntry] = deque()
        self._tail: deque[BacklogEntry] = deque()
        self._tail_bytes = 0
        self._max_tail_bytes = settings.queue_bytes // 4
        self._being_written = 0
        """Entries that have left the tail and are being written."""
        self._changed = trio.Event()
        self._opened = trio.Event()
        self._is_spilling = False
        """True while everything that comes in goes to disk."""
        self._unwritten: deque[BacklogEntry] = deque()
        """Entries that were in memory when spilling started and are not on disk yet."""
        self._in_both = 0
        """Entries in memory, or taken, that are on disk as well."""
        self._spilled = 0
        self._unidentified = 0
        self._target_failed = False
        """True if the target failed with the latest batch."""
        self._position_is_stale = False
        self._is_saving_position = False
        self._in_doubt_messages = 0
        """Number of further resumed messages that an earlier process may have delivered."""

    def __len__(self) -> int:
        return len(self._queue) + self._spilled + self._being_written + len(self._tail)

    @property
    def spilled(self) -> int:
        """Number of entries that are only on disk."""
        return self._spilled

    @property
    def on_disk(self) -> int:
        """Number of entries on disk, whether or not they are in memory too."""
        return self._spilled + self._in_both

    @property
    def unidentified(self) -> int:
        """Number of resumed entries that have not been read yet."""
        return self._unidentified

    # -- the stream's side --------------------------------------------------------------------------------------

    @property
    def can_take(self) -> bool:
        """Tell whether entries can be taken: not before the position after the previous batch has been saved."""
        return bool(self._queue) and not self._position_is_stale and not self._is_saving_position

    def append(self, entry: BacklogEntry) -> bool:
        """Append an entry to memory, or to the tail while spilling; without room, report it as dropped."""
        # While anything before it is on disk or on its way there, an entry in memory would overtake it.
        must_queue_up = self._tail or self._being_written or self._is_spilling or not self._opened.is_set()
        if not must_queue_up and self._has_room(entry):
            self._append_to_memory(entry)
            if self._is_half_full:
                self._start_spilling()
            return True
        if self._tail_bytes + entry.size > self._max_tail_bytes:
            self._listener.on_dropped(entry, BACKLOG_FULL)
            return False
        # It goes to disk as bytes; the decoded commands would only take memory until then.
        entry.exchange.forget_decoded()
        self._tail.append(entry)
        self._tail_bytes += entry.size
        self._changed.set()
        return True

    def take_entries(self, max_count: int) -> list[BacklogEntry]:
        """Take entries from the front. With entries on disk: at most `MAX_IN_DOUBT_MESSAGES` messages, or one entry."""
        # Only entries that are on disk can come twice, after a crash. In memory-only mode the batch is as large as
        # asked for.
        if self._in_both:
            max_count = min(max_count, self._max_batch_entries())
        entries = super().take_entries(max_count)
        self._in_flight.extend(entries)
        return entries

    def _max_batch_entries(self) -> int:
        messages = 0
        for number, entry in enumerate(self._queue):
            messages += entry.subject.count
            if messages > MAX_IN_DOUBT_MESSAGES:
                return max(1, number)
        return len(self._queue)

    def put_back(self, entries: list[BacklogEntry]) -> None:
        """Return taken entries to the front. The target has failed with them, so spilling starts."""
        super().put_back(entries)
        for entry in entries:
            self._in_flight.remove(entry)
        self._target_failed = True
        self._start_spilling()

    def finish_entry(self, entry: BacklogEntry) -> None:
        """Forget a taken entry whose outcome is known; the position on disk is then out of date."""
        super().finish_entry(entry)
        self._in_flight.remove(entry)
        entry.is_finished, self._target_failed = True, False
        if entry.sequence >= 0:
            self._in_both -= 1
            self._position_is_stale = True
        if self._position_is_stale or self._is_spilling or self._tail:
            self._changed.set()

    @property
    def _is_half_full(self) -> bool:
        return self.size_bytes * 2 > self._max_bytes or len(self._queue) * 2 > self._max_messages

    def _start_spilling(self) -> None:
        """Send everything to disk from now on, beginning with the entries that are in memory already."""
        if self._is_spilling or not self._opened.is_set():
            return
        self._is_spilling = True
        self._unwritten = deque(entry for entry in chain(self._in_flight, self._queue) if entry.sequence < 0)
        self._changed.set()

    def _stop_spilling_if_drained(self) -> None:
        """Return to memory-only mode if nothing is only on disk and the target takes what it gets."""
        if not (self._spilled or self._unwritten or self._target_failed or self._is_half_full):
            self._is_spilling = False

    # -- the disk's side ----------------------------------------------------------------------------------------

    async def wait_until_opened(self) -> None:
        """Return once the records of an earlier process are counted."""
        await self._opened.wait()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Move entries between memory and disk until cancelled. May be called again after it raised."""
        if not self._opened.is_set():
            await self._recover()
        while True:
            if self._position_is_stale:
                await self._save_position()
                on_ready()
            elif self._unwritten:
                await self._write_unwritten()
            elif self._spilled and not self._is_half_full:
                await self._read_back()
                on_ready()
            elif self._tail:
                await self._move_tail()
                on_ready()
            else:
                self._stop_spilling_if_drained()
                self._changed = trio.Event()
                await self._changed.wait()

    async def _recover(self) -> None:
        # An unusable directory must not stop mirroring: without it the backlog works from memory.
        recovery = SpillRecovery()
        try:
            recovery = await self._run_blocking(self._spill_queue.recover)
        except OSError as problem:
            log.warning("spill directory cannot be used", extra={"reason": str(problem)})
        for text in recovery.problems:
            log.error("spill files of an earlier run are damaged", extra={"reason": text})
        if recovery.set_aside_as:
            log.error(
                "spill files of another configuration set aside", extra={"set_aside": recovery.set_aside_as}
            )
        if recovery.count or recovery.torn_tail:
            self._listener.on_resumed(recovery.count + recovery.torn_tail)
        # One record at least is lost. It is counted as observed too, so that the counts still add up.
        if recovery.torn_tail:
            self._listener.on_lost(1, "; ".join(recovery.problems))
        if recovery.count:
            log.info("resuming exchanges that an earlier run spilled", extra={"exchanges": recovery.count})
            self._is_spilling = True
            self._spilled = self._unidentified = recovery.count
            # The killed process may have delivered its last batch without recording it.
            self._in_doubt_messages = MAX_IN_DOUBT_MESSAGES
        self._opened.set()

    async def _save_position(self) -> None:
        # Cleared before the thread starts: entries that finish meanwhile make it stale again.
        self._position_is_stale, self._is_saving_position = False, True
        try:
            await self._run_blocking(partial(self._spill_queue.save_position, self._resume_sequence()))
        except OSError as problem:
            log.error(
                "spill position not saved; a crash now would mirror exchanges twice",
                extra={"reason": str(problem)},
            )
        finally:
            self._is_saving_position = False

    def _resume_sequence(self) -> int:
        """Return the sequence number of the first record that is not finished."""
        if self._in_both:
            # The oldest entry on disk that is not finished. Those before it in memory are not on disk at all.
            for entry in chain(self._in_flight, self._queue):
                if entry.sequence >= 0:
                    return entry.sequence
        return self._spill_queue.read_sequence

    async def _write_unwritten(self) -> None:
        count = min(len(self._unwritten), MAX_WRITE_MESSAGES)
        candidates = [self._unwritten.popleft() for _ in range(count)]
        # What the target has taken meanwhile need not be written.
        entries = [entry for entry in candidates if not entry.is_finished]
        try:
            first = await self._run_blocking(partial(self._append_records, entries))
        except Exception as problem:  # noqa: BLE001 - whatever the disk does, the entries are still in memory
            # The rest would most likely fail as well. All of it stays in memory; only a crash would lose it.
            self._unwritten.clear()
            log.error("waiting exchanges are in memory only", extra={"reason": str(problem)})
            return
        self._number_entries(entries, first)

    def _number_entries(self, entries: list[BacklogEntry], first: int) -> None:
        """Note the sequence numbers of entries that are in memory and now on disk too."""
        for sequence, entry in enumerate(entries, first):
            entry.sequence = sequence
            self._in_both += not entry.is_finished
            # Finished while it was being written.
            self._position_is_stale |= entry.is_finished
        # They are in memory, so reading them back would double them.
        self._spill_queue.skip_to(first + len(entries))

    async def _move_tail(self) -> None:
        if self._has_room(self._tail[0]):
            self._stop_spilling_if_drained()
        if self._is_spilling:
            await self._write_tail()
        elif self._has_room(self._tail[0]):
            # Spilling has ended before the tail was written: it moves to memory without touching the disk.
            while self._tail and self._has_room(self._tail[0]):
                entry = self._tail.popleft()
                self._tail_bytes -= entry.size
                self._append_to_memory(entry)
            if self._is_half_full:
                self._start_spilling()
        else:
            self._start_spilling()

    async def _write_tail(self) -> None:
        entries = [self._tail.popleft() for _ in range(min(len(self._tail), MAX_WRITE_MESSAGES))]
        self._being_written = len(entries)
        problem: Exception | None = None
        first = -1
        try:
            first = await self._run_blocking(partial(self._append_records, entries))
        except Exception as error:  # noqa: BLE001 - whatever the disk does, each entry is accounted for below
            problem = error
        except trio.Cancelled:  # raised before the thread starts, so nothing was written
            self._tail.extendleft(reversed(entries))
            self._being_written = 0
            raise
        self._being_written = 0
        self._tail_bytes -= sum(entry.size for entry in entries)
        if problem is None:
            self._place_written(entries, first)
            return
        for entry in entries:
            # The disk is full or broken, but memory has room, and nothing on disk comes before it.
            if not self._spilled and self._has_room(entry):
                self._append_to_memory(entry)
            else:
                self._listener.on_dropped(entry, f"not written to disk: {problem}")

    def _place_written(self, entries: list[BacklogEntry], first: int) -> None:
        """Keep written entries in memory too while there is room, which saves reading them back.

        This is only possible while nothing before them is only on disk.
        """
        in_memory = 0
        while not self._spilled and in_memory < len(entries) and self._has_room(entries[in_memory]):
            self._append_to_memory(entries[in_memory])
            in_memory += 1
        if in_memory:
            self._number_entries(entries[:in_memory], first)
        self._spilled += len(entries) - in_memory

    def _append_records(self, entries: list[BacklogEntry]) -> int:
        return self._spill_queue.append_records([encode_exchange(entry.exchange) for entry in entries])

    async def _read_back(self) -> None:
        batch = await self._run_blocking(partial(self._spill_queue.read_records, MAX_READ_BYTES))
        self._spilled -= len(batch.records) + batch.lost
        for sequence, payload in batch.records:
            try:
                exchange = decode_exchange(payload)
                entry = BacklogEntry(exchange, subject_of(exchange))
            except Exception as problem:  # noqa: BLE001 - perhaps written by another version of this program
                self._report_lost(1, f"cannot decode an exchange in {batch.path}: {type(problem).__name__}")
                continue
            entry.sequence = sequence
            self._in_both += 1
            self._identify(entry)
            self._append_to_memory(entry)
        if batch.lost:
            self._report_lost(batch.lost, f"{batch.path} is damaged: {batch.lost} exchanges are lost")

    def _report_lost(self, count: int, reason: str) -> None:
        log.error("spilled exchanges lost", extra={"reason": reason})
        self._unidentified = max(0, self._unidentified - count)
        self._position_is_stale = True
        self._listener.on_lost(count, reason)

    def _identify(self, entry: BacklogEntry) -> None:
        """Mark an entry of an earlier process, and whether that process may have delivered it before it ended."""
        if not self._unidentified:
            return
        self._unidentified -= 1
        entry.resumed = True
        self._listener.on_identified(entry)
        if self._in_doubt_messages > 0:
            self._in_doubt_messages -= entry.subject.count
            # The rest of that process's batch may be stored after it at the target.
            entry.exchange.search_depth = MAX_IN_DOUBT_MESSAGES + entry.subject.count

    def close(self) -> None:
        """Write everything that is only in memory, so that the next process resumes it. Blocks."""
        waiting = [entry for entry in chain(self._in_flight, self._queue, self._tail) if entry.sequence < 0]
        if not self._opened.is_set():
            return
        try:
            self._spill_queue.save_position(self._resume_sequence())
            if waiting:
                self._append_records(waiting)
        except OSError as problem:
            log.error(
                "waiting exchanges not written to disk at the end",
                extra={"count": len(waiting), "reason": str(problem)},
            )


# -- exchanges as payloads of spill records ------------------------------------------------------------------------


def encode_exchange(exchange: Exchange) -> bytes:
    """Return an exchange as bytes, numbers big-endian.

    The format has no version or checksum of its own: `spill_queue.py` stores both.
    """
    texts = [text.encode() for text in (exchange.client, exchange.upstream, exchange.broker)]
    answer = exchange.answer or b""
    flags = (
        (_HAS_ANSWER if exchange.answer is not None else 0)
        | (_REVERSE if exchange.reverse else 0)
        | (_BY_TARGET if exchange.side is Side.TARGET else 0)
    )
    head = _HEAD.pack(
        exchange.code,
        exchange.connection,
        exchange.wall_ms,
        exchange.asked_s,
        exchange.forwarded_s,
        exchange.answered_s,
        flags,
        len(exchange.request),
        len(answer),
        *map(len, texts),
    )
    return b"".join((head, exchange.request, answer, *texts))


def decode_exchange(payload: bytes) -> Exchange:
    """Return the exchange of bytes made by `encode_exchange`. The bytes have passed their checksum and are trusted."""
    code, connection, wall_ms, asked_s, forwarded_s, answered_s, flags, *sizes = _HEAD.unpack_from(payload)
    parts, at = [], _HEAD.size
    for size in sizes:
        parts.append(payload[at : at + size])
        at += size
    request, answer, client, upstream, broker = parts
    return Exchange(
        code,
        request,
        answer if flags & _HAS_ANSWER else None,
        connection=connection,
        client=client.decode(),
        upstream=upstream.decode(),
        broker=broker.decode(),
        wall_ms=wall_ms,
        asked_s=asked_s,
        forwarded_s=forwarded_s,
        answered_s=answered_s,
        reverse=bool(flags & _REVERSE),
        side=Side.TARGET if flags & _BY_TARGET else Side.PRIMARY,
    )


log = logging.getLogger(__name__)
