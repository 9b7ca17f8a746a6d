"""Slaves that may act as master, in a simulated cluster: heartbeats, members, routes."""

from types import SimpleNamespace

import pytest
import trio

from gateway.broker.replication.members import ReplicaGroup
from gateway.config.replication import ReplicationSettings
from gateway.tests.cluster import NAMESRV, message, settle, simulated
from remoting.errors import RequestError
from remoting.handler_table import Guard
from remoting.requests.ha import NotifyMinBrokerIdChange
from remoting.requests.namesrv import BrokerHeartbeat, GetBrokerMemberGroup, GetRouteInfoByTopic

ACTING = {"enable_slave_acting_master": True}


async def add_replica(cluster, host, broker_id, **more):
    role = "SLAVE" if broker_id else more.pop("role", "ASYNC_MASTER")
    local = more.pop("local", None)
    settings = ReplicationSettings(broker_role=role, **{**ACTING, **more})
    return await cluster.add_broker(
        host=host, broker_id=broker_id, replication=settings, **({} if local is None else {"local": local})
    )


async def route(cluster):
    """Return the addresses by id, and the permission, that clients see."""
    data = (await cluster.dial(NAMESRV).ask(GetRouteInfoByTopic(topic="TBW102"))).data
    return data.broker_datas[0].broker_addrs, data.queue_datas[0].perm


@simulated
async def test_the_slave_with_the_lowest_id_acts_once_the_master_is_gone(cluster):
    await cluster.namesrv(support_acting_master=True)
    master = await add_replica(cluster, "10.0.1.1", 0)
    first, second = await add_replica(cluster, "10.0.1.2", 1), await add_replica(cluster, "10.0.1.3", 2)
    await trio.sleep(3)
    groups = [node.broker.replication.group for node in (master, first, second)]
    assert [group.lowest_id for group in groups] == [0, 0, 0]
    assert [group.acts_as_master for group in groups] == [False] * 3
    assert first.broker.replication.master_address == "10.0.1.1:10911"
    await master.stop()
    await trio.sleep(2)
    assert [group.acts_as_master for group in groups[1:]] == [True, False]
    addresses, permission = await route(cluster)
    assert (addresses[0], permission) == ("10.0.1.2:10911", 5)
    await first.stop()
    await trio.sleep(2)
    assert groups[2].acts_as_master
    master = await add_replica(cluster, "10.0.1.1", 0)
    await trio.sleep(3)
    assert not groups[2].acts_as_master
    addresses, permission = await route(cluster)
    assert (addresses[0], permission) == ("10.0.1.1:10911", 7)


@simulated
async def test_a_broker_that_hangs_is_gone_after_ten_seconds(cluster, caplog):
    namesrv = await cluster.namesrv()
    await add_replica(cluster, "10.0.1.1", 0)
    slave = await add_replica(cluster, "10.0.1.2", 1)
    await trio.sleep(2)
    routes = namesrv.service.routes
    record = routes.record_heartbeat

    def ignore_master(cluster_name, name, address):
        if not address.startswith("10.0.1.1:"):
            record(cluster_name, name, address)

    routes.record_heartbeat = ignore_master
    await trio.sleep(9)
    assert slave.broker.replication.group.lowest_id == 0
    await trio.sleep(8)
    assert caplog.text.count("this slave acts as master for reads") == 1


@simulated
async def test_the_namesrv_of_the_same_process_is_asked_too(cluster):
    namesrv = await cluster.namesrv()
    node = await add_replica(cluster, "10.0.1.1", 0, local=namesrv)
    await trio.sleep(2)
    assert set(node.broker.replication.group.addresses) == {0}


class Questions:
    """A guard of a namesrv that notes requests, and refuses to list members."""

    def __init__(self, *, refuse=False):
        self.codes = []
        self._refuse = refuse
        self.guard = Guard(protect=self._protect)

    def _protect(self, code, handler):
        def handle(connection, command):
            self.codes.append(code)
            if self._refuse and code == GetBrokerMemberGroup.code:
                raise RequestError(3, " request type 901 not supported")
            return handler(connection, command)

        return handle


@simulated
async def test_without_the_setting_nobody_asks(cluster):
    questions = Questions()
    await cluster.namesrv(guard=questions.guard)
    node = await add_replica(cluster, "10.0.1.1", 0, enable_slave_acting_master=False)
    await trio.sleep(10)
    assert not {BrokerHeartbeat.code, GetBrokerMemberGroup.code} & set(questions.codes)
    assert node.broker.replication.group.lowest_id is None


@simulated
async def test_a_namesrv_that_does_not_know_members_gets_heartbeats_only(cluster, caplog):
    questions = Questions(refuse=True)
    await cluster.namesrv(guard=questions.guard)
    node = await add_replica(cluster, "10.0.1.1", 0)
    await trio.sleep(40)
    assert (await route(cluster))[0] == {0: "10.0.1.1:10911"}
    assert node.broker.replication.group.lowest_id is None
    assert caplog.text.count("does not list the members") == 1
    assert questions.codes.count(GetBrokerMemberGroup.code) == 1
    assert questions.codes.count(BrokerHeartbeat.code) >= 38


@simulated
async def test_a_master_counts_the_registered_replicas(cluster):
    await cluster.namesrv()
    master = await add_replica(cluster, "10.0.1.1", 0, role="SYNC_MASTER", in_sync_replicas=2)
    client = cluster.dial(master.address)
    rule = master.broker.replication.in_sync
    rule.join("10.0.1.2", 0)
    await trio.sleep(2)
    assert rule.alive_replicas == 1
    with pytest.raises(RequestError, match="in-sync replicas not enough"):
        await client.ask(message())
    await add_replica(cluster, "10.0.1.2", 1)
    await trio.sleep(2)
    assert rule.alive_replicas == 2
    cluster.nursery.start_soon(ask_until_timeout, client)
    await settle()
    assert master.broker.answer_gate.held_count == 1


async def ask_until_timeout(client):
    assert (await client.ask(message(), timeout_s=60)).code == 12


@simulated
async def test_a_slave_that_may_act_as_master_refuses_sends_as_the_official_one(cluster):
    slave = await add_replica(cluster, "10.0.1.2", 1)
    with pytest.raises(RequestError, match="service not available now") as refused:
        await cluster.dial(slave.address).ask(message())
    assert refused.value.code == 14


@simulated
async def test_a_notice_of_the_lowest_id_changes_nothing_by_itself(cluster):
    slave = await add_replica(cluster, "10.0.1.2", 1)
    notice = NotifyMinBrokerIdChange(
        min_broker_id=0,
        broker_name="broker-a",
        min_broker_addr="6.6.6.6:10911",
        ha_broker_addr="6.6.6.6:10912",
    )
    await cluster.dial(slave.address).ask(notice)
    assert slave.broker.replication.master_address == ""


@simulated
async def test_a_slave_that_acts_as_master_does_not_wait_for_the_end_of_its_connection(cluster):
    slave = await add_replica(cluster, "10.0.1.2", 1)
    replication = slave.broker.replication
    replication.follower = SimpleNamespace(is_copying=True)
    assert replication.follows_master
    replication.note_members({1: "10.0.1.2:10911"})
    assert not replication.follows_master
    replication.note_members({0: "10.0.1.1:10911", 1: "10.0.1.2:10911"})
    assert replication.follows_master


def test_changes_are_logged(caplog):
    caplog.set_level("INFO")
    group = ReplicaGroup(1)
    for addresses in ({0: "a", 1: "b"}, {0: "a", 1: "b"}, {1: "b"}, {1: "b", 2: "c"}, {0: "a", 1: "b"}):
        group.note_members(addresses)
    assert [record.message for record in caplog.records] == [
        "lowest broker id changed",
        "lowest broker id changed",
        "this slave acts as master for reads",
        "lowest broker id changed",
        "this slave acts as master no longer",
    ]
