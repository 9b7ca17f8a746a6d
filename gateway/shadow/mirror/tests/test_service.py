"""The mirror service as a whole, between two simulated clusters."""

import logging

import trio

from codec.command import encode_command
from gateway.shadow.mirror.service import MirrorService
from gateway.shadow.mirror.settings import MirrorSettings
from gateway.shadow.tests.mirrored_clusters import make_broker_exchange
from gateway.shadow.tests.two_clusters import ClusterView, two_clusters
from gateway.shadow.traffic.exchange import Hub
from gateway.tests.cluster import message


class SecondView(ClusterView):
    """A second cluster object for the same simulated servers."""

    def __init__(self, other, handlers):
        super().__init__(other.simulated, handlers=handlers)


async def send(hub, primary, number):
    request = message("orders", b"%d" % number, key=f"{number:032X}")
    answer = await primary.ask_command(primary.master("broker-a"), request.to_command())
    hub.publish_exchange(
        make_broker_exchange(310, encode_command(request.to_command(number)), encode_command(answer))
    )


@two_clusters
async def test_service_mirrors_a_hubs_exchanges_and_drains(primary, target, caplog):
    service = MirrorService(
        [], MirrorSettings(drain_ms=500), {},
        lambda handlers: SecondView(primary, handlers), lambda handlers: SecondView(target, handlers),
    )  # fmt: skip
    hub = Hub()
    service.attach_to(hub)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        for number in range(50):
            await send(hub, primary, number)
        await service.drain()
        assert service.mirror.total_counts().mirrored == 50
        for node in target.simulated.nodes.values():
            await node.stop()
        await send(hub, primary, 50)
        before_s = trio.current_time()
        with caplog.at_level(logging.WARNING):
            await service.drain()
        assert 0.4 < trio.current_time() - before_s < 0.6
        assert "exchanges still queued at shutdown" in caplog.text
        nursery.cancel_scope.cancel()
