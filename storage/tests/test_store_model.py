"""A store against a list: whatever happens, flushed messages stay, none is invented, and queue offsets are dense."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from codec.batch import encode_batch
from codec.message import MAGIC_AT, iter_messages
from storage.config import StoreConfig
from storage.consume_queue import ConsumeQueue
from storage.crash_files import CrashFiles, ProcessKilled
from storage.layout import HEADER, PHYSICAL_OFFSET_AT
from storage.queue_read import ReadStatus
from storage.store import MessageStore
from storage.tests.support import FakeClock

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
    is_deleted: bool = False  # its topic was deleted


class StoreModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = CrashFiles()
        self.clock = FakeClock()
        self.config = CONFIG
        self.log: list[Stored] = []
        self.confirmed = 0

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

    def live(self, queue: Queue) -> list[Stored]:
        return [each for each in self.log if each.queue == queue and each.offset >= 0 and not each.is_deleted]

    # -- what a broker does --

    @rule(topic=topics, queue_id=queue_ids, body=bodies, properties=properties)
    def append(self, topic: str, queue_id: int, body: bytes, properties: bytes) -> None:
        offset, start, size, _ = self.store.append(topic, queue_id, body, properties)
        assert offset == len(self.live((topic, queue_id)))
        self.log.append(Stored((topic, queue_id), offset, body, KEYS[properties], start, start + size))

    @rule(topic=topics, body=bodies)
    def append_hidden(self, topic: str, body: bytes) -> None:
        offset, start, size, _ = self.store.append(topic, 0, body, b"KEYS\x01k1\x02", sys_flag=4)
        assert offset == 0
        self.log.append(Stored((topic, 0), -1, body, ("k1",), start, start + size))

    @rule(topic=topics, queue_id=queue_ids, bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=9))
    def append_batch(self, topic: str, queue_id: int, bodies: list[bytes]) -> None:
        batch = encode_batch([(0, body, b"KEYS\x01k2\x02") for body in bodies])
        first, places, _ = self.store.append_batch(topic, queue_id, batch)
        assert first == len(self.live((topic, queue_id)))
        ends = [*places[1:], self.store.max_physical_offset]
        for number, (body, start, end) in enumerate(zip(bodies, places, ends, strict=True)):
            self.log.append(Stored((topic, queue_id), first + number, body, ("k2",), start, end))

    @rule(queue_id=queue_ids, count=st.sampled_from([30, 250]))
    def append_many(self, queue_id: int, count: int) -> None:
        if len(self.log) < 600:
            for number in range(count):
                self.append("a", queue_id, b"%d" % number, b"")

    @rule(topic=topics, queue_id=queue_ids, body=bodies, place=st.sampled_from(["entry", "disk", "batch"]))
    def append_during_checkpoint(self, topic: str, queue_id: int, body: bytes, place: str) -> None:
        """Let the checkpoint's thread run in the middle of an append, or the other way round."""
        confirmed = self.store.commit_log.queued_until
        with pytest.MonkeyPatch.context() as patch:
            if place == "disk":
                append = run_once(lambda: self.append(topic, queue_id, body, b""))
                patch.setattr(self.files, "flush", before(append, self.files.flush))
                self.store.write_checkpoint()
            else:
                checkpoint = run_once(self.store.write_checkpoint)
                if place == "entry":
                    patch.setattr("storage.append.tags_code_of", before(checkpoint, lambda properties: 0))
                    self.append(topic, queue_id, body, b"")
                else:
                    for name in ("append_entries", "make_room_for"):
                        patch.setattr(ConsumeQueue, name, before(checkpoint, getattr(ConsumeQueue, name)))
                    self.append_batch(topic, queue_id, [body[:60], b"second"])
        self.confirmed = max(self.confirmed, min(confirmed, self.store.durable_offset))

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        self.store.delete_topic(topic)
        assert not any(self.store.max_offset(topic, queue_id) for queue_id in range(3))
        for each in self.log:
            if each.queue[0] == topic and each.offset >= 0:
                each.is_deleted = True

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
        self.store.close()
        self.reopen_files(self.files)
        self.confirmed = end
        assert self.store.max_physical_offset == end

    # -- what happens to it --

    @rule()
    def kill(self) -> None:
        self.recover(self.files.crash(random.Random(0), lose_unflushed=False), self.store.max_physical_offset)

    @rule(seed=st.integers(0, 1 << 30))
    def lose_power(self, seed: int) -> None:
        self.recover(self.files.crash(random.Random(seed)), self.store.durable_offset)

    @rule(
        seed=st.integers(0, 1 << 30), lose=st.sampled_from(["ny", "yn", "yy", "nn"]), left=st.integers(0, 30)
    )
    def crash_twice(self, seed: int, lose: str, left: int) -> None:
        """Crash, and crash again while the store recovers."""
        expected = self.store.durable_offset if "y" in lose else self.store.max_physical_offset
        files = self.files.crash(random.Random(seed), lose_unflushed=lose[0] == "y")
        files.operations_left = left
        try:
            MessageStore.open(self.config, files, self.clock)
        except ProcessKilled:
            files.operations_left = None
        self.recover(files.crash(random.Random(seed + 1), lose_unflushed=lose[1] == "y"), expected)

    @rule(number=st.integers(0, 1000), part=st.floats(0, 1, exclude_max=True))
    def damage_body(self, number: int, part: float) -> None:
        """Flip a bit of a message that the checkpoint covers, and kill the process."""
        covered = [each for each in self.log if each.end <= self.confirmed and each.body]
        if covered:
            chosen = covered[number % len(covered)]
            self.damage(chosen, HEADER.size + int(part * len(chosen.body or b"")))

    @rule(queue_id=queue_ids, topic=topics, byte=st.sampled_from([3, MAGIC_AT + 2, PHYSICAL_OFFSET_AT + 5]))
    def damage_header(self, queue_id: int, topic: str, byte: int) -> None:
        """Damage the last message of a queue: nothing but its queue entry tells then that it existed."""
        known = self.live((topic, queue_id))
        if known and known[-1].end <= self.confirmed and known[-1].body is not None:
            self.damage(known[-1], byte)

    def damage(self, chosen: Stored, byte: int) -> None:
        place = chosen.start + byte
        base = place - place % self.config.commit_log_file_bytes
        file = self.files.mapped[f"/s/commitlog/{base:020d}"]
        file.buffer[place - base] ^= 1
        if file.durable is not None:
            durable = bytearray(file.durable)
            durable[place - base] ^= 1
            file.durable = bytes(durable)
        chosen.body, chosen.keys = None, ()
        self.kill()

    def recover(self, files: CrashFiles, expected_end: int) -> None:
        """Open what a crash left, and note what may have been lost, or come back."""
        self.reopen_files(files)
        end = self.store.max_physical_offset
        assert end >= expected_end
        self.confirmed = end
        self.log = [each for each in self.log if each.end <= end]
        for queue in {each.queue for each in self.log if each.offset >= 0}:
            if not self.live(queue):
                self.bring_back(queue)

    def bring_back(self, queue: Queue) -> None:
        """Mark the messages of a deleted topic as not deleted that a crash has brought back."""
        newest = {each.offset: each for each in self.log if each.queue == queue}
        for offset in range(self.store.max_offset(*queue)):
            newest[offset].is_deleted = False

    # -- what must be true --

    @rule(topic=topics, key=st.sampled_from(["u", "k1", "k2", "v" * 600]))
    def query_by_key(self, topic: str, key: str) -> None:
        wanted = [each.start for each in self.log if each.queue[0] == topic and key in each.keys]
        gone = {each.start for each in self.log if each.body is None}
        found = self.store.query_by_key(topic, key, 64, 0, 1 << 60)
        assert [start for start in found if start not in gone] == wanted[::-1][: 64 - len(gone & set(found))]

    @invariant()
    @precondition(lambda self: hasattr(self, "store"))
    def same_messages(self) -> None:
        assert self.store._checkpoint.confirm_offset <= self.store.durable_offset
        assert self.store.durable_offset <= self.store.max_physical_offset
        assert self.store.max_physical_offset >= self.confirmed
        for queue in {each.queue for each in self.log}:
            wanted = self.live(queue)
            assert self.store.max_offset(*queue) == len(wanted)
            assert [each.offset for each in wanted] == list(range(len(wanted)))
            has_holes = any(each.body is None for each in wanted)
            assert self.store.min_offset(*queue) == 0 or wanted[0].body is None
            found: dict[int, bytes] = {}
            offset = self.store.min_offset(*queue)
            while offset < len(wanted):
                result = self.store.read(*queue, offset, 32)
                assert result.status is ReadStatus.FOUND or has_holes
                assert result.next_offset > offset
                offset = result.next_offset
                for message in iter_messages(b"".join(result.chunks), check_crc=False):
                    assert message.queue_offset not in found
                    if crc32(message.body) & 0x7FFFFFFF == message.body_crc:
                        found[message.queue_offset] = bytes(message.body)
            assert found == {each.offset: each.body for each in wanted if each.body is not None}


def run_once(work: Callable[[], object]) -> Callable[[], None]:
    """Return a function that does the work when it is called first."""
    left = [work]

    def run() -> None:
        if left:
            left.pop()()

    return run


def before(work: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the work, and then what ``then`` does."""

    def run(*args: Any) -> Any:
        work()
        return then(*args)

    return run


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
