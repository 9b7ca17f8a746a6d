"""A target that is the primary, or the gateway itself: refused at start, and stopped when it is found out later."""

import contextlib

import pytest
import trio
from trio.testing import MockClock

from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.clusters.loop_guard import LoopGuard
from gateway.shadow.clusters.target_check import TargetCheck
from gateway.shadow.config import load_config
from gateway.shadow.tests.served_gateway import (
    address,
    count_messages,
    send_messages,
    served_cluster,
    served_gateway,
    without_signals,
)
from remoting.server import open_listeners
from toolkit.settings import SettingsError

TOPIC = "Orders"


@pytest.fixture(autouse=True)
def signals(monkeypatch):
    without_signals(monkeypatch)


@pytest.mark.parametrize("other", ["10.0.0.1:9876", "10.0.0.1:9876, b:1"])
def test_a_target_with_an_address_of_the_primary_is_refused_by_the_configuration(other):
    sets = ['primary.namesrv=["a:1", "10.0.0.1:9876"]', f"target.namesrv={other.split(', ')}"]
    with pytest.raises(SettingsError, match=r"10\.0\.0\.1:9876 is also in primary.namesrv"):
        load_config(None, sets)


def test_localhost_is_the_same_as_its_address():
    with pytest.raises(SettingsError, match="is also in"):
        load_config(None, ['primary.namesrv=["127.0.0.1:9876"]', 'target.namesrv=["localhost:9876"]'])


@contextlib.asynccontextmanager
async def relay_to(namesrv, port=0):
    """Listen at another port for an address, as a proxy or a second name of a host would."""
    sockets = open_listeners("127.0.0.1", port)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(sockets[0]))

    async def pump(source, sink):
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                await sink.send_all(data)
            await sink.aclose()

    async def serve(client):
        async with (
            client,
            await trio.open_tcp_stream(*address(namesrv)) as upstream,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(pump, client, upstream)
            nursery.start_soon(pump, upstream, client)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"127.0.0.1:{sockets[0].getsockname()[1]}"
        nursery.cancel_scope.cancel()


def free_port():
    (sock,) = open_listeners("127.0.0.1", 0)
    port = sock.getsockname()[1]
    sock.close()
    return port


def test_the_primary_at_another_address_is_refused_at_start(tmp_path):
    async def main():
        async with served_cluster(tmp_path / "p") as primary, relay_to(primary["namesrv"]) as alias:
            with pytest.raises(
                SettingsError, match="the target is the primary: both name the broker broker-a"
            ):
                async with served_gateway(
                    tmp_path, f"primary.namesrv=['{primary['namesrv']}']", f"target.namesrv=['{alias}']"
                ):
                    pass

    trio.run(main)


def test_the_gateway_s_own_port_is_refused_at_start(tmp_path):
    async def main():
        port = free_port()
        async with served_cluster(tmp_path / "p") as primary:
            with pytest.raises(SettingsError, match=f"127.0.0.1:{port} is a port of this gateway"):
                async with served_gateway(
                    tmp_path,
                    f"primary.namesrv=['{primary['namesrv']}']",
                    f"target.namesrv=['127.0.0.1:{port}']",
                    f"listen.namesrv_port={port}",
                ):
                    pass

    trio.run(main)


def test_a_second_gateway_in_front_of_the_primary_is_refused_at_start(tmp_path):
    """Its brokers have other addresses, so the broker itself is recognised."""

    async def main():
        async with served_cluster(tmp_path / "p") as primary:
            own = f"primary.namesrv=['{primary['namesrv']}']"
            async with served_gateway(tmp_path / "a", own) as (_, other):
                with pytest.raises(
                    SettingsError, match=r"target's broker broker-a at 127.0.0.1:\d+ is the primary's"
                ):
                    async with served_gateway(tmp_path / "b", own, f"target.namesrv=['{other['namesrv']}']"):
                        pass

    trio.run(main)


def test_a_target_that_turns_out_to_be_the_gateway_gets_nothing(tmp_path):
    async def main():
        later = free_port()
        async with (
            served_cluster(tmp_path / "p") as primary,
            served_gateway(
                tmp_path,
                f"primary.namesrv=['{primary['namesrv']}']",
                f"target.namesrv=['127.0.0.1:{later}']",
            ) as (server, facts),
        ):
            await send_messages(facts["brokers"]["broker-a"], TOPIC, 5)
            assert "could not be compared" in server.target_check.problem
            async with relay_to(facts["namesrv"], later):
                with trio.fail_after(20):
                    while "the target is the primary" not in server.target_check.problem:
                        await trio.sleep(0.05)
                await send_messages(facts["brokers"]["broker-a"], TOPIC, 5)
                assert await count_messages(primary["brokers"]["broker-a"], TOPIC) == 10

    trio.run(main)


def test_a_loop_that_no_check_saw_ends_after_one_turn(tmp_path):
    """Mirrored requests carry the gateway's mark, and the first that comes back stops the mirror."""

    async def main():
        later = free_port()
        async with (
            served_cluster(tmp_path / "p") as primary,
            served_gateway(
                tmp_path,
                f"primary.namesrv=['{primary['namesrv']}']",
                f"target.namesrv=['127.0.0.1:{later}']",
                "mirroring.breaker_backoff_ms=10",
            ) as (server, facts),
        ):
            server.target_check._check = trio.sleep_forever
            server._guard.allow()
            async with relay_to(facts["namesrv"], later):
                await send_messages(facts["brokers"]["broker-a"], TOPIC, 1)
                with trio.fail_after(20):
                    while not server._guard.problem:
                        await trio.sleep(0.02)
                await send_messages(facts["brokers"]["broker-a"], TOPIC, 9)
                with trio.fail_after(20):
                    while server.mirror.mirror.total_counts().observed < 10:
                        await trio.sleep(0.02)
                stored = await count_messages(primary["brokers"]["broker-a"], TOPIC)
                assert stored in (10, 11), "ten messages, and perhaps one that went around"
                assert "came back to this gateway" in server.target_check.problem

    trio.run(main)


def test_a_target_that_is_silent_for_longer_than_the_first_check_is_a_whole_sentence():
    """The problem began with a full stop until the second check had failed."""

    async def never(address):
        await trio.sleep_forever()

    async def main():
        silent = Cluster(["10.0.0.1:9876"])
        check = TargetCheck(silent, silent, LoopGuard(), never, preserves_offsets=False)
        await check.check_at_start()
        assert check.problem == "the target has not been checked yet. Nothing is mirrored until then"

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_two_clusters_are_not_the_same(tmp_path):
    async def main():
        async with (
            served_cluster(tmp_path / "p") as primary,
            served_cluster(tmp_path / "t") as target,
            served_gateway(
                tmp_path,
                f"primary.namesrv=['{primary['namesrv']}']",
                f"target.namesrv=['{target['namesrv']}']",
            ) as (server, facts),
        ):
            await send_messages(facts["brokers"]["broker-a"], TOPIC, 3)
            with trio.fail_after(20):
                while server.mirror.mirror.total_counts().mirrored < 3:
                    await trio.sleep(0.02)
            assert await count_messages(target["brokers"]["broker-a"], TOPIC) == 3
            assert server.target_check.problem == ""

    trio.run(main)
