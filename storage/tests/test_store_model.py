"""A store against a list: the laws of the store (docs/explanation/store-laws.md), whatever happens to it.

The model does what a broker does (appends, checkpoints, retention, the index, timers, staged batches), and what happens
to one: killed processes, power cuts with every mixture of sectors, damage. `LAWS_SEEDS` is the number of stories.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from codec.batch import encode_batch
from codec.message import MAGIC_AT, Message, iter_messages
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue
from storage.crash_files import CrashFiles, ProcessKilled
from storage.layout import HEADER, PHYSICAL_OFFSET_AT
from storage.queue_read import ReadStatus
from storage.staged_files import PublishedMark, PublishIntent, StagedFiles
from storage.store import MessageStore
from storage.tests.support import FakeClock, hand_over_locks
from storage.time_search import Boundary
from storage.timer_store import TimerStore, TimerStoreConfig

CONFIG = StoreConfig(
    root="/s",
    commit_log_file_bytes=4096,
    index_slots=8,
    index_entries=16,
    max_message_bytes=2000,
    reserve_commit_log_bytes=700,
    reserve_queue_bytes=40,
    max_open_queue_files=4,
)
LONG = "long" * 40
topics = st.sampled_from(["a", LONG])
queue_ids = st.integers(0, 2)
bodies = st.binary(max_size=700)
KEYS = {b"": (), b"TAGS\x01x\x02": (), b"KEYS\x01k1 k2\x02UNIQ_KEY\x01u\x02": ("k1", "k2", "u")}
KEYS[b"KEYS\x01" + b"v" * 600] = ("v" * 600,)
properties = st.sampled_from(list(KEYS))

KEPT_KEYS = ["u", "k1", "k2", "v" * 600]
HOUR_MS = 3_600_000
WHEEL = "wheel"
TIMER_CONFIG = TimerStoreConfig(
    "/s", "/s/config", precision_ms=600_000, log_file_bytes=1024, wheel_slots=1200
)
STAGED = "staged"

Queue = tuple[str, int]


@dataclass(slots=True)
class Stored:
    """A message of the log. ``offset`` is -1 for a half message, ``body`` None if it is damaged."""

    queue: Queue
    offset: int
    body: bytes | None
    keys: tuple[str, ...]
    start: int
    end: int
    time_ms: int
    is_deleted: bool = False  # its topic was deleted


class StoreModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = CrashFiles()
        self.clock = FakeClock()
        self.config = CONFIG
        self.log: list[Stored] = []
        self.confirmed = 0
        self.delivered: set[int] = set()  # physical offsets of timer messages
        self.staged_bodies: list[bytes] = []  # of the parts of the next batch
        self.published: list[bytes] = []
        self.batch = 0

    @initialize(queue_file_entries=st.sampled_from([5, 300]))
    def open(self, queue_file_entries: int) -> None:
        """Open with small files, or with so large ones that a queue outgrows its first entries in memory.

        One queue stays: a store without any is taken for one whose queues were removed, to be built again.
        """
        self.config = replace(CONFIG, consume_queue_file_entries=queue_file_entries)
        self.reopen_files(self.files)
        self.append("kept", 0, b"", b"")
        self.checkpoint()

    def reopen_files(self, files: CrashFiles) -> None:
        self.files = files
        self.store = MessageStore.open(self.config, files, self.clock)
        self.timers = TimerStore(TIMER_CONFIG, self.store, WHEEL)
        self.staged = StagedFiles(files, "/s")

    def live(self, queue: Queue) -> list[Stored]:
        return [
            message
            for message in self.log
            if message.queue == queue and message.offset >= 0 and not message.is_deleted
        ]

    # -- what a broker does --

    @rule(topic=topics, queue_id=queue_ids, body=bodies, properties=properties)
    def append(self, topic: str, queue_id: int, body: bytes, properties: bytes) -> None:
        offset, start, size, _ = self.store.append(NewMessage(topic, queue_id, body, properties))
        assert offset == len(self.live((topic, queue_id)))
        now_ms = self.clock.now_ms()
        self.log.append(
            Stored((topic, queue_id), offset, body, KEYS[properties], start, start + size, now_ms)
        )

    @rule(topic=topics, body=bodies)
    def append_hidden(self, topic: str, body: bytes) -> None:
        offset, start, size, _ = self.store.append(NewMessage(topic, 0, body, b"KEYS\x01k1\x02", sys_flag=4))
        assert offset == 0
        self.log.append(Stored((topic, 0), -1, body, ("k1",), start, start + size, self.clock.now_ms()))

    @rule(topic=topics, queue_id=queue_ids, bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=9))
    def append_batch(self, topic: str, queue_id: int, bodies: list[bytes]) -> None:
        batch = encode_batch([(0, body, b"KEYS\x01k2\x02") for body in bodies])
        first, places, _ = self.store.append_batch(topic, queue_id, batch)
        assert first == len(self.live((topic, queue_id)))
        ends = [*places[1:], self.store.max_physical_offset]
        for number, (body, start, end) in enumerate(zip(bodies, places, ends, strict=True)):
            stored = Stored((topic, queue_id), first + number, body, ("k2",), start, end, self.clock.now_ms())
            self.log.append(stored)

    @rule(queue_id=queue_ids, count=st.sampled_from([30, 250]))
    def append_many(self, queue_id: int, count: int) -> None:
        if len(self.log) < 600:
            for number in range(count):
                self.append("a", queue_id, b"%d" % number, b"")

    @rule(topic=topics, queue_id=queue_ids, body=bodies, kind=st.sampled_from(["entry", "disk", "batch"]))
    def append_during_checkpoint(self, topic: str, queue_id: int, body: bytes, kind: str) -> None:
        """Let the checkpoint's thread run in the middle of an append, or the other way round."""
        confirmed = self.store.commit_log.queued_until
        with pytest.MonkeyPatch.context() as patch:
            if kind == "disk":
                append = run_once(lambda: self.append(topic, queue_id, body, b""))
                patch.setattr(self.files, "flush", before(append, self.files.flush))
                self.store.write_checkpoint()
            else:
                checkpoint = run_once(self.store.write_checkpoint)
                if kind == "entry":
                    patch.setattr("storage.append.tags_code_of", before(checkpoint, lambda properties: 0))
                    self.append(topic, queue_id, body, b"")
                else:
                    for name in ("append_entries", "make_room_for"):
                        patch.setattr(ConsumeQueue, name, before(checkpoint, getattr(ConsumeQueue, name)))
                    self.append_batch(topic, queue_id, [body[:60], b"second"])
        self.confirmed = max(self.confirmed, min(confirmed, self.store.durable_offset))

    @rule(
        topic=topics,
        queue_id=queue_ids,
        body=bodies,
        at=st.integers(0, 5),
        other=st.sampled_from(["append", "flush", "checkpoint", "index", "delete"]),
    )
    def checkpoint_in_turns(self, topic: str, queue_id: int, body: bytes, at: int, other: str) -> None:
        """Let another thread work where the checkpoint takes or releases a lock."""
        confirmed = self.store.commit_log.queued_until

        def take_turn() -> None:
            if other == "delete":
                self.delete_topic(topic)
            self.append(topic, queue_id, body, b"KEYS\x01k1 k2\x02UNIQ_KEY\x01u\x02")
            if other == "index":
                self.store.build_index(5)
            elif other == "flush":
                self.store.flush()
            elif other == "checkpoint":
                self.store.write_checkpoint()

        hand_over_locks(self.store, self.store.write_checkpoint, at, take_turn)
        self.confirmed = max(self.confirmed, min(confirmed, self.store.durable_offset))

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        self.store.delete_topic(topic)
        assert not any(self.store.max_offset(topic, queue_id) for queue_id in range(3))
        self.note_deletion(topic)

    def note_deletion(self, topic: str) -> None:
        for message in self.log:
            if message.queue[0] == topic and message.offset >= 0:
                message.is_deleted = True

    @rule(milliseconds=st.sampled_from([1, 500, 4000]))
    def pass_time(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    @rule()
    def flush(self) -> None:
        assert self.store.flush() == self.store.max_physical_offset

    @rule()
    def checkpoint(self) -> None:
        self.store.write_checkpoint()
        self.confirmed = self.store.max_physical_offset

    @rule(limit=st.integers(1, 20))
    def build_index(self, limit: int) -> None:
        self.store.build_index(limit)

    @rule()
    def reopen(self) -> None:
        end = self.store.max_physical_offset
        self.flush_timers()
        self.timers.close()
        self.store.close()
        self.reopen_files(self.files)
        self.confirmed = end
        assert self.store.max_physical_offset == end
        self.check_timers()

    @rule(seed=st.integers(0, 1 << 30))
    def write_back(self, seed: int) -> None:
        """Let the kernel write some sectors, which may stay in this state on the disk."""
        self.files.write_back(random.Random(seed))

    @rule(hours=st.sampled_from([0, 80]), after_checkpoint=st.booleans())
    def expire(self, hours: int, after_checkpoint: bool) -> None:
        """Remove old files."""
        self.prepare_expiry(hours)
        if after_checkpoint:
            self.checkpoint()
        before = self.store.min_physical_offset
        self.store.delete_expired(manual=True)
        first = self.store.min_physical_offset
        limit_ms = self.clock.now_ms() - self.config.file_reserved_hours * HOUR_MS
        assert all(message.time_ms <= limit_ms for message in self.log if before <= message.start < first)
        written = (
            self.store.max_physical_offset
            - self.store.max_physical_offset % self.config.commit_log_file_bytes
        )
        assert first <= written

    def prepare_expiry(self, hours: int) -> None:
        """Let time pass, and do all that a broker does in such a time; a checkpoint may come later."""
        self.read_timers()
        self.clock.advance(hours * HOUR_MS)
        self.deliver_timers()
        self.flush_timers()

    # -- timers: every message of the timer topic is unread, waiting or delivered --

    @rule(slots=st.integers(0, 3))
    def send_timer(self, slots: int) -> None:
        self.append(WHEEL, 0, b"%d" % slots, b"")

    @rule()
    def read_timers(self) -> None:
        """Chain all messages that were not read yet, as the broker does."""
        timers = self.timers
        while timers.queue_offset < self.store.max_offset(WHEEL, 0):
            result = self.store.read(WHEEL, 0, timers.queue_offset, 1)
            for message in iter_messages(b"".join(result.chunks), check_crc=False):
                if message.physical_offset in timers.already_chained:
                    timers.already_chained.discard(message.physical_offset)
                else:
                    self.chain(message)
                timers.queue_offset = message.queue_offset
            timers.queue_offset = max(timers.queue_offset + 1, result.next_offset)
            timers.save_progress()

    def chain(self, message: Message) -> None:
        now_ms = self.clock.now_ms()
        ahead = int(message.body) if message.body.isdigit() else 0
        slot = max(self.timers.slot_start_ms(now_ms) + ahead * TIMER_CONFIG.precision_ms, self.timers.read_ms)
        physical_offset, size = message.physical_offset, message.size
        self.timers.chain_message(
            slot,
            magic=1,
            write_ms=now_ms,
            physical_offset=physical_offset,
            size=size,
            topic_hash=0,
            due_ms=slot + 1,
        )

    @rule()
    def deliver_timers(self) -> None:
        """Deliver the slots whose time has come."""
        while (slot := self.timers.next_slot_ms()) is not None and slot <= self.clock.now_ms():
            self.delivered.update(record.physical_offset for record in self.timers.pending_records(slot))
            self.timers.finish_slot(slot)
            self.timers.save_progress()

    @rule()
    def flush_timers(self) -> None:
        position = self.timers.take_unflushed_position()
        if position is not None:
            self.timers.flush(position)

    def check_timers(self, lost_power: bool = False) -> None:
        records = [
            record
            for slot in self.timers._wheel.used_slots()
            if slot.time_ms >= self.timers.read_ms
            for record in self.timers.pending_records(slot.time_ms)
        ]
        waiting = Counter(record.physical_offset for record in records)
        assert not waiting or max(waiting.values()) == 1
        sent = self.live((WHEEL, 0))
        unread = {message.start for message in sent if message.offset >= self.timers.queue_offset}
        unread -= self.timers.already_chained
        again = self.delivered & (waiting.keys() | unread)
        assert lost_power or not again
        self.delivered -= again
        assert not waiting.keys() & unread
        first = self.store.min_physical_offset
        stored = {
            message.start: message for message in sent if message.body is not None and message.start >= first
        }
        assert stored.keys() <= waiting.keys() | unread | self.delivered
        for record in records:
            message = stored.get(record.physical_offset)
            assert message is None or record.size == message.end - message.start

    # -- staged batches: published once and whole --

    @rule()
    def stage_part(self) -> None:
        body = b"%d-%d" % (self.batch, len(self.staged_bodies))
        self.staged.write_part("w", self.batch, "s", len(self.staged_bodies), body)
        self.staged_bodies.append(body)

    @rule()
    def begin_publishing(self) -> None:
        self.publish_some(1000)  # the batch before comes first
        if self.staged_bodies:
            self.flush()
            floors = {STAGED: {"0": self.store.max_offset(STAGED, 0)}}
            intent = PublishIntent(self.batch, [("s", len(self.staged_bodies))], False, floors)
            self.staged.write_intent("w", intent)
            self.published += self.staged_bodies
            self.staged_bodies = []
            self.batch += 1

    @rule(parts=st.integers(0, 3))
    def publish_some(self, parts: int) -> None:
        """Append some parts that are not there yet; then the batch is finished, if that was all."""
        intent = self.staged.read_intent("w")
        if intent is None:
            return
        floor = intent.floors[STAGED]["0"]
        present = {message.body for message in self.live((STAGED, 0)) if message.offset >= floor}
        numbers = range(intent.stages[0][1])
        bodies = [self.staged.read_part("w", intent.batch, "s", number) for number in numbers]
        missing = [body for body in bodies if body is not None and body not in present]
        for body in missing[:parts]:
            self.append(STAGED, 0, body, b"")
        if len(missing) <= parts:
            self.flush()
            self.staged.finish_batch("w", PublishedMark(intent.batch, False))

    def check_staged(self) -> None:
        mark, intent = self.staged.read_mark("w"), self.staged.read_intent("w")
        done = -1 if mark is None else mark.batch
        if intent is not None and intent.batch <= done:
            self.staged.finish_batch("w", PublishedMark(done, False))
            intent = None
        assert self.batch - 1 == (done if intent is None else intent.batch)
        bodies = [message.body for message in self.live((STAGED, 0))]
        assert len(set(bodies)) == len(bodies)
        expected = [body for body in self.published if int(body.split(b"-")[0]) <= done]
        assert set(expected) <= set(bodies)
        if intent is not None:
            count = intent.stages[0][1]
            assert None not in [
                self.staged.read_part("w", intent.batch, "s", number) for number in range(count)
            ]
        for number, body in enumerate(self.staged_bodies):
            assert self.staged.read_part("w", self.batch, "s", number) == body

    # -- what happens to it --

    @rule()
    def kill(self) -> None:
        files = self.files.crash(random.Random(0), lose_unflushed=False)
        self.recover(files, self.store.max_physical_offset, False)

    @rule(seed=st.integers(0, 1 << 30))
    def lose_power(self, seed: int) -> None:
        self.recover(self.files.crash(random.Random(seed)), self.store.durable_offset, True)

    @rule(
        seed=st.integers(0, 1 << 30),
        lose=st.sampled_from(["ny", "yn", "yy", "nn"]),
        operations_left=st.integers(0, 30),
    )
    def crash_twice(self, seed: int, lose: str, operations_left: int) -> None:
        """Crash, and crash again while the store recovers."""
        expected = self.store.durable_offset if "y" in lose else self.store.max_physical_offset
        files = self.files.crash(random.Random(seed), lose_unflushed=lose[0] == "y")
        files.operations_left = operations_left
        try:
            MessageStore.open(self.config, files, self.clock)
        except ProcessKilled:
            files.operations_left = None
        files = files.crash(random.Random(seed + 1), lose_unflushed=lose[1] == "y")
        self.recover(files, expected, "y" in lose)

    @rule(seed=st.integers(0, 1 << 30), lose=st.booleans(), operations_left=st.integers(0, 12))
    def crash_while_closing(self, seed: int, lose: bool, operations_left: int) -> None:
        expected = self.store.durable_offset if lose else self.store.max_physical_offset
        self.files.operations_left = operations_left
        with suppress(ProcessKilled):
            self.store.close()
            expected = self.store.durable_offset
        self.recover(self.files.crash(random.Random(seed), lose_unflushed=lose), expected, lose)

    @rule(
        seed=st.integers(0, 1 << 30),
        lose=st.booleans(),
        operations_left=st.integers(0, 12),
        work=st.sampled_from(["checkpoint", "index", "retention"]),
    )
    def crash_at_work(self, seed: int, lose: bool, operations_left: int, work: str) -> None:
        """Crash at one of the file operations of a background task."""
        if work == "retention":
            self.prepare_expiry(80)
        files, store = self.files, self.store
        files.operations_left = operations_left
        with suppress(ProcessKilled):
            if work == "index":
                store.build_index(20)
            elif work == "retention":
                store.delete_expired(manual=True)
            store.write_checkpoint()
        expected = store.durable_offset if lose else store.max_physical_offset
        self.recover(files.crash(random.Random(seed), lose_unflushed=lose), expected, lose)

    @rule(topic=topics, seed=st.integers(0, 1 << 30), lose=st.booleans(), operations_left=st.integers(0, 12))
    def crash_while_deleting(self, topic: str, seed: int, lose: bool, operations_left: int) -> None:
        """Crash at one of the file operations of a deletion: all or nothing of the topic is left."""
        expected = self.store.durable_offset if lose else self.store.max_physical_offset
        self.files.operations_left = operations_left
        with suppress(ProcessKilled):
            self.store.delete_topic(topic)
        self.recover(self.files.crash(random.Random(seed), lose_unflushed=lose), expected, lose)
        if not any(self.store.max_offset(topic, queue_id) for queue_id in range(3)):
            self.note_deletion(topic)

    @rule(number=st.integers(0, 1000), part=st.floats(0, 1, exclude_max=True))
    def damage_body(self, number: int, part: float) -> None:
        """Flip a bit of a message that the checkpoint covers, and kill the process."""
        first = self.store.min_physical_offset
        covered = [
            message
            for message in self.log
            if first <= message.start < message.end <= self.confirmed and message.body
        ]
        covered = [message for message in covered if message.queue[0] not in (WHEEL, STAGED)]
        if covered:
            chosen = covered[number % len(covered)]
            self.damage(chosen, HEADER.size + int(part * len(chosen.body or b"")))

    @rule(queue_id=queue_ids, topic=topics, byte=st.sampled_from([3, MAGIC_AT + 2, PHYSICAL_OFFSET_AT + 5]))
    def damage_header(self, queue_id: int, topic: str, byte: int) -> None:
        """Damage the last message of a queue: nothing but its queue entry tells then that it existed."""
        sent = self.live((topic, queue_id))
        first = self.store.min_physical_offset
        if sent and first <= sent[-1].start and sent[-1].end <= self.confirmed and sent[-1].body is not None:
            self.damage(sent[-1], byte)

    def damage(self, chosen: Stored, byte: int) -> None:
        physical_offset = chosen.start + byte
        base = physical_offset - physical_offset % self.config.commit_log_file_bytes
        file = self.files.mapped[f"/s/commitlog/{base:020d}"]
        file.buffer[physical_offset - base] ^= 1
        if file.durable is not None:
            durable = bytearray(file.durable)
            durable[physical_offset - base] ^= 1
            file.durable = bytes(durable)
        chosen.body, chosen.keys = None, ()
        self.kill()

    def recover(self, files: CrashFiles, expected_end: int, lost_power: bool) -> None:
        """Open what a crash left, and note what may have been lost."""
        self.reopen_files(files)
        end = self.store.max_physical_offset
        assert end >= expected_end
        self.confirmed = end
        self.log = [message for message in self.log if message.end <= end]
        self.delivered = {physical_offset for physical_offset in self.delivered if physical_offset < end}
        self.check_timers(lost_power)
        self.check_staged()
        if len(self.log) % 2:  # otherwise the index is searched in the state in which the crash left it later
            for topic in ("a", LONG):
                for key in KEPT_KEYS:
                    self.query_by_key(topic, key)

    # -- what must be true --

    @rule(
        topic=topics, queue_id=queue_ids, back_ms=st.sampled_from([0, 1, 500, 501, 4000, 4500, 80 * HOUR_MS])
    )
    def search_by_time(self, topic: str, queue_id: int, back_ms: int) -> None:
        queue, time_ms = (topic, queue_id), self.clock.now_ms() - back_ms
        low, high = self.store.min_offset(*queue), self.store.max_offset(*queue)
        messages = [
            message for message in self.live(queue) if message.body is not None and message.offset >= low
        ]
        first = self.store.offset_by_time(*queue, time_ms, Boundary.LOWER)
        assert low <= first <= high
        assert all((message.time_ms >= time_ms) == (message.offset >= first) for message in messages)
        last = self.store.offset_by_time(*queue, time_ms, Boundary.UPPER)
        assert low <= last <= high
        assert all(
            (message.time_ms > time_ms) == (message.offset > last)
            for message in messages
            if message.offset != low
        )

    @rule(topic=topics, key=st.sampled_from(KEPT_KEYS))
    def query_by_key(self, topic: str, key: str) -> None:
        first = self.store.min_physical_offset
        expected = [
            message.start
            for message in self.log
            if message.queue[0] == topic and key in message.keys and message.start >= first
        ]
        lost = {message.start for message in self.log if message.body is None}
        stored = self.store.query_by_key(topic, key, 64, 0, 1 << 60)
        assert [start for start in stored if start not in lost] == expected[::-1][
            : 64 - len(lost & set(stored))
        ]

    @invariant()
    @precondition(lambda self: hasattr(self, "store"))
    def same_messages(self) -> None:
        assert self.store._checkpoint.confirm_offset <= self.store.durable_offset
        assert self.store.durable_offset <= self.store.max_physical_offset
        assert self.store.max_physical_offset >= self.confirmed
        for queue in {message.queue for message in self.log}:
            expected = self.live(queue)
            assert self.store.max_offset(*queue) == len(expected)
            assert [message.offset for message in expected] == list(range(len(expected)))
            first = self.store.min_physical_offset
            visible = [message for message in expected if message.start >= first]
            has_holes = any(message.body is None for message in expected)
            lowest = visible[0].offset if visible else len(expected)
            assert self.store.min_offset(*queue) == lowest or has_holes
            stored: dict[int, tuple[bytes, tuple[str, ...]]] = {}
            offset = self.store.min_offset(*queue)
            while offset < len(expected):
                result = self.store.read(*queue, offset, 32)
                assert result.status is ReadStatus.FOUND or has_holes
                assert result.next_offset > offset
                offset = result.next_offset
                for message in iter_messages(b"".join(result.chunks), check_crc=False):
                    assert message.queue_offset not in stored
                    if crc32(message.body) & 0x7FFFFFFF == message.body_crc:
                        stored[message.queue_offset] = bytes(message.body), keys_of(message)
            assert stored == {
                message.offset: (message.body, message.keys)
                for message in visible
                if message.body is not None
            }


def keys_of(message: Message) -> tuple[str, ...]:
    """Return the keys and the unique key of a message, as the index holds them."""
    properties = message.properties
    unique = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    return (*properties.get("KEYS", "").split(), *unique)


def run_once(work: Callable[[], object]) -> Callable[[], None]:
    """Return a function that does the work when it is called first."""
    pending_work = [work]

    def run() -> None:
        if pending_work:
            pending_work.pop()()

    return run


def before(work: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the work, and then what ``then`` does."""

    def run(*args: Any) -> Any:
        work()
        return then(*args)

    return run


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(
    max_examples=int(os.environ.get("LAWS_SEEDS", "200")),
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


def test_a_rebuild_brings_back_nothing_of_a_queue_whose_deletion_lost_power() -> None:
    model = StoreModel()
    model.open(queue_file_entries=5)
    model.append_many(queue_id=2, count=30)
    model.append(LONG, 2, b"u", b"")
    model.checkpoint()
    model.delete_topic("a")
    model.crash_while_closing(seed=82744, lose=True, operations_left=3)
    model.damage_header(queue_id=2, topic=LONG, byte=33)
    assert model.store.max_offset("a", 2) == 0
    model.same_messages()


def test_a_rebuild_puts_no_deleted_message_in_the_place_of_a_damaged_one() -> None:
    model = StoreModel()
    model.open(queue_file_entries=300)
    model.append("a", 2, b"deleted", b"")
    model.checkpoint_in_turns(at=2, body=b"X", other="delete", queue_id=2, topic="a")
    model.reopen()
    model.damage_header(byte=33, queue_id=2, topic="a")
    model.same_messages()
