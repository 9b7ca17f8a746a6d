import pytest

from gateway.shadow.clusters.metadata_sync import (
    NAMES_PER_TURN,
    copy_topic,
    plan_groups,
    plan_orders,
    plan_topics,
    rename_brokers,
    topic_step,
)
from gateway.shadow.clusters.sync_steps import SyncAction, apply_steps
from gateway.shadow.tests.two_clusters import two_clusters
from remoting.bodies.groups import GroupRetryPolicy, SimpleSubscriptionData, SubscriptionGroupConfig
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.requests.namesrv import GetKvConfig, PutKvConfig
from remoting.tests.virtual import counting_turns

A = ("broker-a", "broker-a")


def actions(steps, *kinds):
    return {step.name: step.action for step in steps if not kinds or step.kind in kinds}


async def brokers(*sides):
    return [next(n for n in side.simulated.nodes.values() if n.registrar).broker for side in sides]


@two_clusters
async def test_missing_topic_is_created(primary, target):
    ours, theirs = await brokers(primary, target)
    attributes = {"+message.type": "FIFO", "+cleanup.policy": "DELETE"}
    config = TopicConfig(
        topic_name="orders", read_queue_nums=5, write_queue_nums=3, perm=4, topic_filter_type="MULTI_TAG",
        topic_sys_flag=1, order=True, attributes=attributes,
    )  # fmt: skip
    ours.topics.update([config])
    step = await copy_topic(primary, target, *A, "orders")
    assert step.action is SyncAction.CREATE
    assert theirs.topics.get("orders") == ours.topics.get("orders")
    assert (await copy_topic(primary, target, *A, "orders")).action is SyncAction.SAME


@two_clusters
async def test_differing_topic_is_changed_with_its_attributes(primary, target):
    ours, theirs = await brokers(primary, target)
    ours.topics.update([TopicConfig(topic_name="orders", attributes={"+message.type": "DELAY"})])
    theirs.topics.update([TopicConfig(topic_name="orders", perm=2, attributes={"+quota.pull.bytes": "9"})])
    step = await copy_topic(primary, target, *A, "orders")
    assert step.action is SyncAction.CHANGE
    assert "perm 2 -> 6" in step.detail
    assert theirs.topics.get("orders") == ours.topics.get("orders")


@two_clusters
async def test_refusal_of_the_target_is_reported(primary, target):
    ours, theirs = await brokers(primary, target)
    ours.topics.update([TopicConfig(topic_name="orders", attributes={"+queue.type": "BatchCQ"})])
    step = await copy_topic(primary, target, *A, "orders")
    assert (step.action, step.detail.partition("DESC: ")[2]) == (
        SyncAction.FAILED,
        "queue.type=BatchCQ is not supported by this broker.",
    )


@two_clusters
async def test_topic_missing_at_the_primary_is_an_error(primary, target):
    with pytest.raises(RequestError, match="has no topic"):
        await copy_topic(primary, target, *A, "nothing")


@two_clusters
async def test_topic_plan_leaves_out_system_topics_and_is_idempotent(primary, target):
    ours, theirs = await brokers(primary, target)
    ours.topics.update([TopicConfig(topic_name=name) for name in ("orders", "%RETRY%GID", "other")])
    theirs.topics.update([TopicConfig(topic_name="other")])
    steps = await plan_topics(primary, target, *A)
    found = actions(steps)
    assert found["orders"] is found["%RETRY%GID"] is SyncAction.CREATE
    assert found["other"] is SyncAction.SAME
    left_out = {name for name, action in found.items() if action is SyncAction.LEFT_OUT}
    assert {"TBW102", "broker-a", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"} <= left_out
    version = theirs.topics.version.counter
    await apply_steps(target, steps)
    assert theirs.topics.get("%RETRY%GID") is not None
    assert theirs.topics.version.counter == version + 2
    again = set(actions(await plan_topics(primary, target, *A)).values())
    assert again == {SyncAction.SAME, SyncAction.LEFT_OUT}
    assert actions(await plan_topics(primary, target, *A, ["orders"])) == {"orders": SyncAction.SAME}


@two_clusters
async def test_groups_are_copied_with_permissions(primary, target):
    ours, theirs = await brokers(primary, target)
    config = SubscriptionGroupConfig(
        group_name="GID", consume_enable=False, consume_broadcast_enable=False, consume_message_orderly=True,
        retry_queue_nums=3, retry_max_times=5, broker_id=1, notify_consumer_ids_changed_enable=False,
        consume_timeout_minute=3, attributes={"+priority.factor": "20"},
        group_retry_policy=GroupRetryPolicy(type="EXPONENTIAL"),
        subscription_data_set=[SimpleSubscriptionData(topic="orders", expression="A")],
    )  # fmt: skip
    ours.groups.update([config])
    ours.groups.set_forbidden("GID", "secret", True)
    theirs.groups.update([SubscriptionGroupConfig(group_name="GID", retry_queue_nums=9)])
    theirs.groups.set_forbidden("GID", "free", True)
    steps = await plan_groups(primary, target, *A)
    assert actions(steps, "group")["GID"] is SyncAction.CHANGE
    assert actions(steps, "group")["TOOLS_CONSUMER"] is SyncAction.LEFT_OUT
    details = {step.name: step.detail for step in steps if step.kind == "permission"}
    assert details == {"secret@GID": "may not read", "free@GID": "may read"}
    await apply_steps(target, steps)
    assert theirs.groups.get("GID") == ours.groups.get("GID")
    assert theirs.groups.forbidden == ours.groups.forbidden
    assert actions(await plan_groups(primary, target, *A, ["GID"])) == {"GID": SyncAction.SAME}


@two_clusters
async def test_orders_go_to_every_namesrv(primary, target):
    assert await plan_orders(primary, target, {}) == []
    order = PutKvConfig(namespace="ORDER_TOPIC_CONFIG", key="orders", value="broker-a:4;broker-b:2")
    await primary.ask_namesrv(order)
    steps = await plan_orders(primary, target, {"broker-a": "ours"})
    assert actions(steps) == {"orders": SyncAction.CREATE}
    await apply_steps(target, steps)
    answer = await target.ask_namesrv(GetKvConfig(namespace="ORDER_TOPIC_CONFIG", key="orders"))
    assert answer.value == "ours:4;broker-b:2"
    steps = await plan_orders(primary, target, {"broker-a": "ours"})
    assert actions(steps) == {"orders": SyncAction.SAME}


@two_clusters
async def test_unreachable_target_fails_each_step(primary, target):
    (ours,) = await brokers(primary)
    ours.topics.update([TopicConfig(topic_name="orders")])
    steps = await plan_topics(primary, target, *A, ["orders"])
    await target.simulated.stop()
    await apply_steps(target, steps)
    assert actions(steps) == {"orders": SyncAction.FAILED}


def test_rename_brokers():
    assert rename_brokers("a:4;b:8;", {"a": "x"}) == "x:4;b:8"
    assert rename_brokers("", {}) == ""


@pytest.mark.parametrize("queues", [(10_001, 1), (1, 2**31 - 1)])
def test_a_topic_with_absurdly_many_queues_is_left_out(queues):
    read, write = queues
    wanted = TopicConfig(topic_name="huge", read_queue_nums=read, write_queue_nums=write)
    step = topic_step(wanted, None, "broker-a")
    assert (step.action, step.requests) == (SyncAction.LEFT_OUT, ())
    assert f"{max(queues)} queues" in step.detail


@two_clusters
async def test_planning_for_many_topics_lets_others_run(primary, target):
    ours, _ = await brokers(primary, target)
    ours.topics.update([TopicConfig(topic_name=f"t{number}") for number in range(3000)])
    async with counting_turns() as turns:
        steps = await plan_topics(primary, target, *A)
    assert sum(step.action is SyncAction.CREATE for step in steps) == 3000
    assert turns.count > 3000 // NAMES_PER_TURN
