"""Each of the primary's addresses keeps its port for as long as the gateway runs."""

import logging

import pytest
import trio

from gateway.shadow.proxy.address_book import pack_address
from gateway.shadow.proxy.broker_listeners import BrokerListeners
from gateway.shadow.proxy.listener_ports import ListenerPorts
from gateway.shadow.proxy.settings import ListenSettings
from gateway.tests.cluster import inline
from remoting.tests.virtual import settle, virtual
from storage.files import MemoryFiles

A, B, C = "10.1.0.1:10911", "10.1.0.2:10911", "10.1.0.3:10911"


class FakeCluster:
    """A cluster whose brokers the test sets."""

    namesrvs = ("10.1.0.9:9876",)

    def __init__(self, **brokers):
        self.brokers = {}
        self.next = brokers
        self.problem = None
        self.lookups = 0

    async def refresh(self):
        self.lookups += 1
        if self.problem:
            raise self.problem
        self.brokers = self.next


class FakeSocket:
    def __init__(self, port):
        self.port = port

    def getsockname(self):
        return ("0.0.0.0", self.port)


class ListenersBench:
    """Broker listeners, the sockets they opened, and ports in use."""

    def __init__(self, brokers, taken=(), files=None, **settings):
        self.brokers = brokers
        self.taken = set(taken)
        self.started = []
        self._free = 50_000
        given = ListenSettings(**settings)
        kept = files and ListenerPorts(files, "ports", given.broker_port, inline)
        self.listeners = BrokerListeners(brokers, given, self._start_listener, self._listen, kept)

    def _listen(self, host, port):
        if not port:
            self._free += 1
            port = self._free
        if port in self.taken:
            raise OSError("taken")
        self.taken.add(port)
        return [FakeSocket(port)]

    def _start_listener(self, upstream, sockets, port_offset):
        self.started.append((upstream, sockets[0].port, port_offset))

    async def look_up(self, **brokers):
        if brokers:
            self.brokers.next = brokers
        assert await self.listeners.refresh_brokers()
        return dict(self.listeners.ports)


@virtual
async def test_ports_are_assigned_by_broker_name_and_id_and_stay():
    bench = ListenersBench(FakeCluster(b={0: C}, a={1: B, 0: A}))
    assert await bench.look_up() == {A: 10911, B: 10921, C: 10931}
    assert [upstream.broker for upstream, _, _ in bench.started] == ["a", "a", "b"]
    # The master of a is gone, its slave took over; a new broker came.
    assert await bench.look_up(a={0: B}, b={0: C}, c={0: "10.1.0.4:1"}) == {
        A: 10911, B: 10921, C: 10931, "10.1.0.4:1": 10941,
    }  # fmt: skip
    # Another broker moved to an address that was known.
    await bench.look_up(d={0: A})
    assert bench.started[0][0].broker == "d"
    assert len(bench.started) == 4


@virtual
async def test_configured_ports_and_ports_in_use(caplog):
    ports = {B: 10911, "10.1.0.9:5": 10931}
    bench = ListenersBench(FakeCluster(a={0: A, 1: B, 2: C}), taken=[10921], ports=ports)
    assert await bench.look_up() == {A: 10941, B: 10911, C: 10951}
    assert "port is in use" in caplog.text


@virtual
async def test_an_address_has_the_same_port_after_a_restart():
    files = MemoryFiles()
    first = ListenersBench(FakeCluster(a={0: A}), files=files)
    await first.look_up()
    assert await first.look_up(b={0: B}, a={0: A}) == {A: 10911, B: 10921}
    # A broker that sorts before the others has appeared, and the first one is gone for now.
    again = ListenersBench(FakeCluster(a={0: C}, b={0: B}), files=files)
    assert await again.look_up() == {B: 10921, C: 10931}
    assert await again.look_up(a={0: A}, b={0: B}) == {A: 10911, B: 10921, C: 10931}


@virtual
async def test_a_saved_port_in_use_is_logged_and_replaced(caplog):
    files = MemoryFiles()
    await ListenersBench(FakeCluster(a={0: A}), files=files).look_up()
    bench = ListenersBench(FakeCluster(a={0: A}), taken=[10911], files=files)
    assert await bench.look_up() == {A: 10921}
    assert "its clients have to learn another port" in caplog.text
    assert await ListenersBench(FakeCluster(a={0: A}), files=files).look_up() == {A: 10921}


@virtual
async def test_free_ports_are_saved_and_configured_ports_take_precedence():
    files = MemoryFiles()
    await ListenersBench(FakeCluster(a={0: A, 1: B}), broker_port=0, files=files).look_up()
    again = ListenersBench(FakeCluster(a={0: B, 1: A}), broker_port=0, files=files, ports={A: 7})
    assert await again.look_up() == {A: 7, B: 50_002}


@virtual
async def test_port_0_takes_free_ports():
    bench = ListenersBench(FakeCluster(a={0: A, 1: B}), broker_port=0)
    assert await bench.look_up() == {A: 50_001, B: 50_002}


@virtual
async def test_an_address_whose_listener_cannot_be_opened(caplog):
    bench = ListenersBench(FakeCluster(a={0: A, 1: "nonsense"}), taken=[7], ports={A: 7})
    assert await bench.look_up() == {}
    assert bench.listeners.book.view_for(("10.0.0.9", 1)).translate_address(A) == A
    assert caplog.text.count("cannot open a listener for a broker") == 3


@virtual
async def test_vip_ports():
    bench = ListenersBench(FakeCluster(a={0: A, 1: B}), taken=[10919], vip=True)
    await bench.look_up()
    assert [(upstream.address, port, port_offset) for upstream, port, port_offset in bench.started] == [
        (A, 10911, 0), (A, 10909, -2), (B, 10921, 0),
    ]  # fmt: skip


@virtual
async def test_brokers_are_looked_up_regularly_and_a_failure_is_logged_once(caplog):
    caplog.set_level(logging.INFO)
    bench = ListenersBench(FakeCluster(a={0: A}), refresh_s=5.0)
    bench.brokers.problem = OSError("refused")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.listeners.run)
        await trio.sleep(26)
        assert (bench.brokers.lookups, bench.listeners.ports) == (5, {})
        assert caplog.text.count("cannot look up the primary's brokers") == 1
        bench.brokers.problem = None
        await trio.sleep(5)
        assert bench.listeners.ports == {A: 10911}
        nursery.cancel_scope.cancel()


@virtual
async def test_an_address_in_an_answer_gets_a_listener_at_once_and_its_name_soon():
    bench = ListenersBench(FakeCluster(a={0: A}), refresh_s=3600.0)
    await bench.look_up()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.listeners.run)
        await settle()
        bench.brokers.next = {"a": {0: A}, "b": {0: B}}
        view = bench.listeners.book.view_for(("10.0.0.9", 1))
        assert view.translate_address(B) == "10.0.0.9:10921"
        await settle()
        assert [upstream.broker for upstream, _, _ in bench.started] == ["a", "b"]
        nursery.cancel_scope.cancel()


@virtual
async def test_brokers_that_register_through_the_gateway_get_no_listener():
    bench = ListenersBench(FakeCluster(a={0: A}, ghost={0: B}))
    bench.listeners.book.ignore_address(B)
    assert await bench.look_up() == {A: 10911}


def test_host_names_are_resolved_because_message_ids_have_numeric_addresses():
    bench = ListenersBench(FakeCluster(a={0: "localhost:10911"}))
    trio.run(bench.look_up)
    hosts = bench.listeners.book.view_for(("10.0.0.9", 1)).store_hosts
    assert hosts in ({pack_address("127.0.0.1:10911"): pack_address("10.0.0.9:10911")}, {})
    assert hosts or pytest.skip("localhost is an IPv6 address here")
