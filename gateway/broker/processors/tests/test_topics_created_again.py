"""A topic that is deleted and created again: nothing of its old life reaches the new one."""

import pytest
import trio

from gateway.tests.broker_world import World
from gateway.tests.cluster import bodies, message, pull, settle, simulated
from gateway.tests.popping import pop_request, popped_messages
from gateway.tests.transacting import queue, refused, started
from remoting.bodies.locks import LockBatchRequestBody
from remoting.bodies.queues import MessageQueue
from remoting.errors import RequestError
from remoting.requests.locks import LockBatchMq
from remoting.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from remoting.requests.pop import AckMessage, ChangeMessageInvisibletime
from remoting.requests.topics import DeleteTopicInBroker
from storage.files import MemoryFiles

NO_TOPIC, NO_MESSAGE, MOVED = 17, 208, 21


async def delete(connection, topic="orders"):
    await connection.ask(DeleteTopicInBroker(topic=topic))


def replay(world):
    """Return a broker that starts with the files of another one, as after a kill."""
    return World(files=world.files, clock=world.clock)


# -- pulls and pops -----------------------------------------------------------------------------------------------


@simulated
async def test_a_held_pull_is_answered_by_the_deletion(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    for _ in range(3):
        await client.ask(message())
    answers = []

    async def hold():
        answers.append(await client.ask_command(pull(offset=3, wait_ms=15_000).to_command(), 20))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await settle()
        await delete(cluster.dial(node.address))
        await settle()
        assert [answer.code for answer in answers] == [NO_TOPIC]
    assert len(node.broker.long_polls) == 0
    await client.ask(message(body=b"new"))
    # The client continues at its old offset, which is beyond the new queue's end.
    moved = await client.ask_command(pull(offset=3).to_command(), 5)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (MOVED, "0")
    assert bodies(await client.ask(pull(offset=0))) == [b"new"]


@simulated
async def test_a_waiting_pop_is_answered_by_the_deletion(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message())
    node.broker.groups.find_or_create("GID")
    await client.ask(UpdateConsumerOffset(consumer_group="GID", topic="orders", queue_id=0, commit_offset=1))
    answers = []

    async def hold():
        request = pop_request("orders", "GID", queue_id=0, poll_time=15_000)
        answers.append(await client.ask_command(request.to_command(), 20))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await settle()
        await delete(cluster.dial(node.address))
        await settle()
        assert [answer.code for answer in answers] == [NO_TOPIC]
    assert node.broker.offsets.query_offset("GID", "orders", 0) == -1


def pop_one(world, **more):
    reply = world.ask(pop_request("t", "g", queue_id=0, invisible_time=10_000, **more))
    (got,) = popped_messages(reply, "b1", "t", "g")
    return got


def recreated(world):
    """Delete the topic, some time after its last pop, create it again and return the new message's body."""
    world.clock.pass_ms(5)
    world.ask(DeleteTopicInBroker(topic="t"))
    world.clock.pass_ms(5)
    world.topic("t", 1)
    world.put("t", body=b"new")
    return b"new"


@pytest.mark.parametrize("restarted", [False, True])
def test_an_outstanding_pop_revives_nothing_of_the_new_topic(restarted):
    world = World(timer_wheel_enable=False)
    world.topic("t", 1)
    world.put("t", body=b"old")
    old = pop_one(world)
    new = recreated(world)
    got = pop_one(world)
    assert got.body == new
    world.ask(got.request(AckMessage, "g"))
    if restarted:
        world.broker.topics.persist()
        world.broker.groups.persist()
        world = replay(world)
    assert len(world.broker.pop.state.reviver) == 0
    world.clock.pass_ms(60_000)
    world.broker.pop.run_due()
    assert not [topic for topic in world.broker.store.topics() if topic.startswith("%RETRY%")]
    assert old.body == b"old"


def test_pops_of_other_topics_stay():
    world = World(timer_wheel_enable=False)
    world.topic("t", 1)
    world.topic("other", 1)
    world.put("t")
    world.put("other")
    pop_one(world)
    world.ask(pop_request("other", "g", queue_id=0, invisible_time=10_000))
    recreated(world)
    assert len(world.broker.pop.state.reviver) == 1
    assert world.broker.pop.state.reviver.count_outstanding("other", "g", 0) == 1


@pytest.mark.parametrize("order", [False, True])
def test_receipts_of_the_old_topic_change_nothing(order):
    world = World(timer_wheel_enable=False)
    world.topic("t", 1)
    world.put("t")
    old = pop_one(world, order=order)
    recreated(world)
    world.ask(old.request(AckMessage, "g"))
    assert world.broker.offsets.query_offset("g", "t", 0) == -1
    change = ChangeMessageInvisibletime(
        consumer_group="g", topic="t", queue_id=0, extra_info=old.receipt, offset=0, invisible_time=60_000
    )
    with pytest.raises(RequestError) as refusal:
        world.ask(change)
    assert refusal.value.code == NO_MESSAGE
    assert pop_one(world, order=order).body == b"new"


def test_an_ordered_pop_of_a_group_without_offsets_does_not_block_the_new_topic():
    world = World()
    world.topic("t", 1)
    world.put("t")
    pop_one(world, order=True, attempt_id="a")
    world.broker.offsets.remove_topic("t")
    recreated(world)
    assert pop_one(world, order=True, attempt_id="b").body == b"new"


def test_the_clock_set_back_after_a_deletion_does_not_void_acks_of_the_new_topic():
    world = World(timer_wheel_enable=False)
    world.topic("t", 1)
    world.put("t")
    recreated(world)
    world.clock.pass_ms(-60_000)
    got = pop_one(world, order=True)
    world.ask(got.request(AckMessage, "g"))
    assert world.broker.offsets.query_offset("g", "t", 0) == 1


# -- locks and offsets ----------------------------------------------------------------------------------------------


def test_queue_locks_and_offsets_go_with_the_topic():
    world = World()
    world.topic("t", 1)
    world.put("t")
    lock = MessageQueue(topic="t", broker_name="b1", queue_id=0)

    def try_lock(client_id):
        body = LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=[lock])
        return world.ask(LockBatchMq(data=body)).data.lock_okmq_set

    assert try_lock("first") == [lock]
    assert try_lock("second") == []
    world.broker.groups.find_or_create("g")
    world.ask(UpdateConsumerOffset(consumer_group="g", topic="t", queue_id=0, commit_offset=1))
    world.broker.offsets.record_pull("g", "t", 0, 1)
    recreated(world)
    assert try_lock("second") == [lock]
    assert world.broker.offsets.query_pull("g", "t", 0) == -1
    assert world.ask(QueryConsumerOffset(consumer_group="g", topic="t", queue_id=0)).offset == 0


class ProcessKilled(BaseException):
    """Ends a request where the process would be killed."""


def kill(*arguments):
    raise ProcessKilled


def test_a_deletion_that_a_kill_interrupts_after_the_table_is_finished_at_the_next_start(monkeypatch):
    world = World()
    for topic in ("t", "other"):
        world.topic(topic, 1)
        world.put(topic, body=b"old")
    world.clock.pass_ms(5)
    monkeypatch.setattr(world.broker.store, "delete_topic_in_slices", kill)
    with pytest.raises(ProcessKilled):
        world.ask(DeleteTopicInBroker(topic="t"))
    world = replay(world)
    assert "t" not in world.broker.topics
    assert world.broker.store.topics() == {"other"}
    world.topic("t", 1)
    assert world.put("t", body=b"new")[0] == 0
    assert world.broker.store.announced_deletions == frozenset()


def test_a_deletion_that_a_kill_interrupts_before_the_table_deletes_nothing(monkeypatch):
    world = World()
    world.topic("t", 1)
    world.put("t", body=b"old")
    world.broker.topics.persist()
    world.clock.pass_ms(5)
    monkeypatch.setattr(world.broker.topics, "delete", kill)
    with pytest.raises(ProcessKilled):
        world.ask(DeleteTopicInBroker(topic="t"))
    world = replay(world)
    assert "t" in world.broker.topics
    assert world.broker.store.max_offset("t", 0) == 1
    assert world.broker.store.announced_deletions == frozenset()


def test_a_kill_after_the_deletion_leaves_no_offset_for_the_new_topic():
    world = World()
    world.topic("t", 1)
    for _ in range(5):
        world.put("t")
    world.broker.offsets.commit_offset("g", "t", 0, 5)
    world.broker.offsets.persist()
    world.clock.pass_ms(5)
    world.ask(DeleteTopicInBroker(topic="t"))
    world.topic("t", 1)
    for _ in range(8):
        world.put("t")
    assert replay(world).broker.offsets.query_offset("g", "t", 0) == -1


# -- messages that wait in other topics -------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1500"}])
@simulated
async def test_delayed_and_timer_messages_of_the_old_topic_are_dropped(cluster, properties, restarted):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    client = cluster.dial(node.address)
    await client.ask(message(body=b"old", properties=properties))
    await trio.sleep(0.2)
    await delete(client)
    await client.ask(message(body=b"new"))
    await client.ask(message(body=b"later", properties=properties))
    if restarted:
        await node.stop()
        node = await cluster.add_broker(files=files)
    await trio.sleep(5)
    assert [each.body for each in queue(node, "orders")] == [b"new", b"later"]


@simulated
async def test_a_timer_message_without_a_queue_in_its_topic_is_dropped(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message(body=b"old", properties={"TIMER_DELAY_MS": "1500"}))
    await delete(client)
    await trio.sleep(5)
    assert queue(node, "orders") == []
    assert node.broker.timer_delivery.metrics.count("orders") == 0


@simulated
async def test_half_messages_of_the_old_topic_are_void(cluster):
    node, producer = await started(cluster)
    sent = await producer.half()
    asked = await producer.half(key="U2")
    assert asked.queue_offset == 1
    await delete(producer.connection)
    await producer.connection.ask(message(body=b"new"))
    code, remark = await refused(producer.end(sent))
    assert (code, remark) == (1, "Find prepared transaction message failed")
    await trio.sleep(120)
    assert producer.questions == []
    assert [each.body for each in queue(node, "orders")] == [b"new"]
