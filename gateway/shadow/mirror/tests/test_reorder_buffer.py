from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.shadow.mirror.reorder_buffer import ReorderBuffer


def test_items_in_order_leave_at_once():
    ordering = ReorderBuffer(0.05, 10)
    assert ordering.add_item("q", 0, 1, "a", 0.0) == ["a"]
    assert ordering.add_item("q", 1, 3, "batch of three", 0.0) == ["batch of three"]
    assert ordering.add_item("q", 4, 1, "b", 0.0) == ["b"]
    assert ordering.next_due_s() is None


def test_early_items_wait_for_the_ones_before_them():
    ordering = ReorderBuffer(0.05, 10)
    ordering.add_item("q", 0, 1, "0", 0.0)
    assert ordering.add_item("q", 3, 1, "3", 0.0) == []
    assert ordering.add_item("q", 2, 1, "2", 0.01) == []
    assert ordering.add_item("q", 1, 1, "1", 0.02) == ["1", "2", "3"]
    assert ordering.waiting == 0


def test_gap_is_skipped_after_the_wait_and_the_first_item_waits_too():
    ordering = ReorderBuffer(0.05, 10)
    assert ordering.add_item("q", 100, 1, "100", 0.0) == []
    assert ordering.add_item("q", 102, 1, "102", 0.04) == []
    assert ordering.next_due_s() == 0.05
    assert ordering.take_due(0.05) == ["100"]
    assert ordering.take_due(0.09) == ["102"]
    assert ordering.add_item("q", 101, 1, "101", 0.1) == ["101"]
    assert ordering.late == 1


def test_queues_are_independent_and_excess_items_push_out_the_first():
    ordering = ReorderBuffer(1.0, 2)
    assert ordering.add_item("q", 5, 1, "q5", 0.0) == []
    assert ordering.add_item("p", 0, 1, "p0", 0.0) == ["p0"]
    assert ordering.add_item("q", 9, 1, "q9", 0.0) == []
    assert ordering.add_item("q", 7, 1, "q7", 0.0) == ["q5"]
    assert ordering.take_all() == ["q7", "q9"]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2), st.integers(0, 30)), max_size=80))
def test_every_item_leaves_once_and_in_order_unless_late(steps):
    ordering, now_s, out, given_ = ReorderBuffer(0.05, 5), 0.0, {0: [], 1: [], 2: []}, 0
    for number, (offset, queue, pause_ms) in enumerate(steps):
        now_s += pause_ms / 1000
        released = ordering.take_due(now_s) + ordering.add_item(
            queue, offset, 1, (queue, offset, number), now_s
        )
        given_ += 1
        for each in released:
            out[each[0]].append(each)
    for each in ordering.take_all():
        out[each[0]].append(each)
    assert sum(map(len, out.values())) == given_
    assert ordering.waiting == 0
    descents = sum(later[1] < earlier[1] for items in out.values() for earlier, later in pairwise(items))
    assert descents <= ordering.late
