"""Timer messages in a whole cluster on virtual time: times of delivery, and recovery after the broker ends."""

import pytest
import trio

from codec.message import decode_message
from gateway.tests.cluster import EPOCH_MS, Consumer, Producer, settle, simulated
from storage.files import MemoryFiles


def fine(each):
    return True


async def started(cluster, **settings):
    await cluster.namesrv()
    node = await cluster.add_broker(**settings)
    producer = Producer(cluster)
    await producer.send("orders", b"0")
    await trio.sleep(1)
    consumer = await Consumer(cluster, "GID", "orders", "c1", fine).start()
    await settle()
    consumer.got.clear()
    return node, producer, consumer


def stored(node):
    """Return (body, store time) of all messages but the first."""
    store = node.broker.store
    found = []
    for queue_id in range(4):
        for offset in range(store.max_offset("orders", queue_id)):
            message = decode_message(store.read("orders", queue_id, offset, 1).chunks[0])
            found.append((bytes(message.body), message.store_timestamp - EPOCH_MS))
    return [each for each in found if each[0] != b"0"]


async def later(cluster, producer, body, delay_ms, **properties):
    await producer.send("orders", body, properties={"TIMER_DELAY_MS": str(delay_ms), **properties})
    return cluster.clock.now_ms() - EPOCH_MS + delay_ms


@simulated
async def test_each_comes_to_the_millisecond(cluster):
    node, producer, _ = await started(cluster)
    due = {}
    for number, delay in enumerate((10, 999, 1000, 1001, 2500, 61_234, 600_000)):
        due[b"m%d" % number] = await later(cluster, producer, b"m%d" % number, delay)
        await trio.sleep(0.0137)
    await trio.sleep(610)
    assert sorted(stored(node)) == sorted(due.items())


@simulated
async def test_many_for_one_second_come_within_a_tenth_of_one(cluster):
    _, producer, consumer = await started(cluster)
    due = {}
    for number in range(300):
        due[b"%d" % number] = await later(cluster, producer, b"%d" % number, 5000)
        await trio.sleep(0.003)
    await trio.sleep(10)
    late = [at - due[body] for at, body, _ in consumer.got]
    assert len(late) == 300
    assert 0 <= min(late) <= max(late) < 100


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize("after_ms", [300, 1700, 2100, 5200])
@simulated
async def test_an_end_of_the_broker_loses_and_repeats_nothing(cluster, orderly, after_ms):
    files = MemoryFiles()
    node, producer, consumer = await started(cluster, files=files)
    delays = (1000, 2000, 2050, 2500, 2999, 3000, 7000, 9999, 90_000)
    begin = cluster.clock.now_ms() - EPOCH_MS
    for delay in delays:
        await later(cluster, producer, b"%d" % delay, delay)
    await trio.sleep(after_ms / 1000)
    await (node.stop() if orderly else node.crash())
    await consumer.stop(politely=False)
    await trio.sleep(4)
    await cluster.add_broker(files=files, host=node.address[0])
    up = cluster.clock.now_ms() - EPOCH_MS
    await trio.sleep(1)
    other = await Consumer(cluster, "GID2", "orders", "c2", fine).start()
    await trio.sleep(100)
    assert sorted(int(body) for _, body, _ in other.got) == sorted((0, *delays))
    for at, body, _ in other.got:
        if begin + int(body) > up + 1000:
            assert at == begin + int(body)


@simulated
async def test_a_message_put_off_on_the_way_comes_to_the_millisecond(cluster):
    node, producer, _ = await started(cluster, timer_roll_window_slots=100)
    due = cluster.clock.now_ms() - EPOCH_MS + 654_321
    await producer.send("orders", b"far", properties={"TIMER_DELIVER_MS": str(EPOCH_MS + due)})
    await trio.sleep(700)
    assert stored(node) == [(b"far", due)]
