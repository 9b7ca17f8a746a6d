import pytest

from gateway.tests.broker_world import World
from remoting.errors import RequestError
from remoting.requests.send import ConsumerSendMsgBack


@pytest.fixture
def world():
    world = World()
    world.topic("t")
    return world


def back(world, place, **more):
    return world.ask(ConsumerSendMsgBack(offset=place, group="g", **{"delay_level": 0, **more}))


def test_a_returned_message_comes_again_after_its_delay(world):
    _, place = world.put("t", body=b"again", properties={"TAGS": "A", "UNIQ_KEY": "U"}, born_timestamp=5)
    back(world, place)
    assert world.stored("%RETRY%g") == []
    world.clock.pass_ms(10_000)
    world.broker.delay_service.deliver_due(world.clock.ms)
    (message,) = world.stored("%RETRY%g")
    assert (message.body, message.tags, message.reconsume_times) == (b"again", "A", 1)
    assert (message.properties["RETRY_TOPIC"], message.unique_key, message.born_timestamp) == ("t", "U", 5)
    assert message.store_host == ("10.0.0.9", 10911)
    origin = message.properties["ORIGIN_MESSAGE_ID"]
    back(world, message.physical_offset)
    world.clock.pass_ms(30_000)
    world.broker.delay_service.deliver_due(world.clock.ms)
    again = world.stored("%RETRY%g")[1]
    assert (again.reconsume_times, again.properties["ORIGIN_MESSAGE_ID"]) == (2, origin)
    assert again.properties["RETRY_TOPIC"] == "t"


def test_after_its_last_attempt_it_goes_to_the_dead_letters_at_once(world):
    _, place = world.put("t", reconsume_times=16)
    back(world, place)
    (message,) = world.stored("%DLQ%g")
    assert message.reconsume_times == 17


def test_refusals(world):
    with pytest.raises(RequestError, match="look message by offset failed, 999") as refused:
        back(world, 999)
    assert refused.value.code == 1
    closed = World(broker_permission=4)
    closed.topic("t")
    with pytest.raises(
        RequestError, match=r"the broker\[10\.0\.0\.9\] sending message is forbidden"
    ) as refused:
        back(closed, 0)
    assert refused.value.code == 16


def test_a_message_with_the_most_attempts_comes_back_as_a_dead_letter(world):
    _, physical = world.put("t", reconsume_times=2**31 - 1)
    world.ask(ConsumerSendMsgBack(offset=physical, group="g", delay_level=0))
    (dead,) = world.stored("%DLQ%g")
    assert dead.reconsume_times == 2**31 - 1
