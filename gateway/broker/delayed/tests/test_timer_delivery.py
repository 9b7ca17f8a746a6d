"""Timer messages in one broker on virtual time: scheduled, delivered, recalled, rolled, recovered."""

import json
import random

import pytest

from codec.message import decode_message
from codec.properties import encode_properties
from codec.recall_handle import RecallHandle
from codec.sysflag import TRANSACTION_PREPARED
from codec.topics import TIMER_TOPIC
from gateway.broker.delayed.timer_delivery import RETRY_MS
from gateway.broker.messages.damaged_records import RecordKind
from gateway.tests.broker_world import World as BrokerWorld
from gateway.tests.broker_world import answer_of
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.send import RecallMessage, SendMessageV2
from remoting.requests.timers import GetTimerCheckPoint, GetTimerMetrics
from storage.append import NewMessage
from storage.crash_files import CrashFiles
from storage.timer_checkpoint import POSITION_FIELDS
from storage.timer_log import MAGIC_DEFAULT

NOW = 1_700_000_000_000
LATER = {"TIMER_DELIVER_MS": str(NOW + 1500)}


class World(BrokerWorld):
    """One broker whose timer messages are only delivered by calls of the test."""

    def later(self, deliver_ms, key="U1", topic="t", **more):
        properties = {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(deliver_ms), **more}
        return self.put(topic, body=key.encode(), properties=properties)

    def at(self, ms):
        """Move to a time, deliver everything due then, and return the bodies in topic t."""
        self.clock.ms = ms
        self.turn()
        return self.bodies()

    def turn(self):
        while self.timers.read_topic(100) or self.timers.deliver_due(100):
            pass

    @property
    def timers(self):
        return self.broker.timer_delivery

    def bodies(self, topic="t"):
        return [message.body.decode() for message in self.stored(topic)]

    def again(self, **settings):
        """Return a world on the same files after the process ended; time goes on."""
        world = World(self.files, **settings)
        world.clock.ms = self.clock.ms
        return world


@pytest.fixture
def world():
    return World()


def test_a_message_waits_as_officially(world):
    world.put(properties=LATER | {"UNIQ_KEY": "U1"}, queue_id=2)
    (waiting,) = world.stored(TIMER_TOPIC)
    assert waiting.properties["TIMER_OUT_MS"] == str(NOW + 1000)
    assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("t", "2")
    assert waiting.queue_id == 0
    assert world.stored("t", 2) == []


def test_it_is_delivered_to_the_millisecond_and_says_when(world):
    world.put(properties=LATER | {"UNIQ_KEY": "U1", "TAGS": "A"}, flag=9, born_timestamp=5, reconsume_times=2)
    assert world.at(NOW + 1499) == []
    assert world.timers.next_due_ms() == NOW + 1500
    assert world.at(NOW + 1500) == ["hello"]
    (got,) = world.stored("t")
    assert got.properties["REAL_TOPIC"] == "t"
    assert got.properties["TIMER_ENQUEUE_MS"] == str(NOW + 1000)
    assert got.properties["TIMER_DEQUEUE_MS"] == str(NOW + 1500)
    assert (got.flag, got.born_timestamp, got.reconsume_times, got.tags) == (9, 5, 2, "A")


@pytest.mark.parametrize(
    ("key", "value", "due"),
    [("TIMER_DELAY_SEC", "3", 3000), ("TIMER_DELAY_MS", "2750", 2750), ("TIMER_DELAY_MS", "1", 1)],
)
def test_delays_count_from_when_they_came(world, key, value, due):
    world.put(properties={key: value})
    world.turn()
    assert world.at(NOW + due - 1) == []
    assert world.at(NOW + due) == ["hello"]


def test_seconds_go_before_milliseconds_go_before_a_time(world):
    world.put(
        properties={"TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "5000", "TIMER_DELIVER_MS": str(NOW + 9000)}
    )
    world.put(properties={"TIMER_DELAY_MS": "5000", "TIMER_DELIVER_MS": str(NOW + 9000)})
    assert len(world.at(NOW + 1000)) == 1
    assert len(world.at(NOW + 5000)) == 2


@pytest.mark.parametrize(
    "asked", [{"TIMER_DELAY_MS": "0"}, {"TIMER_DELAY_SEC": "-5"}, {"TIMER_DELIVER_MS": str(NOW)}]
)
def test_what_is_past_is_stored_at_once(world, asked):
    world.put(properties=asked)
    assert world.bodies() == ["hello"]


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_SEC": "259201"},
        {"TIMER_DELAY_MS": "soon"},
        {"TIMER_DELIVER_MS": "99999999999999999999"},
        {"TIMER_DELIVER_MS": str(NOW - 1), "TIMER_DEL_UNIQKEY": "U1"},
    ],
)
def test_what_cannot_be_is_refused(world, asked):
    with pytest.raises(RequestError) as refused:
        world.put(properties=asked)
    assert refused.value.code == 13
    assert refused.value.remark == (
        "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; "
        "or if set del msg, the delay time should be bigger than the current time"
    )


def test_after_a_pause_older_messages_go_first(world):
    """A message read from the topic after its time waits for those that are in slots before its own."""
    world.later(NOW + 1500, "first")
    world.turn()
    world.later(NOW + 2500, "second")
    world.later(NOW + 9500, "third")
    assert world.again().at(NOW + 9000) == ["first", "second"]


def test_without_the_wheel_it_is_refused():
    world = World(timer_wheel_enable=False)
    with pytest.raises(RequestError) as refused:
        world.put(properties=LATER)
    assert (refused.value.code, refused.value.remark) == (
        1,
        "accurate timer message is not enabled, timerWheelEnable is false",
    )
    with pytest.raises(RequestError, match="The checkpoint is null"):
        world.ask(GetTimerCheckPoint())
    with pytest.raises(RequestError, match="The timer message store is null"):
        world.ask(GetTimerMetrics())
    assert TIMER_TOPIC not in world.broker.topics.table


def test_a_crowded_moment_is_refused():
    world = World(timer_congest_num_each_slot=1)
    for number in range(2):
        world.later(NOW + 2500, f"U{number}")
        world.turn()
    with pytest.raises(RequestError) as refused:
        world.later(NOW + 2500)
    assert refused.value.code == 1
    assert refused.value.remark == (
        "timer message is under flow control, max num limit is 2 or the current value is greater than 1 and "
        "less than 2, trigger random flow control"
    )


def test_a_delay_level_goes_before_a_time(world):
    world.put(properties=LATER | {"DELAY": "1"})
    (waiting,) = world.stored("SCHEDULE_TOPIC_XXXX")
    assert "TIMER_DELIVER_MS" not in waiting.properties


def test_half_messages_and_delivered_ones_are_left_alone(world):
    world.put(properties=LATER, sys_flag=TRANSACTION_PREPARED)
    world.put(properties=LATER | {"TIMER_OUT_MS": "1"})
    assert world.broker.store.max_offset(TIMER_TOPIC, 0) == 0


def test_messages_come_in_the_order_of_their_times(world):
    for deliver, key in ((1700, "b"), (1200, "a"), (3000, "d"), (2001, "c")):
        world.later(NOW + deliver, key)
    world.turn()
    assert world.at(NOW + 1700) == ["a", "b"]
    assert world.at(NOW + 60_000) == ["a", "b", "c", "d"]
    assert world.timers.next_due_ms() is None


def test_one_may_come_into_the_slot_that_is_open(world):
    world.later(NOW + 1100, "a")
    assert world.at(NOW + 1100) == ["a"]
    world.later(NOW + 1300, "b")
    world.turn()
    assert world.timers.next_due_ms() == NOW + 1300
    assert world.at(NOW + 1300) == ["a", "b"]


def test_a_clock_set_back_loses_nothing(world):
    world.later(NOW + 5000, "a")
    assert world.at(NOW + 6000) == ["a"]
    world.clock.ms = NOW
    world.later(NOW + 1000, "b")
    assert world.at(NOW + 900) == ["a"]
    assert world.at(NOW + 6001) == ["a", "b"]


def test_without_room_everything_waits(world):
    world.later(NOW + 1500, "a")
    world.turn()
    world.broker.store.disk_full = True
    assert world.at(NOW + 1500) == []
    assert world.timers.next_due_ms() == NOW + 1500 + RETRY_MS
    world.broker.store.disk_full = False
    assert world.at(NOW + 1500 + RETRY_MS) == ["a"]


def test_foreign_messages_in_the_timer_topic_are_passed_over(world):
    world.put(TIMER_TOPIC, properties={"UNIQ_KEY": "x"})
    world.later(NOW + 1000, "a")
    assert world.at(NOW + 1000) == ["a"]


def test_what_is_far_ahead_is_put_off_and_comes_in_time():
    world = World(timer_roll_window_slots=20)
    world.later(NOW + 70_000, "a")
    for second in range(70):
        assert world.at(NOW + second * 1000) == []
    assert world.at(NOW + 70_000) == ["a"]
    (got,) = world.stored("t")
    assert got.properties["TIMER_ROLL_TIMES"] == "3"
    assert world.ask(GetTimerMetrics()).body.count(b'"count":0') == 1


# -- taking back -----------------------------------------------------------------------------------------------


def recall(world, handle, topic="t"):
    return world.ask(RecallMessage(topic=topic, recall_handle=handle, producer_group="p"))


def handle_of(key="U1", slot=NOW + 1000, topic="t", broker="b1"):
    return RecallHandle(topic, broker, str(slot + 1), key).encode()


@pytest.fixture
def recalling():
    world = World(recall_message_enable=True)
    world.topic()
    return world


def test_the_answer_to_a_send_holds_the_handle(recalling):
    request = SendMessageV2(
        producer_group="p",
        topic="t",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
        properties=f"UNIQ_KEY\x01U1\x02TIMER_DELIVER_MS\x01{NOW + 1500}\x02",
    )
    request.body = b"x"
    handle = recalling.ask(request).recall_handle
    assert RecallHandle.decode(handle) == ("t", "b1", str(NOW + 1001), "U1")
    request.properties = "UNIQ_KEY\x01U1\x02"
    assert recalling.ask(request).recall_handle is None


def test_with_synchronous_flush_a_recall_is_confirmed_when_it_is_on_the_disk():
    """After a power cut a message was delivered whose recall had been confirmed."""
    world = World(recall_message_enable=True, flush_disk_type="SYNC_FLUSH")
    world.topic()
    held = []
    world.broker.answer_gate.hold = lambda connection, answer, position, *more: held.append(
        (answer, position)
    )
    request = RecallMessage(topic="t", recall_handle=handle_of(), producer_group="p")
    assert world.handlers[request.code](world.connection, request.to_command(7)) is None
    assert world.connection.written == []
    ((answer, position),) = held
    assert request.read_reply(answer_of(answer)).msg_id == "U1"
    assert position == world.broker.store.max_physical_offset


def test_a_message_taken_back_does_not_come(recalling):
    recalling.later(NOW + 1500, "U1")
    recalling.later(NOW + 1600, "U2")
    recalling.turn()
    assert recall(recalling, handle_of()).msg_id == "U1"
    assert recalling.at(NOW + 1600) == ["U2"]
    assert recalling.at(NOW + 9000) == ["U2"]


def test_a_recall_of_nothing_changes_nothing(recalling):
    recalling.later(NOW + 1500, "U1")
    recall(recalling, handle_of("other"))
    assert recalling.at(NOW + 2001) == ["U1"]
    assert json.loads(recalling.ask(GetTimerMetrics()).body)["timingCount"]["t"]["count"] == 0


def test_with_the_topic_in_the_key_a_recall_counts_for_its_topic_only():
    world = World(recall_message_enable=True, append_topic_for_timer_delete_key=True)
    world.topic()
    world.later(NOW + 1500, "U1")
    world.later(NOW + 1500, "U1", topic="other")
    recall(world, handle_of())
    world.turn()
    assert world.at(NOW + 2001) == []
    assert world.bodies("other") == ["U1"]


@pytest.mark.parametrize(
    ("handle", "code", "remark"),
    [
        ("", 604, "recall handle is invalid"),
        ("?", 604, "recall handle is invalid"),
        (handle_of(topic="other"), 604, "recall failed, topic not match"),
        (handle_of(broker="b2"), 604, "recall failed, broker service not available"),
        (handle_of(slot=NOW - 1), 604, "recall failed, timestamp invalid"),
        (handle_of(slot=NOW + 259_200_000), 604, "recall failed, timestamp invalid"),
    ],
)
def test_bad_handles_are_refused(recalling, handle, code, remark):
    with pytest.raises(RequestError) as refused:
        recall(recalling, handle)
    assert (refused.value.code, refused.value.remark) == (code, remark)


def test_recalls_are_refused_by_settings_and_topic(world, recalling):
    with pytest.raises(RequestError) as refused:
        recall(world, handle_of())
    assert (refused.value.code, refused.value.remark) == (16, "recall failed, operation is forbidden")
    with pytest.raises(RequestError) as refused:
        recall(recalling, handle_of(topic="none"), topic="none")
    assert (refused.value.code, refused.value.remark) == (17, "recall failed, the topic[none] not exist")


# -- the end and after -------------------------------------------------------------------------------------------


def test_after_a_crash_each_message_comes_once():
    files = CrashFiles()
    world = World(files)
    for deliver, key in ((1200, "a"), (1500, "b"), (4000, "c"), (90_000, "d")):
        world.later(NOW + deliver, key)
    assert world.at(NOW + 1300) == ["a"]
    world.files = files = files.crash(random.Random(0), lose_unflushed=False)
    world = world.again()
    assert world.at(NOW + 1499) == ["a"]
    assert world.at(NOW + 1500) == ["a", "b"]
    world.later(NOW + 1400, "past")
    world.files = files = files.crash(random.Random(0), lose_unflushed=False)
    world = world.again()
    assert world.at(NOW + 5000) == ["a", "b", "past", "c"]
    assert world.at(NOW + 90_000)[4:] == ["d"]


def test_after_the_end_in_order_a_slot_holds_only_what_is_left():
    files = CrashFiles()
    world = World(files)
    for deliver, key in ((1200, "a"), (1500, "b"), (1600, "c")):
        world.later(NOW + deliver, key)
    assert world.at(NOW + 1300) == ["a"]
    world.timers.close()
    world.files = files = files.crash(random.Random(0), lose_unflushed=False)
    wheel = files.mapped["/memory/timerwheel"]
    wheel_before = bytes(wheel.buffer)
    again = world.again()
    assert bytes(wheel.buffer) == wheel_before
    assert again.at(NOW + 9000) == ["a", "b", "c"]


def test_metrics(world):
    world.later(NOW + 5000, "a")
    world.later(NOW + 6000, "b")
    table = world.ask(GetBrokerRuntimeInfo()).data.table
    assert (table["timerOffsetBehind"], table["timerCongestNum"]) == ("2", "0")
    world.turn()
    world.clock.pass_ms(1000)
    world.timers.update_rates()
    table = world.ask(GetBrokerRuntimeInfo()).data.table
    assert (table["timerOffsetBehind"], table["timerCongestNum"]) == ("0", "2")
    assert (table["timerReadBehind"], table["timerEnqueueTps"]) == ("0", "2.0")
    world.timers.save(world.timers.take_unsaved())
    fields = POSITION_FIELDS.unpack(world.ask(GetTimerCheckPoint()).body)
    assert fields[2:4] == (2, 2)
    assert json.loads(world.ask(GetTimerMetrics()).body)["timingCount"]["t"]["count"] == 2
    assert world.timers.take_unsaved() == (None, None)


def test_stopped_reading_leaves_messages_in_their_topic():
    world = World(timer_stop_enqueue=True)
    world.later(NOW + 1000, "a")
    assert world.at(NOW + 5000) == []
    assert world.timers.behind_messages == 1


def test_message_bytes_are_kept(world):
    world.put(body=b"\0\xff", properties=LATER)
    world.clock.ms = NOW + 1500
    world.turn()
    assert decode_message(world.broker.store.read("t", 0, 0, 1).chunks[0]).body == b"\0\xff"


def stored_timer(out, topic="t", queue_id="0", **more):
    """Return the properties of a message as it waits in the timer topic."""
    return {"UNIQ_KEY": "U1", "TIMER_OUT_MS": out, **more, "REAL_TOPIC": topic, "REAL_QID": queue_id}


def put_waiting(world, properties, body=b"bad"):
    encoded = properties if isinstance(properties, bytes) else encode_properties(properties)
    return world.broker.store.append(NewMessage(TIMER_TOPIC, 0, body, encoded))


UNUSABLE = [
    stored_timer("9" * 5_000),
    stored_timer(str(1 << 63)),
    stored_timer("soon"),
    stored_timer("-5"),
    stored_timer(str(NOW + 1000), topic="x" * 30_000),
    stored_timer(str(NOW + 1000), topic=TIMER_TOPIC),
    stored_timer(str(NOW + 1000), topic="RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    stored_timer(str(NOW + 1000), queue_id="9" * 5_000),
    stored_timer(str(NOW + 1000), queue_id="-1"),
    stored_timer(str(NOW + 1000), queue_id=str(1 << 31)),
    {"TIMER_OUT_MS": str(NOW + 1000)},
    {},
    b"\xff\xff\xff",
]


@pytest.mark.parametrize("restarted", [False, True])
def test_messages_that_cannot_be_used_stop_no_others(world, restarted):
    world.later(NOW + 1500, "before")
    for properties in UNUSABLE:
        put_waiting(world, properties)
    world.later(NOW + 1600, "behind")
    if restarted:
        world = world.again()
    assert world.at(NOW + 5_000) == ["before", "behind"]
    assert world.broker.damaged.count(RecordKind.TIMER_MESSAGE) == len(UNUSABLE)
    again = world.again()
    again.later(NOW + 6_000, "after")
    assert again.at(NOW + 9_000) == ["before", "behind", "after"]
    assert again.broker.damaged.count(RecordKind.TIMER_MESSAGE) == 0


def test_real_topics_that_cannot_exist_are_skipped(world):
    for topic in ("a/b", "..", "a\0b", "a b", "t" * 128, "%RETRY%" + "g" * 249, "rmq_sys_" + "x" * 248):
        put_waiting(world, stored_timer(str(NOW + 1000), topic=topic))
    world.later(NOW + 1500, "behind")
    assert world.at(NOW + 5_000) == ["behind"]
    assert world.broker.damaged.count(RecordKind.TIMER_MESSAGE) == 7


def test_a_message_for_a_revive_topic_is_delivered_whatever_its_cluster_is_called(world):
    put_waiting(world, stored_timer(str(NOW + 1000), topic="rmq_sys_REVIVE_LOG_my.cluster"), b"ack")
    world.at(NOW + 5_000)
    assert world.bodies("rmq_sys_REVIVE_LOG_my.cluster") == ["ack"]


@pytest.mark.parametrize(
    "field", ["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_ROLL_TIMES"]
)
@pytest.mark.parametrize("value", ["9" * 5_000, "-" + "9" * 18, str(1 << 63), "x"])
def test_other_properties_with_any_value_change_no_delivery(world, field, value):
    put_waiting(world, stored_timer(str(NOW + 1000), **{field: value}), b"odd")
    world.later(NOW + 3000, "behind")
    assert world.at(NOW + 5_000) == ["odd", "behind"]


@pytest.mark.parametrize("size", [32_650, 32_700])
def test_a_message_without_room_for_stamps_is_delivered_without_them(world, size):
    properties = stored_timer(str(NOW + 1000), pad="")
    properties["pad"] = "x" * (size - len(encode_properties(properties)))
    put_waiting(world, properties, b"long")
    assert world.at(NOW + 5_000) == ["long"]
    assert ("TIMER_DEQUEUE_MS" in world.stored("t")[0].properties) is (size == 32_650)


def test_a_rolled_message_with_any_number_of_rolls_goes_on():
    world = World(timer_roll_window_slots=10)
    put_waiting(world, stored_timer(str(NOW + 25_000), TIMER_ROLL_TIMES="9" * 5_000), b"rolled")
    put_waiting(world, stored_timer(str(NOW + 25_000), TIMER_ROLL_TIMES=str((1 << 31) - 1)), b"again")
    for second in range(28):
        world.at(NOW + second * 1000 + 1)
    assert sorted(world.bodies()) == ["again", "rolled"]


def test_a_time_that_never_comes_keeps_no_other_waiting(world):
    put_waiting(world, stored_timer(str((1 << 63) - 1)), b"never")
    world.later(NOW + 1500, "behind")
    assert world.at(NOW + 5_000) == ["behind"]
    assert world.again().timers.waiting_count == 1


def test_a_record_that_names_a_message_of_another_topic_delivers_nothing(world):
    other = world.broker.store.append(NewMessage("secret", 0, b"body", encode_properties(stored_timer("0"))))
    timers = world.timers._timer_store
    for physical_offset in (other[1], other[1] + 1, 1 << 60, -5):
        timers.chain_message(
            NOW + 1000, magic=MAGIC_DEFAULT, write_ms=NOW, physical_offset=physical_offset, size=100,
            topic_hash=0, due_ms=NOW + 1001,
        )  # fmt: skip
    world.later(NOW + 1500, "behind")
    assert world.at(NOW + 5_000) == ["behind"]


def test_recalls_with_long_keys_hold_no_long_keys_in_memory(world):
    key = "K" * 30_000
    world.later(NOW + 1500, key)
    world.later(NOW + 1500, "other")
    put_waiting(world, stored_timer(str(NOW + 1000), TIMER_DEL_UNIQKEY=key))
    world.turn()
    world.clock.ms = NOW + 1400
    world.turn()
    recalls = world.timers._open_slot.recalls
    assert [len(each) for each in recalls] == [16]
    assert world.at(NOW + 5_000) == ["other"]


def test_a_clock_that_was_weeks_ahead_stops_no_timer(world):
    world.later(NOW + 1500)
    world.clock.ms = NOW + 40 * 86_400_000
    world.timers._timer_store.advance_to(NOW + 40 * 86_400_000)
    world.clock.ms = NOW
    world.later(NOW + 2500, "late")
    world.turn()
    assert world.timers.waiting_count >= 1


HOURS_AHEAD_MS = 5 * 3_600_000


@pytest.mark.parametrize("end", ["goes on", "killed while ahead", "killed after"])
@pytest.mark.parametrize("is_slot_open", [True, False])
def test_a_clock_that_was_hours_ahead_delays_no_later_message(world, end, is_slot_open, caplog):
    """Delivered slots are between: none of their messages comes twice, and each later one comes at its time."""
    ahead = NOW + HOURS_AHEAD_MS
    for number in range(4):
        world.later(ahead + 500 + 2000 * number, f"ahead{number}")
    world.turn()
    assert world.at(ahead + 8000) == [f"ahead{number}" for number in range(4)]
    world.later(ahead + 9300, "open")
    world.later(ahead + 9800, "rest")
    world.turn()
    delivered = world.at(ahead + 9400 if is_slot_open else ahead + 8900)
    assert delivered[4:] == ["open"] * is_slot_open
    if end == "killed while ahead":
        world = world.again()
    # The clock comes back.
    world.clock.ms = NOW + 8000
    world.turn()
    world.later(NOW + 10_300, "soon")
    world.later(ahead + 500, "same slot as one delivered")
    if end == "killed after":
        world = world.again()
    assert world.at(NOW + 10_299)[len(delivered) :] == []
    assert world.at(NOW + 10_300)[len(delivered) :] == ["soon"]
    world = world.again()
    world.later(NOW + 60_000, "minute")
    assert world.at(NOW + 60_000)[len(delivered) + 1 :] == ["minute"]
    later = ["same slot as one delivered", *(["open"] * (not is_slot_open)), "rest"]
    assert world.at(ahead + 20_000)[len(delivered) + 2 :] == later
    assert caplog.text.count("the clock was set back, timer messages follow it") == 1


def test_a_pause_ends_although_the_clock_was_ahead(world):
    world.clock.ms = NOW + HOURS_AHEAD_MS
    world.later(world.clock.ms + 100, "first")
    world.turn()
    world.clock.ms += 10_000
    world.broker.store.disk_full = True
    world.turn()
    world.broker.store.disk_full = False
    world.clock.ms = NOW
    world.turn()
    assert world.at(NOW + 1000) == []
    world.later(NOW + 3000, "second")
    assert world.at(NOW + 3000) == ["second"]
    assert world.at(NOW + HOURS_AHEAD_MS + 10_500) == ["second", "first"]


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_after_the_clock_came_back_loses_no_message(seed):
    files = CrashFiles()
    world = World(files)
    ahead = NOW + HOURS_AHEAD_MS
    world.later(ahead + 500, "ahead")
    world.turn()
    assert world.at(ahead + 8000) == ["ahead"]
    world.clock.ms = NOW + 8000
    world.turn()
    world.later(NOW + 20_000, "soon")
    world.turn()
    if seed % 2:
        world.timers.save(world.timers.take_unsaved())
    world.broker.store.flush()
    world.files = files.crash(random.Random(seed))
    world = world.again()
    assert "soon" in world.at(NOW + 21_000)
