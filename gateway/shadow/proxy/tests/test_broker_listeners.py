"""Each of the primary's addresses keeps its port for as long as the gateway runs."""

import logging
from collections import Counter
from contextlib import asynccontextmanager
from typing import Any

import trio

from gateway.shadow.clusters.address_policy import AddressRefused
from gateway.shadow.proxy.address_book import pack_address
from gateway.shadow.proxy.broker_listeners import (
    BrokerListeners,
    PortState,
)
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
    def __init__(self, port, taken):
        self.port = port
        self._taken = taken

    def getsockname(self):
        return ("0.0.0.0", self.port)

    def close(self):
        self._taken.discard(self.port)


class FakeListener:
    """A started listener; the test sets the number of its sessions."""

    def __init__(self, upstream, sockets):
        self.upstream, self.sockets = upstream, sockets
        self.session_count = 0
        self.accepting = True

    def stop_accepting(self):
        self.accepting = False
        for each in self.sockets:
            each.close()


class FakeChecks:
    """Checks that succeed unless the test says otherwise; `waiting` addresses do not answer."""

    def __init__(self):
        self.problems = {}
        self.waiting = {}
        self.asked = Counter()

    async def check(self, address):
        self.asked[address] += 1
        if address in self.waiting:
            await self.waiting[address].wait()
        if address in self.problems:
            raise self.problems[address]

    def endpoint_of(self, address):
        return None if address in self.problems else ("127.0.0.1", 10911)


class ListenersBench:
    """Broker listeners, the sockets they opened, and ports in use."""

    def __init__(self, brokers, taken=(), files=None, **settings):
        self.brokers = brokers
        self.taken = set(taken)
        self.started = []
        self.running = {}
        self.checks = FakeChecks()
        self._free = 50_000
        given = ListenSettings(**{"vip": False, **settings})
        kept = files and ListenerPorts(files, "ports", given.broker_port, inline)
        self.listeners = BrokerListeners(
            brokers, given, self._start_listener, self.checks, self._listen, kept
        )

    def _listen(self, host, port):
        if not port:
            self._free += 1
            port = self._free
        if port in self.taken:
            raise OSError("taken")
        self.taken.add(port)
        return [FakeSocket(port, self.taken)]

    def _start_listener(self, upstream, sockets):
        listener = FakeListener(upstream, sockets)
        self.started.append((upstream, sockets[0].port))
        self.running[upstream.address] = listener
        return listener

    async def look_up(self, **brokers):
        """Look up brokers, and check all new addresses."""
        if brokers:
            self.brokers.next = brokers
        assert await self.listeners.refresh_brokers()
        for address in self.listeners.ports:
            if self.state_of(address) is PortState.CHECKING:
                await self.listeners.check_address(address)
        await self.listeners.refresh_brokers()
        return dict(self.listeners.ports)

    def state_of(self, address):
        return self.listeners.state_of(address)

    def translate(self, address):
        return self.listeners.book.view_for(("10.0.0.9", 1)).translate_address(address)


@virtual
async def test_ports_are_assigned_by_broker_name_and_id_and_stay():
    bench = ListenersBench(FakeCluster(b={0: C}, a={1: B, 0: A}))
    assert await bench.look_up() == {A: 10911, B: 10921, C: 10931}
    assert [upstream.broker for upstream, _ in bench.started] == ["a", "a", "b"]
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
    assert bench.translate(A) == A
    assert caplog.text.count("broker address is refused") == 2
    assert "clients reach it past the gateway" in caplog.records[0].reason


@virtual
async def test_vip_ports():
    bench = ListenersBench(FakeCluster(a={0: A, 1: B}), taken=[10919], vip=True)
    await bench.look_up()
    assert [(upstream.address, port) for upstream, port in bench.started] == [
        (A, 10911), (A, 10909), (B, 10921),
    ]  # fmt: skip


@virtual
async def test_a_vip_port_is_not_the_port_of_another_address():
    cluster = FakeCluster(a={0: A, 1: B})
    bench = ListenersBench(cluster, ports={A: 20_913, B: 20_911}, vip=True)
    assert await bench.look_up() == {A: 20_913, B: 20_911}
    assert [port for _, port in bench.started] == [20_913, 20_911, 20_909]
    bench = ListenersBench(cluster, ports={A: 20_913, C: 20_911}, vip=True)
    await bench.look_up()
    assert await bench.look_up(a={0: A, 1: B}, c={0: C}) == {A: 20_913, B: 10_911, C: 20_911}


@virtual
async def test_brokers_are_looked_up_regularly_and_failures_are_logged_ever_more_rarely(caplog):
    caplog.set_level(logging.INFO)
    bench = ListenersBench(FakeCluster(a={0: A}), refresh_s=5.0)
    bench.brokers.problem = OSError("refused")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.listeners.run)
        await trio.sleep(26)
        assert (bench.brokers.lookups, bench.listeners.ports) == (5, {})
        assert caplog.text.count("primary does not answer") == 3, "the 1st, 2nd and 4th of five"
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
        assert [upstream.broker for upstream, _ in bench.started] == ["a", "b"]
        nursery.cancel_scope.cancel()


@virtual
async def test_brokers_that_register_through_the_gateway_get_no_listener():
    bench = ListenersBench(FakeCluster(a={0: A}, ghost={0: B}))
    bench.listeners.book.ignore_address(B)
    assert await bench.look_up() == {A: 10911}


@virtual
async def test_messages_of_a_named_broker_are_known_by_its_numeric_address():
    bench = ListenersBench(FakeCluster(a={0: "localhost:10911"}))
    await bench.look_up()
    hosts = bench.listeners.book.view_for(("10.0.0.9", 1)).store_hosts
    assert hosts == {pack_address("127.0.0.1:10911"): pack_address("10.0.0.9:10911")}


@asynccontextmanager
async def running(bench):
    """Run the look-ups and checks in the background."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.listeners.run)
        await bench.listeners.refresh_brokers()
        await settle()
        yield
        nursery.cancel_scope.cancel()


@virtual
async def test_a_slow_broker_delays_no_other_and_is_served_when_it_answers():
    bench = ListenersBench(FakeCluster(a={0: A}, b={0: B}))
    bench.checks.waiting[A] = trio.Event()
    async with running(bench):
        assert bench.translate(A) == "10.0.0.9:10911", "its clients connect, and wait"
        assert [upstream.address for upstream, _ in bench.started] == [B]
        bench.checks.waiting[A].set()
        await settle()
        assert [upstream.address for upstream, _ in bench.started] == [B, A]


@virtual
async def test_an_address_that_is_no_broker_listens_nowhere():
    bench = ListenersBench(FakeCluster(a={0: A}, b={0: B}))
    bench.checks.problems[A] = OSError("this is redis")
    async with running(bench):
        assert [upstream.address for upstream, _ in bench.started] == [B]
        assert bench.taken == {10921}
        assert bench.translate(A) == "10.0.0.9:10911", "a port that refuses, as a dead broker's does"
        await trio.sleep(60)
        assert 5 <= bench.checks.asked[A] <= 9, "checked again with back-off"
        del bench.checks.problems[A]
        await trio.sleep(31)
        assert bench.translate(A) == "10.0.0.9:10911"
        assert bench.started[-1][:2] == (bench.listeners.upstream_of(A), 10911)


@virtual
async def test_a_refused_address_stays_as_it_is():
    bench = ListenersBench(FakeCluster(a={0: A}))
    bench.checks.problems[A] = AddressRefused("metadata")
    async with running(bench):
        assert bench.listeners.ports == {}
        assert bench.translate(A) == A
        assert bench.listeners.book.view_for(("10.0.0.9", 1)).store_hosts == {}
        await trio.sleep(100)
        assert bench.checks.asked[A] == 1


@virtual
async def test_hundreds_of_made_up_brokers(caplog):
    """800 listeners, one per advertised address, stayed open for ever; a real broker must still come in."""
    ghosts = {f"a{number}": {0: f"10.66.{number // 250}.{number % 250}:6379"} for number in range(800)}
    bench = ListenersBench(FakeCluster(real={0: A}, **ghosts), broker_addresses=100)
    for (address,) in (each.values() for each in ghosts.values()):
        bench.checks.problems[address] = OSError("no broker")
    async with running(bench):
        for _ in range(60):
            if bench.started:
                break
            await trio.sleep(5)
        assert [upstream.broker for upstream, _ in bench.started] == ["real"]
        assert len(bench.listeners.ports) <= 100
        assert len(bench.taken) <= 100
        bench.brokers.next = {"real": {0: A}}
        await trio.sleep(1000)
        assert set(bench.listeners.ports) == {A}
        assert bench.taken == {bench.listeners.ports[A]}
        assert bench.brokers.lookups <= 2 + trio.current_time() / bench.listeners._settings.refresh_s, (
            "new addresses of a look-up do not cause the next one: the namesrv was asked without a pause"
        )
    assert {each.message for each in caplog.records} <= {
        "broker address is refused",
        "broker address is not served: it does not answer as a broker",
        "too many broker addresses: raise listen.broker_addresses",
    }


@virtual
async def test_brokers_beyond_the_limit_are_left_alone_and_those_within_are_served():
    brokers = {f"b{number}": {0: f"10.1.1.{number}:10911"} for number in range(10)}
    bench = ListenersBench(FakeCluster(**brokers), broker_addresses=4)
    async with running(bench):
        assert len(bench.started) == 4
        served = set(bench.listeners.ports)
        await trio.sleep(60)
        assert set(bench.listeners.ports) == served
        assert bench.listeners.turned_away_total > 0


@virtual
async def test_a_vanished_broker_is_forgotten_when_its_sessions_end_and_returns_to_its_port():
    files = MemoryFiles()
    bench = ListenersBench(FakeCluster(a={0: A}, b={0: B}), files=files, forget_s=60)
    async with running(bench):
        listener = bench.running[B]
        listener.session_count = 1
        bench.brokers.next = {"a": {0: A}}
        await trio.sleep(100)
        assert B in bench.listeners.ports
        listener.session_count = 0
        await trio.sleep(10)
        assert set(bench.listeners.ports) == {A}
        assert not listener.accepting
        assert 10921 not in bench.taken
        bench.brokers.next = {"a": {0: A}, "c": {0: C}, "b": {0: B}}
        await trio.sleep(10)
        assert bench.listeners.ports == {A: 10911, B: 10921, C: 10931}


@virtual
async def test_brokers_are_not_forgotten_while_no_namesrv_answers_or_clients_are_told_of_them():
    bench = ListenersBench(FakeCluster(a={0: A}), forget_s=60)
    async with running(bench):
        bench.translate(B)
        bench.brokers.problem = OSError("down")
        await trio.sleep(1000)
        assert set(bench.listeners.ports) == {A, B}
        bench.brokers.problem = None
        for _ in range(10):
            bench.translate(B)
            await trio.sleep(30)
        assert set(bench.listeners.ports) == {A, B}


@virtual
async def test_hostile_addresses_are_bounded():
    bench = ListenersBench(FakeCluster(a={0: A}))
    for hostile in ("x" * 1_000_000 + ":1", "a:99999999999", "a:-1", ":1", "", "a" * 300 + ":1"):
        assert bench.translate(hostile) == hostile
    assert bench.listeners.ports == {}
    for number in range(10_000):
        bench.translate(f"no-port-{number}")
    assert bench.listeners.refused_count <= 4096


@virtual
async def test_a_flood_of_addresses_costs_little_when_there_is_no_room():
    """An answer may name 20,000 addresses: each must be turned away by one look."""
    brokers = {f"b{number}": {0: f"10.1.1.{number}:10911"} for number in range(4)}
    bench = ListenersBench(FakeCluster(**brokers), broker_addresses=4)
    async with running(bench):
        looks = 0

        class CountedDict(dict[str, Any]):
            def items(self):
                nonlocal looks
                looks += 1
                return super().items()

        bench.listeners._broker_ports = CountedDict(bench.listeners._broker_ports)
        for number in range(20_000):
            bench.translate(f"10.66.{number // 250}.{number % 250}:1")
        assert looks == 0
        assert len(bench.listeners.ports) == 4
