import os
import shutil
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.shadow.mirror.spill_queue import (
    ASIDE_MARKER,
    MAGIC,
    SpillQueue,
    SpillQueueFull,
    holds_records,
    iter_payloads,
    set_directory_aside,
)


def files(tmp_path, limit=10_000, size=100, owner="me"):
    return SpillQueue(str(tmp_path / "s"), limit, size, owner)


def opened(tmp_path, **more):
    made = files(tmp_path, **more)
    made.recover()
    return made


def payloads(queue, size=1000):
    """Return the payloads of the next read."""
    found = queue.read_records(size)
    return [payload for _, payload in found.records]


def read_everything(queue, size=1000):
    """Read to the end; return the payloads, and how many records were lost."""
    read, lost = [], 0
    while queue.unread_count:
        found = queue.read_records(size)
        read += [payload for _, payload in found.records]
        lost += found.lost
    return read, lost


def spill_files(tmp_path):
    return sorted(path for path in (tmp_path / "s").iterdir() if path.suffix == ".spill")


def test_records_are_read_in_order_and_finished_files_deleted(tmp_path):
    queue = opened(tmp_path)
    written = [b"record %d" % number for number in range(50)]
    for start in range(0, 50, 5):
        assert queue.append_records(written[start : start + 5]) == start
    assert read_everything(queue, 30) == (written, 0)
    assert len(spill_files(tmp_path)) > 3
    queue.save_position(20)
    kept = [int(path.stem) for path in spill_files(tmp_path)]
    assert max(number for number in kept if number <= 20) == min(kept)
    queue.save_position(50)
    assert spill_files(tmp_path) == []
    assert queue.size_bytes == 0


def test_reads_and_appends_alternate(tmp_path):
    queue = opened(tmp_path)
    queue.append_records([b"a", b"b"])
    assert payloads(queue, 1) == [b"a"]
    queue.append_records([b"c"])
    assert payloads(queue) == [b"b", b"c"]
    queue.append_records([b"d", b"e"])
    queue.skip_to(4)
    assert payloads(queue) == [b"e"]
    assert payloads(queue) == []


def test_size_limit_holds(tmp_path):
    queue = opened(tmp_path, limit=100)
    queue.append_records([b"x" * 50])
    with pytest.raises(SpillQueueFull):
        queue.append_records([b"x" * 50])
    assert payloads(queue) == [b"x" * 50]
    queue.save_position(1)
    queue.append_records([b"y" * 50])


def test_damaged_record_is_counted_and_later_records_are_read(tmp_path):
    queue = opened(tmp_path, size=60)
    queue.append_records([b"good", b"bad", b"well"])
    queue.append_records([b"next"])
    first = spill_files(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[data.index(b"bad")] ^= 1
    first.write_bytes(data)
    assert read_everything(queue) == ([b"good", b"well", b"next"], 1)


def test_damaged_length_loses_the_rest_of_the_file(tmp_path):
    queue = opened(tmp_path, size=60)
    queue.append_records([b"good", b"bad", b"well"])
    queue.append_records([b"next"])
    first = spill_files(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[data.index(b"bad") - 16] = 0xFF
    first.write_bytes(data)
    assert read_everything(queue) == ([b"good", b"next"], 2)


def test_missing_file_counts_as_lost_records(tmp_path):
    queue = opened(tmp_path)
    queue.append_records([b"a", b"b"])
    spill_files(tmp_path)[0].unlink()
    assert read_everything(queue) == ([], 2)


# -- the next process -------------------------------------------------------------------------------------------------


def test_next_process_resumes_unfinished_records(tmp_path):
    queue = opened(tmp_path)
    queue.append_records([b"%d" % number for number in range(10)])
    queue.read_records(1000)
    queue.save_position(4)
    again = files(tmp_path)
    left = again.recover()
    assert (left.count, left.torn_tail, left.problems, left.set_aside_as) == (6, False, [], "")
    assert again.append_records([b"10"]) == 10
    assert read_everything(again) == ([b"%d" % number for number in range(4, 11)], 0)


def test_sequence_numbers_continue_when_no_record_is_left(tmp_path):
    queue = opened(tmp_path)
    queue.append_records([b"a"])
    queue.save_position(1)
    again = files(tmp_path)
    assert again.recover().count == 0
    assert again.append_records([b"b"]) == 1
    assert files(tmp_path).recover().count == 1


def test_directory_of_another_owner_is_set_aside_and_readable(tmp_path):
    queue = opened(tmp_path, owner="other")
    queue.append_records([b"%d" % number for number in range(20)])
    queue.save_position(5)
    left = files(tmp_path).recover()
    assert left.count == 0
    assert left.set_aside_as == str(tmp_path / f"s{ASIDE_MARKER}1")
    assert list(iter_payloads(left.set_aside_as)) == [b"%d" % number for number in range(5, 20)]
    opened(tmp_path, owner="third").append_records([b"x"])
    assert files(tmp_path).recover().set_aside_as == str(tmp_path / f"s{ASIDE_MARKER}2")
    assert holds_records(left.set_aside_as)
    assert not holds_records(str(tmp_path / "s"))
    assert not holds_records(str(tmp_path / "nowhere"))
    assert set_directory_aside(left.set_aside_as).endswith(f"{ASIDE_MARKER}1{ASIDE_MARKER}1")


def test_files_of_an_earlier_version_are_reported_and_ignored(tmp_path):
    opened(tmp_path)
    (tmp_path / "s" / f"{1:012d}.spill").write_bytes(b"RMQSPIL1" + b"x" * 100)
    (tmp_path / "s" / "other.spill").write_bytes(b"")
    left = files(tmp_path).recover()
    assert left.count == 0
    assert left.torn_tail
    assert "other.spill is ignored: its name is not a number" in left.problems[0]
    assert "not a complete record" in left.problems[1]


def test_one_damaged_position_slot_is_tolerated(tmp_path):
    queue = opened(tmp_path)
    queue.append_records([b"%d" % number for number in range(10)])
    for number in (3, 4):
        queue.save_position(number)
    path = tmp_path / "s" / "position"
    whole = path.read_bytes()
    for slot, wanted in ((0, 3), (512, 4)):
        path.write_bytes(whole[:slot] + bytes(16) + whole[slot + 16 :])
        again = files(tmp_path)
        again.recover()
        assert again.read_sequence == wanted
    path.write_bytes(bytes(1024))
    left = files(tmp_path).recover()
    assert left.count == 10
    assert left.problems == ["the position file is damaged: records that were finished are read again"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A directory with several files, partly finished, and the records in it."""
    here = tmp_path_factory.mktemp("written")
    queue = opened(here, size=300)
    records = [b"%d:" % number + bytes([65 + number % 26]) * (number % 40) for number in range(60)]
    for start in range(0, 60, 3):
        queue.append_records(records[start : start + 3])
    queue.save_position(13)
    return here, records


def damaged(written, tmp_path, which, change):
    """Copy the directory with one file changed; return what is read, how many are lost, and the recovery."""
    shutil.rmtree(tmp_path / "s", ignore_errors=True)
    shutil.copytree(written / "s", tmp_path / "s")
    found = spill_files(tmp_path)
    path = found[which % len(found)]
    path.write_bytes(change(path.read_bytes()))
    queue = files(tmp_path, size=300)
    left = queue.recover()
    queue.append_records([b"later"])
    read, lost = read_everything(queue, 200)
    assert read.pop() == b"later"
    return read, lost, left, {path == found[0]: "first", path == found[-1]: "last"}.get(True, "")


def assert_accounted(records, read, lost, left, place):
    """Assert that every record is read in order or counted as lost; a torn end counts as at least one."""
    wanted = records[13:]
    indices = [wanted.index(each) for each in read]
    assert indices == sorted(set(indices))
    assert left.count == len(read) + lost
    if len(read) + lost < len(wanted):
        assert place == "last"
        assert left.torn_tail or left.count < len(wanted)
    return len(read) == len(wanted)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 20), st.integers(0, 400))
def test_truncation_anywhere_never_invents_or_silently_loses_records(written, tmp_path, which, at):
    here, records = written
    read, lost, left, place = damaged(here, tmp_path, which, lambda data: data[: at % (len(data) + 1)])
    assert_accounted(records, read, lost, left, place)
    if place == "last" and not left.torn_tail:  # a cut between two records looks like a normal end
        assert read == records[13 : 13 + len(read)]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 20), st.integers(0, 10_000), st.integers(0, 7))
def test_flipped_bit_anywhere_is_detected(written, tmp_path, which, at, bit):
    here, records = written

    def flip(data):
        place = at % len(data)
        return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]

    read, lost, left, place = damaged(here, tmp_path, which, flip)
    whole = assert_accounted(records, read, lost, left, place)
    assert not whole or place == "first"  # part of the first file is finished and not read
    assert whole or lost or left.torn_tail


def test_position_beyond_the_last_record_is_trusted(tmp_path):
    """The end of the last file was lost after its records had been finished."""
    queue = opened(tmp_path, size=10_000)
    queue.append_records([b"%d" % number for number in range(10)])
    queue.save_position(9)
    path = spill_files(tmp_path)[0]
    os.truncate(path, len(MAGIC) + 30)
    again = files(tmp_path)
    left = again.recover()
    assert (left.count, left.torn_tail) == (0, False)
    assert again.append_records([b"new"]) == 9


@pytest.mark.usefixtures("lenient_umask")
def test_only_the_owner_reads_the_files(tmp_path):
    tmp_path.chmod(0o777)
    queue = SpillQueue(str(tmp_path / "spill" / "stream"), 10_000, 100, "me")
    queue.recover()
    queue.append_records([b"a message"] * 20)
    queue.save_position(1)
    made = sorted((tmp_path / "spill").rglob("*"))
    assert {path.name for path in made} > {"owner", "position", "stream"}
    for path in (tmp_path / "spill", *made):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
