"""A message store with timers, driven as the broker's timer delivery drives it, for tests that end it at any point."""

import random
from collections import Counter
from collections.abc import Callable, Iterable

from codec.message import Message, iter_messages
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.crash_files import CrashFiles
from storage.store import MessageStore
from storage.tests.support import FakeClock
from storage.timer_log import TimerRecord
from storage.timer_store import TimerStore, TimerStoreConfig
from storage.timer_wheel import SLOT

NOW = 1_700_000_000_000
TOPIC = "wheel"
REAL = "real"
SLOTS = 4000
WHEEL, LOG, CHECK = "/store/timerwheel", "/store/timerlog/", "/store/config/timercheck"
COMMIT_LOG = "/store/commitlog/"
FILE_GROUPS = (COMMIT_LOG, WHEEL, LOG, CHECK)
"""Beginnings of the paths of the files that a power cut may leave in any combination."""


class TimerWorld:
    """A message store and its timers.

    A message of the timer topic holds its slot, counted from ``NOW``, and its number. A delivery appends the number to
    the real topic, so that a power cut may lose it as it may lose any message.
    """

    def __init__(
        self, files: CrashFiles | None = None, clock: FakeClock | None = None, sent: int = 0
    ) -> None:
        self.files = files or CrashFiles()
        self.clock = clock or FakeClock(NOW)
        self.sent = sent
        config = StoreConfig(root="/store", commit_log_file_bytes=1 << 16, consume_queue_file_entries=500)
        self.store = MessageStore.open(config, self.files, self.clock)
        small = TimerStoreConfig("/store", "/store/config", log_file_bytes=4096, wheel_slots=SLOTS)
        self.timers = TimerStore(small, self.store, TOPIC)

    def send(self, slot: int, padding: str = "") -> int:
        """Store a message for a slot in the timer topic; return its number."""
        self.store.append(NewMessage(TOPIC, 0, f"{slot} {self.sent} {padding}".encode(), b""))
        self.sent += 1
        return self.sent - 1

    def send_all(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.send(slot)

    def read(self) -> None:
        """Chain all messages not read yet, as the broker's reader does."""
        timers, store = self.timers, self.store
        while timers.queue_offset < store.max_offset(TOPIC, 0):
            (message,) = self.messages(TOPIC, timers.queue_offset, 1)
            if message.physical_offset in timers.already_chained:
                timers.already_chained.discard(message.physical_offset)
            else:
                self.chain(message)
            timers.queue_offset += 1
            timers.save_progress()

    def chain(self, message: Message) -> TimerRecord:
        """Chain a message into its slot, or the first one that is not delivered; a slot holds several due times."""
        wanted_slot, number, _ = bytes(message.body).decode().split(" ", 2)
        slot_ms = max(NOW + 1000 * int(wanted_slot), self.timers.read_ms)
        return self.timers.chain_message(
            slot_ms,
            magic=1,
            write_ms=min(NOW, slot_ms),
            physical_offset=message.physical_offset,
            size=message.size,
            topic_hash=0,
            due_ms=max(slot_ms + 1 + int(number) % 2, self.timers.delivered_up_to[0]),
        )

    def waiting(self, slot_ms: int) -> list[TimerRecord]:
        """Return the undelivered records of a slot in the order of delivery."""
        timers = self.timers
        delivered = timers.delivered_up_to if slot_ms == timers.read_ms else (0, -1)
        records = [
            record
            for record in timers.pending_records(slot_ms)
            if (record.due_ms, record.position) > delivered
        ]
        return sorted(records, key=lambda record: (record.due_ms, record.position))

    def deliver_first(self) -> int | None:
        """Deliver the next message of the first slot, or finish the slot; return the message's physical offset."""
        timers = self.timers
        slot_ms = timers.next_slot_ms()
        assert slot_ms is not None
        timers.advance_to(slot_ms)
        records = self.waiting(slot_ms)
        if not records:
            timers.finish_slot(slot_ms)
            timers.save_progress()
            return None
        record = records[0]
        self.store.append(NewMessage(REAL, 0, b"%d" % self.number_of(record), b""))
        timers.delivered_up_to = (record.due_ms, record.position)
        timers.save_progress()
        return record.physical_offset

    def number_of(self, record: TimerRecord) -> int:
        """Return the number of a record's message, which fits it."""
        view = self.store.message_at(record.physical_offset)
        assert view is not None
        (message,) = iter_messages(bytes(view))
        assert message.topic == TOPIC
        assert message.size == record.size
        return int(message.body.split(b" ")[1])

    def deliver(self) -> list[int]:
        """Deliver what is left of the first slot; return the physical offsets of the messages."""
        delivered = []
        while (physical_offset := self.deliver_first()) is not None:
            delivered.append(physical_offset)
        return delivered

    def deliver_all(self) -> list[int]:
        """Deliver all slots; return the physical offsets of the messages."""
        delivered = []
        while self.timers.next_slot_ms() is not None:
            delivered += self.deliver()
        return delivered

    def flush(self) -> None:
        """Flush as the broker does about once a second."""
        position = self.timers.take_unflushed_position()
        if position is not None:
            self.timers.flush(position)

    # -- what a test compares ------------------------------------------------------------------------------

    def messages(self, topic: str, offset: int, count: int) -> list[Message]:
        result = self.store.read(topic, 0, offset, count)
        return list(iter_messages(b"".join(result.chunks)))

    def acknowledged(self) -> set[int]:
        """Return the numbers of the messages in the timer topic that a power cut must leave, by the commit log."""
        numbers = set()
        for offset in range(self.store.max_offset(TOPIC, 0)):
            (message,) = self.messages(TOPIC, offset, 1)
            if message.physical_offset + message.size <= self.store.durable_offset:
                numbers.add(int(message.body.split(b" ")[1]))
        return numbers

    def delivered(self) -> Counter[int]:
        """Return the numbers in the real topic, and how often each is there."""
        return Counter(
            int(self.messages(REAL, offset, 1)[0].body) for offset in range(self.store.max_offset(REAL, 0))
        )

    def place_in_wheel(self, slot: int) -> int:
        """Return where the wheel's file holds a slot."""
        return (NOW // 1000 + slot) % SLOTS * SLOT.size

    # -- what ends it --------------------------------------------------------------------------------------

    def crash(self, seed: int = 0, lose_unflushed: bool = False) -> "TimerWorld":
        """Return the world after its process was killed, or after a power cut that leaves sectors by chance."""
        return self.reopen(self.files.crash(random.Random(seed), lose_unflushed=lose_unflushed))

    def cut_power(self, is_written: Callable[[str], bool]) -> "TimerWorld":
        """Return the world after a power cut that leaves what was not flushed only where ``is_written`` accepts it."""
        return self.reopen(self.files.cut_power(is_written))

    def reopen(self, files: CrashFiles) -> "TimerWorld":
        return TimerWorld(files, self.clock, self.sent)
