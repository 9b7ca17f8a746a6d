"""Requests of slaves to their master, and about them."""

import pytest
import trio
import trio.testing

from gateway.broker.replication.auto_switch_wire import SlaveHello, encode_report, encode_slave_hello
from gateway.broker.replication.tests.fake_slave import FakeSlave, real_time
from gateway.config.replication import SYNC_MASTER, ControlledRole
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from remoting.errors import RequestError
from remoting.requests.ha import ExchangeBrokerHaInfo, GetBrokerHaStatus, ResetMasterFlushOffset
from remoting.requests.pop import GetAllMessageRequestMode
from remoting.transport import StreamTransport


def test_a_slave_gets_the_request_modes() -> None:
    reply = World().ask(GetAllMessageRequestMode())
    assert (reply.remark, reply.data.message_request_mode_map) == (None, {})


def test_a_master_says_where_it_is_reached() -> None:
    world = World(ha_listen_port=20912)
    world.put()
    world.broker.store.flush()
    connection = FakeConnection()
    reply = world.ask(ExchangeBrokerHaInfo(), connection)
    host = connection.local[0]
    assert (reply.master_ha_address, reply.master_address) == (f"{host}:20912", f"{host}:10911")
    assert reply.master_flush_offset == world.broker.store.max_physical_offset
    advertised = World(broker_ip="10.1.2.3", advertised_port=7000).ask(ExchangeBrokerHaInfo())
    assert (advertised.master_ha_address, advertised.master_address) == ("10.1.2.3:10912", "10.1.2.3:7000")
    apart = World(ha_ip="10.9.9.9").ask(ExchangeBrokerHaInfo(), connection)
    assert (apart.master_ha_address, apart.master_address) == ("10.9.9.9:10912", f"{host}:10911")


def test_a_master_follows_nobody_who_sends_it_an_address() -> None:
    with pytest.raises(RequestError, match="b1 with broker id 0 looks its master up itself") as refused:
        World().ask(ExchangeBrokerHaInfo(master_ha_address="10.0.0.1:10912", master_address="10.0.0.1:10911"))
    assert refused.value.code == 3


def test_the_flush_offset_of_a_master_is_reset_without_effect() -> None:
    assert World().ask(ResetMasterFlushOffset(master_flush_offset=1)) is None


@real_time
async def test_the_status_shows_how_far_each_slave_is() -> None:
    world = World()
    server, store = world.broker.replication.server, world.broker.store
    here, there = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, StreamTransport(here, remote=("10.0.0.7", 4000)))
        slave = FakeSlave(there)
        world.put()
        await slave.report(0)
        await slave.read_until(store.max_physical_offset)
        await trio.testing.wait_all_tasks_blocked()
        slave.acknowledges = False
        world.put()
        await slave.read_until(store.max_physical_offset)
        status = world.ask(GetBrokerHaStatus()).data
        (info,) = status.ha_connection_info
        end = store.max_physical_offset
        assert (status.master, status.in_sync_slave_nums, status.master_commit_log_max_offset) == (
            True,
            1,
            end,
        )
        assert (info.addr, info.in_sync, info.transfer_from_where) == ("10.0.0.7:4000", True, end)
        assert (info.slave_ack_offset, info.diff) == (end - info.diff, end // 2)
        nursery.cancel_scope.cancel()


@real_time
async def test_under_a_controller_the_slaves_of_its_set_are_in_sync() -> None:
    role = ControlledRole(1, 4, frozenset({1, 2, 9}), 7)
    world = World(broker_role=SYNC_MASTER, enable_controller_mode=True, controlled=role)
    server = world.broker.replication.server
    async with trio.open_nursery() as nursery:
        for broker_id in (2, 3):
            here, there = trio.testing.memory_stream_pair()
            nursery.start_soon(server.serve, StreamTransport(here, remote=("10.0.0.7", 4000 + broker_id)))
            await there.send_all(encode_slave_hello(SlaveHello(broker_id)) + encode_report(0))
        await trio.testing.wait_all_tasks_blocked()
        status = world.ask(GetBrokerHaStatus()).data
        assert status.in_sync_slave_nums == 2
        in_sync = {slave.addr: slave.in_sync for slave in status.ha_connection_info}
        assert in_sync == {"10.0.0.7:4002": True, "10.0.0.7:4003": False}
        nursery.cancel_scope.cancel()
