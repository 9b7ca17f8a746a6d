import random

import pytest
import trio

from codec.message import iter_messages
from codec.topics import dlq_topic
from gateway.broker.consumers.client_registry import NOTIFY_DELAY_S
from gateway.tests.cluster import (
    EPOCH_MS,
    NAMESRV,
    Consumer,
    Producer,
    bodies,
    message,
    pull,
    settle,
    simulated,
)
from remoting.bodies.locks import LockBatchRequestBody
from remoting.bodies.queues import MessageQueue
from remoting.errors import RequestError
from remoting.requests.locks import LockBatchMq
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.offsets import GetMaxOffset, QueryConsumerOffset, UpdateConsumerOffset
from storage.crash_files import CrashFiles
from storage.files import MemoryFiles


def fine(each):
    return True


async def three_brokers(cluster, **settings):
    await cluster.namesrv()
    return [await cluster.add_broker(f"broker-{letter}", **settings) for letter in "abc"]


@simulated
async def test_messages_spread_over_three_brokers_reach_their_group_once(cluster):
    await three_brokers(cluster)
    producer = Producer(cluster)
    for address in {address for address, _, _ in await producer.queues("orders")}:
        for queue_id in range(4):
            await producer.to(address).ask(message(body=b"first %d" % queue_id, queue_id=queue_id))
    await trio.sleep(1)
    assert len(await producer.queues("orders")) == 12
    members = [await Consumer(cluster, "GID", "orders", f"c{number}", fine).start() for number in range(2)]
    await trio.sleep(2 * NOTIFY_DELAY_S)
    sent = [b"%d" % number for number in range(60)]
    for body in sent:
        await producer.send("orders", body)
    await settle()
    got = [body for member in members for _, body, _ in member.got]
    assert sorted(got) == sorted(sent + [b"first %d" % number for number in range(4)] * 3)
    assert all(member.got for member in members)


@simulated
async def test_long_polls_bring_messages_without_any_delay(cluster):
    await cluster.namesrv()
    await cluster.add_broker()
    producer = Producer(cluster)
    await producer.send("orders", b"0")
    await trio.sleep(1)
    consumer = await Consumer(cluster, "GID", "orders", "c1", fine).start()
    await settle()
    for pause_s in (0.5, 3, 14.99, 40):
        await trio.sleep(pause_s)
        now = cluster.clock.now_ms() - EPOCH_MS
        await producer.send("orders", b"x")
        await settle()
        assert consumer.got[-1][:2] == (now, b"x")


@pytest.mark.parametrize("politely", [True, False])
@simulated
async def test_a_consumer_leaves_and_the_others_take_its_queues_at_once(cluster, politely):
    await three_brokers(cluster)
    producer = Producer(cluster)
    for _ in range(12):
        await producer.send("orders", b"x")
    await trio.sleep(1)
    first, second = [await Consumer(cluster, "GID", "orders", name, fine).start() for name in ("c1", "c2")]
    await trio.sleep(2 * NOTIFY_DELAY_S)
    assert first.notified
    orders = [{queue for queue in each.queues if queue[0] == "orders"} for each in (first, second)]
    assert len(orders[0]) == len(orders[1])
    assert not orders[0] & orders[1]
    await second.stop(politely=politely)
    await trio.sleep(2 * NOTIFY_DELAY_S)
    assert {queue for queue in first.queues if queue[0] == "orders"} == orders[0] | orders[1]


@simulated
async def test_delayed_messages_come_at_their_exact_time(cluster):
    node = await cluster.add_broker(message_delay_level="1s 5s 10s")
    client = cluster.dial(node.address)
    await client.ask(message(body=b"plain"))
    start = cluster.clock.now_ms()
    for level, late in ((3, 0), (1, 0), (2, 0.25), (9, 0.5)):
        await trio.sleep(late)
        await client.ask(message(body=b"level %d" % level, properties={"DELAY": str(level)}))
    arrived, offset = {}, 1
    while len(arrived) < 4:
        reply = await client.ask(pull(offset=offset, wait_ms=15_000), timeout_s=20)
        arrived.update({body: cluster.clock.now_ms() - start for body in bodies(reply)})
        offset = reply.next_begin_offset
    assert arrived == {b"level 1": 1000, b"level 2": 5250, b"level 3": 10_000, b"level 9": 10_750}


@simulated
async def test_failures_are_retried_and_end_in_the_dead_letters(cluster):
    await cluster.namesrv()
    node = await cluster.add_broker(message_delay_level="1s 2s 3s 4s 5s")
    producer = Producer(cluster)
    await producer.send("orders", b"good")
    await trio.sleep(1)
    consumer = Consumer(cluster, "GID", "orders", "c1", lambda each: bytes(each.body) == b"good")
    await consumer.start()
    await trio.sleep(1)
    await consumer.rebalance()
    start = cluster.clock.now_ms() - EPOCH_MS
    await producer.send("orders", b"bad")
    await trio.sleep(30)
    tries = [(at - start, times) for at, body, times in consumer.got if body == b"bad"]
    # Level 3 after the first failure, level 4 after the second; the third is the last.
    assert tries == [(0, 0), (3000, 1), (7000, 2)]
    (dead,) = iter_messages((await producer.to(node.address).ask(pull(dlq_topic("GID"), group="X"))).body)
    assert (bytes(dead.body), dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"bad", 3, "orders")


@simulated
async def test_a_lease_on_a_queue_runs_out_and_another_client_gets_it(cluster):
    node = await cluster.add_broker()
    queues = [MessageQueue(topic="orders", broker_name="broker-a", queue_id=number) for number in range(2)]

    async def lock(client_id):
        body = LockBatchRequestBody(consumer_group="GID", client_id=client_id, mq_set=queues)
        return (await client.ask(LockBatchMq(data=body))).data.lock_okmq_set

    client = cluster.dial(node.address)
    await client.ask(message("orders"))
    assert await lock("c1") == queues
    assert await lock("c2") == []
    await trio.sleep(40)
    assert await lock("c1") == queues, "asking again renews the lease"
    await trio.sleep(59)
    assert await lock("c2") == []
    await trio.sleep(1.1)
    assert await lock("c2") == queues
    assert await lock("c1") == []


async def fill(cluster, node, count=50):
    client = cluster.dial(node.address)
    for number in range(count):
        await client.ask(message(body=b"%d" % number))
    await client.ask(message(body=b"late", properties={"DELAY": "3"}))
    # A group comes into being with its first pull.
    await client.ask(pull())
    await client.ask(UpdateConsumerOffset(consumer_group="GID", topic="orders", queue_id=0, commit_offset=20))
    return [b"%d" % number for number in range(count)]


@simulated
async def test_a_broker_that_restarts_in_order_keeps_everything(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(host="10.0.1.1", files=files)
    sent = await fill(cluster, node)
    await node.stop()
    with pytest.raises(ConnectionRefusedError):
        cluster.dial(node.address)
    node = await cluster.add_broker(host="10.0.1.1", files=files)
    client = cluster.dial(node.address)
    committed = QueryConsumerOffset(consumer_group="GID", topic="orders", queue_id=0)
    assert (await client.ask(committed)).offset == 20
    assert bodies(await client.ask(pull())) == sent[:32]
    assert bodies(await client.ask(pull(offset=32))) == sent[32:]
    await trio.sleep(10)
    assert bodies(await client.ask(pull(offset=50))) == [b"late"], "its delay went on meanwhile"


@pytest.mark.parametrize("seed", range(4))
@simulated
async def test_a_power_cut_loses_nothing_that_was_answered_with_synchronous_flush(cluster, seed):
    files = CrashFiles()
    node = await cluster.add_broker(host="10.0.1.1", files=files, flush_disk_type="SYNC_FLUSH")
    sent = await fill(cluster, node)
    await trio.sleep(6)
    await node.crash()
    node = await cluster.add_broker(
        host="10.0.1.1", files=files.crash(random.Random(seed)), flush_disk_type="SYNC_FLUSH"
    )
    client = cluster.dial(node.address)
    committed = QueryConsumerOffset(consumer_group="GID", topic="orders", queue_id=0)
    assert (await client.ask(committed)).offset == 20, "offsets are written every five seconds"
    got = bodies(await client.ask(pull())) + bodies(await client.ask(pull(offset=32)))
    assert got == sent
    assert (await client.ask(message(body=b"next"))).queue_offset == 50


@pytest.mark.parametrize("seed", range(4))
@simulated
async def test_a_power_cut_leaves_a_beginning_with_asynchronous_flush(cluster, seed):
    files = CrashFiles()
    node = await cluster.add_broker(host="10.0.1.1", files=files)
    sent = await fill(cluster, node, 20)
    await trio.sleep(0.6)
    client = cluster.dial(node.address)
    for number in range(20, 30):
        await client.ask(message(body=b"%d" % number))
    await node.crash()
    node = await cluster.add_broker(host="10.0.1.1", files=files.crash(random.Random(seed)))
    client = cluster.dial(node.address)
    got = bodies(await client.ask(pull()))
    assert got[:20] == sent, "what was flushed is there"
    assert got == [b"%d" % number for number in range(len(got))]
    assert (await client.ask(GetMaxOffset(topic="orders", queue_id=0))).offset == len(got)


@simulated
async def test_a_stopping_broker_answers_waiting_pulls_and_its_route_goes(cluster):
    await cluster.namesrv()
    node = await cluster.add_broker()
    producer = Producer(cluster)
    await producer.send("orders", b"x")
    await trio.sleep(1)
    waiting = cluster.dial(node.address)
    ended = []

    async def wait():
        assert (await waiting.ask(pull(offset=1, wait_ms=15_000), timeout_s=20)).code == 19
        ended.append(cluster.clock.now_ms())

    assert await producer.queues("orders")
    cluster.nursery.start_soon(wait)
    await settle()
    start = cluster.clock.now_ms()
    await node.stop()
    await settle()
    assert ended[0] - start < 100, "a stop waits for no deadline"
    with pytest.raises(RequestError, match="No topic route info"):
        await producer.to(NAMESRV).ask(GetRouteInfoByTopic(topic="orders"))
