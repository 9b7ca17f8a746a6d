"""Delayed messages: they wait in the schedule topic, one queue per delay level, and are delivered to the millisecond.

The task in `assembly/service.py` sleeps until `next_due_ms`, or until the `earlier` signal is set, and then calls
`deliver_due`.

After a crash some messages have been delivered already, because a level's progress is saved every few seconds only.
`DeliveredCopies` finds them, so that they are not delivered twice: a delivered message stands at the end of its real
queue as it was sent, stored after its time. It works on the store of any broker, ours or an official one. Where
messages are readable once they are confirmed, such copies may be unreadable after a restart: then nothing is delivered
until all that was stored before is confirmed.
"""

import logging
from collections import Counter
from contextlib import suppress
from typing import Final, NamedTuple
from zlib import crc32

from codec import properties as keys
from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.java_numbers import I32, JavaNumberError, parse_java_integer, read_json_integer
from codec.message import Message, iter_messages
from codec.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, transaction_type
from codec.topics import SCHEDULE_TOPIC
from gateway.broker.delayed.timer_scheduler import TIMER_KEYS
from gateway.broker.messages.damaged_records import DamagedRecords, RecordKind, RecordLocation
from gateway.broker.messages.message_writer import (
    MessageAppender,
    MessageDraft,
    MessageScheduler,
    read_delay_level,
)
from gateway.broker.messages.waiting_message import check_real_topic
from gateway.broker.statistics.stored_counts import MessageType
from gateway.broker.statistics.traffic_stats import BrokerStats
from gateway.broker.topics.topic_table import count_change
from gateway.broker.waiting.wake_signal import WakeSignal
from gateway.runtime.config_file import ChangingTable, ConfigFile
from gateway.runtime.saved_tables import dump_table, load_table, parse_entries, parse_version
from remoting.bodies.queues import DataVersion
from remoting.errors import RequestError
from storage.append import NewMessage
from storage.clock import Clock
from storage.config import DEFAULT_DELAY_LEVELS
from storage.delay_levels import parse_levels
from storage.errors import CorruptionError, StoreFull
from storage.store import MessageStore

log = logging.getLogger(__name__)

DELIVERIES_PER_VERSION: Final = 200
"""Number of deliveries that the table's version counts as one change.

Source: BrokerConfig.delayOffsetUpdateVersionStep.
"""
MAX_DELIVERIES_PER_LEVEL: Final = 64
"""Largest number of messages delivered per level and call, so that other tasks get their turn."""
UNCONFIRMED_PAUSE_MS: Final = 100
"""Interval at which deliveries are tried that wait until the messages from before a crash are confirmed."""
REFUSED_PAUSE_MS: Final = 100
"""Pause of a level after the store refused a delivery. Source: ScheduleMessageService, 5.4.0."""
DAMAGE_PAUSE_MS: Final = 10_000
"""Pause of a level after its queue could not be read. Source: ScheduleMessageService, 5.4.0."""
MAX_COPIES_EXAMINED: Final = 100_000
"""Maximum number of messages read, for all levels: about a second. Beyond it, delivered ones may come twice."""
CUT_MARGIN_MS: Final = 60_000
"""Greatest time that a message was delivered after it was due, as a cut of the log assumes."""
MESSAGES_PER_READ, BYTES_PER_READ = 64, 1 << 20


class Identity(NamedTuple):
    """The properties that a delivered message shares with the delayed one, and with no other message."""

    unique_key: str | None
    reconsume_times: int
    born_timestamp: int
    body_bytes: int
    body_crc: int


class DeliveredCopies:
    """The messages at the ends of real queues, among which delivered delayed messages are found once each.

    Ask for the messages of one delay level in their order, because a queue is read from the first one's due time on.
    At most `readable` messages are read; it counts down.
    """

    def __init__(self, store: MessageStore, readable: int) -> None:
        self.readable = readable
        self._store = store
        self._copies: dict[tuple[str, int], Counter[Identity]] = {}

    def take(self, message: Message, topic: str, queue_id: int, due_ms: int) -> bool:
        """Tell whether a delayed message, due at ``due_ms``, was delivered to a queue, and count its copy as found."""
        copies = self._copies.get((topic, queue_id))
        if copies is None:
            copies = self._copies[topic, queue_id] = self._read_copies(topic, queue_id, due_ms)
        identity = _identity(message)
        is_delivered = copies[identity] > 0
        copies[identity] -= is_delivered
        return is_delivered

    def _read_copies(self, topic: str, queue_id: int, since_ms: int) -> Counter[Identity]:
        """Return how often each message is among those stored in a queue since a time."""
        copies: Counter[Identity] = Counter()
        offset = self._store.offset_by_time(topic, queue_id, since_ms)
        end = self._store.max_offset(topic, queue_id)
        while offset < end and self.readable > 0:
            result = self._store.read(topic, queue_id, offset, MESSAGES_PER_READ, BYTES_PER_READ)
            try:
                for message in iter_messages(b"".join(result.chunks)):
                    self.readable -= 1
                    if message.store_timestamp >= since_ms:
                        copies[_identity(message)] += 1
            except MessageFormatError:
                pass  # a damaged message is reported when it is consumed
            if result.next_offset <= offset:
                break
            offset = result.next_offset
        return copies


def _identity(message: Message) -> Identity:
    body = message.body
    return Identity(
        message.unique_key, message.reconsume_times, message.born_timestamp, len(body), crc32(body)
    )


class DelayService(ChangingTable):
    """Delay levels and the offset up to which each level's queue has been delivered, stored in delayOffset.json.

    Source: ScheduleMessageService and HookUtils.transformDelayLevelMessage, 5.4.0. Deviation: due times are known, so
    nothing polls every 100 ms. A message is due its level's delay after it was stored.
    """

    def __init__(
        self,
        file: ConfigFile,
        clock: Clock,
        store: MessageStore,
        appender: MessageAppender,
        stats: BrokerStats,
        damaged: DamagedRecords,
        earlier: WakeSignal,
        levels: str = DEFAULT_DELAY_LEVELS,
        timers: MessageScheduler | None = None,
        *,
        follows_master: bool = False,
        takes_over: bool = False,
        has_crashed: bool = False,
    ) -> None:
        super().__init__(file)
        self._follows_master = follows_master
        self._takes_over = takes_over
        self._may_repeat = store.crashed or self._takes_over or has_crashed
        self._opened_end = store.max_physical_offset
        self._clock = clock
        self._store = store
        self._appender = appender
        self._put_stats = stats.stored
        self._damaged = damaged
        self.earlier = earlier
        self._timers = timers
        self._delays = parse_levels(levels)
        self._deliveries = 0
        self._due: dict[int, int] = {}
        self.offsets: dict[int, int] = {}
        self.version = DataVersion(timestamp=clock.now_ms())
        self._load()

    @property
    def max_level(self) -> int:
        """The level of the longest delay."""
        return len(self._delays)

    # -- storing delayed messages ------------------------------------------------------------------------------------

    def schedule(self, message: MessageDraft) -> MessageDraft:
        """Return the message for the schedule or timer topic; the message itself if it requests no delay.

        Raises RequestError for a delay level that is not a number and for what the timers refuse.
        """
        if transaction_type(message.sys_flag) not in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            return message
        level = min(read_delay_level(message.properties), self.max_level)
        if level <= 0:
            return message if self._timers is None else self._timers.schedule(message)
        properties = {key: value for key, value in message.properties.items() if key not in TIMER_KEYS}
        properties[keys.DELAY_TIME_LEVEL] = str(level)
        properties[keys.REAL_TOPIC] = message.topic
        properties[keys.REAL_QUEUE_ID] = str(message.queue_id)
        due = self._clock.now_ms() + self._delays[level - 1]
        self._note_due(level, due)
        return message.with_changes(
            topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=properties, tags_code=due
        )

    def note_readable(self, queue_id: int) -> None:
        """Look at a level whose queue has got messages that were stored earlier, and confirmed only now."""
        self._note_due(queue_id + 1, self._clock.now_ms())

    def _note_due(self, level: int, due_ms: int) -> None:
        if level in self._due:
            return
        earlier = not self._due or due_ms < min(self._due.values())
        self._due[level] = due_ms
        if earlier:
            self.earlier.set()

    # -- delivering -----------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """Return the wall time (ms) of the next delivery, which may be past; None when no message waits."""
        return min(self._due.values(), default=None)

    def deliver_due(self, now_ms: int) -> int:
        """Deliver due messages, a limited number per level, and return their number."""
        if self._may_repeat and not self._try_to_skip_delivered():
            self._due = dict.fromkeys(self._due, now_ms + UNCONFIRMED_PAUSE_MS)
            return 0
        due_levels = [
            # Include levels whose due time is later than any message's can be: the clock was set back since.
            level
            for level, due in self._due.items()
            if due <= now_ms or due > now_ms + max(self._delays[level - 1], DAMAGE_PAUSE_MS)
        ]
        return sum(self._try_level(level, now_ms) for level in due_levels)

    def _try_level(self, level: int, now_ms: int) -> int:
        """Deliver the messages of one level. A damaged queue pauses its level only; the others go on."""
        try:
            return self._deliver_level(level, now_ms)
        except CorruptionError as error:
            log.error("schedule queue cannot be read", extra={"level": level, "reason": str(error)})
            self._due[level] = now_ms + DAMAGE_PAUSE_MS
            return 0

    def _deliver_level(self, level: int, now_ms: int) -> int:
        delivered = 0
        while delivered < MAX_DELIVERIES_PER_LEVEL:
            message = self._next_message(level)
            if message is None:
                self._due.pop(level, None)
                return delivered
            self._due[level] = due = self._due_time(level, message, now_ms)
            if due > now_ms:
                return delivered
            if not self._deliver_message(message):
                self._due[level] = now_ms + REFUSED_PAUSE_MS
                return delivered
            self._advance(level, self.offsets.get(level, 0) + 1)
            delivered += 1
        return delivered

    def _next_message(self, level: int) -> Message | None:
        """Return the next message of a level, None when it has none. Expired messages are skipped."""
        while True:
            offset = self.offsets.get(level, 0)
            result = self._store.read(SCHEDULE_TOPIC, level - 1, offset, 1)
            message = self._damaged.decode_one(RecordKind.DELAYED_MESSAGE, SCHEDULE_TOPIC, result.chunks)
            if message is not None:
                return message
            if result.max_offset <= offset <= self._store.next_queue_offset(SCHEDULE_TOPIC, level - 1):
                return None  # `note_readable` comes with the next message; those up to here may be unconfirmed again
            if (
                not result.min_offset <= result.next_offset <= result.max_offset
                or result.next_offset == offset
            ):
                return None
            self._advance(level, result.next_offset)

    def _due_time(self, level: int, message: Message, now_ms: int) -> int:
        """Return the due time of a message.

        A message is due at once when the clock was set back so far that it would wait longer than its level.
        """
        delay = self._delays[level - 1]
        due = message.store_timestamp + delay
        return now_ms if due > now_ms + delay else due

    def _deliver_message(self, message: Message) -> bool:
        """Store the message in its real queue; return False when the store takes no message at this time.

        A message that no queue can hold is skipped. Source: ScheduleMessageService.messageTimeUp, 5.4.0.
        """
        try:
            topic, queue_id = real_queue_of(message)
            if self._store.is_for_deleted_topic(topic, message.physical_offset, message.store_timestamp):
                return True
            # The delay level stays among the properties, as in the official broker.
            _, _, size, _ = self._appender.append(NewMessage.from_stored(message, topic, queue_id))
            self._put_stats[topic].count_request(MessageType.DELAY, size)
        except (MessageFormatError, JavaNumberError) as error:
            self._skip(message, error)
        except RequestError as error:
            if error.code != ResponseCode.MESSAGE_ILLEGAL:
                extra = {"topic": topic, "reason": error.remark}
                log.warning("delivery of a delayed message refused", extra=extra)
                return False
            self._skip(message, error.remark)
        return True

    def _skip(self, message: Message, reason: object) -> None:
        self._damaged.skip(RecordKind.DELAYED_MESSAGE, RecordLocation.of_message(message), reason)

    def _advance(self, level: int, offset: int) -> None:
        self.offsets[level] = offset
        self._dirty = True
        self._deliveries += 1
        if self._deliveries % DELIVERIES_PER_VERSION == 0:
            count_change(self.version, self._clock.now_ms())

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return the delivered offset and the end of the queue of each level that was ever used."""
        ends = {
            level: self._store.max_offset(SCHEDULE_TOPIC, level - 1) for level in range(1, self.max_level + 1)
        }
        return {level: (self.offsets.get(level, 0), end) for level, end in ends.items() if end}

    # -- the file ------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Load the delivered offsets and clamp them to the queues' ranges. Source: correctDelayOffset, 5.4.0.

        A correction is saved at once. Otherwise, if the process were killed before the next delivery, the next start
        would skip the messages that got the offsets in between.
        """
        saved = self.file.load(_parse_file)
        if saved is not None:
            self.offsets, self.version = saved
        if self._follows_master and not self._store.has_progress_of_cut:
            return  # the master delivers, and its offsets may be ahead of the copied queues
        for level in range(1, self.max_level + 1):
            low = self._store.min_offset(SCHEDULE_TOPIC, level - 1)
            high = self._store.next_queue_offset(SCHEDULE_TOPIC, level - 1)
            offset = self.offsets.get(level, 0)
            right = min(max(offset, low), high)
            if self._store.has_progress_of_cut:
                right = min(right, self._first_doubtful(level))
            if right != offset:
                log.error(
                    "delay offset moved into the queue's range",
                    extra={"level": level, "from": offset, "to": right},
                )
                self.offsets[level] = right
                self._dirty = True
            if right < high and not self._follows_master:
                self._due[level] = 0
        if self._may_repeat:
            self._try_to_skip_delivered()
        with suppress(StoreFull, OSError):
            self.persist()

    def _first_doubtful(self, level: int) -> int:
        """Return the offset of the first message that may have been delivered after the end of the log, which was cut.

        Those before it were due earlier, and what was delivered then is in the log. `_skip_delivered` finds the copies.
        """
        queue_id = level - 1
        store = self._store
        last_ms = max(
            (store.store_timestamp_at(*key, store.max_offset(*key) - 1) for key in store.queue_keys()),
            default=0,
        )
        start_ms = last_ms - CUT_MARGIN_MS - self._delays[queue_id]
        return self._store.offset_by_time(SCHEDULE_TOPIC, queue_id, start_ms)

    @property
    def awaits_confirmation(self) -> bool:
        """True after a crash until all messages stored before it are readable, and nothing is delivered twice."""
        return self._may_repeat

    def _try_to_skip_delivered(self) -> bool:
        """Skip what was delivered, if all that was stored before the start is readable; return False otherwise."""
        if self._store.readable_until < self._opened_end:
            return False
        self._skip_delivered()
        self._may_repeat = False
        return True

    def _skip_delivered(self) -> None:
        """Skip messages that were delivered after the offsets were last saved.

        Deviation: the official broker delivers them again.
        """
        readable = MAX_COPIES_EXAMINED
        for level in self._due:
            copies, before = DeliveredCopies(self._store, readable), self.offsets.get(level, 0)
            with suppress(CorruptionError):
                while (message := self._next_message(level)) is not None:
                    due_ms = message.store_timestamp + self._delays[level - 1]
                    if not self._was_delivered(copies, message, due_ms):
                        break
                    self._advance(level, self.offsets.get(level, 0) + 1)
            readable = copies.readable
            skipped = self.offsets.get(level, 0) - before
            if skipped:
                log.info(
                    "delayed messages were delivered before the crash",
                    extra={"level": level, "count": skipped},
                )

    @staticmethod
    def _was_delivered(copies: DeliveredCopies, message: Message, due_ms: int) -> bool:
        try:
            topic, queue_id = real_queue_of(message)
        except (MessageFormatError, JavaNumberError):
            return False
        return copies.take(message, topic, queue_id, due_ms)

    def adopt(self, content: bytes) -> None:
        """Take over the master's delayOffset.json. Raises ValueError.

        Also a lower offset: that of a former master counts deliveries which the present master does not have.
        """
        offsets, version = _parse_file(content)
        if offsets != self.offsets:
            self.offsets, self.version = offsets, version
            self._dirty = True

    def to_json(self) -> bytes:
        """Return the content of delayOffset.json."""
        return dump_table(
            "delayOffset.json", {"dataVersion": self.version.to_value(), "offsetTable": self.offsets}
        )


def real_queue_of(message: Message) -> tuple[str, int]:
    """Return topic and queue id that a delayed message goes to. Raises MessageFormatError, JavaNumberError."""
    topic = check_real_topic(message.properties.get(keys.REAL_TOPIC, ""))
    return topic, parse_java_integer(message.properties.get(keys.REAL_QUEUE_ID, ""), I32)


def _parse_file(content: bytes) -> tuple[dict[int, int], DataVersion]:
    """Parse delayOffset.json. A level whose offset cannot be read is left out. Raises ValueError."""
    saved = load_table(content)
    offsets = parse_entries("delayOffset.json", saved.get("offsetTable"), _parse_offset)
    return offsets, parse_version(saved.get("dataVersion")) or DataVersion()


def _parse_offset(level: object, offset: object) -> tuple[int, int]:
    return read_json_integer(level, I32), read_json_integer(offset)
