import pytest

from gateway.shadow.clusters.cluster_pair import ClusterPair
from gateway.shadow.clusters.full_sync import OffsetFilter, plan_offsets
from gateway.shadow.clusters.metadata_sync import copy_topic
from gateway.shadow.clusters.sync_steps import SyncAction, apply_steps
from gateway.shadow.tests.two_clusters import two_clusters
from gateway.tests.cluster import message
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData
from remoting.requests.client import HeartBeat


def broker(side):
    return next(node for node in side.simulated.nodes.values() if node.registrar).broker


async def store_messages(primary, target, *, committed=5, mirrored=8):
    """Create a topic with messages on both sides, and a group with an offset."""
    for side, count in ((primary, 8), (target, mirrored)):
        for _ in range(count):
            await side.ask_broker("broker-a", message("orders"))
        broker(side).groups.update([SubscriptionGroupConfig(group_name="GID")])
    await copy_topic(primary, target, "broker-a", "broker-a", "orders")
    broker(primary).offsets.commit_offset("GID", "orders", 0, committed)


async def plan_and_apply(primary, target, wanted=None, kept=True, translate=None):
    steps = await plan_offsets(
        ClusterPair(primary, target, lambda name: name, kept), "broker-a", wanted or OffsetFilter(), translate
    )
    return {step.name: step for step in steps}, steps


@two_clusters
async def test_offsets_are_copied_unchanged_and_once(primary, target):
    await store_messages(primary, target)
    found, steps = await plan_and_apply(primary, target)
    assert (found["orders@GID"].action, found["orders@GID"].detail) == (SyncAction.CREATE, "0: - -> 5")
    await apply_steps(target, steps)
    assert broker(target).offsets.query_offset("GID", "orders", 0) == 5
    found, _ = await plan_and_apply(primary, target)
    assert found["orders@GID"].action is SyncAction.SAME


@pytest.mark.parametrize("ahead", [7, 3])
@two_clusters
async def test_differing_offset_is_set(primary, target, ahead):
    await store_messages(primary, target)
    broker(target).offsets.commit_offset("GID", "orders", 0, ahead)
    found, steps = await plan_and_apply(primary, target)
    assert found["orders@GID"].action is SyncAction.CHANGE
    await apply_steps(target, steps)
    assert broker(target).offsets.query_offset("GID", "orders", 0) == 5


@two_clusters
async def test_offsets_never_exceed_the_targets_end(primary, target):
    await store_messages(primary, target, mirrored=3)
    found, _ = await plan_and_apply(primary, target)
    assert found["orders@GID"].detail == "0: - -> 3; 2 messages are not at the target yet"


@two_clusters
async def test_group_active_on_the_target_is_not_changed(primary, target):
    await store_messages(primary, target)
    consumer = ConsumerData(group_name="GID", consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING",
                            consume_from_where="CONSUME_FROM_FIRST_OFFSET")  # fmt: skip
    await target.ask_broker(
        "broker-a", HeartBeat(data=HeartbeatData(client_id="c", consumer_data_set=[consumer]))
    )
    found, _ = await plan_and_apply(primary, target)
    assert found["orders@GID"].detail == "the group is active on the target"


@two_clusters
async def test_left_out_steps_have_a_reason(primary, target):
    await store_messages(primary, target)
    offsets = broker(primary).offsets
    offsets.commit_offset("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 3)
    offsets.commit_offset("GID@broadcast", "orders", 0, 3)
    offsets.commit_offset("GID", "gone", 0, 3)
    found, _ = await plan_and_apply(primary, target)
    left_out = {name: step.detail for name, step in found.items() if step.action is SyncAction.LEFT_OUT}
    assert left_out == {
        "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": "the system's own",
        "orders@GID@broadcast": "offsets of broadcasting clients are their own",
        "gone@GID": "the target has no such topic",
    }
    found, _ = await plan_and_apply(primary, target, OffsetFilter(moving=["orders"]))
    assert found["orders@GID"].detail == "the topic is being moved"
    assert (await plan_and_apply(primary, target, OffsetFilter(topics=["x"])))[1] == []
    assert (await plan_and_apply(primary, target, OffsetFilter(groups=["x"])))[1] == []


@two_clusters
async def test_offsets_are_translated_for_other_targets(primary, target):
    await store_messages(primary, target)
    found, _ = await plan_and_apply(primary, target, kept=False)
    assert found["orders@GID"].detail.startswith("the target uses other offsets")
    found, _ = await plan_and_apply(primary, target, kept=False, translate=lambda *place: place[-1] - 2)
    assert found["orders@GID"].detail == "0: - -> 3"
