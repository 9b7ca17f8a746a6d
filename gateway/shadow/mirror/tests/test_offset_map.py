import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.shadow.mirror.offset_map import OffsetMap

Q = ("broker-a", "orders", 0)


def test_stretches_grow_and_what_is_between_goes_to_the_end_of_the_earlier_one():
    known = OffsetMap(10)
    known.add_range(Q, 100, 0, 5)
    known.add_range(Q, 105, 5)
    known.add_range(Q, 120, 6)
    assert known.count_entries() == {"queues": 1, "runs": 2}
    assert [known.translate(Q, p) for p in (99, 100, 103, 106, 119, 120, 121, 500)] == [
        None,
        0,
        3,
        6,
        6,
        6,
        7,
        7,
    ]
    assert known.translate_back(Q, 6) == 120
    assert known.translate_back(Q, 3) == 103


def test_a_queue_nobody_knows_has_no_translation():
    assert OffsetMap(3).translate(Q, 7) is None


def test_the_oldest_stretches_are_forgotten_and_a_topic_as_a_whole():
    known = OffsetMap(2)
    for number in range(5):
        known.add_range(Q, number * 10, number * 3)
    assert known.translate(Q, 25) is None
    assert known.translate(Q, 35) == 10
    assert known.translate_back(Q, 10) == 31
    assert known.lowest_offset(Q) == 30
    known.forget_topic("orders")
    assert known.translate(Q, 35) is None


def test_what_was_written_is_read_again_and_nonsense_is_refused():
    known = OffsetMap(5)
    known.add_range(Q, 5, 2, 3)
    known.add_range(Q, 20, 9)
    known.add_range(Q, 12, 11)
    again = OffsetMap(5)
    again.load_rows(known.dump_rows())
    assert again.dump_rows() == known.dump_rows()
    with pytest.raises(ValueError, match="do not ascend"):
        OffsetMap(5).load_rows([("b", "t", 0, [[5, 5, 3], [6, 9, 1]], [])])


@given(st.lists(st.integers(0, 60), unique=True, max_size=50), st.integers(1, 6))
def test_never_ahead_in_either_direction_when_some_never_arrive_and_others_late(arrived, runs):
    known = OffsetMap(runs)
    for target, primary in enumerate(arrived):
        known.add_range(Q, primary, target)
    for at in range(62):
        there = known.translate(Q, at)
        assert there is None or all(primary < at for primary in arrived[:there])
        here = known.translate_back(Q, at)
        assert here is None or all(target < at for target, primary in enumerate(arrived) if primary < here)


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.integers(1, 6))
def test_never_ahead_when_answers_are_lost(arrived, unlearned, runs):
    known, there = OffsetMap(runs), sorted(arrived)
    for target, primary in enumerate(there):
        if primary not in unlearned:
            known.add_range(Q, primary, target)
    for at in range(62):
        offset = known.translate(Q, at)
        assert offset is None or all(primary < at for primary in there[:offset])


@given(st.permutations(range(30)), st.integers(1, 6))
def test_never_ahead_in_either_direction_when_each_message_arrives_once(arrived, runs):
    known = OffsetMap(runs)
    for target, primary in enumerate(arrived):
        known.add_range(Q, primary, target)
    for at in range(31):
        there = known.translate(Q, at)
        assert there is None or all(primary < at for primary in arrived[:there])
        here = known.translate_back(Q, at)
        assert here is None or all(target < at for target, primary in enumerate(arrived) if primary < here)
