import json

import pytest

from codec.message import decode_message
from codec.properties import encode_properties
from codec.sysflag import TRANSACTION_PREPARED
from gateway.broker.delayed import delay_service
from gateway.broker.delayed.delay_service import DelayService
from gateway.broker.messages.damaged_records import DamagedRecords, RecordKind
from gateway.broker.messages.message_writer import MessageAppender, MessageWriter
from gateway.broker.statistics.traffic_stats import BrokerStats
from gateway.broker.waiting.long_poll import LongPolls
from gateway.tests.broker_fakes import FakeClock, memory_config_file
from remoting.errors import RequestError
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.confirmed_store import ConfirmedStore
from storage.delay_levels import parse_levels
from storage.errors import CorruptionError, StoreFull
from storage.files import MemoryFiles
from storage.store import MessageStore

SMALL = {"commit_log_file_bytes": 1 << 20, "consume_queue_file_entries": 1000}


class Earlier:
    """A wake signal that calls a function whenever it is set."""

    def __init__(self):
        self.on_set = lambda: None

    def set(self):
        self.on_set()


class World:
    """A store, a message writer and a delay service over memory files."""

    def __init__(self, levels="1s 5s 10s", store_class=MessageStore):
        self.files = MemoryFiles()
        self.clock = FakeClock()
        self.levels = levels
        config = StoreConfig(root="/store", awaits_confirmation=store_class is ConfirmedStore, **SMALL)
        self.store = store_class.open(config, self.files, self.clock)
        self.start()

    def start(self):
        polls = LongPolls(self.clock, self.store)
        self.earlier = Earlier()
        file = memory_config_file("delayOffset.json", self.files)
        appender = MessageAppender(self.store, polls)
        self.damaged = DamagedRecords("b1")
        self.stats = BrokerStats()
        self.delay = DelayService(
            file,
            self.clock,
            self.store,
            appender,
            self.stats,
            self.damaged,
            self.earlier,
            levels=self.levels,
        )
        self.put = MessageWriter(self.store, polls, self.delay)

    def send(self, body=b"hello", level="1", topic="orders", queue_id=3, **more):
        properties = {"TAGS": "A", "UNIQ_KEY": "U1", **({"DELAY": level} if level else {})}
        return self.put.write(NewMessage(topic, queue_id, body, properties, **more))

    def read(self, topic="orders", queue_id=3):
        count = self.store.max_offset(topic, queue_id)
        return [self.message(topic, queue_id, offset) for offset in range(count)]

    def message(self, topic, queue_id, offset):
        return decode_message(self.store.read(topic, queue_id, offset, 1).chunks[0])


@pytest.fixture
def world():
    return World()


def test_the_official_levels():
    delays = parse_levels("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
    assert len(delays) == 18
    assert (delays[0], delays[4], delays[17]) == (1000, 60_000, 7_200_000)
    assert parse_levels("1d") == [86_400_000]


@pytest.mark.parametrize("text", ["", "1", "s", "1x", "1s -5s", "1.5s"])
def test_unreadable_levels_are_named(text):
    with pytest.raises(ValueError, match="messageDelayLevel"):
        parse_levels(text)


def test_a_delayed_message_waits_and_is_delivered_to_the_millisecond(world):
    world.send(born_timestamp=5, flag=9, reconsume_times=2)
    assert world.read() == []
    waiting = world.message("SCHEDULE_TOPIC_XXXX", 0, 0)
    assert waiting.properties["REAL_TOPIC"] == "orders"
    assert waiting.properties["REAL_QID"] == "3"
    due = world.clock.ms + 1000
    assert world.delay.next_due_ms() == due
    assert world.delay.deliver_due(due - 1) == 0
    world.clock.ms = due
    assert world.delay.deliver_due(due) == 1
    (got,) = world.read()
    ((kind, counted),) = world.stats.stored["orders"].by_type()
    stored_bytes = len(world.store.read("orders", 3, 0, 1).chunks[0])
    assert (kind.value, counted.messages, counted.bytes) == ("delay", 1, stored_bytes)
    assert (got.body, got.tags, got.unique_key, got.queue_id) == (b"hello", "A", "U1", 3)
    assert (got.born_timestamp, got.flag, got.reconsume_times) == (5, 9, 2)
    assert got.properties["DELAY"] == "1"
    assert world.delay.next_due_ms() is None


def refuse_into(seen):
    """Return a predicate that accepts no queue entry and records their tags codes."""

    def refuse(code):
        seen.append(code)
        return False

    return refuse


def test_the_queue_entry_of_a_waiting_message_holds_its_due_time(world):
    seen = []
    world.send(level="2")
    world.store.read("SCHEDULE_TOPIC_XXXX", 1, 0, 1, predicate=refuse_into(seen))
    assert seen == [world.clock.ms + 5000]


def test_the_delivered_message_can_be_filtered_by_its_tag_again(world):
    world.send()
    world.clock.pass_ms(1000)
    world.delay.deliver_due(world.clock.ms)
    seen = []
    world.store.read("orders", 3, 0, 1, predicate=refuse_into(seen))
    assert seen == [ord("A")]


def test_levels_wait_independently_and_keep_their_order(world):
    world.send(b"late", level="3")
    world.send(b"first")
    world.clock.pass_ms(400)
    world.send(b"second")
    start = world.clock.ms
    assert world.delay.next_due_ms() == start + 600
    world.clock.ms = start + 600
    assert world.delay.deliver_due(world.clock.ms) == 1
    assert world.delay.next_due_ms() == start + 1000
    world.clock.ms = start + 20_000
    assert world.delay.deliver_due(world.clock.ms) == 2
    assert sorted(message.body for message in world.read()) == [b"first", b"late", b"second"]


def test_a_level_beyond_the_last_is_the_last(world):
    world.send(level="99")
    assert world.message("SCHEDULE_TOPIC_XXXX", 2, 0).properties["DELAY"] == "3"
    assert world.delay.next_due_ms() == world.clock.ms + 10_000


@pytest.mark.parametrize("level", ["soon", "--5", "1_0", " 1", "9" * 400, "9" * 5000])
def test_a_level_that_java_would_not_read_is_refused(world, level):
    with pytest.raises(RequestError, match="NumberFormatException: For input string:") as refused:
        world.send(level=level)
    assert refused.value.code == 1


@pytest.mark.parametrize("level", ["0", "-1", ""])
def test_messages_without_a_level_go_straight_through(world, level):
    world.send(level=level)
    assert len(world.read()) == 1


def test_half_messages_are_not_delayed(world):
    message = NewMessage("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"", {"DELAY": "1"}, sys_flag=TRANSACTION_PREPARED)
    assert world.delay.schedule(message) is message


def test_a_delay_level_wins_over_timer_properties(world):
    message = NewMessage("orders", 0, b"", {"DELAY": "1", "TIMER_DELAY_SEC": "9", "TIMER_DELIVER_MS": "9"})
    assert world.delay.schedule(message).properties == {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0"}


def test_only_an_earlier_due_time_wakes_the_sleeper(world):
    woken = []
    world.earlier.on_set = lambda: woken.append(world.delay.next_due_ms())
    world.send(level="3")
    world.send(level="2")
    world.send(level="2")
    world.send(level="3")
    world.send(level="1")
    now = world.clock.ms
    assert woken == [now + 10_000, now + 5_000, now + 1_000]


def test_what_was_delivered_is_remembered_over_a_restart(world):
    world.send(b"one")
    world.clock.pass_ms(500)
    world.send(b"two")
    world.clock.pass_ms(500)
    world.delay.deliver_due(world.clock.ms)
    world.delay.persist()
    raw = world.files.read_small("/config/delayOffset.json")
    assert b'"offsetTable":{1:1}' in raw
    world.start()
    assert world.delay.next_due_ms() == 0
    assert world.delay.deliver_due(world.clock.ms) == 0
    assert world.delay.next_due_ms() == world.clock.ms + 500
    world.clock.pass_ms(500)
    assert world.delay.deliver_due(world.clock.ms) == 1
    assert [message.body for message in world.read()] == [b"one", b"two"]


def test_an_official_file(world):
    for _ in range(3):
        world.send()
    text = b'{\n\t"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1},\n\t"offsetTable":{1:2\n\t}\n}'
    world.files.write_small("/config/delayOffset.json", text)
    world.start()
    assert world.delay.version.counter == 2
    world.clock.pass_ms(1000)
    assert world.delay.deliver_due(world.clock.ms) == 1


def test_an_offset_beyond_the_queue_is_corrected(world):
    world.send()
    world.files.write_small("/config/delayOffset.json", b'{"offsetTable":{1:50,2:7}}')
    world.start()
    assert world.delay.offsets == {1: 1, 2: 0}
    assert world.delay.next_due_ms() is None
    for body in (b"b", b"c"):
        world.send(body, level="2")
    world.start()  # after a kill: nothing was delivered meanwhile, and nothing saved because of it
    world.clock.pass_ms(5000)
    world.delay.deliver_due(world.clock.ms)
    assert [message.body for message in world.read()] == [b"b", b"c"]


def test_a_clock_set_back_does_not_make_messages_wait_longer_than_their_level(world):
    world.send(level="3")
    world.clock.pass_ms(-60_000)
    assert world.delay.deliver_due(world.clock.ms) == 1
    world.send(level="3")
    world.clock.pass_ms(-60_000)
    world.delay.persist()
    world.start()
    assert world.delay.deliver_due(world.clock.ms) == 1


def test_many_due_messages_are_delivered_in_turns(world):
    for number in range(100):
        world.send(b"%d" % number)
    world.clock.pass_ms(1000)
    assert world.delay.deliver_due(world.clock.ms) == 64
    assert world.delay.next_due_ms() <= world.clock.ms
    assert world.delay.deliver_due(world.clock.ms) == 36
    assert [message.body for message in world.read()] == [b"%d" % number for number in range(100)]


def restart_after_kill(world):
    """Start again with the offsets as they were saved, on the store that the kill left."""
    world.store.crashed = True
    world.start()


def deliver_all(world):
    """Let all messages become due and deliver them; return the bodies in the real queue."""
    world.clock.ms += 20_000
    world.delay.deliver_due(world.clock.ms)
    return [message.body for message in world.read()]


def test_after_a_kill_delivered_messages_do_not_come_again(world):
    for number in range(3):
        world.send(b"%d" % number)
    world.send(b"slow", level="2")
    world.clock.ms += 1000
    world.delay.deliver_due(world.clock.ms)
    world.send(b"waiting")
    restart_after_kill(world)
    assert world.delay.offsets[1] == 3
    assert deliver_all(world) == [b"0", b"1", b"2", b"waiting", b"slow"]
    restart_after_kill(world)
    assert deliver_all(world) == [b"0", b"1", b"2", b"waiting", b"slow"]


def test_after_a_kill_each_copy_stands_for_one_message(world):
    """A producer that tried again sent the same message twice, and only one was delivered."""
    world.send()
    world.clock.ms += 500
    world.send()
    world.clock.ms += 500
    world.delay.deliver_due(world.clock.ms)
    restart_after_kill(world)
    assert deliver_all(world) == [b"hello", b"hello"]


def test_after_a_kill_other_messages_of_the_real_queue_are_no_copies(world):
    """A message of the same key that was sent without a delay, or tried once more, is another one."""
    world.send(reconsume_times=1)
    world.clock.ms += 1000
    world.send(level=None)
    world.send(level=None, reconsume_times=2)
    restart_after_kill(world)
    assert [m.reconsume_times for m in world.read()] == [0, 2]
    deliver_all(world)
    assert [m.reconsume_times for m in world.read()] == [0, 2, 1]


def test_after_a_kill_a_limited_number_of_messages_is_compared(world, monkeypatch):
    monkeypatch.setattr(delay_service, "MAX_COPIES_EXAMINED", 0)
    world.send(b"0")
    world.clock.ms += 1000
    world.delay.deliver_due(world.clock.ms)
    restart_after_kill(world)
    assert deliver_all(world) == [b"0", b"0"]


def test_a_refused_delivery_is_tried_again_soon(world):
    world.send()
    world.clock.pass_ms(1000)
    world.put._max_message_bytes = 1
    broken = world.store.append
    world.store.append = refuse
    assert world.delay.deliver_due(world.clock.ms) == 0
    assert world.delay.next_due_ms() == world.clock.ms + 100
    world.store.append = broken
    world.clock.pass_ms(100)
    assert world.delay.deliver_due(world.clock.ms) == 1


def test_a_damaged_level_does_not_hold_up_the_others(world):
    world.send(level="1")
    world.send(b"fine", level="2")
    world.clock.pass_ms(5000)
    read = world.store.read

    def damaged(topic, queue_id, *rest):
        if (topic, queue_id) == ("SCHEDULE_TOPIC_XXXX", 0):
            raise CorruptionError("/store/commitlog/0", 17, "no message starts here")
        return read(topic, queue_id, *rest)

    world.store.read = damaged
    assert world.delay.deliver_due(world.clock.ms) == 1
    assert world.delay.next_due_ms() == world.clock.ms + 10_000
    world.store.read = read
    world.clock.pass_ms(10_000)
    assert world.delay.deliver_due(world.clock.ms) == 1


def refuse(*_, **__):
    raise StoreFull("no room")


def test_the_file_is_written_at_first_and_after_deliveries(world):
    """Once it is there, a start that does not find it can say so."""

    def saved_offsets():
        content = world.files.read_small("/config/delayOffset.json")
        return json.loads(content.replace(b"{1:", b'{"1":'))["offsetTable"]

    world.send()
    world.delay.persist()
    assert saved_offsets() == {}
    world.clock.pass_ms(1000)
    world.delay.deliver_due(world.clock.ms)
    world.delay.persist()
    assert saved_offsets() == {"1": 1}


def waiting(topic="orders", queue_id="3", **more):
    """Return the properties of a message as it waits in the schedule topic."""
    return {"DELAY": "1", "REAL_TOPIC": topic, "REAL_QID": queue_id, **more}


UNUSABLE = [
    waiting("a/b"),
    waiting(".."),
    waiting("x" * 30_000),
    waiting("SCHEDULE_TOPIC_XXXX"),
    waiting("RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    waiting("rmq_sys_wheel_timer"),
    waiting(queue_id="9" * 5_000),
    waiting(queue_id="-1"),
    waiting(queue_id="x"),
    {"DELAY": "1"},
    {},
]


def test_delayed_messages_that_cannot_be_used_stop_no_others(world):
    world.send(b"before")
    for properties in UNUSABLE:
        world.store.append(NewMessage("SCHEDULE_TOPIC_XXXX", 0, b"bad", encode_properties(properties)))
    # Decoded and encoded again, these properties are too long: each byte that is not UTF-8 takes three.
    longer = encode_properties(waiting()) + b"pad\x01" + b"\xff" * 20_000 + b"\x02"
    world.store.append(NewMessage("SCHEDULE_TOPIC_XXXX", 0, b"bad", longer))
    world.send(b"behind")
    world.clock.pass_ms(1000)
    world.delay.deliver_due(world.clock.now_ms())
    assert [message.body for message in world.read()] == [b"before", b"behind"]
    assert world.damaged.count(RecordKind.DELAYED_MESSAGE) == len(UNUSABLE) + 1
    assert world.delay.next_due_ms() is None


@pytest.mark.parametrize("delivered", [1, 2])
def test_delivered_messages_that_are_unconfirmed_again_are_not_delivered_twice(delivered):
    """A power cut may take the queue entries of messages that were confirmed and delivered, and not the messages."""
    world = World(store_class=ConfirmedStore)
    for _ in range(2):
        world.send()
    schedule_end = world.store.max_physical_offset
    world.delay.offsets = {1: delivered}
    world.clock.pass_ms(1000)
    for confirmed_until in (0, 1, schedule_end // 2, schedule_end):
        world.store.dispatch(10, confirmed_until)
        world.delay.note_readable(0)
        world.delay.deliver_due(world.clock.ms)
        assert world.delay.offsets == {1: 2 if confirmed_until == schedule_end else delivered}
    assert world.store.next_queue_offset("orders", 3) == 2 - delivered
    world.send()
    world.store.dispatch(10)
    world.clock.pass_ms(1000)
    world.delay.note_readable(0)
    assert world.delay.deliver_due(world.clock.ms) == 1


@pytest.mark.parametrize("level", ["9" * 5_000, "-3", "x", str(1 << 31)])
def test_any_delay_level_in_a_stored_message_lets_the_store_be_recovered(level):
    files = MemoryFiles()
    store = MessageStore.open(StoreConfig(root="/store", **SMALL), files, FakeClock())
    store.append(NewMessage("SCHEDULE_TOPIC_XXXX", 0, b"body", encode_properties({"DELAY": level})))
    store.close(clean=False)
    files.delete_tree("/store/consumequeue")
    again = MessageStore.open(StoreConfig(root="/store", **SMALL), files, FakeClock())
    assert again.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 1


@pytest.mark.parametrize("bad", ["null", "[]", "1e300", "-5", "9223372036854775808", "9" * 5_000, '"x"'])
def test_one_bad_offset_costs_one_level(world, bad):
    for level in ("1", "2", "3"):
        world.send(b"a", level)
    text = f'{{"offsetTable":{{1:1,"2":{bad},3:1,"x":1,99:5,-3:5}}}}'
    world.files.write_small("/config/delayOffset.json", text.encode())
    world.start()
    assert [world.delay.offsets.get(level, 0) for level in (1, 2, 3)] == [1, 0, 1]
