"""One port for each of the primary's addresses, for as long as the gateway runs."""

import logging

import pytest
import trio

from gateway.shadow.proxy.addresses import packed
from gateway.shadow.proxy.port_book import KeptPorts
from gateway.shadow.proxy.settings import ListenSettings
from gateway.shadow.proxy.topology import Topology
from gateway.tests.cluster import inline
from remoting.tests.virtual import settle, virtual
from storage.files import MemoryFiles

A, B, C = "10.1.0.1:10911", "10.1.0.2:10911", "10.1.0.3:10911"


class Brokers:
    """A cluster as the test says it is."""

    namesrvs = ("10.1.0.9:9876",)

    def __init__(self, **brokers):
        self.brokers = {}
        self.next = brokers
        self.problem = None
        self.looks = 0

    async def refresh(self):
        self.looks += 1
        if self.problem:
            raise self.problem
        self.brokers = self.next


class Listener:
    def __init__(self, port):
        self.port = port

    def getsockname(self):
        return ("0.0.0.0", self.port)


class Place:
    """A topology, the listeners it opened and ports that are taken."""

    def __init__(self, brokers, taken=(), files=None, **settings):
        self.brokers = brokers
        self.taken = set(taken)
        self.gates = []
        self._free = 50_000
        given = ListenSettings(**settings)
        kept = files and KeptPorts(files, "ports", given.broker_port, inline)
        self.topology = Topology(brokers, given, self._open, self._listen, kept)

    def _listen(self, host, port):
        if not port:
            self._free += 1
            port = self._free
        if port in self.taken:
            raise OSError("taken")
        self.taken.add(port)
        return [Listener(port)]

    def _open(self, upstream, listeners, more):
        self.gates.append((upstream, listeners[0].port, more))

    async def look(self, **brokers):
        if brokers:
            self.brokers.next = brokers
        assert await self.topology.refresh()
        return dict(self.topology.ports)


@virtual
async def test_ports_follow_in_order_of_name_and_id_and_stay():
    place = Place(Brokers(b={0: C}, a={1: B, 0: A}))
    assert await place.look() == {A: 10911, B: 10921, C: 10931}
    assert [upstream.broker for upstream, _, _ in place.gates] == ["a", "a", "b"]
    # The master of a is gone, its slave took over; a new broker came.
    assert await place.look(a={0: B}, b={0: C}, c={0: "10.1.0.4:1"}) == {
        A: 10911, B: 10921, C: 10931, "10.1.0.4:1": 10941,
    }  # fmt: skip
    # Another broker moved to an address that was known.
    await place.look(d={0: A})
    assert place.gates[0][0].broker == "d"
    assert len(place.gates) == 4


@virtual
async def test_ports_that_were_set_and_ports_that_are_taken(caplog):
    ports = {B: 10911, "10.1.0.9:5": 10931}
    place = Place(Brokers(a={0: A, 1: B, 2: C}), taken=[10921], ports=ports)
    assert await place.look() == {A: 10941, B: 10911, C: 10951}
    assert "a port is taken" in caplog.text


@virtual
async def test_an_address_has_its_port_again_after_a_start():
    files = MemoryFiles()
    first = Place(Brokers(a={0: A}), files=files)
    await first.look()
    assert await first.look(b={0: B}, a={0: A}) == {A: 10911, B: 10921}
    # A broker came that is before the others, and the first one is gone for now.
    again = Place(Brokers(a={0: C}, b={0: B}), files=files)
    assert await again.look() == {B: 10921, C: 10931}
    assert await again.look(a={0: A}, b={0: B}) == {A: 10911, B: 10921, C: 10931}


@virtual
async def test_a_port_that_is_taken_after_a_start_is_told_and_another_one_given(caplog):
    files = MemoryFiles()
    await Place(Brokers(a={0: A}), files=files).look()
    place = Place(Brokers(a={0: A}), taken=[10911], files=files)
    assert await place.look() == {A: 10921}
    assert "clients have to learn another one" in caplog.text
    assert await Place(Brokers(a={0: A}), files=files).look() == {A: 10921}


@virtual
async def test_free_ports_are_kept_and_those_that_were_set_go_first():
    files = MemoryFiles()
    await Place(Brokers(a={0: A, 1: B}), broker_port=0, files=files).look()
    again = Place(Brokers(a={0: B, 1: A}), broker_port=0, files=files, ports={A: 7})
    assert await again.look() == {A: 7, B: 50_002}


@virtual
async def test_free_ports():
    place = Place(Brokers(a={0: A, 1: B}), broker_port=0)
    assert await place.look() == {A: 50_001, B: 50_002}


@virtual
async def test_an_address_without_a_listener(caplog):
    place = Place(Brokers(a={0: A, 1: "nonsense"}), taken=[7], ports={A: 7})
    assert await place.look() == {}
    assert place.topology.book.view_for(("10.0.0.9", 1)).name(A) == A
    assert caplog.text.count("no listener for a broker") == 3


@virtual
async def test_vip_ports():
    place = Place(Brokers(a={0: A, 1: B}), taken=[10919], vip=True)
    await place.look()
    assert [(upstream.address, port, more) for upstream, port, more in place.gates] == [
        (A, 10911, 0), (A, 10909, -2), (B, 10921, 0),
    ]  # fmt: skip


@virtual
async def test_looks_regularly_and_says_once_when_nobody_answers(caplog):
    caplog.set_level(logging.INFO)
    place = Place(Brokers(a={0: A}), refresh_s=5.0)
    place.brokers.problem = OSError("refused")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.topology.run)
        await trio.sleep(26)
        assert (place.brokers.looks, place.topology.ports) == (5, {})
        assert caplog.text.count("the primary's brokers are not known") == 1
        place.brokers.problem = None
        await trio.sleep(5)
        assert place.topology.ports == {A: 10911}
        nursery.cancel_scope.cancel()


@virtual
async def test_an_address_in_an_answer_gets_its_listener_at_once_and_its_name_soon():
    place = Place(Brokers(a={0: A}), refresh_s=3600.0)
    await place.look()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.topology.run)
        await settle()
        place.brokers.next = {"a": {0: A}, "b": {0: B}}
        view = place.topology.book.view_for(("10.0.0.9", 1))
        assert view.name(B) == "10.0.0.9:10921"
        await settle()
        assert [upstream.broker for upstream, _, _ in place.gates] == ["a", "b"]
        nursery.cancel_scope.cancel()


@virtual
async def test_brokers_that_register_with_us_get_no_listener():
    place = Place(Brokers(a={0: A}, ghost={0: B}))
    place.topology.book.leave_alone(B)
    assert await place.look() == {A: 10911}


def test_names_are_looked_up_because_message_ids_have_numbers():
    place = Place(Brokers(a={0: "localhost:10911"}))
    trio.run(place.look)
    hosts = place.topology.book.view_for(("10.0.0.9", 1)).hosts
    assert hosts in ({packed("127.0.0.1:10911"): packed("10.0.0.9:10911")}, {})
    assert hosts or pytest.skip("localhost is an IPv6 address here")
