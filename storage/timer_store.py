"""Waiting timer messages on the disk: wheel, log and checkpoint as one; not when or how they are delivered.

One thread adds and delivers. `flush` may run in another at the same time.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final

from codec.message import QUEUE_OFFSET_AT
from storage.layout import LONG
from storage.store import MessageStore
from storage.timer_checkpoint import TimerCheckpoint, TimerPosition, TimerProgress
from storage.timer_log import MAGIC_DELETE, MAGIC_PART, TimerLog, TimerRecord
from storage.timer_wheel import DEFAULT_WHEEL_SLOTS, TimerWheel, WheelSlot

log = logging.getLogger(__name__)

_BLANK_SLOTS: Final = 60
_NOTHING: Final = (0, -1)


@dataclass(frozen=True, slots=True)
class TimerStoreConfig:
    """Where the files are and how large; ``wheel_slots`` differs from the official number in tests only."""

    root: str
    config_path: str
    precision_ms: int = 1000
    log_file_bytes: int = 100 << 20
    wheel_slots: int = DEFAULT_WHEEL_SLOTS


class TimerStore:
    """What waits, by slot. Source: TimerMessageStore, 5.4.0.

    `read_ms` is the first slot that is not wholly delivered, `queue_offset` the next message of the timer
    topic to be put into a slot; both move by `note`. Slots ahead are known in memory by their time and count.
    """

    def __init__(self, config: TimerStoreConfig, store: MessageStore, topic: str) -> None:
        files = store.files
        self._config = config
        self._store = store
        self._topic = topic
        self._wheel = TimerWheel(files, config.root + "/timerwheel", config.precision_ms, config.wheel_slots)
        self._log = TimerLog(files, config.root + "/timerlog", config.log_file_bytes)
        self._checkpoint = TimerCheckpoint(files, config.config_path + "/timercheck")
        self._times: list[int] = []
        self._counts: dict[int, int] = {}
        self._flushed: TimerProgress | None = None
        self.read_ms = 0
        self.queue_offset = 0
        self.delivered_up_to = _NOTHING
        self.already_chained: set[int] = set()
        self._recover()

    @property
    def precision_ms(self) -> int:
        return self._config.precision_ms

    @property
    def is_slot_partly_delivered(self) -> bool:
        """Whether the slot `read_ms` is delivered in part."""
        return self.delivered_up_to != _NOTHING

    @property
    def wheel_span_ms(self) -> int:
        """How far ahead of `read_ms` a slot may be. Source: TimerMessageStore.slotsTotal, 5.4.0."""
        return self._config.wheel_slots // 2 * self._config.precision_ms

    def slot_start_ms(self, time_ms: int) -> int:
        """The slot that holds a time."""
        return time_ms // self._config.precision_ms * self._config.precision_ms

    # -- opening -------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Source: TimerMessageStore.recover, 5.4.0.

        Deviation: messages behind the checkpoint's queue offset that are in the log already are `known`, so
        that they are not put there twice.
        """
        position, progress = self._checkpoint.position, self._checkpoint.load_progress()
        ours = progress is not None
        self._log.recover(position.log_position - (0 if ours else self._config.log_file_bytes))
        if progress is not None and not self._holds(progress):
            log.warning("timer messages: progress was lost with the machine, some may come twice")
            progress = None
        self._revise(position.log_position - (0 if ours else self._config.log_file_bytes))
        self._go_on_from(position, progress)
        now_ms = self._store.clock.now_ms()
        oldest = self.slot_start_ms(now_ms) - self.wheel_span_ms + _BLANK_SLOTS * self.precision_ms
        if self.read_ms < oldest:
            self.read_ms, self.delivered_up_to = oldest, _NOTHING
        self._load_slots()
        self._flushed = self._progress()

    def _holds(self, progress: TimerProgress) -> bool:
        return self._log.end >= progress.log_end and self._store.max_physical_offset >= progress.commit_end

    def _go_on_from(self, position: TimerPosition, progress: TimerProgress | None) -> None:
        mark = position.log_position
        if progress is not None:
            self.queue_offset, self.read_ms = progress.queue_offset, progress.read_ms
            self.delivered_up_to = (progress.due_ms, progress.position)
            mark = progress.log_end
        else:
            self.queue_offset = min(position.queue_offset, position.master_queue_offset)
            self.read_ms = position.read_ms
        last = None
        for record in self._log.records_from(mark):
            self.already_chained.add(record.physical_offset)
            last = record
        if last is not None and not any(position.pack()):
            self.queue_offset = self._queue_offset_of(last) + 1
        low = self._store.min_offset(self._topic, 0)
        self.queue_offset = min(max(self.queue_offset, low), self._store.max_offset(self._topic, 0))

    def _queue_offset_of(self, record: TimerRecord) -> int:
        view = self._store.message_at(record.physical_offset)
        return -1 if view is None else int(LONG.unpack_from(view, QUEUE_OFFSET_AT)[0])

    def _revise(self, start: int) -> None:
        """Makes the wheel agree with the log: what it lacks is added, what the log lost goes."""
        torn: dict[int, int] = {}
        for slot in self._wheel.used_slots():
            if slot.last >= self._log.end:
                torn[slot.time_ms] = slot.first
                self._wheel.write_slot(WheelSlot(slot.time_ms, -1, -1, 0))
        for record in self._log.records_from(min([max(start, 0), *torn.values()])):
            self._relink(record)

    def _relink(self, record: TimerRecord) -> None:
        if record.magic & MAGIC_PART:
            return
        time_ms = self.slot_start_ms(record.slot_time_ms)
        slot = self._wheel.find_slot(time_ms) or WheelSlot(time_ms, -1, -1, 0)
        if slot.last < record.position:
            self._wheel.write_slot(_grown(slot, record.position, record.magic))

    def _load_slots(self) -> None:
        last = self.read_ms + 2 * self.wheel_span_ms
        self._counts = {
            slot.time_ms: slot.messages
            for slot in self._wheel.used_slots()
            if self.read_ms <= slot.time_ms < last and slot.last >= 0
        }
        self._times = list(self._counts)
        heapify(self._times)

    # -- at work -------------------------------------------------------------------------------------------

    def chain_message(
        self,
        slot_ms: int,
        *,
        magic: int,
        write_ms: int,
        physical_offset: int,
        size: int,
        topic_hash: int,
        due_ms: int,
    ) -> TimerRecord:
        """Chains a message into a slot, which is not before `read_ms`; returns its record. Raises StoreFull."""
        slot = self._wheel.find_slot(slot_ms) or WheelSlot(slot_ms, -1, -1, 0)
        self._wheel.make_room(slot_ms)  # Before the log says that the record is there.
        position = self._log.make_room()
        delay_ms = slot_ms - write_ms
        record = TimerRecord(
            position, slot.last, magic, write_ms, delay_ms, physical_offset, size, topic_hash, due_ms
        )
        self._log.append(record)
        slot = _grown(slot, position, magic)
        self._wheel.write_slot(slot)
        if slot_ms not in self._counts:
            heappush(self._times, slot_ms)
        self._counts[slot_ms] = slot.messages
        return record

    def next_slot_ms(self) -> int | None:
        """The first slot from `read_ms` on that holds something; None when nothing waits."""
        return self._times[0] if self._times else None

    def pending_records(self, slot_ms: int) -> Iterator[TimerRecord]:
        """A slot's records that are not delivered yet, newest first. Of the slot `read_ms` some may be.

        ``due_ms`` 0 is left to the caller, who has the message.
        """
        slot = self._wheel.find_slot(slot_ms)
        return iter(()) if slot is None else self._log.chain_from(slot.last)

    def rewrite_slot(self, slot_ms: int, records: Sequence[TimerRecord]) -> None:
        """Makes these records all that a slot holds, so that who reads the files finds only them.

        Written anew behind all others; only the last one, by its magic, counts when the log is recovered.
        """
        first = previous = -1
        for number, record in enumerate(records, 1):
            magic = record.magic | MAGIC_PART if number < len(records) else record.magic & ~MAGIC_PART
            position = self._log.make_room()
            self._log.append(record._replace(position=position, previous=previous, magic=magic))
            first, previous = position if first < 0 else first, position
        self._wheel.write_slot(WheelSlot(slot_ms, first, previous, self._counts.get(slot_ms, 0)))

    def message_count(self, slot_ms: int) -> int:
        """Messages of a slot, without those taken back."""
        return self._counts.get(slot_ms, 0)

    @property
    def waiting_messages(self) -> int:
        """Messages of all slots from `read_ms` on. Source: TimerMessageStore.getAllCongestNum, 5.4.0."""
        return sum(self._counts.values())

    def finish_slot(self, slot_ms: int) -> None:
        """All of the first slot is delivered."""
        if self._times and self._times[0] == slot_ms:
            heappop(self._times)
            del self._counts[slot_ms]
        self.advance_to(slot_ms + self.precision_ms)

    def advance_to(self, read_ms: int) -> None:
        """Nothing waits before this slot."""
        if read_ms > self.read_ms:
            self.read_ms, self.delivered_up_to = read_ms, _NOTHING

    def save_progress(self) -> None:
        """Lets what was done so far survive the end of the process. Raises StoreFull."""
        self._checkpoint.save_progress(
            self.queue_offset,
            self.read_ms,
            *self.delivered_up_to,
            self._log.end,
            self._store.max_physical_offset,
        )

    def _progress(self) -> TimerProgress:
        return TimerProgress(
            self.queue_offset,
            self.read_ms,
            *self.delivered_up_to,
            self._log.end,
            self._store.max_physical_offset,
        )

    # -- keeping -------------------------------------------------------------------------------------------

    @property
    def position(self) -> TimerPosition:
        """The checkpoint as last written."""
        return self._checkpoint.position

    def take_unflushed_position(self) -> TimerPosition | None:
        """The next checkpoint, None when nothing was done since the last; what `flush` writes."""
        progress, before = self._progress(), self._flushed
        if before is not None and progress[:5] == before[:5]:
            return None
        self._flushed = progress
        self._checkpoint.save_progress(*progress)
        return replace(
            self._checkpoint.position,
            read_ms=self.read_ms,
            queue_offset=self.queue_offset,
            master_queue_offset=self.queue_offset,
            log_position=self._log.end,
            timestamp=self._store.clock.now_ms(),
            counter=self._checkpoint.position.counter + 1,
        )

    def flush(self, position: TimerPosition) -> None:
        """Blocks until the files hold what a position says, then writes it. Thread safe."""
        self._store.flush()
        self._log.flush()
        self._wheel.flush()
        self._checkpoint.write_position(position)

    def delete_expired_files(self) -> int:
        """Removes log files whose messages are gone."""
        return self._log.delete_expired_files(self._store.min_physical_offset)

    def close(self) -> None:
        """Closes the files; what `take_unsaved` had to say should be flushed before."""
        for part in (self._wheel, self._log, self._checkpoint):
            part.close()


def _grown(slot: WheelSlot, position: int, magic: int) -> WheelSlot:
    """A slot with one more record. Source: TimerMessageStore.doEnqueue, 5.4.0."""
    first = position if slot.first < 0 else slot.first
    return slot._replace(
        first=first, last=position, messages=slot.messages + (-1 if magic & MAGIC_DELETE else 1)
    )
