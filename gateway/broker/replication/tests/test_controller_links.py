"""Links to several controllers: which of them leads, and what one that hangs, dies or says nonsense may do."""

import pytest
import trio

from codec.constants import ResponseCode
from gateway.broker.replication.controller_links import ControllerLinks, NoLeader
from gateway.config.replication import ReplicationSettings, Role
from gateway.tests.cluster import message, simulated
from gateway.tests.controlled import CONTROLLER, ControlledCluster
from remoting.errors import RequestError
from remoting.handler_table import encode_reply
from remoting.requests.controller import ControllerGetMetadataInfo, ControllerGetMetadataInfoReply

SECOND = ("10.0.0.8", 9878)


async def wait_for(condition, limit_s=60):
    with trio.fail_after(limit_s):
        while not condition():
            await trio.sleep(0.05)


async def two_controllers(cluster):
    await cluster.namesrv()
    group = ControlledCluster(cluster)
    for address in (CONTROLLER, SECOND):
        await group.add_controller(address)
        await trio.sleep(1)
    first, second = group.controllers
    assert (first.controller.leadership.term is not None, second.controller.leadership.term) == (True, None)
    return group, first, second


def leads(node):
    return node.broker.config.role is Role.MASTER


@simulated
async def test_each_controller_gets_heartbeats(cluster):
    group, first, second = await two_controllers(cluster)
    node = await group.add_broker("10.0.1.1")
    await wait_for(lambda: leads(node))
    await trio.sleep(1)
    for service in (first, second):
        service.asked.clear()
    await trio.sleep(20)
    for service in (first, second):
        assert 18 <= service.asked.count(904) <= 21
    assert 1004 in first.asked, "the leader confirms the role after each heartbeat"
    assert 1004 not in second.asked


@simulated
async def test_a_leader_that_is_not_listed_is_found(cluster):
    group, first, second = await two_controllers(cluster)
    node = await group.add_broker("10.0.1.1", controller_addr="{}:{}".format(*SECOND))
    await wait_for(lambda: leads(node))
    assert 1003 in first.asked
    await cluster.dial(node.address).ask(message(), 10)


@simulated
async def test_a_controller_that_hangs_delays_nobody(cluster):
    group, first, second = await two_controllers(cluster)
    second.hangs = True
    node = await group.add_broker("10.0.1.1")
    await wait_for(lambda: leads(node), 5)
    first.asked.clear()
    await trio.sleep(30)
    assert first.asked.count(904) >= 28
    await cluster.dial(node.address).ask(message(), 10)


@simulated
async def test_another_controller_leads_before_the_lease_ends(cluster):
    group, first, second = await two_controllers(cluster)
    node = await group.add_broker("10.0.1.1")
    await wait_for(lambda: leads(node))
    await cluster.nodes[CONTROLLER].crash()
    for connection in list(first.server.connections):
        connection.close("the process is gone")
    client = cluster.dial(node.address)
    # From the first moment on: these sends wait until it is known that the leader has ended.
    for _ in range(300):
        await client.ask(message(), 10)
        await trio.sleep(0.1)
    assert second.controller.leadership.term is not None
    assert 1004 in second.asked


@simulated
async def test_all_requests_are_signed(cluster):
    group, first, second = await two_controllers(cluster)
    signed = []
    node = await group.add_broker("10.0.1.1", sign=lambda command: signed.append(command.code))
    await wait_for(lambda: leads(node))
    await trio.sleep(12)
    asked = [*first.asked, *second.asked]
    assert {1002, 1003, 1004, 1005, 1012, 1013, 904} <= set(asked)
    assert {code: signed.count(code) for code in set(asked)} == {
        code: asked.count(code) for code in set(asked)
    }


@simulated
async def test_registration_goes_on_when_it_is_refused(cluster):
    group, first, second = await two_controllers(cluster)

    def refuse(connection, command):
        raise RequestError(ResponseCode.SYSTEM_ERROR, "not now")

    allowed = first.handlers[1003]
    first.handlers[1003] = refuse
    node = await group.add_broker("10.0.1.1")
    await trio.sleep(20)
    assert not leads(node)
    with pytest.raises(RequestError, match="has no role"):
        await cluster.dial(node.address).ask(message(), 10)
    first.handlers[1003] = allowed
    await wait_for(lambda: leads(node), 5)


@simulated
async def test_answers_without_sense_change_nothing(cluster):
    group, first, second = await two_controllers(cluster)
    node = await group.add_broker("10.0.1.1")
    await wait_for(lambda: leads(node))

    def lie(connection, command):
        reply = ControllerGetMetadataInfoReply(controller_leader_address="nobody", is_leader=False)
        return encode_reply(command, reply)

    second.handlers[ControllerGetMetadataInfo.code] = lie
    await trio.sleep(30)
    assert leads(node)
    await cluster.dial(node.address).ask(message(), 10)


class Unregistered:
    """A broker that has no id yet, and so sends no heartbeats."""

    def heartbeat_over(self, connection):
        return None

    async def heartbeat_answered(self, link):
        raise AssertionError

    def leader_lost(self):
        """The end of the test closes the connection."""

    def leader_gone(self):
        raise AssertionError


@simulated
async def test_before_the_registration_a_silent_controller_is_connected_to_anew(cluster):
    """Its machine may have lost power, and be back: nobody has closed the connection."""
    await cluster.namesrv()
    controller_node = await ControlledCluster(cluster).add_controller()
    controller_node.service.hangs = True
    dialled = []

    def dial(host, port):
        dialled.append(cluster.clock.monotonic())
        return cluster.client(host, port)

    links = ControllerLinks(
        ReplicationSettings(controller_addr="{}:{}".format(*CONTROLLER)), dial, cluster.clock.monotonic
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(links.run, Unregistered())
        await wait_for(lambda: len(dialled) == 2)
        assert 10 <= dialled[1] - dialled[0] <= 15
        controller_node.service.hangs = False
        await wait_for(lambda: links.leader is not None, 3)
        await trio.sleep(60)
        assert len(dialled) == 2, "it is asked rarely, and answers"
        nursery.cancel_scope.cancel()


@simulated
async def test_without_controllers_nobody_is_asked(cluster):
    links = ControllerLinks(
        ReplicationSettings(controller_addr="10.9.9.9:1"), cluster.client, cluster.clock.monotonic
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(links.run, Unregistered())
        with pytest.raises(NoLeader, match=r"10\.9\.9\.9:1: nobody at"):
            await links.ask_leader(ControllerGetMetadataInfo())
        nursery.cancel_scope.cancel()
