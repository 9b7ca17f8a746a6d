"""Batches of more messages than one turn of the event loop may store."""

import pytest
import trio

from codec.batch import encode_batch
from codec.message import iter_messages
from gateway.broker.requests.send_handler import MAX_TURN_MESSAGES
from gateway.tests.cluster import message, pull, settle, simulated
from remoting.errors import RequestError
from remoting.limits import ConnectionLimits
from remoting.requests.pull import PullMessageReply
from remoting.requests.query import QueryMessage
from remoting.tests.longest_turn import short_turns

EMPTY = encode_batch([(0, b"", b"")])
LARGE = {
    "max_message_size_bytes": 1 << 22,
    "mapped_file_size_commit_log_bytes": 1 << 26,
    "mapped_file_size_consume_queue_bytes": 6_000_000,
    "max_index_entries": 1_000_000,
}


def batch(body, **fields):
    request = message(key=None, batch=True, **fields)
    request.body = body
    return request


async def started(cluster):
    node = await cluster.add_broker(**LARGE)
    # The answer names every message.
    return node.broker, cluster.dial(node.address, limits=ConnectionLimits(max_header_bytes=1 << 23))


async def read_all(client, topic="orders"):
    """Return the body of each message of queue 0."""
    bodies, offset = [], 0
    while True:
        reply = await client.ask(pull(topic, offset, group="READER", max_msg_nums=5000))
        assert isinstance(reply, PullMessageReply)
        if not reply.body:
            return bodies
        bodies += [stored.body for stored in iter_messages(reply.body)]
        offset = reply.next_begin_offset


@simulated
async def test_a_batch_of_150000_empty_messages_gives_others_their_turns(cluster):
    broker, client = await started(cluster)
    await client.ask(message())
    with short_turns():
        reply = await client.ask(batch(EMPTY * 150_000), timeout_s=60)
    assert reply.queue_offset == 1
    assert reply.msg_id.count(",") == 149_999
    assert broker.store.max_offset("orders", 0) == 150_001
    assert broker.stats.stored["orders"].messages == 150_001
    with short_turns(), pytest.raises(RequestError, match="can not find message"):
        await client.ask(
            QueryMessage(topic="orders", key="no", max_num=32, begin_timestamp=0, end_timestamp=1 << 62),
            timeout_s=60,
        )


@simulated
async def test_a_large_batch_is_stored_in_order_and_before_the_requests_after_it(cluster):
    broker, client = await started(cluster)
    count = 2 * MAX_TURN_MESSAGES + 7
    body = encode_batch((0, b"%d" % number, b"") for number in range(count))
    offsets = {}

    # Both answers may come in one read, and then the tasks that wait for them go on in any order.
    async def send(name, request):
        offsets[name] = (await client.ask(request, timeout_s=60)).queue_offset

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, "batch", batch(body))
        await trio.lowlevel.checkpoint()
        nursery.start_soon(send, "after", message(body=b"after"))
    assert offsets == {"batch": 0, "after": count}
    assert await read_all(client) == [b"%d" % number for number in range(count)] + [b"after"]


@simulated
async def test_a_large_batch_with_one_wrong_message_stores_none(cluster):
    broker, client = await started(cluster)
    good = [(0, b"x", b"")] * (2 * MAX_TURN_MESSAGES)
    for wrong in (EMPTY[:-1], encode_batch([(0, b"x", b"k\x01" + b"v" * 32_760)])):
        with pytest.raises(RequestError, match="the message is illegal") as refused:
            await client.ask(batch(encode_batch(good) + wrong), timeout_s=60)
        assert refused.value.code == 13
    assert broker.store.max_offset("orders", 0) == 0


@simulated
async def test_a_large_batch_is_refused_when_the_disk_fills_up_or_the_topic_goes(cluster):
    broker, client = await started(cluster)
    body = encode_batch([(0, b"x", b"")]) * (3 * MAX_TURN_MESSAGES)
    codes = []

    async def send():
        with pytest.raises(RequestError) as refused:
            await client.ask(batch(body), timeout_s=60)
        codes.append(refused.value.code)

    async def until_begun(end):
        while broker.store.max_offset("orders", 0) == end:
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await until_begun(0)
        broker.store.disk_full = True
    broker.store.disk_full = False
    end = broker.store.max_offset("orders", 0)
    assert 0 < end < 3 * MAX_TURN_MESSAGES
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await until_begun(end)
        broker.topics.delete("orders")
    assert codes == [14, 17]


@simulated
async def test_a_connection_that_is_closed_in_the_middle_ends_its_batch(cluster):
    broker, client = await started(cluster)
    (node,) = cluster.nodes.values()
    body = encode_batch([(0, b"x", b"")]) * (20 * MAX_TURN_MESSAGES)
    client.send_command(batch(body).to_command(), lambda answer: None)
    while not broker.store.max_offset("orders", 0):
        await trio.lowlevel.checkpoint()
    for connection in node.service.server.connections:
        connection.close("gone")
    await settle()
    assert 0 < broker.store.max_offset("orders", 0) < 20 * MAX_TURN_MESSAGES


@simulated
async def test_a_key_query_over_a_large_body_gives_others_their_turns(cluster):
    _, client = await started(cluster)
    await client.ask(message(body=b"x" * 4_000_000), timeout_s=60)
    query = QueryMessage(topic="orders", key="x", max_num=32, begin_timestamp=0, end_timestamp=1 << 62)
    with short_turns(), pytest.raises(RequestError, match="can not find message"):
        await client.ask(query, timeout_s=60)
