"""Clients, gateway and a fake primary over sockets: routes lead through the gateway wherever brokers move."""

import logging
import socket
import time
from collections import Counter
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from functools import partial

import pytest
import trio

from codec.command import encode_response
from gateway.shadow.clusters.address_policy import AddressRefused
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.proxy.client_listener import MAX_CONCURRENT_DIALS, ConnectionCount
from gateway.shadow.proxy.forwarder import Forwarder
from gateway.shadow.proxy.settings import ListenSettings
from gateway.shadow.traffic.exchange import Hub
from remoting.bodies.routes import BrokerData, ClusterInfo, TopicRouteData
from remoting.client import open_client
from remoting.errors import RemotingClosed
from remoting.reactor import Reactor
from remoting.requests.namesrv import GetBrokerClusterInfo, GetRouteInfoByTopic
from remoting.requests.offsets import GetMaxOffset
from remoting.server import RemotingServer, open_listeners
from remoting.tests.virtual import virtual
from storage.clock import SystemClock

PATIENCE_S = 60.0
"""For dozens of connections at once on a busy machine."""


def address_of(listener):
    host, port = listener.getsockname()
    return f"{host}:{port}"


class FakeServer:
    """A namesrv or broker of the primary that answers from ``replies``, by request code."""

    def __init__(self, nursery, replies):
        self._replies = replies
        self._nursery = nursery
        (self.listener,) = open_listeners("127.0.0.1", 0)
        self.address = address_of(self.listener)
        self.server = RemotingServer({code: self._answer for code in replies})
        nursery.start_soon(self.server.serve, [self.listener])

    def _answer(self, connection, command):
        ext, body = self._replies[command.code]()
        return encode_response(command.opaque, 0, ext, body)

    async def stop(self):
        await self.server.drain()


class FakePrimary:
    """A namesrv and its brokers: {name: [addresses by id]}."""

    def __init__(self, nursery):
        self.brokers = {}
        self.nursery = nursery
        replies = {GetBrokerClusterInfo.code: self._info, GetRouteInfoByTopic.code: self._route}
        self.namesrv = FakeServer(nursery, replies)

    def _datas(self):
        return {
            name: BrokerData(cluster="c", broker_name=name, broker_addrs=dict(enumerate(addresses)))
            for name, addresses in self.brokers.items()
        }

    def _info(self):
        return {}, ClusterInfo(broker_addr_table=self._datas(), cluster_addr_table={}).to_json()

    def _route(self):
        return {}, TopicRouteData(broker_datas=list(self._datas().values())).to_json()

    def broker(self, offset):
        """A broker whose queues all have this max offset."""
        return FakeServer(self.nursery, {GetMaxOffset.code: lambda: ({"offset": str(offset)}, b"")})


@pytest.fixture(params=["reactor", "streams"])
def reactor(request):
    if request.param == "streams":
        return None
    return Reactor() if Reactor.is_available() else pytest.skip("no epoll here")


@asynccontextmanager
async def running(primary, reactor, namesrvs=None, **settings):
    """Run a forwarder on free ports."""
    given = {"host": "127.0.0.1", "namesrv_port": 0, "broker_port": 0, "drain_s": 1.0, **settings}
    async with trio.open_nursery() as nursery:
        cluster = Cluster(namesrvs or [primary.namesrv.address])
        forwarder = Forwarder(ListenSettings(**given), cluster, Hub(), SystemClock(), reactor)
        if reactor is not None:
            nursery.start_soon(reactor.run)
        await nursery.start(cluster.run)
        await nursery.start(forwarder.run)
        with trio.fail_after(30):
            yield forwarder
        await forwarder.stop()
        nursery.cancel_scope.cancel()


async def fetch_route(forwarder):
    """Return the addresses by broker name, as a client of the gateway sees them."""
    async with open_client("127.0.0.1", forwarder.namesrv_ports[0]) as client:
        data = (await client.ask(GetRouteInfoByTopic(topic="t"))).data
    return {each.broker_name: list(each.broker_addrs.values()) for each in data.broker_datas}


async def ask_max_offset(address):
    """Return the max offset, None if the connection is closed before the answer."""
    host, port = address.split(":")
    async with open_client(host, int(port)) as client:
        return await ask_over(client)


async def ask_over(client):
    try:
        return (await client.ask(GetMaxOffset(topic="t", queue_id=0), timeout_s=PATIENCE_S)).offset
    except RemotingClosed:
        return None


def free_port_with_vip_port():
    """Return a free port whose VIP port is free as well."""
    while True:
        with ExitStack() as stack, suppress(OSError):
            (listener,) = open_listeners("127.0.0.1", 0)
            stack.enter_context(listener)
            port = listener.getsockname()[1]
            stack.enter_context(open_listeners("127.0.0.1", port - 2)[0])
            return port


def test_clients_of_the_vip_channel_reach_the_checked_port_of_the_broker(reactor):
    async def main():
        async with trio.open_nursery() as nursery:
            primary = FakePrimary(nursery)
            broker = primary.broker(7)
            primary.brokers = {"a": [broker.address]}
            port = free_port_with_vip_port()
            async with running(primary, reactor, ports={broker.address: port}) as forwarder:
                assert await fetch_route(forwarder) == {"a": [f"127.0.0.1:{port}"]}
                assert [await ask_max_offset(f"127.0.0.1:{number}") for number in (port, port - 2)] == [7, 7]
                addresses = [
                    listener.addresses for listener in forwarder.listeners if listener.context.upstream.broker
                ]
                assert addresses == [(broker.address,)] * 2, "two below is a port that nobody has checked"
                names = Counter((each.name, tuple(each.labels.items())) for each in forwarder.metrics())
                assert max(names.values()) == 1, "a broker's listeners count together"
                requests = [each for each in forwarder.metrics() if each.name == "forward_requests_total"]
                assert {each.labels["broker"]: each.value for each in requests}["a"] == 2
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_brokers_move_fail_over_and_appear(reactor, caplog):
    async def main():
        async with trio.open_nursery() as nursery:
            primary = FakePrimary(nursery)
            first, second = primary.broker(1), primary.broker(2)
            primary.brokers = {"a": [first.address, second.address]}
            async with running(primary, reactor, refresh_s=3600.0) as forwarder:
                (before,) = (await fetch_route(forwarder)).values()
                assert not {first.address, second.address} & set(before)
                assert [await ask_max_offset(each) for each in before] == [1, 2]
                third = primary.broker(3)
                primary.brokers = {"a": [second.address], "b": [third.address]}
                after = await fetch_route(forwarder)
                assert after["a"] == before[1:]
                assert await ask_max_offset(after["b"][0]) == 3
                await first.stop()
                for _ in range(2):
                    assert await ask_max_offset(before[0]) is None
                assert caplog.text.count("upstream cannot be reached") == 1
                metrics = {
                    (each.name, each.labels.get("upstream")): each.value for each in forwarder.metrics()
                }
                assert metrics["forward_unreachable_total", first.address] == 2
                assert metrics["forward_requests_total", third.address] == 1
            nursery.cancel_scope.cancel()

    caplog.set_level(logging.INFO)
    trio.run(main)


def test_clients_reach_brokers_only(reactor):
    """A stranger registers "brokers" that are other services; the gateway passes no byte of a client to them."""

    async def main():
        async with trio.open_nursery() as nursery:
            primary, received = FakePrimary(nursery), []

            async def answer(stream):
                received.append(bytes(await stream.receive_some(4096)))
                await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

            (service,) = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
            host, port = service.socket.getsockname()
            real = primary.broker(1)
            primary.brokers = {"a": [real.address], "ghost": [f"{host}:{port}", "169.254.169.254:80"]}
            async with running(primary, reactor, refresh_s=3600.0, vip=False) as forwarder:
                seen = await fetch_route(forwarder)
                assert await ask_max_offset(seen["a"][0]) == 1
                assert "169.254.169.254:80" in seen["ghost"], "left to the client"
                with pytest.raises(OSError, match=r"."):
                    await ask_until_refused(seen["ghost"][0])
                assert not any(b"secret of a client" in each for each in received)
                assert len(received) == 1, "it got the question whether it is a broker"
                listening = [each.addresses for each in forwarder.listeners]
                assert sorted(listening) == sorted([(primary.namesrv.address,), (real.address,)])
            nursery.cancel_scope.cancel()

    trio.run(main)


async def ask_until_refused(address):
    """Send bytes of a client until the connection is refused. Raises OSError then."""
    host, port = address.split(":")
    while True:
        stream = await trio.open_tcp_stream(host, int(port))
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"secret of a client")
            await stream.receive_some()
        await stream.aclose()


def test_another_namesrv_answers_for_one_that_is_down(reactor):
    async def main():
        async with trio.open_nursery() as nursery:
            primary = FakePrimary(nursery)
            with socket.create_server(("127.0.0.1", 0)) as nobody:
                down = address_of(nobody)
            primary.brokers = {"a": [primary.broker(1).address]}
            async with running(primary, reactor, [down, primary.namesrv.address]) as forwarder:
                assert len(forwarder.namesrv_ports) == 2
                assert list(await fetch_route(forwarder)) == ["a"]
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_silent_namesrv_delays_one_client_only(reactor):
    async def main():
        async with trio.open_nursery() as nursery:
            primary = FakePrimary(nursery)
            primary.brokers = {"a": [primary.broker(1).address]}
            async with running(primary, reactor, ["127.0.0.1:1", primary.namesrv.address]) as forwarder:
                dials = Counter()
                listener = next(each for each in forwarder.listeners if each.addresses[0] == "127.0.0.1:1")
                dial = listener._dial

                async def dial_counted(address):
                    dials[address] += 1
                    if address == "127.0.0.1:1":
                        raise OSError("no answer in time")
                    return await dial(address)

                listener._dial = dial_counted
                for _ in range(5):
                    assert list(await fetch_route(forwarder)) == ["a"]
                assert dials == {"127.0.0.1:1": 1, primary.namesrv.address: 5}
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_gateway_starts_before_its_primary(reactor):
    async def main():
        async with trio.open_nursery() as nursery:
            primary = FakePrimary(nursery)
            primary.brokers = {"a": [primary.broker(1).address]}
            (down,) = open_listeners("127.0.0.1", 0)
            gone = address_of(down)
            down.close()
            async with running(primary, reactor, [gone, gone]) as forwarder:
                assert forwarder.broker_listeners.ports == {}
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_stopping_lets_answers_arrive(reactor):
    async def main():
        async with trio.open_nursery() as nursery:
            primary = FakePrimary(nursery)
            primary.brokers = {"a": [primary.broker(7).address]}
            async with running(primary, reactor) as forwarder:
                ((address,),) = (await fetch_route(forwarder)).values()
                host, port = address.split(":")
                async with open_client(host, int(port)) as client:
                    assert await ask_over(client) == 7
                    await forwarder.stop()
                    assert await ask_over(client) is None
                    with pytest.raises(OSError, match=port):
                        await ask_max_offset(address)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_largest_client_is_closed_above_the_memory_limit(reactor, caplog):
    async def begin_frame(port, sent_bytes):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        with suppress(
            trio.BrokenResourceError
        ):  # The large client may be closed before it has sent everything.
            await stream.send_all((8 << 20).to_bytes(4) + bytes(sent_bytes - 4))
        return stream

    async def main():
        async with trio.open_nursery() as nursery:
            primary = FakePrimary(nursery)
            async with running(
                primary, reactor, buffered_total_bytes=1 << 20, read_bytes=1 << 20
            ) as forwarder:
                port = forwarder.namesrv_ports[0]
                small, large = await begin_frame(port, 400_000), await begin_frame(port, 900_000)
                with suppress(trio.BrokenResourceError):
                    assert await large.receive_some(1) == b""
                await large.aclose()
                with trio.move_on_after(0.01) as waited:
                    await small.receive_some(1)
                assert waited.cancelled_caught
                await small.aclose()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert "buffered_total_bytes" in {each.__dict__.get("setting") for each in caplog.records}


def test_a_storm_of_clients_reaches_the_primary_in_turns(reactor):
    """Thousands of clients at once must not become thousands of dials at once, nor hold up another broker's."""

    async def main():
        async with trio.open_nursery() as nursery:
            primary = FakePrimary(nursery)
            slow, other = primary.broker(1), primary.broker(2)
            primary.brokers = {"a": [slow.address], "b": [other.address]}
            async with running(primary, reactor, refresh_s=3600.0) as forwarder:
                routes = await fetch_route(forwarder)
                assert await ask_max_offset(routes["a"][0]) == 1
                check, dials, most = forwarder._broker_check, 0, 0
                real = check.dial

                async def dial(address):
                    nonlocal dials, most
                    if address != slow.address:
                        return await real(address)
                    dials += 1
                    most = max(most, dials)
                    try:
                        await trio.sleep(0.05)
                        return await real(address)
                    finally:
                        dials -= 1

                for listener in forwarder.listeners:
                    listener._dial = dial if listener.context.upstream.broker else listener._dial
                results = []

                async def ask():
                    results.append(await ask_max_offset(routes["a"][0]))

                async with trio.open_nursery() as asking:
                    for _ in range(3 * MAX_CONCURRENT_DIALS):
                        asking.start_soon(ask)
                    await trio.sleep(0.01)
                    assert await ask_max_offset(routes["b"][0]) == 2
                assert results == [1] * (3 * MAX_CONCURRENT_DIALS)
                assert most <= MAX_CONCURRENT_DIALS
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_pause_of_the_whole_process_is_not_taken_for_a_silent_broker(reactor):
    """A full garbage collection, or a machine that is suspended: dials in progress failed, and closed their clients."""

    async def main():
        async with trio.open_nursery() as nursery:
            primary = FakePrimary(nursery)
            broker = primary.broker(1)
            primary.brokers = {"a": [broker.address]}
            async with running(primary, reactor, refresh_s=3600.0, connect_s=0.5) as forwarder:
                ((address,),) = (await fetch_route(forwarder)).values()
                assert await ask_max_offset(address) == 1
                check, dials = forwarder._broker_check, 0
                opener = check._opener

                async def open_slowly(host, port):
                    nonlocal dials
                    dials += 1
                    await trio.sleep(0.1)
                    return await opener(host, port)

                check._opener = open_slowly
                results = []

                async def ask():
                    results.append(await ask_max_offset(address))

                async with trio.open_nursery() as asking:
                    for _ in range(20):
                        asking.start_soon(ask)
                    while dials < 20:
                        await trio.lowlevel.checkpoint()
                    time.sleep(0.6)  # noqa: ASYNC251 - the pause
                assert results == [1] * 20
            nursery.cancel_scope.cancel()

    trio.run(main)


async def wait_until_all_left(forwarder):
    while forwarder._connections.open:
        await trio.sleep(0.01)


@pytest.mark.parametrize("setting", ["connections", "connections_per_address"])
def test_connections_beyond_a_limit_are_closed_and_logged_with_the_setting(reactor, caplog, setting):
    async def main():
        async with trio.open_nursery() as nursery:
            primary = FakePrimary(nursery)
            broker = primary.broker(5)
            primary.brokers = {"a": [broker.address]}
            async with running(primary, reactor, **{setting: 3}) as forwarder:
                host, port = (await fetch_route(forwarder))["a"][0].split(":")
                await wait_until_all_left(forwarder)
                async with AsyncExitStack() as stack:
                    clients = [
                        await stack.enter_async_context(open_client(host, int(port))) for _ in range(3)
                    ]
                    assert [await ask_over(client) for client in clients] == [5, 5, 5]
                    for number in (forwarder.namesrv_ports[0], int(port)):
                        stream = await trio.open_tcp_stream(host, number)
                        with suppress(trio.BrokenResourceError):
                            assert await stream.receive_some(1) == b"", (
                                "the limit holds for all listeners together"
                            )
                        await stream.aclose()
                    assert [await ask_over(client) for client in clients] == [5, 5, 5]
                    metrics = {each.name: each.value for each in forwarder.metrics()}
                    assert metrics["forward_refused_connections_total"] == 2
                await wait_until_all_left(forwarder)
                assert await ask_max_offset(f"{host}:{port}") == 5
            nursery.cancel_scope.cancel()

    trio.run(main)
    refused = [each for each in caplog.records if each.message.startswith("connection refused")]
    assert [(each.setting, each.limit) for each in refused] == [(f"listen.{setting}", 3)] * 2


@virtual
async def test_connections_of_one_address_leave_room_for_others():
    count = ConnectionCount(10, 2)
    with count.occupy_place("10.0.0.1"), count.occupy_place("10.0.0.1"):
        with pytest.raises(OSError, match="too many"), count.occupy_place("10.0.0.1"):
            pass
        with count.occupy_place("10.0.0.2"):
            assert count.open == 3
    assert (count.open, dict(count._open_by_address)) == (0, {})
    with count.occupy_place("10.0.0.1"):
        assert count.refused_total == 1


@virtual
async def test_no_limit_by_address():
    count = ConnectionCount(10, 0)
    with ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(count.occupy_place("10.0.0.1"))
        with pytest.raises(OSError, match="too many"), count.occupy_place("10.0.0.1"):
            pass


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_name_that_leads_to_the_gateway_after_its_start_is_not_dialed(reactor, host):
    """DNS may change: each connection would open the next one, until no descriptor is left."""

    async def main():
        async with trio.open_nursery() as nursery:
            primary = FakePrimary(nursery)
            async with running(primary, reactor) as forwarder:
                address = f"{host}:{forwarder.namesrv_ports[0]}"
                with pytest.raises(AddressRefused, match="is a port of this gateway"):
                    await forwarder._dial_namesrv(address)
            nursery.cancel_scope.cancel()

    trio.run(main)
