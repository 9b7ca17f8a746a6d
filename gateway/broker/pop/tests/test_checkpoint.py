import json

import pytest

from gateway.broker.pop.checkpoint import Acks, CheckPoint, PopKey

KEY = PopKey("orders", "g", 3, 100, 1_700_000_000_000, "broker-a")


def test_a_checkpoint_as_the_official_broker_writes_it():
    point = CheckPoint(KEY, 60_000, [0, 2, 5], bits=0b010)
    assert json.loads(point.to_json()) == {
        "bm": 2, "bn": "broker-a", "c": "g", "d": [0, 2, 5], "it": 60_000, "n": 3, "pt": 1_700_000_000_000,
        "q": 3, "reviveTime": 1_700_000_060_000, "ro": 0, "so": 100, "t": "orders",
    }  # fmt: skip
    assert CheckPoint.from_value(json.loads(point.to_json())) == point


def test_an_old_checkpoint_without_distances():
    point = CheckPoint.from_value({"t": "orders", "c": "g", "so": 7, "n": 3, "pt": 5, "it": 10})
    assert (point.diffs, point.revive_time, point.key.broker_name, point.end) == ([0, 1, 2], 15, "", 10)


def test_thirty_two_messages_fill_a_java_int():
    point = CheckPoint(KEY, 1, list(range(32)))
    for offset in range(100, 132):
        assert point.ack(offset)
    assert point.done
    assert json.loads(point.to_json())["bm"] == -1
    assert CheckPoint.from_value(json.loads(point.to_json())).done


def test_acks_count_once_and_only_for_messages_of_the_pop():
    point = CheckPoint(KEY, 60_000, [0, 2])
    assert point.ack(102)
    assert not point.ack(102)
    assert not point.ack(101)
    assert not point.ack(99)
    assert (point.pending(), point.done) == ([100], False)
    assert point.ack(100)
    assert (point.pending(), point.done) == ([], True)


def test_how_often_a_message_could_not_be_written_again():
    point = CheckPoint(KEY, 1, [0], re_puts=3)
    assert json.loads(point.to_json())["rp"] == "3"
    assert CheckPoint.from_value({"t": "t", "c": "g", "n": 1, "rp": "3"}).re_puts == 3
    assert CheckPoint.from_value({"t": "t", "c": "g", "n": 1, "rp": "often"}).re_puts == 127


def test_one_ack_and_several():
    one, several = Acks(KEY, [101]), Acks(KEY, [100, 105])
    assert (one.tag, several.tag) == ("ack", "bAck")
    assert json.loads(one.to_json()) == {
        "ao": 101, "bn": "broker-a", "c": "g", "pt": 1_700_000_000_000, "q": 3, "so": 100, "t": "orders",
    }  # fmt: skip
    assert json.loads(several.to_json())["aol"] == [100, 105]
    for acks in (one, several):
        assert Acks.from_value(json.loads(acks.to_json())) == acks


def test_an_ack_of_an_old_broker_with_long_names():
    acks = Acks.from_value(
        {"ackOffset": 9, "startOffset": 8, "consumerGroup": "g", "topic": "t", "queueId": 1, "popTime": 5}
    )
    assert acks == Acks(PopKey("t", "g", 1, 8, 5, ""), [9])


@pytest.mark.parametrize("value", [{}, {"t": "x"}, {"c": "g"}, {"t": "t", "c": "g", "so": "abc"}])
def test_what_is_no_record(value):
    with pytest.raises((ValueError, KeyError, TypeError)):
        CheckPoint.from_value(value)
