import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.shadow.mirror import offset_map
from gateway.shadow.mirror.offset_map import OffsetMap

Q = ("broker-a", "orders", 0)


def test_ranges_grow_and_offsets_between_them_map_to_the_end_of_the_earlier_one():
    known = OffsetMap(10)
    known.add_range(Q, 100, 0, 5)
    known.add_range(Q, 105, 5)
    known.add_range(Q, 120, 6)
    assert known.count_entries() == {"queues": 1, "ranges": 2}
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


def test_unknown_queue_has_no_translation():
    assert OffsetMap(3).translate(Q, 7) is None


def test_oldest_ranges_are_forgotten_and_deleted_topics_completely():
    known = OffsetMap(2)
    for number in range(5):
        known.add_range(Q, number * 10, number * 3)
    assert known.translate(Q, 25) is None
    assert known.translate(Q, 35) == 10
    assert known.translate_back(Q, 10) == 31
    assert known.lowest_offset(Q) == 30
    known.forget_topic("orders")
    assert known.translate(Q, 35) is None


def test_dumped_rows_can_be_loaded_and_malformed_rows_raise():
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
def test_translation_is_never_ahead_when_messages_are_missing_or_late(arrived, runs):
    known = OffsetMap(runs)
    for target, primary in enumerate(arrived):
        known.add_range(Q, primary, target)
    for at in range(62):
        there = known.translate(Q, at)
        assert there is None or all(primary < at for primary in arrived[:there])
        here = known.translate_back(Q, at)
        assert here is None or all(target < at for target, primary in enumerate(arrived) if primary < here)


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.integers(1, 6))
def test_translation_is_never_ahead_when_answers_are_lost(arrived, unlearned, runs):
    known, there = OffsetMap(runs), sorted(arrived)
    for target, primary in enumerate(there):
        if primary not in unlearned:
            known.add_range(Q, primary, target)
    for at in range(62):
        offset = known.translate(Q, at)
        assert offset is None or all(primary < at for primary in there[:offset])


@given(st.permutations(range(30)), st.integers(1, 6))
def test_translation_is_never_ahead_when_messages_arrive_in_any_order(arrived, runs):
    known = OffsetMap(runs)
    for target, primary in enumerate(arrived):
        known.add_range(Q, primary, target)
    for at in range(31):
        there = known.translate(Q, at)
        assert there is None or all(primary < at for primary in arrived[:there])
        here = known.translate_back(Q, at)
        assert here is None or all(target < at for target, primary in enumerate(arrived) if primary < here)


def test_queues_of_made_up_topics_are_bounded(monkeypatch):
    monkeypatch.setattr(offset_map, "MAX_QUEUES", 100)
    known = OffsetMap(10)
    for number in range(1000):
        known.add_range(("broker-a", f"made-up-{number}", 0), 0, 0)
        known.add_range(("broker-a", f"made-up-{number}", 0), 5, 1)
    assert known.count_entries()["queues"] == 100
    assert known.translate(("broker-a", "made-up-999", 0), 5) == 1


@pytest.mark.parametrize("number", [1.5, "7", 2**63, 10**400, True, None])
def test_numbers_of_a_damaged_file(number):
    for row in (["b", "t", number, [[0, 0, 1]], []], ["b", "t", 0, [[0, number, 1]], []]):
        with pytest.raises(ValueError, match="is not a 64-bit number"):
            OffsetMap(10).load_rows([row])
