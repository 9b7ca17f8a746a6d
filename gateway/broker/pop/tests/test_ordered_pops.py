import pytest

from gateway.broker.pop.ordered_pops import NOT_POPPED, NOTHING_TO_COMMIT, POPS_PER_SLICE, OrderedPopTable
from gateway.runtime.config_file import ConfigFile
from gateway.tests.broker_fakes import FakeClock
from storage.files import MemoryFiles


class World:
    def __init__(self):
        self.files, self.clock = MemoryFiles(), FakeClock()
        self.start()

    def start(self):
        self.orders = OrderedPopTable(ConfigFile(self.files, "/config/consumerOrderInfo.json"), self.clock)

    def pop(self, offsets, attempt=None, invisible_ms=1000):
        self.pop_time = self.clock.now_ms()
        return self.orders.record_pop(attempt, "t", "g", 0, self.pop_time, invisible_ms, offsets)

    def ack(self, offset):
        return self.orders.record_ack("t", "g", 0, offset, self.pop_time)

    def blocked(self, attempt=None):
        return self.orders.is_blocked(attempt, "t", "g", 0, 1000)


@pytest.fixture
def world():
    return World()


def test_a_queue_is_blocked_until_all_is_acked_or_visible_again(world):
    assert not world.blocked()
    world.pop([5, 6])
    assert world.blocked()
    assert world.ack(6) == 5
    assert world.blocked()
    assert world.ack(5) == 7
    assert not world.blocked()
    world.pop([7])
    world.clock.pass_ms(999)
    assert world.blocked()
    world.clock.pass_ms(1)
    assert not world.blocked()


def test_the_same_attempt_is_not_blocked_and_not_counted(world):
    world.pop([5, 6], attempt="a")
    assert not world.blocked("a")
    assert world.blocked("b")
    assert world.pop([5, 6], attempt="a") == ["0 0 0"]


def test_what_comes_again_is_counted_new_messages_are_not(world):
    world.pop([5, 7])
    assert world.pop([5, 7, 8]) == ["0 qo0%5 1", "0 qo0%7 1", "0 0 0"]
    assert world.pop([7, 8]) == ["0 qo0%7 2", "0 qo0%8 1", "0 0 1"]


def test_acks_that_do_not_count(world):
    assert world.orders.record_ack("t", "g", 0, 5, 1) == 6
    world.pop([5])
    assert world.ack(9) == NOT_POPPED
    world.pop_time -= 1
    assert world.ack(5) == NOTHING_TO_COMMIT


def test_a_changed_time_holds_for_one_message(world):
    world.pop([5, 6])
    world.orders.change_visible_time("t", "g", 0, 6, world.pop_time, world.pop_time + 5000)
    assert world.orders.blocked_until_ms("t", "g", 0) == world.pop_time + 1000
    world.clock.pass_ms(1000)
    assert world.orders.blocked_until_ms("t", "g", 0) == world.pop_time + 5000
    world.orders.change_visible_time("t", "g", 0, 6, world.pop_time - 1, 0)  # of an earlier pop
    assert world.blocked()
    world.clock.pass_ms(4000)
    assert world.orders.blocked_until_ms("t", "g", 0) is None


def test_it_is_kept(world):
    world.pop([5, 7], attempt="a", invisible_ms=60_000)
    world.pop([5, 7], attempt="b", invisible_ms=60_000)
    world.ack(5)
    world.orders.change_visible_time("t", "g", 0, 7, world.pop_time, world.pop_time + 90_000)
    world.orders.persist()
    raw = world.files.read_small("/config/consumerOrderInfo.json")
    assert b'"t@g":{0:{"a":"b","cm":1,"i":60000,' in raw
    assert b'"o":[5,2]' in raw
    world.start()
    assert world.orders.blocked_queues() == [("t", "g", 0)]
    assert world.orders.blocked_until_ms("t", "g", 0) == world.pop_time + 90_000
    assert world.pop([7]) == ["0 qo0%7 2", "0 0 2"]
    world.orders.persist()
    assert not world.orders.is_dirty


def test_a_file_of_the_official_broker(world):
    text = (
        b'{"orderedConsumptionLevel":"QUEUE","table":{"t@g":{0:{"a":"x","cm":0,"i":60000,"l":1700000000000,'
        b'"lockFreeTimestamp":1,"nextOffset":3,"o":[3,1],"oc":{3:1},"popTime":1700000000000}},"u@g":{}}}'
    )
    world.files.write_small("/config/consumerOrderInfo.json", text)
    world.start()
    info = world.orders.table["t@g"][0]
    assert (info.offsets, info.counts, info.attempt_id) == ([3, 4], {3: 1}, "x")


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"table":[]}'])
def test_a_damaged_file_is_named(world, text):
    world.files.write_small("/config/consumerOrderInfo.json", text)
    with pytest.raises(ValueError, match="cannot be read"):
        world.start()


def test_what_nobody_consumed_for_a_day_is_forgotten(world):
    world.pop([5])
    world.clock.pass_ms(24 * 3600 * 1000 + 1)
    world.orders.record_pop(None, "u", "g", 0, world.clock.now_ms(), 1000, [1])
    world.orders.persist()
    assert set(world.orders.table) == {"u@g"}


GOOD = '{"o":[5,1],"popTime":7,"i":1000,"l":1700000000000,"cm":0}'


@pytest.mark.parametrize(
    "bad",
    [
        "null", "5", "[]", '{"o":["a"]}', '{"o":[-1]}', '{"o":{"5":1}}', '{"o":[5,9223372036854775807]}',
        '{"o":[1' + ",1" * 32 + "]}", '{"o":[5],"popTime":1e400}', '{"o":[5],"popTime":[1]}',
        '{"o":[5],"a":7}', '{"o":[5],"ot":[1]}', '{"o":[5],"oc":{"x":1}}', '{"o":[5],"l":' + "9" * 5000 + "}",
    ],
)  # fmt: skip
def test_a_pop_that_cannot_be_read_costs_no_other(world, bad, caplog):
    text = (
        f'{{"table":{{"t@g":{{"0":{GOOD},"1":{bad},"x":{GOOD},"2":{GOOD}}},"u@g":5,"v@g":{{"0":{GOOD}}}}}}}'
    )
    world.files.write_small("/config/consumerOrderInfo.json", text.encode())
    world.start()
    found = {key: sorted(queues) for key, queues in world.orders.table.items()}
    assert found == {"t@g": [0, 2], "v@g": [0]}
    assert caplog.text.count("cannot be read and is left out") == 3
    assert world.orders.table["t@g"][0].offsets == [5, 6]


def test_times_beyond_a_long_are_saved_as_the_latest(world):
    world.pop([5, 6])
    world.orders.change_visible_time("t", "g", 0, 5, world.pop_time, 1 << 80)
    world.orders.change_visible_time("t", "g", 0, 99, world.pop_time, 5)
    world.orders.persist()
    world.start()
    assert world.orders.table["t@g"][0].visible_at == {5: (1 << 63) - 1}


def test_many_pops_are_encoded_in_slices_and_go_with_their_group(world):
    for number in range(3 * POPS_PER_SLICE):
        world.orders.record_pop(None, f"t{number}", "g", 0, world.clock.now_ms(), 60_000, [1])
    parts = list(world.orders.encode_slices())
    assert len(parts) == 5
    world.orders.forget_group("t7", "g")
    world.orders.persist()
    world.start()
    assert len(world.orders.table) == 3 * POPS_PER_SLICE - 1
    assert world.orders.table["t8@g"][0].offsets == [1]
    for number in range(3 * POPS_PER_SLICE):
        world.orders.forget_group(f"t{number}", "g")
    world.orders.persist()
    world.start()
    assert world.orders.table == {}
