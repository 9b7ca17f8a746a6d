"""Test helper: a primary and a target in memory and in virtual time, as the gateway sees them."""

import functools
import inspect
import itertools
import random
from collections.abc import Callable
from typing import Any

import trio
from trio.testing import memory_stream_pair

from gateway.broker.broker import Broker
from gateway.shadow.clusters.cluster import Cluster
from gateway.tests import cluster as simulation
from remoting.tests.virtual import AsyncTest, set_signature
from remoting.transport import StreamTransport, Transport

PORTS = itertools.count(60_000)


class ClusterView(Cluster):
    """A simulated cluster as the gateway sees it; its servers are in `simulated`."""

    def __init__(self, simulated: simulation.Cluster, **settings: Any) -> None:
        super().__init__([":".join(map(str, simulation.NAMESRV))], opener=self._dial, **settings)
        self.simulated = simulated

    async def _dial(self, host: str, port: int) -> Transport:
        node = self.simulated.nodes.get((host, port))
        if node is None or node.ended.is_set():
            raise ConnectionRefusedError(f"nobody at {host}:{port}")
        here, there = memory_stream_pair()
        own = ("10.9.0.1", next(PORTS))
        serve = node.service.server.serve_transport
        self.simulated.nursery.start_soon(serve, StreamTransport(there, remote=own, local=(host, port)))
        return StreamTransport(here, remote=(host, port), local=own)

    async def add_broker(self, name: str = "broker-a", **settings: Any) -> Broker:
        """Start a broker, and a namesrv before the first one."""
        if not self.simulated.nodes:
            await self.simulated.namesrv()
        node = await self.simulated.add_broker(name, **settings)
        await self.refresh()
        return node.broker


def two_clusters(test: AsyncTest) -> Callable[..., None]:
    """Run ``test(primary, target, …)`` in virtual time; each cluster starts with one broker, broker-a."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        random.seed(7)
        clock = simulation.SimClock()

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                sides = [ClusterView(simulation.Cluster(nursery, clock)) for _ in range(2)]
                for side in sides:
                    await nursery.start(side.run)
                    await side.add_broker()
                await test(*sides, **fixtures)
                for side in sides:
                    await side.simulated.stop()
                nursery.cancel_scope.cancel()

        trio.run(main, clock=clock.trio)

    set_signature(run, list(inspect.signature(test).parameters.values())[2:])
    return run
