import pytest
import trio

from codec.message import decode_message, iter_messages
from gateway.broker.processors import query as query_module
from gateway.broker.processors.query import query_consume_queue, query_message
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from remoting.errors import RequestError
from remoting.requests.query import QueryConsumeQueue, QueryMessage, ViewMessageById
from remoting.tests.virtual import counting_turns
from storage.store import MessageStore


@pytest.fixture
def world():
    return World()


def bodies(world, key, topic="t", **more):
    wanted = {"max_num": 32, "begin_timestamp": 0, "end_timestamp": 2**62, **more}
    reply = world.ask_async(QueryMessage(topic=topic, key=key, **wanted))
    return sorted(message.body for message in iter_messages(reply.body))


def test_messages_are_found_by_any_of_their_keys(world):
    world.put("t", 0, b"one", {"KEYS": "red round", "UNIQ_KEY": "U1"})
    world.put("t", 1, b"two", {"KEYS": "red", "UNIQ_KEY": "U2"})
    world.put("other", 0, b"three", {"KEYS": "red"})
    assert bodies(world, "red") == [b"one", b"two"]
    assert bodies(world, "round") == [b"one"]
    assert len(bodies(world, "red", max_num=1)) == 1


def test_messages_are_found_by_their_unique_key(world):
    world.put("t", 0, b"one", {"KEYS": "U2", "UNIQ_KEY": "U1"})
    world.put("t", 0, b"two", {"UNIQ_KEY": "U2"})
    # As in the official broker, whose index does not tell unique keys from others.
    assert bodies(world, "U2", unique_key_query=True) == [b"one", b"two"]
    assert bodies(world, "U2", index_type="U") == [b"two"]
    assert bodies(world, "U2") == [b"one", b"two"]


def test_the_time_range_counts(world):
    world.put("t", 0, b"early", {"KEYS": "k"})
    world.clock.pass_ms(3_600_000)
    middle = world.clock.ms - 1000
    world.put("t", 0, b"late", {"KEYS": "k"})
    assert bodies(world, "k", end_timestamp=middle) == [b"early"]
    assert bodies(world, "k", begin_timestamp=middle) == [b"late"]


def test_nothing_found(world):
    with pytest.raises(RequestError, match="can not find message, maybe time range not correct") as refused:
        bodies(world, "nothing")
    assert refused.value.code == 22


def test_messages_whose_keys_share_a_hash_are_kept_apart(world):
    world.put("t", 0, b"one", {"KEYS": "Aa"})
    world.put("t", 0, b"two", {"KEYS": "BB"})
    assert bodies(world, "Aa") == [b"one"]


def test_a_message_is_viewed_by_its_place(world):
    _, place = world.put("t", 0, b"one")
    _, place = world.put("t", 0, b"two")
    found = world.ask(ViewMessageById(offset=place))
    assert decode_message(found.body).body == b"two"
    with pytest.raises(RequestError, match=f"can not find message by the offset, {place + 1}") as refused:
        world.ask(ViewMessageById(offset=place + 1))
    assert refused.value.code == 1


def test_entries_of_a_queue(world):
    places = [world.put("t", 0, b"x" * size, {"TAGS": "A"})[1] for size in (1, 2, 3)]
    world.beat(FakeConnection(), "t")
    reply = world.ask_async(QueryConsumeQueue(topic="t", queue_id=0, index=1, count=5, consumer_group="g"))
    assert [entry.physic_offset for entry in reply.data.queue_data] == places[1:]
    assert {entry.tags_code for entry in reply.data.queue_data} == {ord("A")}
    assert reply.data.queue_data[1].physic_size == reply.data.queue_data[0].physic_size + 1
    assert (reply.data.min_queue_index, reply.data.max_queue_index) == (0, 3)
    assert reply.data.subscription_data.topic == "t"
    outside = world.ask_async(QueryConsumeQueue(topic="t", queue_id=0, index=3, count=5, consumer_group="x"))
    assert outside.remark == "Index 3 of 0@t is not exist!"
    assert outside.data.filter_data == "x@t is not online!"
    with pytest.raises(RequestError, match="7@t is not exist!"):
        world.ask_async(QueryConsumeQueue(topic="t", queue_id=7))


def test_a_query_does_not_wait_for_the_index(world, monkeypatch):
    """A first query indexed everything that was stored before: 13 s after three million messages."""
    for number in range(1000):
        world.put("t", 0, b"%d" % number, {"KEYS": f"k{number} all"})
    indexed = []
    monkeypatch.setattr(MessageStore, "build_index", indexed.append)
    assert bodies(world, "k999") == [b"999"]
    assert bodies(world, "all", max_num=2) == [b"998", b"999"]
    assert not indexed


def test_others_have_their_turn_while_a_query_searches_what_is_not_indexed(world):
    for number in range(5000):
        world.put("t", 0, b"%d" % number, {"KEYS": f"k{number}", "OTHER": "k"})
    query = QueryMessage(topic="t", key="k", max_num=1, begin_timestamp=0, end_timestamp=2**62)

    async def main():
        async with counting_turns() as turns:
            with pytest.raises(RequestError, match="can not find message"):
                await query_message(world.broker, query)
        assert turns.count >= 5000 // 50, "each message contains the key and is looked at"

    trio.run(main)


def test_what_is_not_indexed_is_bounded_before_it_is_searched(world, monkeypatch):
    monkeypatch.setattr(query_module, "MAX_UNINDEXED_SEARCH_BYTES", 20_000)
    for number in range(1000):
        world.put("t", 0, b"%d" % number, {"KEYS": f"k{number}"})
    store, behind = world.broker.store, []

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await query_message(
                world.broker,
                QueryMessage(topic="t", key="k7", max_num=1, begin_timestamp=0, end_timestamp=2**62),
            )
            nursery.cancel_scope.cancel()

    async def watch():
        while True:
            behind.append(store.index.unindexed_bytes)
            await trio.lowlevel.checkpoint()

    trio.run(main)
    assert 10_000 < behind[-1] <= 20_000
    assert len(set(behind)) >= 5, "others had their turn meanwhile"


def test_others_have_their_turn_while_many_entries_are_read(world):
    for _ in range(500):
        world.put("t", 0)

    async def main():
        async with counting_turns() as turns:
            request = QueryConsumeQueue(topic="t", queue_id=0, index=0, count=2**31 - 1)
            reply = await query_consume_queue(world.broker, request)
        assert len(reply.data.queue_data) == 500
        assert turns.count >= 4

    trio.run(main)
