"""Records of the timer's files whose fields lie stop no timer message that is sent afterwards."""

import random
from struct import Struct

import pytest

from gateway.broker.delayed.tests.test_timer_delivery import NOW, World
from storage.disk_mapping import Buffer
from storage.files import MemoryFiles
from storage.timer_log import RECORD
from storage.timer_wheel import DEFAULT_WHEEL_SLOTS, SLOT

LONG = Struct(">q")
INT = Struct(">i")
MAX_LONG = (1 << 63) - 1
LOG = "/timerlog/00000000000000000000"
WHEEL = "/timerwheel"
CHECKPOINT = "/timercheck"
DUE_AT = RECORD.size - 8
MESSAGES_AT = 24
READ_AT, COUNTER_AT = 0, 48
OWN_READ_AT = 128 + 8


def buffer_of(files: MemoryFiles, end: str) -> Buffer:
    """Return the bytes of the file whose path ends so."""
    (path,) = [path for path in files._mapped if path.endswith(end)]
    return files._mapped[path].buffer


def slot_at(time_ms: int) -> int:
    """Return the position of a slot in the wheel."""
    return time_ms // 1000 % DEFAULT_WHEEL_SLOTS * SLOT.size


@pytest.fixture
def files() -> MemoryFiles:
    """Files of a broker that was killed while nine messages waited, three of them not flushed."""
    memory = MemoryFiles()
    world = World(memory)
    for number in range(9):
        world.later(NOW + 1500 + number * 300, f"k{number}")
        if number == 5:
            world.turn()
            world.timers.save(world.timers.take_unsaved())
    world.turn()
    return memory


def deliver_all(files: MemoryFiles) -> list[str]:
    """Start a broker on the files, send one more message, and return everything that was delivered in 9 s."""
    world = World(files)
    world.later(NOW + 3000, "new")
    for second in range(9):
        world.at(NOW + second * 1000)
    world.timers.save(world.timers.take_unsaved())
    world.timers.close()
    return world.bodies()


def test_files_that_tell_the_truth_lose_and_repeat_nothing(files):
    assert sorted(deliver_all(files)) == [*(f"k{number}" for number in range(9)), "new"]


def test_a_due_time_behind_its_slot_does_not_keep_the_slot_open(files):
    LONG.pack_into(buffer_of(files, LOG), DUE_AT, MAX_LONG)
    assert sorted(deliver_all(files)) == [*(f"k{number}" for number in range(9)), "new"]


@pytest.mark.parametrize("count", [(1 << 31) - 1, -(1 << 31)])
def test_a_count_of_a_slot_that_cannot_grow_stays_as_it_is(files, count):
    INT.pack_into(buffer_of(files, WHEEL), slot_at(NOW + 3000) + MESSAGES_AT, count)
    INT.pack_into(buffer_of(files, WHEEL), slot_at(NOW + 2000) + MESSAGES_AT, count)
    assert "new" in deliver_all(files)


def test_slots_delivered_ahead_of_the_time_are_delivered_once_more(files, caplog):
    checkpoint = buffer_of(files, CHECKPOINT)
    LONG.pack_into(checkpoint, OWN_READ_AT, MAX_LONG)
    assert "new" in deliver_all(files)
    assert "delivered ahead of the present time" in caplog.text


def test_the_last_number_of_a_checkpoint_is_followed_by_the_first(files):
    checkpoint = buffer_of(files, CHECKPOINT)
    for copy_at in (0, 56):
        LONG.pack_into(checkpoint, copy_at + COUNTER_AT, MAX_LONG)
    assert "new" in deliver_all(files)
    assert LONG.unpack_from(checkpoint, COUNTER_AT)[0] == 0


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("name", [LOG, WHEEL, CHECKPOINT])
def test_any_field_may_lie(files, name, seed):
    rng, buffer = random.Random(seed), buffer_of(files, name)
    fields = {
        LOG: [
            record * RECORD.size + field
            for record in range(9)
            for field in (0, 4, 12, 16, 24, 28, 36, 40, 44)
        ],
        WHEEL: [slot_at(NOW + slot * 1000) + field for slot in range(6) for field in (0, 8, 16, 24)],
        CHECKPOINT: [*range(0, 112, 8), *range(128, 176, 8)],
    }[name]
    for _ in range(rng.randint(1, 4)):
        values = (
            0,
            -1,
            1,
            52,
            1 << 31,
            MAX_LONG,
            -MAX_LONG - 1,
            rng.getrandbits(62),
            NOW,
            rng.randrange(500),
        )
        LONG.pack_into(buffer, rng.choice(fields), rng.choice(values))
    if name == CHECKPOINT and rng.random() < 0.7:
        buffer[56:112] = buffer[:56]
    assert "new" in deliver_all(files)


DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize("days", [1, 6, 8, 400])
@pytest.mark.parametrize("is_killed", [False, True])
def test_slots_that_a_clock_ahead_had_delivered_stay_delivered_after_a_restart(
    files, days, is_killed, caplog
):
    """The checkpoint names the time at which it was written, so it is known that the clock was ahead."""
    ahead = World(files)
    ahead.at(NOW + days * DAY_MS)
    ahead.later(NOW + days * DAY_MS + 1500, "far")
    ahead.turn()
    assert len(ahead.at(NOW + days * DAY_MS + 3000)) == 10
    ahead.timers.save(ahead.timers.take_unsaved())
    if not is_killed:
        ahead.timers.close()
    world = World(files)
    world.later(NOW + 3000, "new")
    for second in range(9):
        world.at(NOW + second * 1000)
        assert ("new" in world.bodies()) is (second >= 3)
    assert sorted(world.bodies()) == ["far", *(f"k{number}" for number in range(9)), "new"]
    assert ("delivered ahead of the present time" in caplog.text) is (days > 7)
