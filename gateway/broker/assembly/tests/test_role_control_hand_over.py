"""A master that hands over to its slave, and what happens when that fails at any step."""

from functools import partial

import pytest
import trio
from trio.testing import memory_stream_pair

from codec.constants import ResponseCode
from codec.topics import TRANS_GROUP, TRANS_OP_TOPIC
from gateway.broker.assembly import role_control
from gateway.broker.assembly.role_control import UNKNOWN_S, RoleOrder
from gateway.broker.assembly.service import MAX_ANSWER_S
from gateway.broker.limits.request_pause import MAX_HOLD_S
from gateway.broker.processors.live_config import apply_broker_config
from gateway.broker.replication.parts import PeerLinks
from gateway.broker.replication.table_sync import TableSync
from gateway.config.replication import ASYNC_MASTER, SLAVE, SYNC_MASTER, Role
from gateway.tests.cluster import NAMESRV, bodies, message, pull, settle, simulated
from gateway.tests.configs import change_config
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.frame_connection import FrameConnection
from remoting.limits import ConnectionLimits
from remoting.local_connection import LocalConnection
from remoting.requests.offsets import QueryConsumerOffset
from remoting.requests.roles import ChangeBrokerRole, GetBrokerRole, HandOverBroker
from remoting.transport import StreamTransport
from storage.append import NewMessage
from storage.errors import StoreFull
from storage.replica_log import ReplicaLog


def links_of(cluster):
    """Return the ways between brokers of a cluster: their HA ports are reached in memory."""

    async def open_transport(host, port):
        await trio.lowlevel.checkpoint()
        node = cluster.nodes.get((host, 10911))
        if node is None or node.ended.is_set():
            raise ConnectionRefusedError("nobody there")
        here, there = memory_stream_pair()
        server = node.broker.replication.server
        cluster.nursery.start_soon(server.serve, StreamTransport(there, remote=("10.0.9.9", port)))
        return StreamTransport(here)

    return PeerLinks(open_transport, cluster.client)


class Pair:
    """A master and a slave that has everything."""

    def __init__(self, cluster, master, slave):
        self.cluster = cluster
        self.master = master
        self.slave = slave
        self.client = cluster.dial(master.address)

    async def role(self, node):
        return (await self.cluster.dial(node.address).ask(GetBrokerRole())).data

    async def hand_over(self, timeout_s=100):
        address = "{}:{}".format(*self.slave.address)
        request = HandOverBroker(slave_address=address, timeout_millis=5000)
        return (await self.cluster.dial(self.master.address).ask(request, timeout_s)).data


async def pair(cluster, broker_role=SYNC_MASTER):
    await cluster.namesrv()
    links = links_of(cluster)
    master = await cluster.add_broker(links=links, broker_role=broker_role, message_delay_level="1s 2s")
    slave = await cluster.add_broker(links=links, broker_role=SLAVE, broker_id=1, message_delay_level="1s 2s")
    await trio.sleep(8)
    assert slave.broker.replication.follows_master
    return Pair(cluster, master, slave)


@simulated
async def test_the_slave_becomes_master_with_everything_and_the_master_its_slave(cluster):
    both = await pair(cluster)
    for number in range(5):
        await both.client.ask(message(body=b"%d" % number))
    await both.client.ask(pull(commit=3))
    status = await both.hand_over()
    assert (status.broker_role, status.broker_id, status.is_serving) == (SLAVE, 1, True)
    assert (await both.role(both.slave)).broker_role == SYNC_MASTER
    new = cluster.dial(both.slave.address)
    assert bodies(await new.ask(pull())) == [b"0", b"1", b"2", b"3", b"4"]
    query = QueryConsumerOffset(consumer_group="GID", topic="orders", queue_id=0)
    assert (await new.ask(query)).offset == 3
    await trio.sleep(3)
    table = cluster.nodes[NAMESRV].service.routes.cluster_info("").broker_addr_table["broker-a"].broker_addrs
    assert table == {0: "{}:{}".format(*both.slave.address), 1: "{}:{}".format(*both.master.address)}
    assert (await both.client.ask(message(body=b"passed on"))).queue_offset == 5
    await trio.sleep(1)
    assert both.master.broker.store.max_physical_offset == both.slave.broker.store.max_physical_offset


@simulated
async def test_senders_see_no_error(cluster):
    both = await pair(cluster)
    await both.client.ask(message(body=b"first"))
    stored, is_over = [], False

    async def send():
        while not is_over:
            stored.append((await both.client.ask(message(), 5)).queue_offset)
            await trio.sleep(0.005)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.sleep(0.5)
        await both.hand_over()
        await trio.sleep(0.5)
        is_over = True
    assert stored == list(range(1, len(stored) + 1))
    assert both.slave.broker.store.max_offset("orders", 0) == len(stored) + 1


@pytest.mark.parametrize("failure", ["tables", "behind"])
@simulated
async def test_a_slave_that_does_not_take_over_leaves_the_master_as_it_was(cluster, monkeypatch, failure):
    both = await pair(cluster)
    await both.client.ask(message(body=b"1"))

    async def fail(sync):
        raise RemotingClosed("the tables cannot be copied")

    if failure == "tables":
        monkeypatch.setattr(TableSync, "sync_once", fail)
    else:
        monkeypatch.setattr(role_control, "MAX_BEHIND_BYTES", -1)
    with pytest.raises(RequestError, match=r"the tables cannot be copied|bytes behind"):
        await both.hand_over()
    assert (await both.role(both.slave)).broker_role == SLAVE
    assert (await both.role(both.master)).is_serving
    await both.client.ask(message(body=b"2"))
    await both.client.ask(message(body=b"late", queue_id=1, properties={"DELAY": "1"}))
    await trio.sleep(3)
    assert bodies(await both.client.ask(pull(queue_id=1))) == [b"late"], "its own tasks work again"
    assert not both.master.service.tasks.failing


@simulated
async def test_a_take_over_applies_progress_that_waits_for_the_queues(cluster, monkeypatch):
    both = await pair(cluster, ASYNC_MASTER)
    dispatch, has_room = ReplicaLog.dispatch, False

    def dispatch_with_room(log, limit, end=None):
        if not has_room:
            raise StoreFull("no room")
        return dispatch(log, limit, end)

    monkeypatch.setattr(ReplicaLog, "dispatch", dispatch_with_room)
    await both.client.ask(message())
    both.master.broker.offsets.commit_offset(TRANS_GROUP, "orders", 0, 1)
    await trio.sleep(15)
    await both.master.crash()
    promote = ChangeBrokerRole(broker_role=ASYNC_MASTER, broker_id=0, force=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(cluster.dial(both.slave.address).ask, promote, 30))
        await trio.sleep(2)
        assert both.slave.broker.offsets.query_offset(TRANS_GROUP, "orders", 0) == -1
        has_room = True
    assert (await both.role(both.slave)).broker_role == ASYNC_MASTER
    assert both.slave.broker.offsets.query_offset(TRANS_GROUP, "orders", 0) == 1


def lose_answers(monkeypatch, cluster, carry_out):
    """Let the answer to a promotion get lost, after the request was carried out or before."""
    ask = FrameConnection.ask

    async def lossy(connection, request, *arguments, **keywords):
        if not isinstance(request, ChangeBrokerRole):
            return await ask(connection, request, *arguments, **keywords)
        if carry_out:
            await ask(connection, request, *arguments, **keywords)
        raise RemotingClosed("connection lost")

    monkeypatch.setattr(FrameConnection, "ask", lossy)


@simulated
async def test_a_lost_answer_of_a_slave_that_took_over_changes_nothing(cluster, monkeypatch):
    both = await pair(cluster)
    await both.client.ask(message())
    lose_answers(monkeypatch, cluster, carry_out=True)
    assert (await both.hand_over()).broker_role == SLAVE
    assert (await both.role(both.slave)).broker_role == SYNC_MASTER
    assert (await both.client.ask(message())).queue_offset == 1


@simulated
async def test_a_lost_request_leaves_the_master_as_it_was(cluster, monkeypatch):
    both = await pair(cluster)
    await both.client.ask(message())
    lose_answers(monkeypatch, cluster, carry_out=False)
    with pytest.raises(RequestError, match="the slave did not take over"):
        await both.hand_over()
    assert (await both.client.ask(message())).queue_offset == 1


@simulated
async def test_a_master_that_cannot_know_stores_nothing_until_an_operator_decides(cluster, monkeypatch):
    """The slave took over and is gone, so nobody says whether it has stored messages."""
    both = await pair(cluster, ASYNC_MASTER)
    await both.client.ask(message(body=b"before"))
    ask = FrameConnection.ask

    async def kill(connection, request, *arguments, **keywords):
        if not isinstance(request, ChangeBrokerRole):
            return await ask(connection, request, *arguments, **keywords)
        await ask(connection, request, *arguments, **keywords)
        await both.slave.crash()
        raise RemotingClosed("connection lost")

    monkeypatch.setattr(FrameConnection, "ask", kill)
    start = trio.current_time()
    with pytest.raises(RequestError, match="does not say whether it is the master"):
        await both.hand_over()
    assert trio.current_time() - start >= UNKNOWN_S
    with pytest.raises(RequestError, match=r"it is not known whether .* has become master"):
        await both.client.ask(message())
    status = await both.role(both.master)
    assert "not known" in status.reason
    assert (status.is_serving, status.state) == (False, "fenced")
    assert status.log_end > 0
    address = "{}:{}".format(*both.master.address)
    routes = cluster.nodes[NAMESRV].service.routes
    members = routes.cluster_info("").broker_addr_table
    assert "broker-a" not in members or address not in members["broker-a"].broker_addrs.values()
    assert both.master.service.tasks.failing
    monkeypatch.setattr(FrameConnection, "ask", ask)
    await trio.sleep(200)
    client = cluster.dial(both.master.address)
    with pytest.raises(RequestError, match="it is not known"):
        await client.ask(message())
    decide = ChangeBrokerRole(broker_role=ASYNC_MASTER, broker_id=0, force=True)
    await cluster.dial(both.master.address).ask(decide, 30)
    assert (await client.ask(message(body=b"after"))).queue_offset == 1
    assert not both.master.service.tasks.failing
    await settle()
    assert routes.cluster_info("").broker_addr_table["broker-a"].broker_addrs[0] == address


@simulated
async def test_a_master_that_cannot_become_a_slave_after_its_slave_took_over_serves_nobody(
    cluster, monkeypatch
):
    """Its store is still open when that fails, so it could go on as a second master."""
    both = await pair(cluster, ASYNC_MASTER)
    await both.client.ask(message(body=b"before"))
    service = both.master.service
    assert service.broker.config.role is Role.MASTER
    monkeypatch.setattr(service.broker.store, "flush", fail_to_flush)
    with pytest.raises(RequestError, match="no flush"):
        await both.hand_over()
    assert (await both.role(both.slave)).broker_role == ASYNC_MASTER
    client = cluster.dial(both.master.address)
    with pytest.raises(RequestError, match="is fenced"):
        await client.ask(message())
    assert not (await both.role(both.master)).is_serving
    await settle()
    table = cluster.nodes[NAMESRV].service.routes.cluster_info("").broker_addr_table["broker-a"].broker_addrs
    assert table == {0: "{}:{}".format(*both.slave.address)}
    await trio.sleep(10)
    status = await both.role(both.master)
    assert (status.broker_role, status.is_serving) == (SLAVE, True), "tried again"


def fail_to_flush():
    raise StoreFull("no flush")


@simulated
async def test_the_ends_of_transactions_that_are_written_later_are_handed_over(cluster):
    both = await pair(cluster)
    await both.client.ask(message())
    both.master.broker.transactions.op_messages.record_ended(0, 0)
    master_store = both.master.broker.store
    await both.hand_over()
    assert both.slave.broker.store.max_offset(TRANS_OP_TOPIC, 0) == 1
    assert master_store.max_physical_offset == both.slave.broker.store.max_physical_offset, (
        "and nothing afterwards"
    )


@pytest.mark.parametrize("failure", ["ends of transactions", "running request"])
@simulated
async def test_a_master_that_cannot_rest_goes_on(cluster, monkeypatch, failure):
    both = await pair(cluster)
    await both.client.ask(message())
    ended = []

    async def append_late():
        await trio.sleep(2 * MAX_ANSWER_S)
        ended.append(both.master.broker.writer.write(NewMessage("orders", 0, b"late", {})))

    if failure == "running request":
        next(iter(both.master.service.server.connections)).spawn(append_late)
    else:
        op_messages = both.master.broker.transactions.op_messages
        op_messages.record_ended(0, 0)
        monkeypatch.setattr(op_messages, "flush", lambda: None)
    with pytest.raises(RequestError, match=r"run for more than 5 s|ends of transactions cannot be stored"):
        await both.hand_over()
    assert (await both.role(both.master)).is_serving
    assert (await both.role(both.slave)).broker_role == SLAVE
    await trio.sleep(2 * MAX_ANSWER_S)
    await cluster.dial(both.master.address).ask(message())
    await trio.sleep(1)
    assert len(ended) == (failure == "running request")
    assert both.slave.broker.store.max_physical_offset == both.master.broker.store.max_physical_offset


def saved_role(node):
    """Return the role that a broker would have after a restart."""
    return node.service._roles._links.saved_role.apply(node.broker.config).replication.broker_role


@simulated
async def test_a_master_that_crashes_while_it_hands_over_comes_back_as_a_slave(cluster, monkeypatch):
    """Its slave may carry the order out at any time, also when the master is back."""
    both = await pair(cluster)
    await both.client.ask(message())
    files = both.master.broker.store.files
    ask = FrameConnection.ask

    async def crash(connection, request, *arguments, **keywords):
        if not isinstance(request, ChangeBrokerRole):
            return await ask(connection, request, *arguments, **keywords)
        await both.master.crash()
        return await trio.sleep_forever()

    monkeypatch.setattr(FrameConnection, "ask", crash)
    with pytest.raises((RemotingClosed, RemotingTimeout)):
        await both.hand_over()
    monkeypatch.setattr(FrameConnection, "ask", ask)
    back = await cluster.add_broker(host=both.master.address[0], files=files, broker_role=SYNC_MASTER)
    assert (await both.role(back)).broker_role == SLAVE
    with pytest.raises(RequestError, match="This is the slave 1"):
        await cluster.dial(back.address).ask(message())


@simulated
async def test_a_master_that_goes_on_is_one_after_a_restart(cluster, monkeypatch):
    both = await pair(cluster)
    lose_answers(monkeypatch, cluster, carry_out=False)
    with pytest.raises(RequestError, match="the slave did not take over"):
        await both.hand_over()
    assert saved_role(both.master) == SYNC_MASTER


@simulated
async def test_a_role_that_cannot_be_saved_ends_a_hand_over(cluster, monkeypatch, caplog):
    both = await pair(cluster)
    saved = both.master.service._roles._links.saved_role

    def fail(config):
        raise StoreFull("no room for the role")

    monkeypatch.setattr(saved, "save", fail)
    with pytest.raises(RequestError, match="no room for the role"):
        await both.hand_over()
    assert (await both.role(both.slave)).broker_role == SLAVE
    assert (await both.client.ask(message())).queue_offset == 0
    assert "role not saved" in caplog.text


def record_orders(monkeypatch, is_lost=False):
    """Return a list that gets the orders of promotion; they do not arrive if they get lost."""
    orders, ask = [], FrameConnection.ask

    async def record(connection, request, *arguments, **keywords):
        if isinstance(request, ChangeBrokerRole):
            orders.append(request)
            if is_lost:
                raise RemotingTimeout("no answer")
        return await ask(connection, request, *arguments, **keywords)

    monkeypatch.setattr(FrameConnection, "ask", record)
    return orders, ask


@simulated
async def test_an_order_that_arrives_when_the_master_has_gone_on_promotes_nobody(cluster, monkeypatch):
    both = await pair(cluster)
    await both.client.ask(message())
    orders, ask = record_orders(monkeypatch, is_lost=True)
    with pytest.raises(RequestError, match="the slave did not take over"):
        await both.hand_over()
    monkeypatch.setattr(FrameConnection, "ask", ask)
    assert orders[0].log_end == both.slave.broker.store.max_physical_offset
    with pytest.raises(RequestError, match="does not hand over by this order any more"):
        await cluster.dial(both.slave.address).ask(orders[0], 30)
    assert (await both.role(both.slave)).broker_role == SLAVE
    assert (await both.client.ask(message())).queue_offset == 1


@simulated
async def test_an_order_that_is_sent_again_promotes_nobody(cluster, monkeypatch):
    """Orders are signed, and a signature stays valid."""
    both = await pair(cluster)
    await both.client.ask(message())
    orders, ask = record_orders(monkeypatch)
    await both.hand_over()
    monkeypatch.setattr(FrameConnection, "ask", ask)
    await trio.sleep(5)
    both.master, both.slave = both.slave, both.master
    await both.hand_over()
    both.master, both.slave = both.slave, both.master
    await trio.sleep(5)
    repeated = change_order(orders[0], log_end=both.master.broker.store.max_physical_offset)
    with pytest.raises(RequestError, match="does not hand over by this order any more"):
        await cluster.dial(both.slave.address).ask(repeated, 30)
    assert (await both.role(both.slave)).broker_role == SLAVE


def change_order(order, **fields):
    names = ("broker_role", "broker_id", "hand_over_id")
    return ChangeBrokerRole(**{**{name: getattr(order, name) for name in names}, **fields})


@simulated
async def test_a_broker_with_waiting_orders_does_not_say_that_its_role_is_settled(cluster):
    both = await pair(cluster)
    control = both.slave.service._roles
    control._order.send_nowait(RoleOrder(trio.lowlevel.checkpoint))
    control._order.send_nowait(RoleOrder(partial(trio.sleep, 1)))
    assert not control.status().is_serving
    await trio.sleep(0.1)
    assert not control.status().is_serving
    await trio.sleep(2)
    assert control.status().is_serving


@simulated
async def test_progress_that_the_slave_returns_does_not_hold_the_hand_over_up(cluster):
    both = await pair(cluster)
    for number in range(3):
        await both.client.ask(message(body=b"%d" % number))
    await trio.sleep(70)  # The slave has copied the tables since.
    both.slave.broker.offsets.commit_offset("GID", "orders", 0, 2)
    start = trio.current_time()
    assert (await both.hand_over()).broker_role == SLAVE
    assert trio.current_time() - start < MAX_HOLD_S
    assert both.slave.broker.offsets.query_offset("GID", "orders", 0) == 2


@simulated
async def test_a_master_saves_that_it_is_one_before_it_serves_again(cluster, monkeypatch):
    """After a crash between the two it would start as a slave that alone has what it acknowledged last."""
    both = await pair(cluster)
    lose_answers(monkeypatch, cluster, carry_out=False)
    service = both.master.service
    saved_roles, links = [], service._roles._links
    save = links.saved_role.save

    def record(config):
        saved_roles.append((config.role, service._is_resting))
        save(config)

    monkeypatch.setattr(links.saved_role, "save", record)
    with pytest.raises(RequestError, match="the slave did not take over"):
        await both.hand_over()
    assert saved_roles == [(Role.SLAVE, True), (Role.MASTER, True)]


@simulated
async def test_a_request_of_the_same_process_is_waited_for(cluster):
    """Those of the gRPC front come over connections that the server of the broker does not know."""
    both = await pair(cluster)
    service = both.master.service
    address = both.master.address
    local = LocalConnection(service.handlers, address, address, cluster.nursery, ConnectionLimits())
    service.handle_open(local)
    local.spawn(trio.sleep, 2 * MAX_ANSWER_S)
    with pytest.raises(RequestError, match="run for more than 5 s"):
        await both.hand_over()
    local.close("done")
    await both.hand_over()


@simulated
async def test_a_pull_that_waits_for_its_quota_does_not_hold_the_hand_over_up(cluster):
    both = await pair(cluster)
    await both.client.ask(message(body=bytes(1000)))
    config = change_config(both.master.broker.config, pull_quota_bytes=10)
    apply_broker_config(both.master.broker, config)
    await both.client.ask(pull())
    answers = []

    async def ask():
        answers.append((await both.client.ask(pull(wait_ms=15_000), 20)).code)

    cluster.nursery.start_soon(ask)
    await settle()
    assert not answers
    start = trio.current_time()
    assert (await both.hand_over()).broker_role == SLAVE
    assert trio.current_time() - start < MAX_HOLD_S
    assert answers == [ResponseCode.PULL_RETRY_IMMEDIATELY]
