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


CHECKPOINT = {"t": "t", "c": "g", "so": 5, "n": 2, "pt": 5, "it": 10, "q": 0, "bm": 0, "d": [0, 1], "bn": "b"}
NOT_A_NUMBER = [[1], {}, "abc", "", True, 1.5, float("inf"), 1 << 63, "9" * 5000]
BAD_FIELDS = [
    *(("n", value) for value in [*NOT_A_NUMBER, -1, 33, 127, 10**18]),
    *(("bm", value) for value in [*NOT_A_NUMBER, 1 << 31]),
    *(("it", value) for value in NOT_A_NUMBER),
    *(("q", value) for value in [*NOT_A_NUMBER, -1, 1 << 31]),
    *(("so", value) for value in [*NOT_A_NUMBER, -1, (1 << 63) - 1]),
    *(("pt", value) for value in [*NOT_A_NUMBER, -1]),
    *(("d", value) for value in [{"a": 1}, "01", 7, [-1, 0], [None, 1], [1 << 31, 0], ["x"], [0] * 33]),
    *(("t", value) for value in [None, "", 5, ["t"], "x" * 32_000]),
    *(("c", value) for value in [None, "", 5, ["g"], "x" * 32_000]),
    *(("bn", value) for value in [5, {}, "x" * 32_000]),
]


@pytest.mark.parametrize("value", [None, [], "ck", 5, {}, {"t": "x"}, {"c": "g"}])
def test_what_is_no_record(value):
    for kind in (PopCheckpoint, AckRecord):
        with pytest.raises(ValueError, match=r"not an object|neither topic"):
            kind.from_value(value)


@pytest.mark.parametrize(("name", "value"), BAD_FIELDS, ids=lambda value: str(value)[:20])
def test_a_checkpoint_with_a_field_that_cannot_be_is_refused(name, value):
    with pytest.raises(ValueError, match=r"."):
        PopCheckpoint.from_value({**CHECKPOINT, name: value})


@pytest.mark.parametrize("offsets", [[None], ["x"], [1 << 63], list(range(33)), {}, "12", [[1]], [True]])
def test_acks_of_what_is_no_message_are_refused(offsets):
    with pytest.raises(ValueError, match=r"."):
        AckRecord.from_value({**CHECKPOINT, "aol": offsets})
    if isinstance(offsets, list) and len(offsets) == 1:
        with pytest.raises(ValueError, match=r"."):
            AckRecord.from_value({**CHECKPOINT, "ao": offsets[0]})


@pytest.mark.parametrize("again", ["-5", "9" * 5000, "128", [1], {}, True, 1.5, 200])
def test_a_number_of_postponements_that_cannot_be_is_the_largest_or_none(again):
    assert PopCheckpoint.from_value({**CHECKPOINT, "rp": again}).postponements in (0, 127)


@pytest.mark.parametrize("invisible_time", [(1 << 63) - 1, -(1 << 63)])
def test_a_checkpoint_of_any_time_can_be_written_and_read(invisible_time):
    point = PopCheckpoint(KEY, invisible_time, [0])
    assert -(1 << 63) <= point.revive_time < 1 << 63
    assert PopCheckpoint.from_value(json.loads(point.to_json())) == point


def test_names_are_held_once():
    texts = [json.dumps(CHECKPOINT | {"t": "a-topic-of-many-pops"}) for _ in range(2)]
    first, second = (PopCheckpoint.from_value(json.loads(text)) for text in texts)
    assert first.key.topic is second.key.topic
