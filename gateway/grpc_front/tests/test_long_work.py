"""A watchdog: no pass of the loop (several turns) works for more than 100 ms, whatever single RPCs ask for."""

import gc
import time

import pytest
import trio

from gateway.grpc_front import messages as m
from gateway.grpc_front.long_work import LongWork
from gateway.grpc_front.tests.world import message, open_front, send_request
from gateway.tests.cluster import settle, simulated

MAX_PASS_S = 0.1
"""These passes took 0.9 to 4.7 s while each RPC was answered in one turn."""
RPCS = 16


class Watchdog(trio.abc.Instrument):
    """Measures the processor time of the server's tasks in each pass of the loop; the tests' own are not counted."""

    def __init__(self):
        self.longest_s = self._pass_s = self._began_s = 0.0

    def before_task_step(self, task):
        self._began_s = time.thread_time()

    def after_task_step(self, task):
        if ".tests." not in task.name and "test_" not in task.name:
            self._pass_s += time.thread_time() - self._began_s

    def before_io_wait(self, timeout):
        self.longest_s = max(self.longest_s, self._pass_s)
        self._pass_s = 0.0


@pytest.fixture(autouse=True)
def no_full_collection():
    """Keep the objects of the whole test run out of garbage collections, which would be measured."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


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
    watchdog = Watchdog()
    trio.lowlevel.add_instrument(watchdog)
    streams = [await client.start("QueryRoute", request, m.QueryRouteResponse) for _ in range(RPCS)]
    for stream in streams:
        await stream.ended.wait()
        assert len(stream.answers[0].message_queues) == 4096
    assert watchdog.longest_s < MAX_PASS_S


@simulated
async def test_acks_of_forged_receipts(cluster):
    front = await open_front(cluster)
    front.create_topic()
    await settle()
    client = front.client()
    entries = [m.AckMessageEntry(receipt_handle=f"0 1 1 0 0 broker-a 0 {number} 0") for number in range(400)]
    entries += [m.AckMessageEntry(receipt_handle="x")] * 800
    ack = m.AckMessageRequest(topic=m.Resource(name="orders"), group=m.Resource(name="GID"), entries=entries)
    watchdog = Watchdog()
    trio.lowlevel.add_instrument(watchdog)
    streams = [await client.start("AckMessage", ack, m.AckMessageResponse) for _ in range(RPCS)]
    for stream in streams:
        await stream.ended.wait()
        assert len(stream.answers[0].entries) == 1200
    assert watchdog.longest_s < MAX_PASS_S


@simulated
async def test_renewals_of_thousands_of_messages(cluster):
    front = await open_front(cluster)
    front.create_topic()
    client = front.client()
    for number in range(64):
        batch = [message(body=b"%d-%d" % (number, own)) for own in range(32)]
        await client.call("SendMessage", send_request(*batch))
    received_count = 0
    for _ in range(64):
        received_count += len((await client.receive(auto_renew=True)).messages)
    assert received_count == 2048
    watchdog = Watchdog()
    trio.lowlevel.add_instrument(watchdog)
    await trio.sleep(70)
    assert watchdog.longest_s < MAX_PASS_S
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
