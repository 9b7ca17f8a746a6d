import json

import pytest

from gateway.broker.pop.checkpoint import AckRecord, PopCheckpoint, PopKey

KEY = PopKey("orders", "g", 3, 100, 1_700_000_000_000, "broker-a")


def test_a_checkpoint_as_the_official_broker_writes_it():
    point = PopCheckpoint(KEY, 60_000, [0, 2, 5], acked_bits=0b010)
    assert json.loads(point.to_json()) == {
        "bm": 2, "bn": "broker-a", "c": "g", "d": [0, 2, 5], "it": 60_000, "n": 3, "pt": 1_700_000_000_000,
        "q": 3, "reviveTime": 1_700_000_060_000, "ro": 0, "so": 100, "t": "orders",
    }  # fmt: skip
    assert PopCheckpoint.from_value(json.loads(point.to_json())) == point


def test_an_old_checkpoint_without_distances():
    point = PopCheckpoint.from_value({"t": "orders", "c": "g", "so": 7, "n": 3, "pt": 5, "it": 10})
    assert (point.offset_diffs, point.revive_time, point.key.broker_name, point.end_offset) == (
        [0, 1, 2],
        15,
        "",
        10,
    )


def test_thirty_two_messages_fill_a_java_int():
    point = PopCheckpoint(KEY, 1, list(range(32)))
    for offset in range(100, 132):
        assert point.mark_acked(offset)
    assert point.is_done
    assert json.loads(point.to_json())["bm"] == -1
    assert PopCheckpoint.from_value(json.loads(point.to_json())).is_done


def test_acks_count_once_and_only_for_messages_of_the_pop():
    point = PopCheckpoint(KEY, 60_000, [0, 2])
    assert point.mark_acked(102)
    assert not point.mark_acked(102)
    assert not point.mark_acked(101)
    assert not point.mark_acked(99)
    assert (point.unacked_offsets(), point.is_done) == ([100], False)
    assert point.mark_acked(100)
    assert (point.unacked_offsets(), point.is_done) == ([], True)


def test_how_often_a_message_could_not_be_written_again():
    point = PopCheckpoint(KEY, 1, [0], postponements=3)
    assert json.loads(point.to_json())["rp"] == "3"
    assert PopCheckpoint.from_value({"t": "t", "c": "g", "n": 1, "rp": "3"}).postponements == 3
    assert PopCheckpoint.from_value({"t": "t", "c": "g", "n": 1, "rp": "often"}).postponements == 127


def test_one_ack_and_several():
    one, several = AckRecord(KEY, [101]), AckRecord(KEY, [100, 105])
    assert (one.tag, several.tag) == ("ack", "bAck")
    assert json.loads(one.to_json()) == {
        "ao": 101, "bn": "broker-a", "c": "g", "pt": 1_700_000_000_000, "q": 3, "so": 100, "t": "orders",
    }  # fmt: skip
    assert json.loads(several.to_json())["aol"] == [100, 105]
    for acks in (one, several):
        assert AckRecord.from_value(json.loads(acks.to_json())) == acks


def test_an_ack_of_an_old_broker_with_long_names():
    acks = AckRecord.from_value(
        {"ackOffset": 9, "startOffset": 8, "consumerGroup": "g", "topic": "t", "queueId": 1, "popTime": 5}
    )
    assert acks == AckRecord(PopKey("t", "g", 1, 8, 5, ""), [9])


@pytest.mark.parametrize("value", [{}, {"t": "x"}, {"c": "g"}, {"t": "t", "c": "g", "so": "abc"}])
def test_what_is_no_record(value):
    with pytest.raises((ValueError, KeyError, TypeError)):
        PopCheckpoint.from_value(value)
