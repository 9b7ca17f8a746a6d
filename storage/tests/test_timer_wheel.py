import pytest

from storage.crash_files import CrashFiles
from storage.errors import StoreFull
from storage.files import MemoryFiles
from storage.timer_wheel import DEFAULT_WHEEL_SLOTS, SLOT, TimerWheel, WheelSlot


def test_the_file_is_the_official_one():
    files = MemoryFiles()
    wheel = TimerWheel(files, "/timerwheel", 1000)
    assert files.size("/timerwheel") is None
    wheel.write_slot(WheelSlot(5_000, 7, 8, 2))
    assert files.size("/timerwheel") == DEFAULT_WHEEL_SLOTS * 32 == 38_707_200
    raw = files.open_mapped("/timerwheel", DEFAULT_WHEEL_SLOTS * 32).view[5 * 32 : 6 * 32]
    assert bytes(raw) == b"".join(part.to_bytes(8) for part in (5, 7, 8)) + (2).to_bytes(4) + bytes(4)


def test_a_place_holds_one_round_at_a_time():
    wheel = TimerWheel(MemoryFiles(), "/timerwheel", 100, slots=10)
    assert wheel.find_slot(300) is None
    wheel.write_slot(WheelSlot(300, 1, 2, 3))
    assert wheel.find_slot(399) == WheelSlot(300, 1, 2, 3)
    assert wheel.find_slot(1300) is None
    wheel.write_slot(WheelSlot(1300, 4, 5, 6))
    assert wheel.find_slot(300) is None
    wheel.write_slot(WheelSlot(500, 7, 7, 1))
    assert sorted(wheel.used_slots()) == [WheelSlot(500, 7, 7, 1), WheelSlot(1300, 4, 5, 6)]


def test_slots_outlive_the_object():
    files = MemoryFiles()
    TimerWheel(files, "/timerwheel", 1000, slots=5000).write_slot(WheelSlot(4_999_000, 1, 1, 1))
    assert list(TimerWheel(files, "/timerwheel", 1000, slots=5000).used_slots()) == [
        WheelSlot(4_999_000, 1, 1, 1)
    ]


def test_a_full_disk_changes_nothing():
    files = CrashFiles(capacity_bytes=2048 * SLOT.size)
    wheel = TimerWheel(files, "/timerwheel", 1000, slots=5000)
    wheel.write_slot(WheelSlot(1000, 1, 1, 1))
    with pytest.raises(StoreFull):
        wheel.write_slot(WheelSlot(3_000_000, 1, 1, 1))
    assert list(wheel.used_slots()) == [WheelSlot(1000, 1, 1, 1)]
