import pytest

from storage.crash_files import CrashFiles
from storage.errors import StoreFull
from storage.files import MemoryFiles
from storage.timer_log import BLANK_MAGIC, RECORD, TimerLog, TimerRecord

FILE_BYTES = 1000  # 18 records, and a blank


def record(log, previous=-1, number=0):
    return TimerRecord(log.make_room(), previous, 1, 1000, 500, number * 100, 99, -7, 1501)


def write(log, count, previous=-1):
    for number in range(count):
        appended = record(log, previous, number)
        log.append(appended)
        previous = appended.position
    return previous


@pytest.fixture
def files():
    return MemoryFiles()


def opened(files, start=0, file_bytes=FILE_BYTES):
    log = TimerLog(files, "/timerlog", file_bytes)
    log.recover(start, 0, lambda record: True)
    return log


def test_a_record_has_the_official_layout(files):
    log = opened(files)
    log.append(record(log, previous=-1, number=3))
    raw = bytes(files.open_mapped("/timerlog/00000000000000000000", FILE_BYTES).view[:52])
    assert RECORD.size == 52
    assert raw == (
        (52).to_bytes(4) + b"\xff" * 8 + (1).to_bytes(4) + (1000).to_bytes(8) + (500).to_bytes(4)
        + (300).to_bytes(8) + (99).to_bytes(4) + (-7).to_bytes(4, signed=True) + (1501).to_bytes(8)
    )  # fmt: skip


def test_a_chain_goes_back_over_files_and_blanks(files):
    log = opened(files)
    last = write(log, 50)
    assert [entry.physical_offset for entry in log.chain_from(last)] == [
        number * 100 for number in range(49, -1, -1)
    ]
    assert list(log.chain_from(-1)) == []
    blank = files.open_mapped("/timerlog/00000000000000000000", FILE_BYTES).view[18 * 52 :]
    assert int.from_bytes(blank[:4]) == FILE_BYTES - 18 * 52
    assert int.from_bytes(blank[12:16], signed=True) == BLANK_MAGIC
    assert log.record_at(18 * 52) is None


@pytest.mark.parametrize("blank_bytes", [16, 17, 40, 51, 52, 53, 67])
def test_blanks_of_every_size_are_no_records(files, blank_bytes):
    """In a file of 100 MiB the blank has 16 bytes, fewer than a record."""
    file_bytes = 18 * RECORD.size + blank_bytes
    last = write(opened(files, file_bytes=file_bytes), 50)
    log = opened(files, file_bytes=file_bytes)
    assert [entry.physical_offset for entry in log.records_from(0)] == [number * 100 for number in range(50)]
    assert len(list(log.chain_from(last))) == 50
    assert log.record_at(18 * RECORD.size) is None
    assert log.delete_expired_files(10_000) == 2


@pytest.mark.parametrize("start", [0, 52, 1000, 2052, 2500, 10_000])
def test_the_end_is_found_from_any_start(files, start):
    log = opened(files)
    last = write(log, 50)
    again = opened(files, start)
    assert again.end == log.end
    assert len(list(again.chain_from(last))) == 50
    assert len(list(again.records_from(0))) == 50
    assert again.make_room() == log.make_room()


def test_what_is_torn_goes_with_all_behind_it(files):
    log = opened(files)
    write(log, 30)
    files.open_mapped("/timerlog/00000000000000000000", FILE_BYTES).buffer[10 * 52 : 10 * 52 + 4] = bytes(4)
    again = opened(files)
    assert again.end == 10 * 52
    assert files.list("/timerlog") == ["00000000000000000000"]
    write(again, 5)
    assert len(list(opened(files).records_from(0))) == 15


def test_files_go_when_all_their_messages_are_gone(files):
    log = opened(files)
    last = write(log, 50)
    assert log.delete_expired_files(1700) == 0
    assert log.delete_expired_files(1701) == 1
    assert log.first == 1000
    assert [entry.physical_offset for entry in log.chain_from(last)][-1] == 1800
    assert log.delete_expired_files(1 << 40) == 1
    assert opened(files).end == log.end


def test_a_full_disk_changes_nothing():
    files = CrashFiles(capacity_bytes=1000)
    log = opened(files)
    last = write(log, 18)
    with pytest.raises(StoreFull):
        log.make_room()
    assert len(list(log.chain_from(last))) == 18
    files.capacity_bytes = 2000
    write(log, 1)
    assert opened(files).end == 1052
