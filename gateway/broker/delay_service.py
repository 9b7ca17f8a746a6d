"""Delayed messages: they wait in the schedule topic, one queue per delay level, and are delivered to the
millisecond.

Not responsible for sleeping until then (a task asks `next_due_ms`, calls `deliver_due` and sets
`on_earlier`).
"""

import logging
from typing import Final

from codec import fastjson
from codec import properties as keys
from codec.errors import MessageFormatError
from codec.message import Message, decode_message
from codec.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, transaction_type
from codec.topics import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from gateway.broker.message_writer import MessageAppender, MessageScheduler, NewMessage
from gateway.broker.timer_scheduler import TIMER_KEYS
from gateway.broker.topic_table import count_change
from gateway.broker.wake_signal import WakeSignal
from gateway.runtime.config_file import ChangingTable, ConfigFile
from remoting.bodies.queues import DataVersion
from remoting.errors import RequestError
from storage.clock import Clock
from storage.config import DEFAULT_DELAY_LEVELS
from storage.delay_levels import UNITS_MS
from storage.errors import CorruptionError
from storage.store import MessageStore

log = logging.getLogger(__name__)

DELIVERIES_PER_VERSION: Final = 200
"""How many deliveries the table's version counts as one.

Source: BrokerConfig.delayOffsetUpdateVersionStep.
"""
MAX_DELIVERIES_PER_LEVEL: Final = 64
"""Messages delivered per level and call, so that other work gets its turn."""
REFUSED_PAUSE_MS: Final = 100
"""How long a level pauses after the store refused a delivery. Source: ScheduleMessageService, 5.4.0."""
DAMAGE_PAUSE_MS: Final = 10_000
"""How long a level pauses after its queue could not be read. Source: ScheduleMessageService, 5.4.0."""


def parse_levels(text: str) -> list[int]:
    """Delays in ms of the levels from 1 on; ValueError names what cannot be read."""
    delays = []
    for part in text.split():
        number, unit = part[:-1], part[-1]
        if unit not in UNITS_MS or not number.isdecimal():
            raise ValueError(f"messageDelayLevel: {part} is not a number with s, m, h or d")
        delays.append(int(number) * UNITS_MS[unit])
    if not delays:
        raise ValueError("messageDelayLevel: no level")
    return delays


class DelayService(ChangingTable):
    """Delay levels and how far each one's queue has been delivered; kept in delayOffset.json.

    Source: ScheduleMessageService and HookUtils.transformDelayLevelMessage, 5.4.0. Deviation: due times are
    known, so nothing polls every 100 ms. A message is due its level's delay after it was stored.
    """

    def __init__(
        self,
        file: ConfigFile,
        clock: Clock,
        store: MessageStore,
        appender: MessageAppender,
        earlier: WakeSignal,
        levels: str = DEFAULT_DELAY_LEVELS,
        timers: MessageScheduler | None = None,
    ) -> None:
        super().__init__(file)
        self._clock = clock
        self._store = store
        self._appender = appender
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
        """The longest delay's level."""
        return len(self._delays)

    # -- going to sleep ------------------------------------------------------------------------------------

    def schedule(self, message: NewMessage) -> NewMessage:
        """The message as it waits in the schedule topic, or for a time that is no level; else the same message."""
        if transaction_type(message.sys_flag) not in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            return message
        level = min(_parse_level(message.properties.get(keys.DELAY_TIME_LEVEL, "")), self.max_level)
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

    def _note_due(self, level: int, due_ms: int) -> None:
        if level in self._due:
            return
        earlier = not self._due or due_ms < min(self._due.values())
        self._due[level] = due_ms
        if earlier:
            self.earlier.set()

    # -- waking up -----------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """Wall time (ms) of the next delivery, possibly past; None when nothing waits."""
        return min(self._due.values(), default=None)

    def deliver_due(self, now_ms: int) -> int:
        """Delivers what is due, a limited number per level; returns how many messages were delivered."""
        due_levels = [
            # One that is due later than any message can be was noted before the clock was set back.
            level
            for level, due in self._due.items()
            if due <= now_ms or due > now_ms + max(self._delays[level - 1], DAMAGE_PAUSE_MS)
        ]
        return sum(self._try_level(level, now_ms) for level in due_levels)

    def _try_level(self, level: int, now_ms: int) -> int:
        """A level whose queue is damaged waits and is tried again; the others go on."""
        try:
            return self._deliver_level(level, now_ms)
        except CorruptionError as error:
            log.error("delayed messages cannot be read", extra={"level": level, "reason": str(error)})
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
            if not self._deliver(message):
                self._due[level] = now_ms + REFUSED_PAUSE_MS
                return delivered
            self._advance(level, message.queue_offset + 1)
            delivered += 1
        return delivered

    def _next_message(self, level: int) -> Message | None:
        """The next message of a level, None when it has none; messages the store no longer has are passed
        over."""
        while True:
            offset = self.offsets.get(level, 0)
            result = self._store.read(SCHEDULE_TOPIC, level - 1, offset, 1)
            for chunk in result.chunks:
                try:
                    return decode_message(chunk, 0)
                except MessageFormatError as error:
                    extra = {"level": level, "offset": offset, "reason": str(error)}
                    log.error("a delayed message is damaged and passed over", extra=extra)
            if (
                not result.min_offset <= result.next_offset <= result.max_offset
                or result.next_offset == offset
            ):
                return None
            self._advance(level, result.next_offset)

    def _due_time(self, level: int, message: Message, now_ms: int) -> int:
        """When a message is due; now if the clock was set back so far that it would wait longer than its
        level."""
        delay = self._delays[level - 1]
        due = message.store_timestamp + delay
        return now_ms if due > now_ms + delay else due

    def _deliver(self, message: Message) -> bool:
        """Stores it for its consumers; False when refused. Source: ScheduleMessageService.messageTimeUp, 5.4.0."""
        topic = message.properties.get(keys.REAL_TOPIC)
        queue_id = message.properties.get(keys.REAL_QUEUE_ID)
        if topic is None or queue_id is None or topic == TRANS_HALF_TOPIC:
            log.error("a delayed message without a real topic is dropped", extra={"topic": topic})
            return True
        try:
            # Its delay level stays among its properties, as the official broker leaves it.
            self._appender.append(NewMessage.from_stored(message, topic, int(queue_id)))
        except RequestError as error:
            log.warning(
                "delivery of a delayed message refused", extra={"topic": topic, "reason": error.remark}
            )
            return False
        return True

    def _advance(self, level: int, offset: int) -> None:
        self.offsets[level] = offset
        self._dirty = True
        self._deliveries += 1
        if self._deliveries % DELIVERIES_PER_VERSION == 0:
            count_change(self.version, self._clock.now_ms())

    def progress(self) -> dict[int, tuple[int, int]]:
        """By level that was used: how far it was delivered, and where its queue ends."""
        ends = {
            level: self._store.max_offset(SCHEDULE_TOPIC, level - 1) for level in range(1, self.max_level + 1)
        }
        return {level: (self.offsets.get(level, 0), end) for level, end in ends.items() if end}

    # -- the file ------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Where deliveries stood, held to what the queues still have. Source: correctDelayOffset, 5.4.0."""
        saved = self._file.load(_parse_file)
        if saved is not None:
            self.offsets, self.version = saved
        for level in range(1, self.max_level + 1):
            low = self._store.min_offset(SCHEDULE_TOPIC, level - 1)
            high = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            offset = self.offsets.get(level, 0)
            right = min(max(offset, low), high)
            if right != offset:
                log.error("delay offset corrected", extra={"level": level, "from": offset, "to": right})
                self.offsets[level] = right
            if right < high:
                self._due[level] = 0

    def to_json(self) -> bytes:
        """The content of delayOffset.json."""
        return fastjson.dumps({"dataVersion": self.version.to_value(), "offsetTable": self.offsets})


def _parse_level(text: str) -> int:
    """The delay level a client wrote; 0 for what is no number."""
    return int(text) if text.lstrip("-").isdecimal() else 0


def _parse_file(data: bytes) -> tuple[dict[int, int], DataVersion]:
    value = fastjson.loads(data)
    offsets = {int(level): int(offset) for level, offset in value.get("offsetTable", {}).items()}
    version = value.get("dataVersion")
    return offsets, DataVersion.from_value(version) if version else DataVersion()
