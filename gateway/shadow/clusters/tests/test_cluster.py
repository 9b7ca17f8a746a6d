"""Requests to a cluster over real sockets: one connection per address, reopened after it broke."""

import contextlib
from functools import partial

import pytest
import trio

from codec.command import encode_response
from gateway.shadow.clusters import cluster as cluster_module
from gateway.shadow.clusters.cluster import (
    MAX_BROKERS,
    MAX_KNOWN_CONNECTIONS,
    Cluster,
    is_usable_name,
)
from remoting.bodies.routes import BrokerData, ClusterInfo
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.namesrv import GetBrokerClusterInfo
from remoting.requests.offsets import GetMaxOffset
from remoting.server import RemotingServer, open_listeners

ADDRESSES = b'{0:"10.0.0.1:10911",1:"10.0.0.2:10911"}'
INFO = b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":%b,"brokerName":"broker-a"}}}' % ADDRESSES


class FakeNamesrv:
    """A namesrv that knows two requests; `peers` are the connections that sent one."""

    def __init__(self, nursery):
        self.peers, self.silent, self.signatures = [], False, []
        self.info = INFO
        listeners = open_listeners("127.0.0.1", 0)
        self.address = f"127.0.0.1:{listeners[0].getsockname()[1]}"
        nursery.start_soon(RemotingServer({106: self.answer}).serve, listeners)

    def answer(self, connection, command):
        self.peers.append(connection)
        self.signatures.append(command.ext.get("Signature"))
        return None if self.silent else encode_response(command.opaque, 0, None, self.info)


async def with_cluster(test, **more):
    async with trio.open_nursery() as nursery:
        served = FakeNamesrv(nursery)
        cluster = Cluster([served.address], **more)
        await nursery.start(cluster.run)
        await test(cluster, served)
        nursery.cancel_scope.cancel()


def test_refresh_finds_brokers():
    async def test(cluster, served):
        await cluster.refresh()
        assert cluster.brokers == {"broker-a": {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}}
        assert cluster.master("broker-a") == "10.0.0.1:10911"
        with pytest.raises(KeyError):
            cluster.master("broker-b")

    trio.run(with_cluster, test)


def test_connection_is_reused_until_it_breaks():
    async def test(cluster, served):
        for _ in range(2):
            await cluster.refresh()
        served.peers[0].close("broken")
        await trio.testing.wait_all_tasks_blocked(0.01)
        await cluster.refresh()
        assert served.peers[0] is served.peers[1] is not served.peers[2]

    trio.run(with_cluster, test)


def test_next_namesrv_is_asked_when_one_is_gone():
    async def test(cluster, served):
        gone = open_listeners("127.0.0.1", 0)[0]
        cluster.namesrvs = (f"127.0.0.1:{gone.getsockname()[1]}", served.address)
        gone.close()
        await cluster.refresh()
        assert cluster.brokers

    trio.run(with_cluster, test)


def test_a_silent_namesrv_costs_its_time_once():
    """It cost each request its whole time limit."""

    async def test(cluster, served):
        silent = FakeNamesrv(cluster._nursery)
        silent.silent = True
        cluster.namesrvs = (silent.address, served.address)
        for _ in range(5):
            await cluster.ask_namesrv(GetBrokerClusterInfo(), timeout_s=0.1)
        assert (len(silent.peers), len(served.peers)) == (1, 5)
        silent.silent = False
        served.silent = True
        for _ in range(3):
            await cluster.ask_namesrv(GetBrokerClusterInfo(), timeout_s=0.1)
        assert (len(silent.peers), len(served.peers)) == (4, 6), "it is asked again when the others fail"

    trio.run(with_cluster, test)


def test_timeouts_and_refusals_are_raised():
    async def test(cluster, served):
        with pytest.raises(RequestError):
            await cluster.route("nowhere")
        served.silent = True
        with pytest.raises(RemotingTimeout):
            await cluster.ask_namesrv(GetBrokerClusterInfo(), timeout_s=0.05)

    trio.run(with_cluster, test)


def test_requests_are_signed():
    async def test(cluster, served):
        await cluster.refresh()
        assert served.signatures == ["mine"]

    trio.run(lambda: with_cluster(test, sign=lambda command: command.ext.update(Signature="mine")))


def test_hostile_route_data_are_errors_of_the_cluster():
    async def test(cluster, served):
        for address in ("nonsense", "a:99999", "x" * 100_000):
            with pytest.raises(OSError, match=r"."):
                await cluster.connection(address)

    trio.run(with_cluster, test)


def test_closed_connections_of_ever_new_addresses_are_forgotten():
    async def opener(host, port):
        raise OSError("refused")

    async def main():
        cluster = Cluster(["10.0.0.1:9876"], opener=opener)
        async with trio.open_nursery() as nursery:
            await nursery.start(cluster.run)
            for number in range(3 * MAX_KNOWN_CONNECTIONS):
                with pytest.raises(OSError, match="refused"):
                    await cluster.connection(f"10.1.{number // 250}.{number % 250}:1")
            assert len(cluster._locks) <= MAX_KNOWN_CONNECTIONS
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_known_brokers_stay_known_among_made_up_ones():
    async def test(cluster, served):
        await cluster.refresh()
        many = {f"a{number:05}": {0: "10.6.6.6:1"} for number in range(2 * MAX_BROKERS)}
        table = {**many, "broker-a": {0: "10.0.0.1:10911"}}
        data = {name: BrokerData(broker_name=name, broker_addrs=addrs) for name, addrs in table.items()}
        served.info = ClusterInfo(broker_addr_table=data, cluster_addr_table={}).to_json()
        await cluster.refresh()
        assert len(cluster.brokers) == MAX_BROKERS
        assert cluster.master("broker-a") == "10.0.0.1:10911"

    trio.run(with_cluster, test)


def test_names_that_no_broker_has():
    assert all(map(is_usable_name, ["broker-a", "rocketmq 北京", "a" * 200, "../../etc"]))
    assert not any(map(is_usable_name, ["", "a" * 201, "北" * 100, "a\nb", "a\0", "\udc80", "\x1b[31m"]))


def test_unfinished_answers_of_all_connections_are_bounded(monkeypatch):
    """Brokers that anybody registered could each make the gateway hold 64 MiB for every part that asks them."""
    monkeypatch.setattr(cluster_module, "MAX_INPUT_BYTES", 8 << 20)

    async def begin_frame(stream):
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all((60 << 20).to_bytes(4) + bytes(4 << 20))
            await stream.receive_some()

    async def main():
        async with trio.open_nursery() as nursery:
            cluster = Cluster(["127.0.0.1:1"])
            await nursery.start(cluster.run)
            for _ in range(8):
                listeners = await nursery.start(partial(trio.serve_tcp, begin_frame, 0, host="127.0.0.1"))
                await cluster.connection(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}")
            with trio.fail_after(30):
                while sum(not each.closed for each in cluster._connections.values()) > 3:
                    await trio.sleep(0.01)
            assert sum(each.input_bytes for each in cluster._connections.values()) <= 12 << 20
            nursery.cancel_scope.cancel()

    trio.run(main)


class FakeBroker:
    """A broker that answers every request with `code`; `requests` counts them."""

    def __init__(self, nursery, code=0, remark=None):
        self.code, self.remark, self.requests = code, remark, 0
        self.scope = trio.CancelScope()
        self.listeners = open_listeners("127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.listeners[0].getsockname()[1]}"
        nursery.start_soon(self._serve)

    async def _serve(self):
        with self.scope:
            await RemotingServer({GetMaxOffset.code: self._answer}).serve(self.listeners)

    def _answer(self, connection, command):
        self.requests += 1
        return encode_response(command.opaque, self.code, {"offset": "7"}, b"", self.remark)


def named(address):
    data = {"broker-a": BrokerData(broker_name="broker-a", broker_addrs={0: address})}
    return ClusterInfo(broker_addr_table=data, cluster_addr_table={}).to_json()


ASKED = GetMaxOffset(topic="t", queue_id=0)


@pytest.mark.parametrize(
    ("code", "remark"), [(2, "busy"), (11, None), (14, None), (1, "please: from slave broker")]
)
def test_a_broker_that_answers_as_a_slave_is_looked_up_again(monkeypatch, code, remark):
    """A former master lives on: nothing but its answers shows that another broker has its name now."""
    monkeypatch.setattr(cluster_module, "MIN_LOOKUP_INTERVAL_S", 0)

    async def test(cluster, served):
        async with trio.open_nursery() as nursery:
            former, master = FakeBroker(nursery, code, remark), FakeBroker(nursery)
            served.info = named(former.address)
            await cluster.refresh()
            served.info = named(master.address)
            with pytest.raises(RequestError):
                await cluster.ask_broker("broker-a", ASKED)
            assert (await cluster.ask_broker("broker-a", ASKED)).offset == 7
            assert (former.requests, master.requests) == (1, 1)
            assert len(served.peers) == 2
            await cluster.ask_broker("broker-a", ASKED)
            assert len(served.peers) == 2
            nursery.cancel_scope.cancel()

    trio.run(with_cluster, test)


def test_a_broker_that_does_not_answer_is_looked_up_again(monkeypatch):
    monkeypatch.setattr(cluster_module, "MIN_LOOKUP_INTERVAL_S", 0)

    async def test(cluster, served):
        async with trio.open_nursery() as nursery:
            former, master = FakeBroker(nursery), FakeBroker(nursery)
            served.info = named(former.address)
            await cluster.ask_broker("broker-a", ASKED)
            former.scope.cancel()
            served.info = named(master.address)
            for _ in range(2):  # the connection closes, or cannot be opened
                with contextlib.suppress(OSError, RemotingClosed):
                    await cluster.ask_broker("broker-a", ASKED)
            assert (await cluster.ask_broker("broker-a", ASKED)).offset == 7
            assert master.requests >= 1
            nursery.cancel_scope.cancel()

    trio.run(with_cluster, test)


def test_look_ups_of_a_busy_master_are_bounded_and_a_silent_namesrv_hides_no_master():
    async def test(cluster, served):
        async with trio.open_nursery() as nursery:
            busy = FakeBroker(nursery, 2, "busy")
            served.info = named(busy.address)
            await cluster.refresh()
            for _ in range(50):
                with pytest.raises(RequestError):
                    await cluster.ask_broker("broker-a", ASKED)
            assert len(served.peers) <= 3
            served.silent, busy.code = True, 0
            assert (await cluster.ask_broker("broker-a", ASKED)).offset == 7
            nursery.cancel_scope.cancel()

    trio.run(partial(with_cluster, test, timeout_s=0.2))


def test_a_master_that_was_missing_is_found_when_it_is_needed(monkeypatch):
    monkeypatch.setattr(cluster_module, "MIN_LOOKUP_INTERVAL_S", 0)

    async def test(cluster, served):
        async with trio.open_nursery() as nursery:
            master = FakeBroker(nursery)
            served.info = named(master.address).replace(b"{0:", b"{1:").replace(b'{"0":', b'{"1":')
            with pytest.raises(KeyError):
                await cluster.ask_broker("broker-a", ASKED)
            served.info = named(master.address)
            assert (await cluster.ask_broker("broker-a", ASKED)).offset == 7
            nursery.cancel_scope.cancel()

    trio.run(with_cluster, test)
