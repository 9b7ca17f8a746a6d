"""Timer messages: read from the timer topic into the slots of a timer wheel, and delivered to the millisecond.

Problem: messages for any time within days must be delivered on time, exactly once if the broker stops cleanly and at
least once if it crashes, without holding them in memory.

1. `TimerScheduler` turns a message with a delivery time into one that is stored in the timer topic.
2. `read_topic` chains each message of the topic into the slot of its time: a record in the timer log, linked from the
   wheel. A time beyond the wheel's window goes into a nearer slot, from which it is written to the topic again
   (rolled). A message that is already due is delivered without a slot, unless older ones still wait.
3. `deliver_due` opens the first slot whose time has come, loads its records and delivers them in the order of their
   due times. A recall in the slot suppresses the message that it names; the topic is read first, so that the recall is
   known in time.
4. After each message the timer store records how far the slot is delivered. Then the next slot follows.

After a crash between the steps, work may be repeated but never skipped: the checkpoint holds the topic offset up to
which messages are chained and the position in the open slot, and both move only after the message was stored. `close`
rewrites a slot that is partly delivered with only its remaining messages, because an official broker that takes over
delivers whole slots.

`timer_scheduler.py` decides which messages wait, `timer_task.py` sleeps until they are due.
"""

import hashlib
import logging
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush
from typing import Final

from codec.errors import MessageFormatError
from codec.hashing import java_hash
from codec.java_numbers import I32
from codec.message import split_messages
from codec.properties import find_integer, find_property
from codec.topics import TIMER_TOPIC
from gateway.broker.delayed.timer_metrics import TimerMetrics
from gateway.broker.delayed.timer_scheduler import LONG_MAX, TIMER_KEYS, TimerScheduler, deliver_time_ms
from gateway.broker.delayed.timer_takeover import TimerTakeover
from gateway.broker.messages.damaged_records import RecordKind, RecordLocation
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.messages.waiting_message import (
    RealQueueWriter,
    WaitingMessage,
    parse_real_queue,
    parse_times_and_properties,
)
from gateway.broker.statistics.stored_counts import MessageType
from gateway.broker.waiting.wake_signal import WakeSignal
from gateway.config.process import BrokerConfig
from storage.errors import CorruptionError, MessageIllegal, PropertiesTooLong, StoreFull
from storage.timer_checkpoint import TimerPosition
from storage.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, TimerRecord
from storage.timer_store import TimerStore

log = logging.getLogger(__name__)

RETRY_MS: Final = 500
"""Pause of all deliveries after the store refused one.

Source: TimerMessageStore.TimerDequeuePutMessageService, 5.4.0.
"""
MESSAGES_PER_READ: Final = 64
LOADS_PER_DELIVERY: Final = 8
"""Loading this many records of a slot counts as one delivery, since it takes about as long."""
_TIMER_TOPIC: Final = TIMER_TOPIC.encode()
_topic_hash = lru_cache(maxsize=4096)(java_hash)
CLOCK_MARGIN_MS: Final = 3_000
"""A clock that is set back by less is waited for: messages are at most that late."""
DAMAGE_PAUSE_MS: Final = 10_000
"""Pause after the timer topic could not be read."""
_STAMPS: Final = re.compile(rb"(?:^|(?<=\x02))TIMER_(?:ENQUEUE|DEQUEUE)_MS\x01[^\x02]*\x02?")
_ROLL_TIMES: Final = re.compile(rb"(?:^|(?<=\x02))TIMER_ROLL_TIMES\x01[^\x02]*\x02?")


@dataclass(slots=True)
class OpenSlot:
    """The slot that is being delivered: messages left, soonest first, and the recalls found in it.

    ``due`` holds the due time and the position of each record, ``recalls`` positions by digests of keys. The records
    stay in the timer log: millions of messages may be due in one second.
    """

    time_ms: int
    unread: Iterator[TimerRecord] | None
    due: list[tuple[int, int]] = field(default_factory=list)
    recalls: dict[bytes, int] = field(default_factory=dict)
    matched_recalls: set[bytes] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Postponed:
    """Messages of finished slots, which wait in a later one while a clock that was set back is waited for.

    ``first_ms`` is the first of their own slots, ``last_ms`` the last one in which they wait.
    """

    first_ms: int
    last_ms: int

    @classmethod
    def at_start(cls, timers: TimerStore, now_ms: int) -> "Postponed":
        """Return what may be postponed when timer files are opened, which do not tell: nothing, in most cases."""
        is_ahead = timers.read_ms >= timers.slot_start_ms(now_ms)
        first_ms = timers.read_ms - CLOCK_MARGIN_MS - timers.precision_ms
        return cls(first_ms, timers.read_ms) if is_ahead else cls(0, -1)

    def with_message(self, slot_ms: int, waiting_ms: int) -> "Postponed":
        """Return the same with another message."""
        if self.last_ms < waiting_ms:
            return Postponed(slot_ms, waiting_ms)  # all before are delivered
        return Postponed(min(self.first_ms, slot_ms), self.last_ms)

    def first_waiting_ms(self, read_ms: int) -> int:
        """Return the first slot of which a message may wait. ``read_ms`` is the first that is not wholly delivered."""
        return min(self.first_ms, read_ms) if read_ms <= self.last_ms else read_ms


class TimerDelivery:
    """Moves timer messages from their topic into the wheel and from there to their real queues.

    Source: TimerMessageStore, 5.4.0. Deviation: a message is delivered at its time to the millisecond; the official
    broker delivers it with its slot, up to timerPrecisionMs later. A message that is refused for lack of disk space is
    tried again until it is stored.
    """

    def __init__(
        self,
        config: BrokerConfig,
        timer_store: TimerStore,
        services: MessageServices,
        metrics: TimerMetrics,
        takeover: TimerTakeover | None = None,
    ) -> None:
        store = services.store
        self._takeover = takeover
        self._timer_store = timer_store
        self._store = store
        self._clock = store.clock
        self._real_queues = RealQueueWriter(store, services.long_polls, services.stats, MessageType.DELAY)
        self._damaged = services.damaged
        self._stats = services.stats
        self._open_slot: OpenSlot | None = None
        self._postponed = Postponed.at_start(timer_store, store.clock.now_ms())
        self._refusal_pause_end_ms = 0
        self._read_pause_end_ms = 0
        self.metrics = metrics
        self.arrived = WakeSignal()
        self.scheduler = TimerScheduler(config, store.clock, timer_store.message_count, self.arrived)
        self.enqueued = self.delivered = 0
        self.enqueued_per_s = self.delivered_per_s = 0.0
        self._last_sample = (self._clock.monotonic(), 0, 0)
        self.reconfigure(config)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        self._config = config
        self._window_ms = self._compute_window_ms()
        self.scheduler.reconfigure(config)

    # -- from the topic into the wheel ---------------------------------------------------------------------

    @property
    def behind_messages(self) -> int:
        """Messages of the timer topic not read yet. Source: TimerMessageStore.getEnqueueBehindMessages, 5.4.0."""
        return max(0, self._store.max_offset(TIMER_TOPIC, 0) - self._timer_store.queue_offset)

    @property
    def enqueue_behind_ms(self) -> int:
        """Age of the first message of the timer topic that is not read yet, in ms; 0 when there is none.

        Source: TimerMessageStore.getEnqueueBehindMillis, 5.4.0.
        """
        if self.behind_messages <= 0:
            return 0
        stored_ms = self._store.store_timestamp_at(TIMER_TOPIC, 0, self._timer_store.queue_offset)
        return max(0, self._clock.now_ms() - stored_ms) if stored_ms > 0 else 0

    def _follow_clock(self, now_ms: int) -> None:
        """Go back in the wheel if the clock was set back, as after it was ahead for a moment.

        Otherwise every later message would wait until the clock reaches the last delivered slot again. In the official
        broker they are delivered at once until then, whatever their time (TimerMessageStore.maybeMoveWriteTime, 5.4.0).
        Raises StoreFull.
        """
        timers = self._timer_store
        if timers.read_ms - now_ms <= CLOCK_MARGIN_MS:
            return
        extra = {"from_ms": timers.read_ms, "to_ms": now_ms}
        log.warning("the clock was set back, timer messages follow it", extra=extra)
        # Pauses end by the clock, too.
        self._refusal_pause_end_ms = min(self._refusal_pause_end_ms, now_ms + RETRY_MS)
        self._read_pause_end_ms = min(self._read_pause_end_ms, now_ms + DAMAGE_PAUSE_MS)
        if self._open_slot is not None or timers.is_slot_partly_delivered:
            self._rewrite_open_slot()
            self._open_slot = None
        timers.go_back(timers.slot_start_ms(now_ms))

    def read_topic(self, max_messages: int) -> int:
        """Put about ``max_messages`` messages of the timer topic into their slots, and return their number.

        Messages that are already due are delivered at once, unless older ones wait. When the disk is full, the rest is
        read at a later call.
        Source: TimerMessageStore.enqueue, doEnqueue and TimerEnqueuePutService, 5.4.0.
        """
        done, now_ms = 0, self._clock.now_ms()
        if not self._try_to_follow_clock(now_ms):
            return 0
        if self._config.store.timer_stop_enqueue or now_ms < max(
            self._refusal_pause_end_ms, self._read_pause_end_ms
        ):
            return 0
        try:
            while done < max_messages and (count := self._read_some(now_ms)):
                done += count
        except StoreFull as error:
            self._pause_after_refusal(now_ms, error)
        except CorruptionError as error:
            log.error("timer topic cannot be read", extra={"reason": str(error)})
            self._read_pause_end_ms = now_ms + DAMAGE_PAUSE_MS
        return done

    def _try_to_follow_clock(self, now_ms: int) -> bool:
        try:
            self._follow_clock(now_ms)
        except StoreFull as error:
            self._pause_after_refusal(now_ms, error)
            return False
        return True

    def _read_some(self, now_ms: int) -> int:
        timers = self._timer_store
        start = timers.queue_offset
        result = self._store.read(TIMER_TOPIC, 0, start, MESSAGES_PER_READ)
        if result.max_offset <= start <= self._store.next_queue_offset(TIMER_TOPIC, 0):
            return 0  # what follows is not confirmed yet, or not even what was read before the start
        for chunk in result.chunks:
            try:
                for stored in split_messages(chunk):
                    self._accept_message(stored, now_ms)
                    # At each message, so that StoreFull at the next one does not have this one chained again.
                    timers.queue_offset += 1
            except MessageFormatError as error:
                # Where the next message of this chunk begins is unknown.
                location = RecordLocation(TIMER_TOPIC, 0, timers.queue_offset, -1)
                self._damaged.skip(RecordKind.TIMER_MESSAGE, location, error)
        if result.next_offset != timers.queue_offset:
            # The offset is outside of the queue, or a message is damaged: skip expired and damaged messages, or go
            # back to the end of a truncated queue.
            timers.queue_offset = result.next_offset
        if timers.queue_offset != start:
            # Only now: the saved offset says which messages are in the wheel.
            timers.save_progress()
            if self._takeover is not None and self._takeover.note_progress(timers.queue_offset):
                self._takeover = None
        return timers.queue_offset - start

    def _accept_message(self, view: memoryview, now_ms: int) -> None:
        try:
            physical_offset, born_ms, store_ms, properties = parse_times_and_properties(view)
            timers = self._timer_store
            # After a crash the wheel may be ahead of the saved offset in the topic.
            if timers.already_chained and physical_offset in timers.already_chained:
                timers.already_chained.discard(physical_offset)
                return
            topic, _, _ = parse_real_queue(properties)
            slot_ms = timers.slot_start_ms(_parse_slot_ms(properties))
        except MessageFormatError as error:
            location = RecordLocation.of_stored(TIMER_TOPIC, view)
            self._damaged.skip(RecordKind.TIMER_MESSAGE, location, error)
            return
        if self._store.is_for_deleted_topic(topic, physical_offset, store_ms):
            return
        due_ms = due_time_ms(properties, store_ms, slot_ms, timers.precision_ms)
        takeover = self._takeover
        if takeover is not None and takeover.is_done(
            view, timers.queue_offset, slot_ms, due_ms, store_ms, properties
        ):
            return
        recalls = b"TIMER_DEL_UNIQKEY\x01" in properties
        self._stats.timer_delays_s[topic].record((slot_ms - born_ms) // 1000)
        # While the topic is read again after a takeover, a message may be followed by its recall.
        at_once = due_ms <= now_ms and takeover is None and not self._older_messages_wait(slot_ms)
        if at_once and not recalls:
            self._deliver_at_once(view, now_ms)
        elif recalls and slot_ms < self._first_waiting_ms:
            # The slot of the message that it names is finished: it was delivered.
            log.warning("recall of a timer message came too late", extra={"topic": topic})
        else:
            self._chain_message((physical_offset, len(view), topic, recalls), slot_ms, due_ms, now_ms)

    def _older_messages_wait(self, slot_ms: int) -> bool:
        """Return True if a slot before this one is still to be delivered, as after a start: its messages come first.

        An official broker's acks of popped messages are timer messages, and mean nothing before their checkpoint.
        """
        first_ms = self._timer_store.next_slot_ms()
        return first_ms is not None and first_ms < slot_ms

    def _deliver_at_once(self, view: memoryview, now_ms: int) -> None:
        self._deliver_to_real_queue(WaitingMessage.parse(view), LONG_MAX, now_ms)
        self.delivered += 1
        # Only the saved progress counts this message now; `_read_some` counts it in memory.
        self._timer_store.queue_offset += 1
        self._timer_store.save_progress()
        self._timer_store.queue_offset -= 1

    def _chain_message(
        self, located: tuple[int, int, str, bool], slot_ms: int, due_ms: int, now_ms: int
    ) -> None:
        """Chain a message into its slot, or beyond the wheel's window into a nearer slot from which it is rolled."""
        timers, magic = self._timer_store, MAGIC_DEFAULT
        physical_offset, size, topic, recalls = located
        write_ms = timers.slot_start_ms(now_ms)
        if slot_ms - write_ms >= self._window_ms:
            # The wheel has one entry for this time and for an earlier one, a turn of the wheel before.
            magic |= MAGIC_ROLL
            slot_ms = write_ms + self._first_roll_ms(slot_ms - write_ms)
            due_ms = slot_ms + 1
        magic |= MAGIC_DELETE if recalls else 0
        # If the clock was set back, the slot may be finished already, or its messages of that time delivered.
        if slot_ms < timers.read_ms:
            self._postponed = self._postponed.with_message(slot_ms, timers.read_ms)
        slot_ms, due_ms = max(slot_ms, timers.read_ms), max(due_ms, timers.delivered_up_to[0])
        record = timers.chain_message(
            slot_ms,
            magic=magic,
            write_ms=write_ms,
            physical_offset=physical_offset,
            size=size,
            topic_hash=_topic_hash(topic),
            due_ms=due_ms,
        )
        self.metrics.adjust_count(topic, -1 if recalls else 1, now_ms)
        self._stats.timers_scheduled[topic].count_messages(1, 0)
        self.enqueued += 1
        # The open slot was loaded without this record.
        if self._open_slot is not None and self._open_slot.time_ms == slot_ms:
            self._accept_record(self._open_slot, record)

    def _first_roll_ms(self, ahead_ms: int) -> int:
        """Return the distance of the slot for a first roll. Source: TimerMessageStore.doEnqueue, 5.4.0."""
        slots, precision_ms = (
            self._window_ms // self._timer_store.precision_ms,
            self._timer_store.precision_ms,
        )
        if ahead_ms - self._window_ms < slots // 3 * precision_ms:
            return slots // 2 * precision_ms
        return self._window_ms

    def _compute_window_ms(self) -> int:
        """Return how far ahead a slot may be, in ms. Source: TimerMessageStore's constructor, 5.4.0."""
        max_slots = self._timer_store.wheel_span_ms // self._timer_store.precision_ms - 60
        configured_slots = self._config.store.timer_roll_window_slots
        return (
            configured_slots if 2 <= configured_slots <= max_slots else max_slots
        ) * self._timer_store.precision_ms

    # -- from the wheel to the real topic ------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """Return the wall time (ms) at which `deliver_due` has work, which may be past; None when no message waits."""
        slot, due_ms = self._open_slot, self._timer_store.next_slot_ms()
        if slot is None:
            due_ms = None if due_ms is None else due_ms + 1
        elif slot.unread is not None:
            due_ms = slot.time_ms
        else:
            due_ms = slot.due[0][0] if slot.due else slot.time_ms + self._timer_store.precision_ms
        return due_ms if due_ms is None else max(due_ms, self._refusal_pause_end_ms)

    def deliver_due(self, max_messages: int) -> int:
        """Deliver at most ``max_messages`` due messages, and return the number of messages handled.

        Source: TimerMessageStore.dequeue and TimerDequeueGetMessageService, 5.4.0.
        """
        done, now_ms = 0, self._clock.now_ms()
        if not self._try_to_follow_clock(now_ms) or now_ms < self._refusal_pause_end_ms:
            return 0
        try:
            while done < max_messages and (slot := self._open_slot or self._open_next(now_ms)) is not None:
                if slot.unread is not None:
                    # A slot may hold millions of records, so loading them counts too, rounded up.
                    loaded = self._load_records(slot, (max_messages - done) * LOADS_PER_DELIVERY)
                    done += -(-loaded // LOADS_PER_DELIVERY)
                elif slot.due and slot.due[0][0] <= now_ms:
                    self._deliver_first(slot, now_ms)
                    done += 1
                elif slot.due or now_ms < slot.time_ms + self._timer_store.precision_ms:
                    # Until the slot's time is over, messages may be chained into it, so it stays open without any.
                    break
                else:
                    self._finish_slot(slot)
        except StoreFull as error:
            self._pause_after_refusal(now_ms, error)
        return done

    def _open_next(self, now_ms: int) -> OpenSlot | None:
        time_ms = self._timer_store.next_slot_ms()
        # The messages of a slot are due from 1 ms after its start on (`slot_before`).
        if time_ms is None or time_ms >= now_ms:
            return None
        self._timer_store.advance_to(time_ms)
        self._open_slot = OpenSlot(time_ms, self._timer_store.pending_records(time_ms))
        return self._open_slot

    def _load_records(self, slot: OpenSlot, max_records: int) -> int:
        for number in range(max_records):
            record = next(slot.unread, None) if slot.unread is not None else None
            if record is None:
                slot.unread = None
                return number
            self._accept_record(slot, record)
        return max_records

    def _accept_record(self, slot: OpenSlot, record: TimerRecord) -> None:
        # A recall beyond the window is rolled like a message, and counts in its later slot.
        if record.magic & MAGIC_DELETE and not record.magic & MAGIC_ROLL:
            stored = self._read_message(record)
            key = None if stored is None else find_property(stored.properties, b"TIMER_DEL_UNIQKEY")
            if key is not None:
                slot.recalls[_digest(key)] = record.position
            return
        due_ms = record.due_ms or self._due_time_of(slot, record)
        # A later time would keep the slot open, and all later ones closed.
        due_ms = min(due_ms, slot.time_ms + self._timer_store.precision_ms)
        # A slot that was open when the broker stopped or crashed is loaded again; its first messages were delivered.
        if (due_ms, record.position) > self._timer_store.delivered_up_to:
            heappush(slot.due, (due_ms, record.position))

    def _due_time_of(self, slot: OpenSlot, record: TimerRecord) -> int:
        stored = None if record.magic & MAGIC_ROLL else self._read_message(record)
        if stored is None:
            return slot.time_ms + 1
        precision_ms = self._timer_store.precision_ms
        return due_time_ms(stored.properties, stored.store_timestamp, slot.time_ms, precision_ms)

    def _read_message(self, record: TimerRecord) -> WaitingMessage | None:
        """Return the message of a record; None when it has expired, is damaged, or is not a timer message."""
        try:
            view = self._store.message_at(record.physical_offset)
            stored = None if view is None else WaitingMessage.parse(view)
            if stored is not None and stored.topic != _TIMER_TOPIC:
                raise MessageFormatError("a record of the timer log names a message of another topic")
        except (CorruptionError, MessageFormatError) as error:
            location = RecordLocation(TIMER_TOPIC, 0, -1, record.physical_offset)
            self._damaged.skip(RecordKind.TIMER_MESSAGE, location, error)
            return None
        return stored

    def _deliver_first(self, slot: OpenSlot, now_ms: int) -> None:
        due_ms, position = slot.due[0]
        record = self._timer_store.record_at(position)
        stored = None if record is None else self._read_message(record)
        if record is None or stored is None:
            log.error("timer message has expired", extra={"position": position})
        elif self._is_for_deleted_topic(stored):
            log.info("timer message of a deleted topic dropped", extra={"position": position})
        elif record.magic & MAGIC_ROLL:
            self._write_rolled(stored, record, now_ms)
        elif not (slot.recalls and self._is_recalled(slot, stored)):
            self._deliver_to_real_queue(stored, record.write_ms, now_ms)
        # Step 4, after the message is stored: StoreFull leaves it at the head, and a crash repeats it.
        heappop(slot.due)
        self.delivered += 1
        self._timer_store.delivered_up_to = (due_ms, position)
        self._timer_store.save_progress()

    def _is_for_deleted_topic(self, stored: WaitingMessage) -> bool:
        """Tell whether a message waits for a topic that was deleted since; its count went with the topic."""
        topic = (_real_topic(stored) or b"").decode("utf-8", "replace")
        return self._store.is_for_deleted_topic(topic, stored.physical_offset, stored.store_timestamp)

    def _is_recalled(self, slot: OpenSlot, stored: WaitingMessage) -> bool:
        key = find_property(stored.properties, b"UNIQ_KEY")
        if key is not None and self._config.store.append_topic_for_timer_delete_key:
            key = (_real_topic(stored) or b"") + b"+" + key
        digest = b"" if key is None else _digest(key)
        if digest not in slot.recalls:
            return False
        slot.matched_recalls.add(digest)
        return True

    def _finish_slot(self, slot: OpenSlot) -> None:
        """Finish the open slot.

        A recall lowers its topic's count of waiting messages by one; if it matched no message, that is undone here.
        """
        for key in slot.recalls.keys() - slot.matched_recalls:
            record = self._timer_store.record_at(slot.recalls[key])
            stored = None if record is None else self._read_message(record)
            topic = None if stored is None else _real_topic(stored)
            if topic is not None:
                self.metrics.adjust_count(topic.decode("utf-8", "replace"), 1, self._clock.now_ms())
        self._timer_store.finish_slot(slot.time_ms)
        self._timer_store.save_progress()
        self._open_slot = None

    # -- storing -------------------------------------------------------------------------------------------

    def _deliver_to_real_queue(self, stored: WaitingMessage, enqueue_ms: int, now_ms: int) -> None:
        """Store a message in its real queue. Raises StoreFull. Source: TimerMessageStore.convert, doPut, 5.4.0.

        The name of the real queue stays among its properties, as in the official broker.
        """
        try:
            topic, queue_id, _ = parse_real_queue(stored.properties)
        except MessageFormatError as error:
            self._skip_message(stored, error)
            return
        self._append_message(topic, queue_id, stored, _with_stamps(stored.properties, enqueue_ms, now_ms))
        self._stats.timers_delivered[topic].count_messages(1, 0)
        if enqueue_ms != LONG_MAX:
            self.metrics.adjust_count(topic, -1, now_ms)

    def _write_rolled(self, stored: WaitingMessage, record: TimerRecord, now_ms: int) -> None:
        """Roll a message: write it to the timer topic again, to be chained into a later slot. Raises StoreFull."""
        times = 1 + find_integer(stored.properties, b"TIMER_ROLL_TIMES", 0, I32)
        properties = _with_stamps(_ROLL_TIMES.sub(b"", stored.properties), record.write_ms, now_ms)
        properties += b"TIMER_ROLL_TIMES\x01%d\x02" % times
        self._append_message(TIMER_TOPIC, stored.queue_id, stored, properties)
        topic = _real_topic(stored)
        if topic is not None:
            self.metrics.adjust_count(topic.decode("utf-8", "replace"), -1, now_ms)

    def _append_message(self, topic: str, queue_id: int, stored: WaitingMessage, properties: bytes) -> None:
        """Store a message, without the properties that were added if they do not fit, so that it is not lost."""
        try:
            try:
                self._real_queues.append(stored, topic, queue_id, properties, sys_flag=stored.sys_flag)
            except PropertiesTooLong:
                self._real_queues.append(stored, topic, queue_id, stored.properties, sys_flag=stored.sys_flag)
        except MessageIllegal as error:
            self._skip_message(stored, error)

    def _skip_message(self, stored: WaitingMessage, error: Exception) -> None:
        location = RecordLocation(TIMER_TOPIC, stored.queue_id, stored.queue_offset, stored.physical_offset)
        self._damaged.skip(RecordKind.TIMER_MESSAGE, location, error)

    def _pause_after_refusal(self, now_ms: int, error: StoreFull) -> None:
        log.warning("timer message refused by the store", extra={"reason": str(error)})
        self._refusal_pause_end_ms = now_ms + RETRY_MS

    # -- metrics and files ---------------------------------------------------------------------------------

    def update_rates(self) -> None:
        """Recompute the rates of enqueued and delivered messages since the last call."""
        now, enqueued, delivered = self._clock.monotonic(), self.enqueued, self.delivered
        before, enqueued_before, delivered_before = self._last_sample
        passed = max(0.001, now - before)
        self.enqueued_per_s = (enqueued - enqueued_before) / passed
        self.delivered_per_s = (delivered - delivered_before) / passed
        self._last_sample = (now, enqueued, delivered)

    @property
    def waiting_count(self) -> int:
        """Number of messages in the wheel."""
        return self._timer_store.waiting_messages

    def waiting_counts(self, bounds_s: Sequence[int], per_slice: int) -> Iterator[list[int] | None]:
        """Count the messages in the wheel whose time is less than each bound ahead, and not less than the one before.

        ``bounds_s`` are in ascending order. Yields None after each ``per_slice`` slots, and the numbers in the end.
        """
        now_ms, numbers = self._clock.now_ms(), [0] * (len(bounds_s) + 1)
        bounds_ms = [now_ms + bound_s * 1000 for bound_s in bounds_s]
        for position, (slot_ms, count) in enumerate(self._timer_store.slot_counts(), 1):
            if slot_ms + self._timer_store.precision_ms > now_ms:
                numbers[bisect_right(bounds_ms, slot_ms)] += count
            if position % per_slice == 0:
                yield None
        yield numbers[:-1]

    @property
    def behind_ms(self) -> int:
        """Age of the oldest slot that is overdue and not fully delivered, in ms; 0 when there is none."""
        first = self._timer_store.next_slot_ms()
        return 0 if first is None else max(0, self._clock.now_ms() - first - self._timer_store.precision_ms)

    @property
    def position(self) -> TimerPosition:
        """The checkpoint as last written, for slaves: no message that was read waits before its ``read_ms``."""
        position = self._timer_store.position
        return replace(position, read_ms=min(position.read_ms, self._first_waiting_ms))

    @property
    def _first_waiting_ms(self) -> int:
        return self._postponed.first_waiting_ms(self._timer_store.read_ms)

    def take_unsaved(self) -> tuple[TimerPosition | None, bytes | None]:
        """Return the checkpoint and metrics that `save`, which may run in a thread, has to write."""
        return self._timer_store.take_unflushed_position(), self.metrics.take_unsaved()

    def save(self, unsaved: tuple[TimerPosition | None, bytes | None]) -> None:
        """Block until the checkpoint and the metrics are on disk."""
        position, metrics = unsaved
        if position is not None:
            self._timer_store.flush(position)
        if metrics is not None:
            self.metrics.save(metrics)

    def remove_expired_files(self) -> int:
        """Remove timer log files whose messages have all expired; return their number."""
        return self._timer_store.delete_expired_files()

    def close(self) -> None:
        """Save everything and close the files, so that an official broker delivers the rest and nothing twice.

        A full disk is logged: this server has saved its own progress with each message.
        """
        try:
            if self._timer_store.is_slot_partly_delivered:
                self._rewrite_open_slot()
            self.save(self.take_unsaved())
        except StoreFull as error:
            log.warning("position of timer messages not written", extra={"reason": str(error)})
        finally:
            self._timer_store.close()

    def _rewrite_open_slot(self) -> None:
        slot = self._open_slot
        if slot is None:
            slot = OpenSlot(
                self._timer_store.read_ms, self._timer_store.pending_records(self._timer_store.read_ms)
            )
        while slot.unread is not None:
            self._load_records(slot, 1000)
        if slot.due:
            # The recalls stay, for the messages that remain.
            positions = sorted((*(position for _, position in slot.due), *slot.recalls.values()))
            records = [self._timer_store.record_at(position) for position in positions]
            self._timer_store.rewrite_slot(slot.time_ms, [record for record in records if record is not None])
        else:
            self._timer_store.finish_slot(slot.time_ms)


def _parse_slot_ms(properties: bytes) -> int:
    """Return the time in TIMER_OUT_MS. Raises MessageFormatError."""
    out_ms = find_integer(properties, b"TIMER_OUT_MS", -1)
    if out_ms < 0:
        raise MessageFormatError("a timer message without a time")
    return out_ms


def _digest(key: bytes) -> bytes:
    """Return a short stand-in for the key of a recalled message: keys of 32 KiB would fill the memory."""
    return hashlib.blake2b(key, digest_size=16).digest()


def _real_topic(stored: WaitingMessage) -> bytes | None:
    return find_property(stored.properties, b"REAL_TOPIC")


def _with_stamps(properties: bytes, enqueue_ms: int, now_ms: int) -> bytes:
    if b"QUEUE_MS\x01" in properties:
        properties = _STAMPS.sub(b"", properties)
    if properties and properties[-1] != 2:
        properties += b"\x02"
    return properties + b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (enqueue_ms, now_ms)


def due_time_ms(properties: bytes, store_ms: int, slot_ms: int, precision_ms: int) -> int:
    """Return the due time of a message in a slot: the requested delivery time, clamped to the slot."""
    timer_properties = {}
    for key in TIMER_KEYS if b"TIMER_DELAY_" in properties else TIMER_KEYS[:1]:
        value = find_property(properties, key.encode())
        if value is not None:
            timer_properties[key] = str(value, "utf-8", "replace")
    requested_ms = deliver_time_ms(timer_properties, store_ms)
    end_ms = slot_ms + precision_ms
    return end_ms if requested_ms is None else min(max(requested_ms, slot_ms + 1), end_ms)
