"""Brokers under a controller: they get roles, replace a master that dies, and stop when no controller confirms them."""

import pytest
import trio

from codec.constants import ResponseCode
from gateway.broker.assembly.controlled_role import ControlledRoles
from gateway.broker.replication.controller_links import ANSWER_TIMEOUT_S, ControllerLinks
from gateway.broker.topics.topic_table import TopicTable
from gateway.config.replication import SYNC_MASTER, ControlledRole, Role
from gateway.tests.cluster import NAMESRV, bodies, message, pull, simulated
from gateway.tests.controlled import CONTROLLER, NAME, controlled
from remoting.bodies.ha import SyncStateSet
from remoting.errors import RemotingTimeout, RequestError
from remoting.requests.controller import CleanBrokerData, ControllerElectMaster
from remoting.requests.ha import NotifyBrokerRoleChanged
from remoting.requests.namesrv import BrokerHeartbeat
from remoting.requests.roles import ChangeBrokerRole


def registered(cluster):
    table = cluster.nodes[NAMESRV].service.routes.cluster_info("").broker_addr_table
    return dict(table[NAME].broker_addrs) if NAME in table else {}


def master_of(nodes):
    (master,) = [node for node in nodes if node.broker.config.role is Role.MASTER and not node.ended.is_set()]
    return master


def address_of(node):
    return "{}:{}".format(*node.address)


async def wait_for(condition, limit_s=60):
    with trio.fail_after(limit_s):
        while not condition():
            await trio.sleep(0.05)


async def send(cluster, node, body):
    return await cluster.dial(node.address).ask(message(body=body), 10)


@simulated
async def test_the_first_of_three_brokers_becomes_master_and_the_others_copy_it(cluster):
    group, nodes = await controlled(cluster)
    term = await group.term()
    assert (term.master_epoch, sorted(term.data.sync_state_set)) == (1, [1, 2, 3])
    master = master_of(nodes)
    assert term.master_address == address_of(master)
    assert (master.broker.config.broker_id, master.broker.config.replication.broker_role) == (0, SYNC_MASTER)
    await send(cluster, master, b"hello")
    await trio.sleep(2)
    ids = {node.broker.config.controlled.broker_id for node in nodes}
    assert ids == {1, 2, 3}
    assert set(registered(cluster)) == {0} | ids - {term.master_broker_id}
    assert registered(cluster)[0] == address_of(master)
    ends = {node.broker.store.max_physical_offset for node in nodes}
    assert ends == {master.broker.store.max_physical_offset}
    for node in nodes:
        content = f"DefaultCluster#{NAME}#{node.broker.config.controlled.broker_id}"
        assert node.files.read_small(f"/{NAME}/brokerIdentity") == content.encode()


@simulated
async def test_a_dead_master_is_replaced_and_comes_back_as_slave(cluster):
    group, nodes = await controlled(cluster)
    old = master_of(nodes)
    id_of_old = old.broker.config.controlled.broker_id
    for number in range(5):
        await send(cluster, old, b"%d" % number)
    await old.crash()
    await wait_for(lambda: any(node.broker.config.role is Role.MASTER for node in nodes if node is not old))
    new = master_of(nodes)
    await send(cluster, new, b"after")
    term = await group.term()
    assert (term.master_epoch, term.master_address) == (2, address_of(new))
    assert bodies(await cluster.dial(new.address).ask(pull())) == [b"0", b"1", b"2", b"3", b"4", b"after"]
    await wait_for(lambda: registered(cluster).get(0) == address_of(new))
    back = await group.add_broker(old.address[0], old.files)
    await wait_for(lambda: back.broker.replication.follows_master)
    assert back.broker.config.broker_id == back.broker.config.controlled.broker_id == id_of_old
    await trio.sleep(3)
    assert sorted((await group.term()).data.sync_state_set) == [1, 2, 3]
    assert [entry.epoch for entry in back.broker.replication.epochs.entries] == [1, 2]
    await send(cluster, new, b"to all")
    with pytest.raises(RequestError):
        await send(cluster, back, b"to a slave")


@simulated
async def test_an_epoch_that_is_begun_twice_keeps_its_start(cluster, monkeypatch):
    """The second attempt comes a second after the first, which had begun it and then failed."""
    group, (master,) = await controlled(cluster, brokers=1)
    await send(cluster, master, b"of epoch 1")
    start = master.broker.store.max_physical_offset
    begin_epoch, failures = TopicTable.begin_epoch, []

    def fail_once(topics, epoch):
        if not failures:
            failures.append(epoch)
            raise OSError("no space left")
        begin_epoch(topics, epoch)

    monkeypatch.setattr(TopicTable, "begin_epoch", fail_once)
    roles = ControlledRoles(master.service, None)
    role = ControlledRole(1, 2, frozenset((1,)), 1)
    with pytest.raises(OSError, match="no space"):
        await roles.lead(role)
    await send(cluster, master, b"of epoch 2")
    await roles.lead(role)
    assert master.broker.replication.epochs.newest == (2, start)


@simulated
async def test_a_broker_serves_nobody_before_it_has_a_role(cluster):
    group, nodes = await controlled(cluster, brokers=1)
    group.controller.hangs = True
    late = await group.add_broker("10.0.1.7")
    await trio.sleep(30)
    with pytest.raises(RequestError, match="has no role") as refused:
        await send(cluster, late, b"hello")
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert address_of(late) not in registered(cluster).values()
    group.controller.hangs = False
    await wait_for(lambda: late.broker.replication.follows_master)
    assert late.broker.config.broker_id == 2


@simulated
async def test_a_master_without_controllers_stores_nothing_before_another_can_be_elected(cluster):
    group, nodes = await controlled(cluster, brokers=2)
    master = master_of(nodes)
    group.controller.hangs = True
    began_s = trio.current_time()
    client = cluster.dial(master.address)

    async def send_until_refused():
        while True:
            await client.ask(message(), 10)
            await trio.sleep(0.1)

    with pytest.raises(RequestError, match="do not confirm"):
        await send_until_refused()
    assert 5.5 < trio.current_time() - began_s < 7.2, "0.7 of the time-out of the controller"
    await trio.sleep(1)
    (reason,) = failing(master)
    assert "no leading controller confirms its role. 10.0.0.9:9878: it does not answer" in reason
    group.controller.hangs = False
    # Meanwhile the controller has taken all brokers for dead, and elects the one whose heartbeat comes first.
    await wait_for(
        lambda: any(node.broker.config.role is Role.MASTER and not failing(node) for node in nodes)
    )
    await trio.sleep(2)
    assert (await send(cluster, master_of(nodes), b"again")).code == 0


def failing(node):
    now_s = trio.current_time()
    return [health.last_error for health in node.service.tasks._tasks.values() if health.is_failing(now_s)]


@simulated
async def test_a_master_without_controllers_delivers_no_delayed_messages(cluster):
    """Another master delivers them: one offset would name two messages."""
    group, nodes = await controlled(cluster, brokers=2)
    master = master_of(nodes)
    await cluster.dial(master.address).ask(message(body=b"later", properties={"DELAY": "3"}), 10)
    await trio.sleep(2)
    group.controller.hangs = True
    await trio.sleep(7.5)
    assert not master.service._lease_guard._lease.is_valid
    end = master.broker.store.max_physical_offset
    await trio.sleep(5)
    assert master.broker.store.max_physical_offset == end
    group.controller.hangs = False
    await trio.sleep(30)
    found = await cluster.dial(master_of(nodes).address).ask(pull())
    assert bodies(found) == [b"later"]


@simulated
async def test_the_end_of_the_connection_to_the_leader_suspends_a_master(cluster):
    """The controller takes it for dead at once, and elects another one."""
    group, nodes = await controlled(cluster, brokers=2)
    master = master_of(nodes)
    client = cluster.dial(master.address)
    await client.ask(message(), 10)
    group.cut_off(master.address[0], CONTROLLER[0])
    with pytest.raises(RequestError, match="do not confirm"):
        await client.ask(message(), 10)
    (slave,) = [node for node in nodes if node is not master]
    await wait_for(lambda: slave.broker.config.role is Role.MASTER)
    with pytest.raises(RequestError, match="do not confirm"):
        await client.ask(message(), 10)
    group.cut.clear()
    await wait_for(lambda: master.broker.config.role is Role.SLAVE)


@simulated
async def test_a_controller_that_dies_does_not_stop_a_master(cluster):
    group, nodes = await controlled(cluster, brokers=2)
    master = master_of(nodes)
    client = cluster.dial(master.address)
    await cluster.nodes[CONTROLLER].crash()
    for connection in list(group.controller.server.connections):
        connection.close("the process is gone")
    await trio.sleep(0.01)
    await client.ask(message(), 10)
    await trio.sleep(6)
    await client.ask(message(), 10)
    await trio.sleep(6)
    with pytest.raises(RequestError, match="do not confirm"):
        await client.ask(message(), 10)


@simulated
async def test_a_broker_that_the_controller_takes_for_its_living_master_waits_until_that_has_ended(cluster):
    group, nodes = await controlled(cluster, brokers=1)
    (master,) = nodes
    await send(cluster, master, b"of epoch 1")
    alive = cluster.dial(CONTROLLER)

    def heartbeat():
        return BrokerHeartbeat(
            cluster_name="DefaultCluster",
            broker_addr=address_of(master),
            broker_name=NAME,
            broker_id=1,
            heartbeat_timeout_mills=10_000,
        )

    await alive.ask(heartbeat())
    await master.crash()
    back = await group.add_broker(master.address[0], master.files)
    await trio.sleep(8)
    assert back.broker.config.role is Role.SLAVE
    assert any("has been started again" in text for text in failing(back))
    await wait_for(lambda: back.broker.config.role is Role.MASTER)
    await send(cluster, back, b"after it")
    assert bodies(await cluster.dial(back.address).ask(pull())) == [b"of epoch 1", b"after it"]


@simulated
async def test_a_broker_whose_first_election_is_not_answered_becomes_master_later(cluster, monkeypatch):
    ask_leader, elections = ControllerLinks.ask_leader, []

    async def lose_the_first_election(links, request, timeout_s=ANSWER_TIMEOUT_S):
        answer = await ask_leader(links, request, timeout_s)
        if isinstance(request, ControllerElectMaster):
            elections.append(answer.master_epoch)
            if len(elections) == 1:
                raise RemotingTimeout("the answer is lost")
        return answer

    monkeypatch.setattr(ControllerLinks, "ask_leader", lose_the_first_election)
    _, (broker,) = await controlled(cluster, brokers=1)
    assert elections == [1]
    await wait_for(lambda: broker.broker.config.role is Role.MASTER)
    assert elections == [1]  # the next registration names the master as well
    await send(cluster, broker, b"hello")


@simulated
async def test_a_notification_changes_nothing_by_itself(cluster):
    group, nodes = await controlled(cluster, brokers=2)
    master = master_of(nodes)
    (slave,) = [node for node in nodes if node is not master]
    forged = NotifyBrokerRoleChanged(
        master_address=address_of(slave),
        master_epoch=2_000_000_000,
        sync_state_set_epoch=7,
        master_broker_id=2,
        data=SyncStateSet(sync_state_set=[2], sync_state_set_epoch=7),
    )
    asked = len(group.controller.asked)
    for node in nodes:
        await cluster.dial(node.address).ask(forged)
    await trio.sleep(0.05)
    assert 1004 in group.controller.asked[asked:], "the controller is asked at once"
    await trio.sleep(3)
    assert master_of(nodes) is master
    await send(cluster, master, b"as before")


@simulated
async def test_roles_are_not_changed_by_request(cluster):
    group, nodes = await controlled(cluster, brokers=1)
    request = ChangeBrokerRole(broker_role="SLAVE", broker_id=1)
    with pytest.raises(RequestError, match="a controller chooses the master of broker-a"):
        await cluster.dial(nodes[0].address).ask(request)


@simulated
async def test_a_controller_that_has_lost_its_state_gets_no_master(cluster):
    group, nodes = await controlled(cluster, brokers=1)
    (master,) = nodes
    await master.crash()
    back = await group.add_broker(master.address[0], master.files)
    await wait_for(lambda: back.broker.config.role is Role.MASTER)
    await send(cluster, back, b"of a later epoch")
    await back.crash()
    group.store.entries.clear()
    await cluster.nodes[CONTROLLER].crash()
    group.controllers.clear()
    await group.add_controller()
    await trio.sleep(6)
    again = await group.add_broker(master.address[0], master.files)
    await trio.sleep(30)
    assert again.broker.config.role is Role.SLAVE
    assert any("lost their state" in text for text in failing(again))


@simulated
async def test_a_removed_replica_joins_under_a_new_id_without_its_identity(cluster):
    group, nodes = await controlled(cluster, brokers=2)
    master = master_of(nodes)
    (removed,) = (node for node in nodes if node is not master)
    removed_id = removed.broker.config.broker_id
    await removed.crash()
    await trio.sleep(2)
    await cluster.dial(CONTROLLER).ask(
        CleanBrokerData(broker_name=NAME, broker_controller_ids_to_clean=str(removed_id))
    )
    back = await group.add_broker(removed.address[0], removed.files)
    await wait_for(lambda: any("brokerIdentity" in text for text in failing(back)))
    assert any("delete that file, and the broker gets another id" in text for text in failing(back))
    await back.crash()
    back.files.delete(f"/{NAME}/brokerIdentity")
    again = await group.add_broker(removed.address[0], removed.files)
    await wait_for(lambda: again.broker.config.broker_id == 3)
    assert removed_id == 2
    await send(cluster, master, b"for both")
    controller = group.controller.controller
    await wait_for(lambda: controller.broker_set(NAME).sync_set == {1, 3})
    assert again.broker.store.max_physical_offset == master.broker.store.max_physical_offset
