import os
import shutil

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
    """What the next reads give, until something comes or nothing is left."""
    found = queue.read_records(size)
    return [payload for _, payload in found.records]


def everything(queue, size=1000):
    """All that can be read, and how many are lost."""
    read, lost = [], 0
    while queue.unread_count:
        found = queue.read_records(size)
        read += [payload for _, payload in found.records]
        lost += found.lost
    return read, lost


def of(tmp_path):
    return sorted(path for path in (tmp_path / "s").iterdir() if path.suffix == ".spill")


def test_records_come_back_in_order_and_files_go_when_they_are_over(tmp_path):
    queue = opened(tmp_path)
    written = [b"record %d" % number for number in range(50)]
    for start in range(0, 50, 5):
        assert queue.append_records(written[start : start + 5]) == start
    assert everything(queue, 30) == (written, 0)
    assert len(of(tmp_path)) > 3
    queue.save_position(20)
    kept = [int(path.stem) for path in of(tmp_path)]
    assert max(number for number in kept if number <= 20) == min(kept)
    queue.save_position(50)
    assert of(tmp_path) == []
    assert queue.size_bytes == 0


def test_reading_and_writing_in_turns(tmp_path):
    queue = opened(tmp_path)
    queue.append_records([b"a", b"b"])
    assert payloads(queue, 1) == [b"a"]
    queue.append_records([b"c"])
    assert payloads(queue) == [b"b", b"c"]
    queue.append_records([b"d", b"e"])
    queue.skip_to(4)
    assert payloads(queue) == [b"e"]
    assert payloads(queue) == []


def test_the_limit_holds(tmp_path):
    queue = opened(tmp_path, limit=100)
    queue.append_records([b"x" * 50])
    with pytest.raises(SpillQueueFull):
        queue.append_records([b"x" * 50])
    assert payloads(queue) == [b"x" * 50]
    queue.save_position(1)
    queue.append_records([b"y" * 50])


def test_damage_is_counted_and_what_is_behind_it_is_read(tmp_path):
    queue = opened(tmp_path, size=60)
    queue.append_records([b"good", b"bad", b"well"])
    queue.append_records([b"next"])
    first = of(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[data.index(b"bad")] ^= 1
    first.write_bytes(data)
    assert everything(queue) == ([b"good", b"well", b"next"], 1)


def test_a_damaged_length_costs_the_rest_of_the_file(tmp_path):
    queue = opened(tmp_path, size=60)
    queue.append_records([b"good", b"bad", b"well"])
    queue.append_records([b"next"])
    first = of(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[data.index(b"bad") - 16] = 0xFF
    first.write_bytes(data)
    assert everything(queue) == ([b"good", b"next"], 2)


def test_a_file_that_is_gone_is_damage_too(tmp_path):
    queue = opened(tmp_path)
    queue.append_records([b"a", b"b"])
    of(tmp_path)[0].unlink()
    assert everything(queue) == ([], 2)


# -- the next process -------------------------------------------------------------------------------------------------


def test_the_next_process_goes_on_with_what_is_not_over(tmp_path):
    queue = opened(tmp_path)
    queue.append_records([b"%d" % number for number in range(10)])
    queue.read_records(1000)
    queue.save_position(4)
    again = files(tmp_path)
    left = again.recover()
    assert (left.count, left.torn_tail, left.problems, left.set_aside_as) == (6, False, [], "")
    assert again.append_records([b"10"]) == 10
    assert everything(again) == ([b"%d" % number for number in range(4, 11)], 0)


def test_numbers_go_on_when_nothing_is_left(tmp_path):
    queue = opened(tmp_path)
    queue.append_records([b"a"])
    queue.save_position(1)
    again = files(tmp_path)
    assert again.recover().count == 0
    assert again.append_records([b"b"]) == 1
    assert files(tmp_path).recover().count == 1


def test_what_another_owner_left_is_set_aside_and_can_be_looked_into(tmp_path):
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


def test_files_of_an_earlier_version_are_told_and_not_read(tmp_path):
    opened(tmp_path)
    (tmp_path / "s" / f"{1:012d}.spill").write_bytes(b"RMQSPIL1" + b"x" * 100)
    (tmp_path / "s" / "other.spill").write_bytes(b"")
    left = files(tmp_path).recover()
    assert left.count == 0
    assert left.torn_tail
    assert "other.spill is ignored: its name is not a number" in left.problems[0]
    assert "not a complete record" in left.problems[1]


def test_one_damaged_slot_of_the_position_is_made_up_for_by_the_other(tmp_path):
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
    """A directory with some files of which a part is over, and what is in it."""
    here = tmp_path_factory.mktemp("written")
    queue = opened(here, size=300)
    records = [b"%d:" % number + bytes([65 + number % 26]) * (number % 40) for number in range(60)]
    for start in range(0, 60, 3):
        queue.append_records(records[start : start + 3])
    queue.save_position(13)
    return here, records


def damaged(written, tmp_path, which, change):
    """A copy of it with one file changed; what is read of it, how many are lost, and what is told."""
    shutil.rmtree(tmp_path / "s", ignore_errors=True)
    shutil.copytree(written / "s", tmp_path / "s")
    found = of(tmp_path)
    path = found[which % len(found)]
    path.write_bytes(change(path.read_bytes()))
    queue = files(tmp_path, size=300)
    left = queue.recover()
    queue.append_records([b"later"])
    read, lost = everything(queue, 200)
    assert read.pop() == b"later"
    return read, lost, left, {path == found[0]: "first", path == found[-1]: "last"}.get(True, "")


def is_told(records, read, lost, left, place):
    """Everything is read in order or counted as lost; at the very end nobody knows how many, but that some were."""
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
def test_cut_at_any_byte_nothing_is_made_up_and_nothing_is_lost_in_silence(written, tmp_path, which, at):
    here, records = written
    read, lost, left, place = damaged(here, tmp_path, which, lambda data: data[: at % (len(data) + 1)])
    is_told(records, read, lost, left, place)
    if place == "last" and not left.torn_tail:  # a cut between two records looks like an end
        assert read == records[13 : 13 + len(read)]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 20), st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_found_and_told(written, tmp_path, which, at, bit):
    here, records = written

    def flip(data):
        place = at % len(data)
        return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]

    read, lost, left, place = damaged(here, tmp_path, which, flip)
    whole = is_told(records, read, lost, left, place)
    assert not whole or place == "first"  # part of the first file is over and not looked at
    assert whole or lost or left.torn_tail


def test_a_position_beyond_what_is_there_is_believed(tmp_path):
    """The end of the last file was lost after it was mirrored."""
    queue = opened(tmp_path, size=10_000)
    queue.append_records([b"%d" % number for number in range(10)])
    queue.save_position(9)
    path = of(tmp_path)[0]
    os.truncate(path, len(MAGIC) + 30)
    again = files(tmp_path)
    left = again.recover()
    assert (left.count, left.torn_tail) == (0, False)
    assert again.append_records([b"new"]) == 9
