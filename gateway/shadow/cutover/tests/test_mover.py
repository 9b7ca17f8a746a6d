import contextlib

import pytest
import trio

from gateway.http_server.errors import OperationRefused
from gateway.shadow.clusters.metadata_sync import copy_topic
from gateway.shadow.cutover.moves import MoveState
from gateway.shadow.cutover.settings import CutoverSettings
from gateway.shadow.tests.simulated_gateway import (
    STATE,
    SimulatedConsumer,
    SimulatedGateway,
    SimulatedProducer,
)
from gateway.shadow.tests.two_clusters import two_clusters
from gateway.shadow.traffic.exchange import Side
from gateway.tests.cluster import message
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.bodies.locks import LockBatchRequestBody
from remoting.bodies.queues import MessageQueue
from remoting.bodies.topics import TopicConfig
from remoting.requests.client import HeartBeat
from remoting.requests.locks import LockBatchMq
from remoting.requests.send import SendMessageV2
from remoting.requests.transaction import EndTransaction
from storage.append import NewMessage
from storage.files import MemoryFiles

M, C, P, D, S, DONE, BACK = (
    MoveState.MIRRORING, MoveState.CAUGHT_UP, MoveState.PRODUCERS_SWITCHED, MoveState.DRAINED,
    MoveState.CONSUMERS_SWITCHED, MoveState.DONE, MoveState.ROLLING_BACK,
)  # fmt: skip
A = ("broker-a", "broker-a")


def broker(side):
    return next(node for node in side.simulated.nodes.values() if node.registrar).broker


async def send_heartbeat(side, group="GID", topic="orders", client="c1"):
    """Announce a consumer over a connection of its own."""
    consumer = ConsumerData(
        group_name=group, consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        subscription_data_set=[SubscriptionData(topic=topic, sub_string="*", sub_version=1)],
    )  # fmt: skip
    data = HeartbeatData(client_id=client, consumer_data_set=[consumer])
    await side.ask_broker("broker-a", HeartBeat(data=data))


@contextlib.asynccontextmanager
async def world(primary, target, *topics, **more):
    """A gateway before two clusters that have the topics; its tasks end with the block."""
    for topic in topics or ("orders",):
        broker(primary).topics.update([TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2)])
        await copy_topic(primary, target, *A, topic)
    await trio.sleep(1)
    async with trio.open_nursery() as nursery:
        yield SimulatedGateway(primary, target, MemoryFiles(), nursery, **more), nursery
        nursery.cancel_scope.cancel()


async def take_step(gateway, *args, way="advance", wait_s=30, **more):
    reports = await getattr(gateway.mover, way)(*args, wait_s=wait_s, **more)
    assert all(report.done for report in reports), [report.to_dict() for report in reports]
    return gateway.mover.move_file.get_move(args[0]).overall_state


async def refusal_reason(gateway, *args, way="advance", **more):
    reports = await getattr(gateway.mover, way)(*args, **more)
    assert not all(report.done for report in reports)
    return "; ".join(report.reason for report in reports)


@contextlib.asynccontextmanager
async def load(gateway, nursery, topic="orders", groups=("GID",)):
    """Produce and consume while the block runs; then wait for all messages and compare them."""
    producer = SimulatedProducer(gateway, topic)
    consumers = [SimulatedConsumer(gateway, topic, group) for group in groups]
    for group in groups:
        await send_heartbeat(gateway.primary, group, topic)
        await send_heartbeat(gateway.target, group, topic)
    nursery.start_soon(producer.run)
    for consumer in consumers:
        nursery.start_soon(consumer.run)
    await trio.sleep(1)
    yield producer, consumers
    await trio.sleep(1)
    producer.stopped = True
    await trio.sleep(5)
    for consumer in consumers:
        for queue in (0, 1):
            assert consumer.of(queue) == producer.of(queue)


@pytest.mark.parametrize("preserves_offsets", [True, False])
@two_clusters
async def test_topic_moves_under_load_without_loss_or_disorder(primary, target, preserves_offsets):
    async with world(primary, target, preserves_offsets=preserves_offsets) as (gateway, nursery):
        if not preserves_offsets:
            await target.ask_broker("broker-a", message(queue_id=0))
            broker(target).topics.update(
                [TopicConfig(topic_name="orders", read_queue_nums=2, write_queue_nums=2)]
            )
        async with load(gateway, nursery) as (producer, (consumer,)):
            for wanted in (C, P, D, S, DONE):
                assert await take_step(gateway, "orders") is wanted
                await trio.sleep(0.5)
        sides = [side for _, _, side in producer.sent]
        assert sides == sorted(sides, key=[Side.PRIMARY, Side.TARGET].index)
        assert consumer.sides == sorted(consumer.sides, key=[Side.PRIMARY, Side.TARGET].index)
        assert set(sides) == set(consumer.sides) == {Side.PRIMARY, Side.TARGET}
        assert producer.slowest_s < 1


@two_clusters
async def test_move_continues_after_a_kill_between_steps(primary, target):
    async with world(primary, target) as (gateway, nursery), load(gateway, nursery) as (producer, _):
        for wanted in (C, P, D, S, DONE):
            assert await take_step(gateway, "orders") is wanted
            held = gateway.mirror.stopped.copy()
            gateway.restart()
            assert gateway.mover.move_file.get_move("orders").overall_state is wanted
            assert gateway.mirror.stopped == held
            side = Side.PRIMARY if wanted is C else Side.TARGET
            await trio.sleep(0.1)
            assert producer.sent[-1][2] is side


@two_clusters
async def test_groups_move_independently(primary, target):
    async with (
        world(primary, target) as (gateway, nursery),
        load(gateway, nursery, groups=("a", "b")) as (_, both),
    ):
        await take_step(gateway, "orders")
        await take_step(gateway, "orders")
        for wanted in (P, P):
            assert await take_step(gateway, "orders", "a") is wanted
        await trio.sleep(0.5)
        assert [consumer.sides[-1] for consumer in both] == [Side.TARGET, Side.PRIMARY]
        await take_step(gateway, "orders")
        assert await take_step(gateway, "orders") is S


@two_clusters
async def test_producers_roll_back_with_the_messages_of_the_target(primary, target):
    async with (
        world(primary, target) as (gateway, nursery),
        load(gateway, nursery) as (producer, (consumer,)),
    ):
        await take_step(gateway, "orders")
        await take_step(gateway, "orders")
        await trio.sleep(1)
        assert await take_step(gateway, "orders", way="rollback") is M
        await trio.sleep(1)
        assert {side for _, _, side in producer.sent[-10:]} == {Side.PRIMARY}
        assert set(consumer.sides) == {Side.PRIMARY}
        assert not gateway.mirror.stopped
        assert not any(gateway.hub.is_directed(code) for code in (310, 11))


@two_clusters
async def test_consumers_roll_back_after_the_producers(primary, target):
    async with (
        world(primary, target) as (gateway, nursery),
        load(gateway, nursery) as (producer, (consumer,)),
    ):
        for _ in range(4):
            await take_step(gateway, "orders")
        await trio.sleep(1)
        assert await take_step(gateway, "orders", way="rollback") is BACK
        gateway.restart()
        assert await take_step(gateway, "orders", way="rollback") is M
        await trio.sleep(1)
        assert consumer.sides[-1] is Side.PRIMARY
        ours, theirs = broker(primary).store, broker(target).store
        await trio.sleep(1)
        assert abs(ours.max_offset("orders", 0) - theirs.max_offset("orders", 0)) < 60


@two_clusters
async def test_messages_after_a_roll_back_do_not_answer_polls_at_the_target(primary, target):
    """Otherwise a consumer would continue after them at the primary, and skip messages sent before mirroring
    resumed.
    """
    async with world(primary, target, preserves_offsets=False) as (gateway, nursery):
        producer, consumer = SimulatedProducer(gateway), SimulatedConsumer(gateway, wait_ms=15_000)
        await send_heartbeat(primary)
        await send_heartbeat(target)
        nursery.start_soon(producer.run)
        nursery.start_soon(consumer.run)
        await trio.sleep(1)
        for _ in range(4):
            await take_step(gateway, "orders")
            await trio.sleep(0.5)
        await trio.sleep(20)  # until the polls at the primary have ended
        producer.stopped = True
        await trio.sleep(2)
        assert gateway.traffic.count_waiting_reads("orders") == 2
        assert await take_step(gateway, "orders", way="rollback") is BACK
        more = SimulatedProducer(gateway)
        nursery.start_soon(more.run)
        await trio.sleep(1)
        assert await take_step(gateway, "orders", way="rollback") is M
        await trio.sleep(1)
        more.stopped = True
        await trio.sleep(30)
        assert gateway.traffic.count_waiting_reads("orders") == 0
        assert not gateway.mirror.stopped
        for queue in (0, 1):
            assert consumer.of(queue) == producer.of(queue) + more.of(queue)


@two_clusters
async def test_interrupted_roll_back_copies_nothing_twice(primary, target):
    async with world(primary, target) as (gateway, nursery):
        await take_step(gateway, "orders")
        await take_step(gateway, "orders")
        for number in range(10):
            await gateway.ask(message("orders", b"%d" % number, queue_id=number % 2, key=f"U{number}"))
        await target.ask_broker("broker-a", message("orders", b"late", properties={"DELAY": "3"}))
        assert "1 at the target" in await refusal_reason(gateway, "orders", way="rollback")
        asked = primary.ask_broker
        count = iter(range(100))

        async def failing(name, request, timeout_s=None):
            if isinstance(request, SendMessageV2) and next(count) > 4:
                raise OSError("gone")
            return await asked(name, request, timeout_s)

        primary.ask_broker = failing
        assert "gone" in await refusal_reason(gateway, "orders", way="rollback", allow=["delays"])
        assert gateway.mover.move_file.get_move("orders").state is P
        primary.ask_broker = asked
        gateway.restart()
        assert await take_step(gateway, "orders", way="rollback", allow=["delays"]) is M
        store = broker(primary).store
        assert [store.max_offset("orders", queue) for queue in (0, 1)] == [5, 5]


# -- refusals ------------------------------------------------------------------------------------------------------


@two_clusters
async def test_topic_missing_at_the_target_is_not_caught_up(primary, target):
    async with world(primary, target) as (gateway, _):
        broker(primary).topics.update([TopicConfig(topic_name="new", read_queue_nums=2, write_queue_nums=2)])
        assert "rmq-gateway shadow sync" in await refusal_reason(gateway, "new")
        assert "no topic nothing" in await refusal_reason(gateway, "nothing")


@two_clusters
async def test_target_lacking_messages_is_not_caught_up(primary, target):
    async with world(primary, target) as (gateway, _):
        await primary.ask_broker("broker-a", message("orders"))
        assert "did not catch up in 10000 ms" in await refusal_reason(gateway, "orders")


@two_clusters
async def test_producers_continue_when_the_pause_is_too_short(primary, target):
    settings = CutoverSettings(state_file=STATE, hold_sends_ms=500)
    async with (
        world(primary, target, settings=settings) as (gateway, nursery),
        load(gateway, nursery) as (producer, _),
    ):
        await take_step(gateway, "orders")
        gateway.mirror.delay_s = 1.0
        await trio.sleep(1)
        reason = await refusal_reason(gateway, "orders")
        assert "sends must not wait longer" in reason
        assert "the pause was too short" in reason
        gateway.mirror.delay_s = 0.001
        await trio.sleep(1)
        assert 0.4 < producer.slowest_s < 0.7
        assert gateway.mover.move_file.get_move("orders").state is C
        assert producer.sent[-1][2] is Side.PRIMARY


@two_clusters
async def test_open_half_messages_block_the_producer_switch(primary, target):
    half = {"TRAN_MSG": "true", "PGROUP": "PID"}
    async with world(primary, target, preserves_offsets=False) as (gateway, _):
        await take_step(gateway, "orders")
        sent, _ = await gateway.ask(message("orders", key="T", properties=half, sys_flag=4))
        assert "1 at the primary" in await refusal_reason(gateway, "orders")
        (check,) = [each for each in (await gateway.mover.plan_steps("orders"))[0].checks if not each.ok]
        assert (check.name, check.measured) == ("transactions", "1 waiting")
        physical = next(iter([int(sent.msg_id[-16:], 16)]))
        end = EndTransaction(
            topic="orders", producer_group="PID", tran_state_table_offset=sent.queue_offset, msg_id="T",
            commit_log_offset=physical, commit_or_rollback=12, transaction_id="T",
        )  # fmt: skip
        await gateway.ask(end)
        assert await take_step(gateway, "orders") is P


@pytest.mark.parametrize("properties", [{"DELAY": "3"}, {"TIMER_DELAY_SEC": "10"}])
@two_clusters
async def test_delayed_messages_block_producers_unless_allowed_and_groups_until_delivered(
    primary, target, properties
):
    async with (
        world(primary, target, preserves_offsets=False) as (gateway, nursery),
        load(gateway, nursery) as (_, (consumer,)),
    ):
        await take_step(gateway, "orders")
        await primary.ask_broker("broker-a", message("orders", b"late", properties=properties))
        await trio.sleep(0.2)
        assert "1 at the primary, which delivers them later" in await refusal_reason(gateway, "orders")
        assert await take_step(gateway, "orders", allow=["delays"]) is P
        assert "1 at the primary" in await refusal_reason(gateway, "orders")
        assert await take_step(gateway, "orders") is D
        assert await take_step(gateway, "orders") is S
        assert (0, b"late") in consumer.got
        consumer.got.remove((0, b"late"))


@two_clusters
async def test_group_with_unconsumed_messages_is_not_drained(primary, target):
    async with world(primary, target) as (gateway, _):
        for queue in (0, 1):
            await gateway.ask(message("orders", queue_id=queue))
        await send_heartbeat(primary)
        await take_step(gateway, "orders")
        await take_step(gateway, "orders")
        reason = await refusal_reason(gateway, "orders")
        assert "GID has not consumed all of orders at the primary" in reason


@two_clusters
async def test_group_waits_for_its_other_topics_unless_allowed(primary, target):
    async with world(primary, target, "orders", "bills") as (gateway, nursery):
        first, second = load(gateway, nursery), load(gateway, nursery, "bills")
        async with first, second:
            for _ in range(3):
                await take_step(gateway, "orders")
            assert "GID consumes more topics: bills is MIRRORING" in await refusal_reason(gateway, "orders")
            assert await take_step(gateway, "orders", allow=["apart"]) is S


@two_clusters
async def test_group_without_consumers_keeps_its_offsets(primary, target):
    async with world(primary, target) as (gateway, _):
        consumer = SimulatedConsumer(gateway)
        for number in range(4):
            await gateway.ask(message("orders", b"%d" % number, queue_id=0))
        consumer.offsets = {0: 0}
        await consumer.pull_once(0)
        for number in range(4):
            await gateway.ask(message("orders", b"%d" % number, queue_id=0))
        for wanted in (C, P, D, S):
            assert await take_step(gateway, "orders") is wanted
        assert broker(target).offsets.query_offset("GID", "orders", 0) == 4


@two_clusters
async def test_locks_follow_their_group(primary, target):
    async with world(primary, target) as (gateway, nursery), load(gateway, nursery):
        queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)

        def lock(client):
            return LockBatchMq(
                data=LockBatchRequestBody(consumer_group="GID", client_id=client, mq_set=[queue])
            )

        reply, _ = await gateway.ask(lock("c1"))
        assert reply.data.lock_okmq_set == [queue]
        for _ in range(4):
            await take_step(gateway, "orders")
        reply, side = await gateway.ask(lock("c2"))
        assert (reply.data.lock_okmq_set, side) == ([], Side.TARGET)
        reply, side = await gateway.ask(lock("c1"))
        assert (reply.data.lock_okmq_set, side) == ([queue], Side.TARGET)


@two_clusters
async def test_unreachable_target_refuses_the_step(primary, target):
    async with world(primary, target) as (gateway, _):
        await take_step(gateway, "orders")
        address = next(address for address, node in target.simulated.nodes.items() if node.registrar)
        await target.simulated.nodes[address].crash()
        assert await refusal_reason(gateway, "orders")
        assert gateway.mover.move_file.get_move("orders").state is C
        _, side = await gateway.ask(message("orders"))
        assert side is Side.PRIMARY


@two_clusters
async def test_full_disk_refuses_the_step(primary, target):
    async with world(primary, target) as (gateway, _):

        class FullFiles(MemoryFiles):
            def write_small(self, path, data, backup=None):
                raise OSError("no room")

        gateway.files = FullFiles()
        gateway.restart()
        assert "no room" in await refusal_reason(gateway, "orders")
        assert gateway.mover.move_file.get_move("orders").state is M


@two_clusters
async def test_roll_back_without_a_move_is_refused(primary, target):
    async with world(primary, target) as (gateway, _):
        with pytest.raises(OperationRefused, match="nothing to undo"):
            await gateway.mover.rollback("orders")
        assert [metric.value for metric in gateway.mover.collect_metrics()][-2:] == [0, 0]


@two_clusters
async def test_pop_retries_are_drained_before_the_group_switches(primary, target):
    """They are in a topic of group and topic, which is not one of the group's other topics."""
    async with world(primary, target) as (gateway, _):
        await send_heartbeat(gateway.primary)
        retry = "%RETRY%GID_orders"
        broker(primary).topics.update([TopicConfig(topic_name=retry, read_queue_nums=1, write_queue_nums=1)])
        broker(primary).store.append(NewMessage(retry, 0, b"failed", b""))
        broker(primary).offsets.commit_offset("GID", retry, 0, 0)
        await take_step(gateway, "orders")
        await take_step(gateway, "orders")
        assert await refusal_reason(gateway, "orders", "GID") == (
            "GID has not consumed all of %RETRY%GID_orders at the primary"
        )
        broker(primary).offsets.commit_offset("GID", retry, 0, 1)
        await take_step(gateway, "orders", "GID")
        assert await take_step(gateway, "orders", "GID") is S
        assert {retry, "%RETRY%GID", "%DLQ%GID"} <= gateway.mirror.stopped
        assert broker(target).topics.get(retry) is not None
