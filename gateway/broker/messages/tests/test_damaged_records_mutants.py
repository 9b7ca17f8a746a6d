"""Stored records that were mutated in many ways stop nothing behind them, while a broker runs and when it starts again.

For each kind of internal record, hundreds of mutants of a valid one lie between two good ones.
"""

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from codec.properties import encode_properties
from codec.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from gateway.broker.messages.damaged_records import RecordKind
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from storage.append import NewMessage
from storage.files import MemoryFiles

NOW_MS = 1_700_000_000_000
MUTANTS = 150
MAX_PEAK_BYTES = 96 << 20
"""Enough for a whole broker; a thousand times less than what one of the records would like to have."""
REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_c1"

HUGE_NUMBER = "a number of 5,000 digits"
"""Stands for such a number in `HOSTILE_VALUES`: Python writes none of more than 4,300 digits."""
HOSTILE_TEXTS = (
    "", "0", "-1", "+5", " 5", "1_0", "1.5", "1e9", "x", "null", "9" * 400, "9" * 5_000, "-" + "9" * 5_000,
    str((1 << 31) - 1), str(1 << 31), str((1 << 63) - 1), str(1 << 63), str(-(1 << 63)), "a/b", "..", "x" * 30_000,
    "\u0661", "\ud800", ",", "," * 10_000, "TBW102", SCHEDULE_TOPIC, TRANS_OP_TOPIC, TIMER_TOPIC, REVIVE_TOPIC,
)  # fmt: skip
HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 33, 127, 128, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, 10**18, 10**400, HUGE_NUMBER, 1.5, 1e308,
    [], {}, [None], [[]], [1 << 40], [-1], list(range(5_000)), {"a": {"b": []}}, *HOSTILE_TEXTS,
)  # fmt: skip


class StoredRecord(NamedTuple):
    """A message of an internal topic."""

    body: bytes
    properties: dict[str, str]


class MutatedRecord(NamedTuple):
    body: bytes
    properties: bytes


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Return the bytes cut, repeated, overwritten, or with hostile ones in between."""
    at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    hostile = rng.choice(HOSTILE_TEXTS).encode("utf-8", "replace")
    return rng.choice(
        (
            data[:at],
            data[at:],
            data[:at] + data[end:],
            data[:end] + data[at:],
            data[:at] + hostile + data[end:],
            data[:at] + rng.randbytes(end - at) + data[end:],
        )
    )


def mutate_json(rng: random.Random, body: bytes) -> bytes:
    """Return the object with one or two fields replaced, or removed."""
    value = json.loads(body)
    for name in rng.sample(sorted(value), rng.randint(1, 2)):
        if rng.random() < 0.1:
            del value[name]
        else:
            value[name] = rng.choice(HOSTILE_VALUES)
    return json.dumps(value).replace(f'"{HUGE_NUMBER}"', "9" * 5_000).encode()


def mutate_properties(rng: random.Random, properties: dict[str, str]) -> bytes:
    """Return the properties encoded, some with hostile values, some missing, some not properties at all."""
    changed = dict(properties)
    if not changed or rng.random() < 0.2:
        return mutate_bytes(rng, encode_properties(properties))[:32_000]
    for name in rng.sample(sorted(changed), rng.randint(1, min(2, len(changed)))):
        if rng.random() < 0.2:
            del changed[name]
        else:
            changed[name] = rng.choice(HOSTILE_TEXTS)
    encoded = encode_properties(changed)
    return encoded if len(encoded) <= 32_767 else encoded[:32_767]


def mutants_of(rng: random.Random, record: StoredRecord) -> Iterator[MutatedRecord]:
    """Yield mutants of a record: of its body, its properties, or both."""
    for _ in range(MUTANTS):
        body, properties = record.body, encode_properties(record.properties)
        if rng.random() < 0.6:
            is_json = body.startswith(b"{") and rng.random() < 0.7
            body = mutate_json(rng, body) if is_json else mutate_bytes(rng, body)
        if rng.random() < 0.6:
            properties = mutate_properties(rng, record.properties)
        yield MutatedRecord(body, properties.strip(b"\0").replace(bytes(512), b""))


class InternalQueue:
    """The queue of one kind of internal record: what is stored there, and the service that reads it."""

    topic = ""
    kind = RecordKind.POP_RECORD
    skips = True
    """False for half messages: whatever is in one, its producer is asked about it, or it is given up."""

    def __init__(self, world: World) -> None:
        self.world = world

    def put_good(self, name: str) -> None:
        """Store a good record whose effect can be seen under ``name``."""
        raise NotImplementedError

    def valid(self) -> StoredRecord:
        """Return the valid record to mutate."""
        raise NotImplementedError

    def is_harmless(self, mutant: MutatedRecord) -> bool:
        """Return False for a mutant that happens to be a valid record about one of the good ones."""
        return True

    def run(self) -> None:
        """Let the service work until everything is due."""
        raise NotImplementedError

    def served(self) -> set[str]:
        """Return the names of the good records that had their effect."""
        raise NotImplementedError

    def put(self, body: bytes, properties: bytes) -> None:
        self.world.broker.store.append(
            NewMessage(self.topic, 0, body, properties, born_timestamp=self.world.clock.now_ms())
        )

    def bodies(self, topic: str) -> set[str]:
        return {message.body.decode() for message in self.world.stored(topic)}


class TimerMessages(InternalQueue):
    topic, kind = TIMER_TOPIC, RecordKind.TIMER_MESSAGE

    def put_good(self, name: str) -> None:
        self.world.put(
            "t", body=name.encode(), properties={"TIMER_DELIVER_MS": str(NOW_MS + 1500), "UNIQ_KEY": name}
        )

    def valid(self) -> StoredRecord:
        more = {
            "TIMER_ROLL_TIMES": "1",
            "TIMER_DEL_UNIQKEY": "K",
            "TIMER_DELAY_MS": "5",
            "TIMER_ENQUEUE_MS": "5",
        }
        return StoredRecord(
            b"odd",
            {
                "UNIQ_KEY": "K",
                "TIMER_OUT_MS": str(NOW_MS + 1000),
                **more,
                "REAL_TOPIC": "odd",
                "REAL_QID": "0",
            },
        )

    def run(self) -> None:
        timers = self.world.broker.timer_delivery
        assert timers is not None
        for _ in range(4):
            while timers.read_topic(1000) or timers.deliver_due(1000):
                pass
            self.world.clock.pass_ms(1000)

    def served(self) -> set[str]:
        return self.bodies("t")


class DelayedMessages(InternalQueue):
    topic, kind = SCHEDULE_TOPIC, RecordKind.DELAYED_MESSAGE

    def put_good(self, name: str) -> None:
        self.world.put("t", body=name.encode(), properties={"DELAY": "1"})

    def valid(self) -> StoredRecord:
        return StoredRecord(b"odd", {"DELAY": "1", "REAL_TOPIC": "odd", "REAL_QID": "0", "TAGS": "a"})

    def run(self) -> None:
        self.world.clock.pass_ms(2000)
        while self.world.broker.delay_service.deliver_due(self.world.clock.now_ms()):
            pass

    def served(self) -> set[str]:
        return self.bodies("t")


class HalfMessages(InternalQueue):
    topic, kind, skips = TRANS_HALF_TOPIC, RecordKind.HALF_MESSAGE, False

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.producer = FakeConnection()
        world.beat(self.producer, group=None, producers=["PID"])

    def put_good(self, name: str) -> None:
        self.put(name.encode(), self.properties(name))

    @staticmethod
    def properties(name: str, **more: str) -> bytes:
        return encode_properties(
            {"PGROUP": "PID", "UNIQ_KEY": name, **more, "REAL_TOPIC": "t", "REAL_QID": "0"}
        )

    def valid(self) -> StoredRecord:
        more = {
            "TRANSACTION_CHECK_TIMES": "3",
            "CHECK_IMMUNITY_TIME_IN_SECONDS": "5",
            "TRAN_PREPARED_QUEUE_OFFSET": "1",
        }
        return StoredRecord(
            b"odd", {"PGROUP": "PID", "UNIQ_KEY": "odd", **more, "REAL_TOPIC": "odd", "REAL_QID": "0"}
        )

    def run(self) -> None:
        self.world.clock.pass_ms(31_000)
        for _ in self.world.broker.transaction_checks.run_round():
            pass

    def served(self) -> set[str]:
        return {request.msg_id for request in self.producer.told}


class OpMessages(HalfMessages):
    """Op messages end half messages: the good one before the mutants, and the one behind them."""

    topic, kind, skips = TRANS_OP_TOPIC, RecordKind.OP_MESSAGE, True

    def put_good(self, name: str) -> None:
        store = self.world.broker.store
        for key in (name, f"not {name}"):
            offset = store.append(
                NewMessage(TRANS_HALF_TOPIC, 0, b"", self.properties(key), born_timestamp=NOW_MS)
            )[0]
            if key == name:
                self.put(b"%d," % offset, b"TAGS\x01d\x02")

    def valid(self) -> StoredRecord:
        return StoredRecord(b"1000000,1000001,1000002,", {"TAGS": "d"})

    def is_harmless(self, mutant: MutatedRecord) -> bool:
        return not {b"0", b"1", b"2", b"3"} & {
            text.lstrip(b"+0") or b"0" for text in mutant.body.split(b",") if text
        }

    def served(self) -> set[str]:
        asked = super().served()
        return {name for name in ("before", "behind") if name not in asked and f"not {name}" in asked}


class PopRecords(InternalQueue):
    topic, kind = REVIVE_TOPIC, RecordKind.POP_RECORD

    def __init__(self, world: World) -> None:
        super().__init__(world)
        world.topic("t")
        world.broker.groups.find_or_create("g")

    def put_good(self, name: str) -> None:
        offset, _ = self.world.put("t", body=name.encode())
        self.put(self.checkpoint(so=offset), b"TAGS\x01ck\x02")

    @staticmethod
    def checkpoint(**fields: Any) -> bytes:
        value = {
            "bn": "b1",
            "c": "g",
            "d": [0],
            "it": 1000,
            "n": 1,
            "pt": NOW_MS,
            "q": 0,
            "so": 0,
            "t": "t",
            "bm": 0,
        }
        return json.dumps(value | fields).encode()

    def valid(self) -> StoredRecord:
        body = self.checkpoint(pt=NOW_MS - 5000, ro=0, rp="1", ao=0, aol=[0], reviveTime=5)
        return StoredRecord(body, {"TAGS": random.choice(("ck", "ck", "ack", "bAck"))})

    def run(self) -> None:
        broker = self.world.broker
        broker.long_polls.answer_marked()
        for queue_id in range(8):
            broker.pop.state.reviver.catch_up(queue_id)
        self.world.clock.pass_ms(5000)
        while broker.pop.deadlines.run_due(self.world.clock.now_ms(), 1000):
            pass

    def served(self) -> set[str]:
        return self.bodies("%RETRY%g_t")


QUEUES: tuple[Callable[[World], InternalQueue], ...] = (
    TimerMessages, DelayedMessages, HalfMessages, OpMessages, PopRecords,
)  # fmt: skip


def put_all(queue: InternalQueue, rng: random.Random) -> None:
    queue.put_good("before")
    for mutant in mutants_of(rng, queue.valid()):
        if queue.is_harmless(mutant):
            queue.put(mutant.body, mutant.properties)
    queue.put_good("behind")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", QUEUES, ids=lambda kind: kind.__name__)
def test_mutants_stop_nothing_behind_them_while_the_broker_runs(
    kind: Callable[[World], InternalQueue], seed: int
) -> None:
    random.seed(seed)
    queue = kind(World())
    put_all(queue, random.Random(seed))
    queue.run()
    assert queue.served() >= {"before", "behind"}
    assert (queue.world.broker.damaged.count(queue.kind) > 0) is queue.skips


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", QUEUES, ids=lambda kind: kind.__name__)
def test_a_broker_starts_on_mutants_in_normal_memory_and_serves_what_is_behind(
    kind: Callable[[World], InternalQueue], seed: int
) -> None:
    random.seed(seed)
    files = MemoryFiles()
    put_all(kind(World(files)), random.Random(seed))
    tracemalloc.start()
    try:
        queue = kind(World(files))
        queue.run()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert queue.served() >= {"before", "behind"}
    assert peak_bytes < MAX_PEAK_BYTES
