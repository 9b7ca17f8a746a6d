"""A master under a controller hands over: by request, and before it ends."""

import pytest
import trio

from codec.constants import ResponseCode
from gateway.broker.assembly.metrics import controlled_metrics, fence_metric
from gateway.broker.assembly.stepping_down import LINGER_S, SteppingDown
from gateway.broker.assembly.tests.test_controlled_role import address_of, master_of, send, wait_for
from gateway.broker.limits.request_pause import MAX_HOLD_S
from gateway.broker.replication.replicas_manager import ReplicasManager
from gateway.config.replication import Role
from gateway.tests.cluster import bodies, message, pull, settle, simulated
from gateway.tests.controlled import CONTROLLER, NAME, controlled
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.heartbeat import HeartbeatData, ProducerData
from remoting.errors import RequestError
from remoting.requests.client import HeartBeat
from remoting.requests.controller import ControllerElectMaster
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from remoting.requests.roles import CopyTables, GetBrokerRole, HandOverBroker

OFFSET = {"consumer_group": "g", "topic": "orders", "queue_id": 0}


async def hand_over(cluster, master, slave=None):
    request = HandOverBroker(slave_address="" if slave is None else address_of(slave))
    await cluster.dial(master.address).ask(request, 60)


async def send_as_stock_clients_do(client, body):
    """Send a message, with two retries at once."""
    for is_last in (False, False, True):
        try:
            await client.ask(message(body=body), 10)
            return
        except RequestError as error:
            if is_last or error.code != ResponseCode.SYSTEM_BUSY:
                raise


def slaves_of(nodes):
    return [node for node in nodes if node.broker.config.role is Role.SLAVE]


@simulated
async def test_the_named_replica_becomes_master_and_has_everything(cluster):
    group, nodes = await controlled(cluster)
    master, chosen = master_of(nodes), slaves_of(nodes)[-1]
    client = cluster.dial(master.address)
    await client.ask(message(body=b"before"))
    await client.ask(UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name="g")))
    await client.ask(UpdateConsumerOffset(**OFFSET, commit_offset=1))
    await hand_over(cluster, master, chosen)
    await wait_for(lambda: chosen.broker.config.role is Role.MASTER)
    term = await group.term()
    assert (term.master_epoch, term.master_address) == (2, address_of(chosen))
    # The client does not know of it.
    await client.ask(message(body=b"after"), 10)
    assert bodies(await cluster.dial(chosen.address).ask(pull())) == [b"before", b"after"]
    assert (await cluster.dial(chosen.address).ask(QueryConsumerOffset(**OFFSET))).offset == 1
    assert master_of(nodes) is chosen
    await wait_for(lambda: master.broker.replication.follows_master)
    await trio.sleep(3)
    assert sorted((await group.term()).data.sync_state_set) == [1, 2, 3]


@simulated
async def test_sends_that_go_on_all_the_while_see_no_error_and_are_stored_once(cluster):
    group, nodes = await controlled(cluster)
    first = master_of(nodes)
    client, sent, is_over = cluster.dial(first.address), [], trio.Event()

    async def send_on():
        while not is_over.is_set():
            body = b"%d" % len(sent)
            await send_as_stock_clients_do(client, body)
            sent.append(body)
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_on)
        for _ in range(3):
            master = master_of(nodes)
            (successor, *_) = slaves_of(nodes)
            await trio.sleep(0.5)
            await hand_over(cluster, master, successor)
            await wait_for(lambda successor=successor: successor.broker.config.role is Role.MASTER)
            await trio.sleep(3)
        is_over.set()
    answer = await cluster.dial(master_of(nodes).address).ask(pull())
    assert bodies(answer) == sent[: len(bodies(answer))]
    assert master_of(nodes).broker.store.max_offset("orders", 0) == len(sent)


async def have_elected_beside(cluster, replica):
    """Have an operator elect a replica, whatever else goes on, and wait until it leads."""
    request = ControllerElectMaster(
        cluster_name="DefaultCluster",
        broker_name=NAME,
        broker_id=replica.broker.config.controlled.broker_id,
        designate_elect=True,
    )
    await cluster.dial(CONTROLLER).ask(request)
    await wait_for(lambda: replica.broker.config.role is Role.MASTER)


@pytest.mark.parametrize("step", ["_choose_successor", "_wait_until_in_step", "_have_tables_copied"])
@simulated
async def test_a_hand_over_ends_when_the_controllers_elect_another_master_meanwhile(
    cluster, monkeypatch, step
):
    group, nodes = await controlled(cluster)
    master, (chosen, elected) = master_of(nodes), slaves_of(nodes)
    carry_out = getattr(SteppingDown, step)

    async def be_overtaken(stepping_down, argument):
        result = await carry_out(stepping_down, argument)
        await have_elected_beside(cluster, elected)
        await wait_for(lambda: master.broker.config.role is Role.SLAVE)
        return result

    monkeypatch.setattr(SteppingDown, step, be_overtaken)
    with trio.fail_after(30), pytest.raises(RequestError, match="gets another role meanwhile"):
        await hand_over(cluster, master, chosen)
    assert (await group.term()).master_address == address_of(elected)
    await trio.sleep(MAX_HOLD_S + 1)
    assert not master.service.fence_reason
    await cluster.dial(master.address).ask(message(body=b"passed on"), 10)
    assert bodies(await cluster.dial(elected.address).ask(pull())) == [b"passed on"]


@simulated
async def test_a_slow_hand_over_passes_requests_on_as_well(cluster, monkeypatch):
    _, nodes = await controlled(cluster)
    master, chosen = master_of(nodes), slaves_of(nodes)[0]
    copy_tables = SteppingDown._have_tables_copied

    async def copy_slowly(stepping_down, successor):
        await copy_tables(stepping_down, successor)
        await trio.sleep(MAX_HOLD_S + 0.5)

    monkeypatch.setattr(SteppingDown, "_have_tables_copied", copy_slowly)
    await hand_over(cluster, master, chosen)
    await cluster.dial(master.address).ask(message(body=b"to the old address"), 10)
    assert bodies(await cluster.dial(chosen.address).ask(pull())) == [b"to the old address"]


@simulated
async def test_a_former_master_is_not_fenced_by_the_time_limit_of_its_hand_over(cluster, monkeypatch):
    _, nodes = await controlled(cluster)
    master, chosen = master_of(nodes), slaves_of(nodes)[0]
    wait_for_role = ReplicasManager.wait_for_role

    async def return_late(manager, epoch):
        await wait_for_role(manager, epoch)
        await trio.sleep(MAX_HOLD_S + 0.5)

    monkeypatch.setattr(ReplicasManager, "wait_for_role", return_late)
    await hand_over(cluster, master, chosen)
    assert not master.service.fence_reason
    await cluster.dial(master.address).ask(message(), 10)


@pytest.mark.parametrize("slave", ["nobody:1", ""])
@simulated
async def test_a_master_that_nobody_can_replace_goes_on(cluster, slave):
    _, nodes = await controlled(cluster, brokers=1)
    (master,) = nodes
    with pytest.raises(RequestError, match="is alive and in sync, as the controller sees it"):
        await cluster.dial(master.address).ask(HandOverBroker(slave_address=slave), 60)
    await send(cluster, master, b"as before")


@simulated
async def test_a_master_whose_controller_does_not_answer_goes_on_when_it_does(cluster):
    group, nodes = await controlled(cluster, brokers=2)
    master = master_of(nodes)
    group.controller.hangs = True
    with pytest.raises(RequestError, match="the master does not change"):
        await hand_over(cluster, master)
    group.controller.hangs = False
    await settle()
    await send(cluster, master, b"as before")
    assert master_of(nodes) is master


@simulated
async def test_a_slave_has_nothing_to_hand_over_and_a_master_no_tables_to_copy(cluster):
    group, nodes = await controlled(cluster, brokers=2)
    master, (slave,) = master_of(nodes), slaves_of(nodes)
    await hand_over(cluster, slave)
    assert (await group.term()).master_epoch == 1
    await cluster.dial(slave.address).ask(CopyTables(), 10)
    with pytest.raises(RequestError, match="this broker is not a slave that copies"):
        await cluster.dial(master.address).ask(CopyTables(), 10)


async def register_producer(cluster, node):
    data = HeartbeatData(client_id="c", producer_data_set=[ProducerData(group_name="p")])
    client = cluster.dial(node.address)
    await client.ask(HeartBeat(data=data))
    return client


@simulated
async def test_a_master_that_ends_hands_over_and_lingers_for_its_producers(cluster):
    _, nodes = await controlled(cluster)
    master = master_of(nodes)
    client = await register_producer(cluster, master)
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(master.mode.step_down, master.service, 60)
        await trio.sleep(2)
        await client.ask(message(body=b"to the old address"), 10)
    assert LINGER_S <= trio.current_time() - began_s < LINGER_S + 5
    assert bodies(await cluster.dial(master_of(nodes).address).ask(pull())) == [b"to the old address"]
    assert master_of(nodes) is not master


@simulated
async def test_a_master_without_producers_and_a_slave_end_at_once(cluster):
    _, nodes = await controlled(cluster)
    master, (slave, *_) = master_of(nodes), slaves_of(nodes)
    began_s = trio.current_time()
    await slave.mode.step_down(slave.service, 60)
    await master.mode.step_down(master.service, 60)
    assert trio.current_time() - began_s < 3
    assert master_of(nodes) is not master


@simulated
async def test_a_master_that_cannot_hand_over_ends_in_its_time(cluster):
    group, nodes = await controlled(cluster, brokers=2)
    master = master_of(nodes)
    await register_producer(cluster, master)
    group.controller.hangs = True
    began_s = trio.current_time()
    await master.mode.step_down(master.service, 2)
    assert trio.current_time() - began_s <= 2.1


def metrics_of(node):
    part = node.service.tasks.part
    samples = [*controlled_metrics(part, node.broker), fence_metric(part, node.service.role_trouble)]
    return {sample.name: sample.value for sample in samples}


@simulated
async def test_metrics_show_the_role_and_the_set(cluster):
    group, nodes = await controlled(cluster)
    master, (slave, *_) = master_of(nodes), slaves_of(nodes)
    await send(cluster, master, b"hello")
    await trio.sleep(1)
    assert metrics_of(master) == {
        "replication_epoch": 1,
        "replication_sync_set_size": 3,
        "replication_unconfirmed_bytes": 0,
        "replication_fenced": 0,
    }
    assert metrics_of(slave) == {
        "replication_epoch": 1,
        "replication_unconfirmed_bytes": 0,
        "replication_fenced": 0,
    }
    group.controller.hangs = True
    await trio.sleep(11)
    assert metrics_of(master)["replication_fenced"] == 1
    status = await cluster.dial(master.address).ask(GetBrokerRole())
    assert "no leading controller confirms its role" in status.data.reason
