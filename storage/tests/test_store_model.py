"""A store against a list: whatever happens, flushed messages stay, none is invented, and queue offsets are dense."""

import random
from zlib import crc32

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from codec.batch import encode_batch
from codec.message import iter_messages
from storage.config import StoreConfig
from storage.crash_files import CrashFiles
from storage.layout import HEADER
from storage.log_scan import ScannedMessage, scan_log
from storage.queue_read import ReadStatus
from storage.store import MessageStore
from storage.tests.support import FakeClock

CONFIG = StoreConfig(
    root="/s",
    commit_log_file_bytes=4096,
    consume_queue_file_entries=5,
    index_slots=8,
    index_entries=16,
    max_message_bytes=2000,
    reserve_commit_log_bytes=700,
    reserve_queue_bytes=40,
    max_open_queue_files=4,
)
topics = st.sampled_from(["a", "long" * 40])
queue_ids = st.integers(0, 2)
bodies = st.binary(max_size=700)
properties = st.sampled_from(
    [b"", b"TAGS\x01x\x02", b"KEYS\x01k1 k2\x02UNIQ_KEY\x01u\x02", b"KEYS\x01" + b"v" * 600]
)


class StoreModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = CrashFiles()
        self.clock = FakeClock()
        self.store = MessageStore.open(CONFIG, self.files, self.clock)
        # In log order: (queue or None when hidden, body or None when damaged, end in the log)
        self.log: list[tuple[tuple[str, int] | None, bytes | None, int]] = []
        self.confirmed = 0

    def expected(self, queue: tuple[str, int]) -> list[bytes | None]:
        return [body for key, body, _ in self.log if key == queue]

    @rule(topic=topics, queue_id=queue_ids, body=bodies, properties=properties)
    def append(self, topic: str, queue_id: int, body: bytes, properties: bytes) -> None:
        offset, _, _, _ = self.store.append(topic, queue_id, body, properties)
        assert offset == len(self.expected((topic, queue_id)))
        self.log.append(((topic, queue_id), body, self.store.max_physical_offset))

    @rule(topic=topics, body=bodies)
    def append_hidden(self, topic: str, body: bytes) -> None:
        assert self.store.append(topic, 0, body, sys_flag=4)[0] == 0
        self.log.append((None, body, self.store.max_physical_offset))

    @rule(topic=topics, queue_id=queue_ids, bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=9))
    def append_batch(self, topic: str, queue_id: int, bodies: list[bytes]) -> None:
        batch = encode_batch([(0, body, b"TAGS\x01t\x02") for body in bodies])
        first, places, _ = self.store.append_batch(topic, queue_id, batch)
        assert first == len(self.expected((topic, queue_id)))
        ends = [*places[1:], self.store.max_physical_offset]
        self.log += [((topic, queue_id), body, end) for body, end in zip(bodies, ends, strict=True)]

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
        self.store = MessageStore.open(CONFIG, self.files, self.clock)
        assert self.store.max_physical_offset == end

    @rule()
    def kill(self) -> None:
        end = self.store.max_physical_offset
        self.files = self.files.crash(random.Random(0), lose_unflushed=False)
        self.store = MessageStore.open(CONFIG, self.files, self.clock)
        assert self.store.max_physical_offset == end

    @rule(number=st.integers(0, 1000), part=st.floats(0, 1, exclude_max=True))
    def damage(self, number: int, part: float) -> None:
        """Flip a bit of a message that the checkpoint covers, and kill the process."""
        last = sum(end <= self.confirmed for _, _, end in self.log)
        if not last:
            return
        chosen = number % last
        queue, body, end = self.log[chosen]
        if not body:
            return
        place = self.start_of(end) + HEADER.size + int(part * len(body))
        base = place - place % CONFIG.commit_log_file_bytes
        self.files.mapped[f"/s/commitlog/{base:020d}"].buffer[place - base] ^= 1
        self.log[chosen] = queue, None, end
        self.kill()

    def start_of(self, end: int) -> int:
        """Return the physical offset of the message that ends at ``end``."""
        log = self.store.commit_log
        for item in scan_log(log, 0, end, check_crc=False):
            assert isinstance(item, ScannedMessage)
            if item.physical_offset + item.size == end:
                return item.physical_offset
        raise AssertionError

    @rule(seed=st.integers(0, 1 << 30))
    def lose_power(self, seed: int) -> None:
        durable = self.store.durable_offset
        self.files = self.files.crash(random.Random(seed))
        self.store = MessageStore.open(CONFIG, self.files, self.clock)
        end = self.store.max_physical_offset
        assert end >= durable
        self.log = [entry for entry in self.log if entry[2] <= end]

    @rule(topic=topics)
    def query_by_key(self, topic: str) -> None:
        found = self.store.query_by_key(topic, "u", 64, 0, 1 << 60)
        assert found == sorted(set(found), reverse=True)
        assert all(self.store.message_at(offset) is not None for offset in found)

    @invariant()
    def same_messages(self) -> None:
        for queue in {key for key, _, _ in self.log if key is not None}:
            wanted = self.expected(queue)
            assert self.store.max_offset(*queue) == len(wanted)
            assert self.store.min_offset(*queue) == 0 or wanted[0] is None
            found: dict[int, bytes] = {}
            offset = self.store.min_offset(*queue)
            while offset < len(wanted):
                result = self.store.read(*queue, offset, 32)
                assert result.status is ReadStatus.FOUND or None in wanted
                assert result.next_offset > offset
                offset = result.next_offset
                for message in iter_messages(b"".join(result.chunks), check_crc=False):
                    assert message.queue_offset not in found
                    if crc32(message.body) & 0x7FFFFFFF == message.body_crc:
                        found[message.queue_offset] = message.body
            assert found == {at: body for at, body in enumerate(wanted) if body is not None}


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
