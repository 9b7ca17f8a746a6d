from codec.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from gateway.shadow.mirror.half_messages import STREAM_GRACE_S, CopyPlace, HalfMessage, HalfMessages


def half(key="K", **more):
    return HalfMessage("broker-a", key, "PID", "orders", 0, 5, 1000, **more)


def test_check_back_without_decision_gets_no_answer_and_its_copy_becomes_the_current_one():
    halves, one = HalfMessages(10), half()
    halves.add_half(one)
    assert halves.answer_check_back(one, CopyPlace(9, 2000), 0.0) == 0
    assert (one.queue_offset, one.physical_offset) == (9, 2000)


def test_decision_is_answered_unless_the_stream_is_sending_it():
    halves, one = HalfMessages(10), half()
    halves.add_half(one)
    one.record_decision(TRANSACTION_COMMIT, now_s=100.0)
    assert halves.answer_check_back(one, CopyPlace(9, 2000), 101.0) == 0
    assert one.queue_offset == 5
    assert halves.answer_check_back(one, CopyPlace(9, 2000), 100.0 + STREAM_GRACE_S) == TRANSACTION_COMMIT


def test_copy_that_appears_after_the_end_is_rolled_back():
    halves, one = HalfMessages(10), half(end=TRANSACTION_COMMIT, ended=True)
    assert halves.answer_check_back(one, CopyPlace(9, 2000), 0.0) == TRANSACTION_ROLLBACK


def test_oldest_half_messages_are_forgotten_and_counted_if_open():
    halves = HalfMessages(2)
    for key, ended in (("a", True), ("b", False), ("c", False), ("d", False)):
        halves.add_half(half(key, ended=ended))
    assert halves.forgotten == 1
    assert halves.find_half("broker-a", "b") is None
    assert (halves.count_open(), halves.count_open("broker-b"), halves.open_groups("broker-a")) == (
        2,
        0,
        {"PID"},
    )
