"""No turn of the loop is long, and no pass (several turns), whatever RPCs ask for together."""

import trio

from gateway.grpc_front import messages as m
from gateway.grpc_front.long_work import LongWork
from gateway.grpc_front.tests.world import message, open_front, send_request
from gateway.tests.cluster import settle, simulated
from remoting.tests.longest_turn import CLIENTS_OF_TESTS, check_short_turns, short_turns

MAX_PASS_S = 0.1
"""These passes took 0.9 to 4.7 s while each RPC was answered in one turn."""
RPCS = 16
CLIENTS = 8
ACK_ROUNDS = 1
"""With 30, which take 6 s, these are the 480 calls of a report; 100 ms held for them as well."""
BATCHES = 64
"""With 625, which take 6 s, these are the 20,000 messages of a report; 100 ms held for them as well."""


def short_work():
    """Measure the tasks of the server: no turn above 50 ms, and no pass of the loop above MAX_PASS_S."""
    return short_turns(max_pass_s=MAX_PASS_S, left_out=CLIENTS_OF_TESTS)


@simulated
async def test_routes_of_a_topic_with_thousands_of_queues(cluster):
    front = await open_front(cluster)
    front.create_topic("wide")
    config = front.broker.topics.get("wide")
    config.read_queue_nums = config.write_queue_nums = 4096
    await settle()
    client = front.client()
    request = m.QueryRouteRequest(topic=m.Resource(name="wide"))
    await client.call("QueryRoute", request)
    clients = [client, *(front.client(f"client-{number}") for number in range(2, 1 + CLIENTS))]

    async def ask_at_once():
        streams = [
            await client.start("QueryRoute", request, m.QueryRouteResponse)
            for client in clients
            for _ in range(RPCS)
        ]
        for stream in streams:
            await stream.ended.wait()
            assert len(stream.answers[0].message_queues) == 4096

    await check_short_turns(ask_at_once, short_work)


@simulated
async def test_acks_of_forged_receipts(cluster):
    front = await open_front(cluster)
    front.create_topic()
    await settle()
    client = front.client()
    entries = [m.AckMessageEntry(receipt_handle=f"0 1 1 0 0 broker-a 0 {number} 0") for number in range(400)]
    entries += [m.AckMessageEntry(receipt_handle="x")] * 800
    ack = m.AckMessageRequest(topic=m.Resource(name="orders"), group=m.Resource(name="GID"), entries=entries)

    async def acknowledge():
        for _ in range(ACK_ROUNDS):
            streams = [await client.start("AckMessage", ack, m.AckMessageResponse) for _ in range(RPCS)]
            for stream in streams:
                await stream.ended.wait()
                assert len(stream.answers[0].entries) == 1200

    await check_short_turns(acknowledge, short_work)


@simulated
async def test_renewals_of_thousands_of_messages(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    for number in range(BATCHES):
        batch = [message(body=b"%d-%d" % (number, own)) for own in range(32)]
        await client.call("SendMessage", send_request(*batch))
    received_count = 0
    for _ in range(BATCHES):
        received_count += len((await client.receive(auto_renew=True)).messages)
    assert received_count == 32 * BATCHES
    with short_work():
        await trio.sleep(70)
    assert (await client.receive()).messages == []


@simulated
async def test_long_requests_work_one_at_a_time_and_short_ones_at_once(cluster):
    work, begun = LongWork(), []

    async def handle(entries):
        async with work.lock_for(entries):
            begun.append(entries)
            await trio.sleep(1)

    with trio.move_on_after(0.5):
        async with trio.open_nursery() as nursery:
            for entries in (65, 66, 64, 64):
                nursery.start_soon(handle, entries)
    assert sorted(begun)[:2] == [64, 64]
    assert len(begun) == 3
