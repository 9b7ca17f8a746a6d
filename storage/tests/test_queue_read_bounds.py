"""Reads whose filter tests messages end in time, whatever a test costs."""

from collections.abc import Sequence

from storage.append import NewMessage
from storage.config import memory_config
from storage.files import MemoryFiles
from storage.queue_read import ReadStatus
from storage.store import MessageStore

TOPIC, COUNT = "t", 3000


class SlowClock:
    """A clock that moves by the cost of each test."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now_ms(self) -> int:
        return round(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


class Expensive:
    """A predicate, of one message or many, that takes ``cost_s`` per message and matches those of ``matching``."""

    is_fast = True

    def __init__(
        self, clock: SlowClock, cost_s: float, matching: str = "", max_batch_messages: int = 4096
    ) -> None:
        self.max_batch_messages = max_batch_messages
        self.tested = 0
        self.largest_batch = 0
        self._clock = clock
        self._cost_s = cost_s
        self._matching = matching.encode()

    def test(self, message: memoryview) -> bool:
        self.tested += 1
        self._clock.seconds += self._cost_s
        return bool(self._matching) and self._matching in bytes(message)

    def select(self, stored: bytes, ends: Sequence[int], max_matches: int, /) -> list[int]:
        self.largest_batch = max(self.largest_batch, len(ends))
        starts = [0, *ends[:-1]]
        numbers = [
            number
            for number, start in enumerate(starts)
            if self.test(memoryview(stored)[start : ends[number]])
        ]
        return numbers[:max_matches]

    def estimate_scan_count(self, max_matches: int, /) -> int:
        return 4096


def filled(clock: SlowClock) -> MessageStore:
    store = MessageStore.open(memory_config(), MemoryFiles(), clock)
    for number in range(COUNT):
        store.append(NewMessage(TOPIC, 0, b"message %05d." % number, b""))
    return store


def test_one_by_one_ends_after_the_time_and_goes_on_from_there() -> None:
    clock = SlowClock()
    store, slow = filled(clock), Expensive(clock, 0.001)
    result = store.read(TOPIC, 0, 0, 2**31 - 1, 1 << 20, None, slow.test)
    assert result.status is ReadStatus.NO_MATCHED_MESSAGE
    assert slow.tested == result.next_offset
    assert 1 <= slow.tested <= 6
    result = store.read(TOPIC, 0, result.next_offset, 2**31 - 1, 1 << 20, None, slow.test)
    assert slow.tested == result.next_offset <= 12


def test_a_test_longer_than_the_time_is_made_once_per_read() -> None:
    clock = SlowClock()
    store, slow = filled(clock), Expensive(clock, 9.0)
    for expected in (1, 2, 3):
        assert store.read(TOPIC, 0, expected - 1, 32, 1 << 20, None, slow.test).next_offset == expected


def test_batches_end_after_the_time_and_are_as_small_as_the_predicate_says() -> None:
    clock = SlowClock()
    store, slow = filled(clock), Expensive(clock, 0.001, max_batch_messages=3)
    result = store.read(TOPIC, 0, 0, 4096, 1 << 20, None, slow.test, slow)
    assert (slow.largest_batch, slow.tested, result.next_offset) == (3, 6, 6)


def test_what_was_found_until_then_is_returned() -> None:
    clock = SlowClock()
    store = filled(clock)
    for batch in (False, True):
        slow = Expensive(clock, 0.001, "00003.", max_batch_messages=2)
        result = store.read(TOPIC, 0, 0, 32, 1 << 20, None, slow.test, slow if batch else None)
        assert (result.status, result.count) == (ReadStatus.FOUND, 1)
        assert 4 <= result.next_offset <= 7


def test_tests_that_cost_nothing_are_bounded_by_their_number() -> None:
    clock = SlowClock()
    store, quick = filled(clock), Expensive(clock, 0.0)
    result = store.read(TOPIC, 0, 0, 32, 1 << 20, None, quick.test)
    assert quick.tested == result.next_offset == 800
