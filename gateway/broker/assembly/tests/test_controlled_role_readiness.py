"""`/readyz` of brokers under a controller: a slave is not ready while it is not one of the replicas in sync."""

import trio

from gateway.broker.assembly.service import IN_SYNC
from gateway.broker.assembly.tests.test_controlled_role import master_of, send, wait_for
from gateway.config.replication import Role
from gateway.process.http_endpoint import failing_tasks
from gateway.tests.cluster import simulated
from gateway.tests.controlled import CONTROLLER, controlled


def troubles(node):
    return failing_tasks([node.service.tasks])


def is_ready(node):
    return not troubles(node)


async def ready_pair(cluster):
    """Return a group with its master and its slave, both of which are ready."""
    group, nodes = await controlled(cluster, 2)
    await wait_for(lambda: all(map(is_ready, nodes)))
    master = master_of(nodes)
    (slave,) = (node for node in nodes if node is not master)
    return group, master, slave


@simulated
async def test_a_restarted_slave_is_ready_when_it_is_in_sync_again(cluster):
    group, nodes = await controlled(cluster)
    await wait_for(lambda: all(map(is_ready, nodes)))
    master = master_of(nodes)
    slave = next(node for node in nodes if node is not master)
    slave_id = slave.broker.config.controlled.broker_id
    await slave.crash()
    await trio.sleep(2)
    assert slave_id not in (await group.term()).data.sync_state_set
    await send(cluster, master, b"while it was away")
    group.cut.add((slave.address[0], master.address[0]))
    back = await group.add_broker(slave.address[0], slave.files)
    assert "it waits for its controllers" in troubles(back)[0]
    await wait_for(lambda: back.broker.replication.slave is not None and back.broker.config.broker_id > 0)
    await trio.sleep(3)
    (problem,) = troubles(back)
    assert f"{IN_SYNC} (1 times in a row: NotInSync: this slave is not connected to its master" in problem
    assert not failing_tasks([back.service.tasks], IN_SYNC)
    group.cut.clear()
    await wait_for(lambda: is_ready(back), 30)
    assert slave_id in (await group.term()).data.sync_state_set


@simulated
async def test_a_slave_that_is_connected_waits_for_the_controllers(cluster):
    group, master, slave = await ready_pair(cluster)
    # The controller hears nothing of it when it comes back, and refuses to count it.
    slave_id = slave.broker.config.broker_id
    await slave.crash()
    await trio.sleep(2)
    liveness = group.controller.controller.liveness
    is_alive = liveness.is_alive
    liveness.is_alive = lambda key: key.broker_id != slave_id and is_alive(key)
    back = await group.add_broker(slave.address[0], slave.files)
    await wait_for(lambda: back.broker.replication.follows_master)
    await trio.sleep(5)
    (problem,) = troubles(back)
    assert "the controllers do not count this slave among the replicas in sync" in problem
    liveness.is_alive = is_alive
    # After a refusal its master asks again within a minute.
    await wait_for(lambda: is_ready(back), 120)
    assert slave_id in (await group.term()).data.sync_state_set


@simulated
async def test_a_slave_that_was_not_connected_is_ready_once_it_is_master(cluster):
    group, master, slave = await ready_pair(cluster)
    # The controller takes the dead master for alive, as it does with one that hangs or is cut off.
    master_id = master.broker.config.controlled.broker_id
    liveness = group.controller.controller.liveness
    is_alive = liveness.is_alive
    liveness.is_alive = lambda key: key.broker_id == master_id or is_alive(key)
    await master.crash()
    await wait_for(lambda: any("not connected to its master" in trouble for trouble in troubles(slave)))
    liveness.is_alive = is_alive
    await wait_for(lambda: slave.broker.config.broker_id == 0, 30)
    await wait_for(lambda: is_ready(slave), 30)


@simulated
async def test_a_slave_without_a_master_is_not_ready_while_no_controller_answers(cluster):
    group, master, slave = await ready_pair(cluster)
    group.cut_off(slave.address[0], CONTROLLER[0])
    await master.crash()
    await wait_for(lambda: any("not connected to its master" in trouble for trouble in troubles(slave)), 30)
    group.cut.clear()
    await wait_for(lambda: slave.broker.config.broker_id == 0, 60)
    await wait_for(lambda: is_ready(slave), 30)


@simulated
async def test_a_learner_is_ready_without_being_in_sync(cluster):
    group, nodes = await controlled(cluster, 1)
    learner = await group.add_broker("10.0.1.9", async_learner=True)
    await wait_for(
        lambda: learner.broker.replication.slave is not None and learner.broker.config.broker_id > 0
    )
    await trio.sleep(5)
    assert (await group.term()).data.sync_state_set == [nodes[0].broker.config.controlled.broker_id]
    assert is_ready(learner)


@simulated
async def test_a_slave_that_is_elected_as_soon_as_it_is_in_sync_is_ready(cluster):
    group, master, slave = await ready_pair(cluster)
    slave_id = slave.broker.config.controlled.broker_id
    await slave.crash()
    await trio.sleep(2)
    group.cut.add((slave.address[0], master.address[0]))
    back = await group.add_broker(slave.address[0], slave.files)
    await wait_for(lambda: "not connected to its master" in "".join(troubles(back)))
    group.cut.clear()
    with trio.fail_after(30):
        while slave_id not in (await group.term()).data.sync_state_set or is_ready(back):
            await trio.sleep(0.05)
    await master.crash()
    await wait_for(lambda: back.broker.config.role is Role.MASTER)
    # A master does not ask again whether it is in the set.
    await wait_for(lambda: is_ready(back), 10)
