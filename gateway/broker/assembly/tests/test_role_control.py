import pytest
import trio

from codec.constants import ResponseCode
from gateway.broker.assembly.role_control import COPYING
from gateway.broker.replication import table_sync
from gateway.config.replication import ASYNC_MASTER, SLAVE, SYNC_MASTER
from gateway.tests.cluster import NAMESRV, bodies, message, pull, settle, simulated
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.requests.offsets import UpdateConsumerOffset
from remoting.requests.roles import ChangeBrokerRole, GetBrokerRole, HandOverBroker
from storage.errors import StoreFull
from storage.files import MemoryFiles


async def role_of(cluster, node):
    return (await cluster.dial(node.address).ask(GetBrokerRole())).data


async def change(cluster, node, broker_role, broker_id, **more):
    request = ChangeBrokerRole(broker_role=broker_role, broker_id=broker_id, **more)
    return (await cluster.dial(node.address).ask(request, 30)).data


@simulated
async def test_a_broker_says_what_it_is(cluster):
    master = await cluster.add_broker(broker_cluster_name="c", broker_role=SYNC_MASTER)
    await cluster.dial(master.address).ask(message())
    status = await role_of(cluster, master)
    assert (status.broker_name, status.cluster, status.broker_id) == ("broker-a", "c", 0)
    assert (status.broker_role, status.is_serving, status.state) == (SYNC_MASTER, True, "serving")
    assert status.log_end == master.broker.store.max_physical_offset > 0
    slave = await cluster.add_broker(broker_role=SLAVE, broker_id=1)
    assert (await role_of(cluster, slave)).broker_id == 1


@simulated
async def test_a_slave_takes_over_only_from_a_master_that_is_gone(cluster):
    await cluster.namesrv()
    master = await cluster.add_broker()
    slave = await cluster.add_broker(broker_role=SLAVE, broker_id=1)
    await settle()
    with pytest.raises(RequestError, match=r"the master at 10\.0\.1\.1:10911 is alive"):
        await change(cluster, slave, ASYNC_MASTER, 0)
    assert (await role_of(cluster, slave)).broker_role == SLAVE
    await master.stop()
    status = await change(cluster, slave, SYNC_MASTER, 0)
    assert (status.broker_role, status.broker_id, status.is_serving) == (SYNC_MASTER, 0, True)
    await trio.sleep(2)
    routes = cluster.nodes[NAMESRV].service.routes
    assert routes.cluster_info("").broker_addr_table["broker-a"].broker_addrs == {0: "10.0.1.2:10911"}
    client = cluster.dial(slave.address)
    await client.ask(message(body=b"new"))
    assert bodies(await client.ask(pull())) == [b"new"]


@simulated
async def test_a_slave_without_a_known_master_is_promoted_by_force_only(cluster):
    slave = await cluster.add_broker(broker_role=SLAVE, broker_id=1)
    with pytest.raises(RequestError, match="address is not known"):
        await change(cluster, slave, ASYNC_MASTER, 0)
    assert (await change(cluster, slave, ASYNC_MASTER, 0, force=True)).broker_role == ASYNC_MASTER
    await cluster.dial(slave.address).ask(message())
    assert (await change(cluster, slave, ASYNC_MASTER, 0)).broker_role == ASYNC_MASTER, "again"


@simulated
async def test_a_role_given_by_request_survives_a_restart(cluster):
    files, settings = MemoryFiles(), {"broker_role": SLAVE, "broker_id": 1}
    node = await cluster.add_broker(files=files, **settings)
    await change(cluster, node, SYNC_MASTER, 0, force=True)
    await cluster.dial(node.address).ask(message(body=b"stored"))
    await node.stop()
    node = await cluster.add_broker(files=files, **settings)
    assert (await role_of(cluster, node)).broker_role == SYNC_MASTER
    assert bodies(await cluster.dial(node.address).ask(pull())) == [b"stored"]


@simulated
async def test_a_demoted_master_takes_no_messages(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message())
    status = await change(cluster, node, SLAVE, 2, ha_master_address="10.9.9.9:10912")
    assert (status.broker_role, status.broker_id) == (SLAVE, 2)
    with pytest.raises(RequestError, match="the slave 2 of broker-a"):
        await client.ask(message())


@simulated
async def test_a_former_master_shows_no_messages_before_its_log_is_compared(cluster):
    files = MemoryFiles()
    node = await cluster.add_broker(files=files)
    await cluster.dial(node.address).ask(message(body=b"confirmed by nobody"))
    await change(cluster, node, SLAVE, 1, ha_master_address="10.9.9.9:10912")
    for _ in range(2):
        with pytest.raises(RequestError, match="not compared with the master's yet") as refused:
            await cluster.dial(node.address).ask(pull())
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        await node.stop()
        node = await cluster.add_broker(files=files)
    node.broker.replication.takeover.note_compared()
    assert bodies(await cluster.dial(node.address).ask(pull())) == [b"confirmed by nobody"]
    await node.stop()
    node = await cluster.add_broker(files=files)
    assert bodies(await cluster.dial(node.address).ask(pull())) == [b"confirmed by nobody"], "for good"


@simulated
async def test_roles_that_no_broker_has_are_refused(cluster):
    node = await cluster.add_broker()
    for broker_role, broker_id in (("MASTER", 0), (SLAVE, 0), (ASYNC_MASTER, 1), (SLAVE, -1)):
        with pytest.raises(RequestError):
            await change(cluster, node, broker_role, broker_id)
    await cluster.dial(node.address).ask(message())


@simulated
async def test_a_fenced_broker_says_so_and_can_be_changed(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    await client.ask(message())

    def fail():
        raise StoreFull("no room")

    with pytest.raises(StoreFull):
        await node.service.rebuild(lambda config: config, fail)
    status = await role_of(cluster, node)
    assert (status.is_serving, status.state) == (False, "fenced")
    assert "no room" in status.reason
    assert (await change(cluster, node, ASYNC_MASTER, 0, force=True)).is_serving
    assert bodies(await client.ask(pull())) == [b"hello"]


@simulated
async def test_a_change_that_fails_is_answered_with_the_reason(cluster, monkeypatch):
    node = await cluster.add_broker()

    def fail(*arguments):
        raise StoreFull("no room for the role")

    monkeypatch.setattr(node.service._roles._links.saved_role, "save", fail)
    with pytest.raises(RequestError, match="no room for the role") as refused:
        await change(cluster, node, SLAVE, 1)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert not (await role_of(cluster, node)).is_serving


@pytest.mark.parametrize("target", ["nobody", "itself", "another name"])
@simulated
async def test_a_master_that_cannot_hand_over_goes_on(cluster, target, caplog):
    node = await cluster.add_broker()
    other = await cluster.add_broker("broker-b", broker_role=SLAVE, broker_id=1)
    address = {"nobody": "10.9.9.9:1", "itself": "{}:{}".format(*node.address)}.get(
        target, "{}:{}".format(*other.address)
    )
    client = cluster.dial(node.address)
    await client.ask(message())
    with pytest.raises(RequestError) as refused:
        await client.ask(HandOverBroker(slave_address=address, timeout_millis=500), 30)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert target != "nobody" or refused.value.remark.startswith("the role is not changed: ")
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "no traceback"
    status = await role_of(cluster, node)
    assert (status.broker_role, status.is_serving) == (ASYNC_MASTER, True)
    await client.ask(message(properties={"DELAY": "1"}))
    assert not node.service.tasks.failing


@pytest.mark.parametrize("takes_over_name", [False, True])
@simulated
async def test_a_broker_that_is_configured_to_take_its_name_over_still_does_after_a_change(
    cluster, takes_over_name
):
    node = await cluster.add_broker(takes_over_name=takes_over_name)
    await change(cluster, node, SLAVE, 1)
    assert node.broker.config.takes_over_name == takes_over_name
    await change(cluster, node, ASYNC_MASTER, 0, force=True)
    assert node.broker.config.takes_over_name
    await change(cluster, node, SLAVE, 1)
    assert node.broker.config.takes_over_name == takes_over_name


@simulated
async def test_a_fenced_master_does_not_hand_over(cluster):
    """If that failed, it would serve again although another broker may be the master."""
    master = await cluster.add_broker()
    slave = await cluster.add_broker(broker_role=SLAVE, broker_id=1)
    await master.service.fence("another broker may be the master")
    request = HandOverBroker(slave_address="{}:{}".format(*slave.address), timeout_millis=100)
    with pytest.raises(RequestError, match="A fenced broker does not hand over"):
        await cluster.dial(master.address).ask(request, 30)
    assert not (await role_of(cluster, master)).is_serving


def test_all_that_a_slave_copies_is_served_while_its_master_rests():
    copied = {
        value
        for value in vars(table_sync).values()
        if isinstance(value, type) and issubclass(value, Request) and value is not Request
    } - {UpdateConsumerOffset}
    assert len(copied) > 5
    assert {request.__name__ for request in copied if request.code not in COPYING} == set()


@simulated
async def test_two_changes_that_one_connection_orders_do_not_wait_for_each_other(cluster):
    node = await cluster.add_broker()
    client = cluster.dial(node.address)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for broker_role in (SYNC_MASTER, ASYNC_MASTER, SYNC_MASTER):
            request = ChangeBrokerRole(broker_role=broker_role, broker_id=0)
            nursery.start_soon(client.ask, request, 60)
    assert trio.current_time() - start < 1
    assert not node.service._roles.waiting
