"""A running namesrv in virtual time: silent brokers are removed after their timeout."""

import trio
from trio.testing import MockClock

from gateway.config.process import NamesrvConfig
from gateway.namesrv.registration import Registration
from gateway.namesrv.route_table import RouteTable
from gateway.namesrv.service import NamesrvService
from remoting.bodies.routes import QueueData
from remoting.limits import ConnectionLimits
from remoting.server import ServerLimits


class TrioClock:
    """The clock of the event loop."""

    def monotonic(self) -> float:
        return trio.current_time()


class Owner:
    """A broker's connection that notes why it was closed."""

    reason = ""

    def close(self, reason: str) -> None:
        self.reason = reason


def register(routes: RouteTable, owner: Owner, name: str = "broker-a") -> None:
    queues = {topic: QueueData(broker_name=name) for topic in ("T", name)}
    given = Registration(cluster="C", broker_name=name, broker_id=0, address=f"{name}:1", queues=queues)
    routes.register(given, owner)


async def drops_after_120_s() -> None:
    service = NamesrvService(NamesrvConfig(), TrioClock(), ConnectionLimits(), ServerLimits(), memory=True)
    silent, busy = Owner(), Owner()
    register(service.routes, silent)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run, [])
        for _ in range(4):
            register(service.routes, busy, "broker-b")
            await trio.sleep(30)
        assert silent.reason == ""
        register(service.routes, busy, "broker-b")
        await trio.sleep(5.1)
        assert silent.reason == "broker expired"
        assert busy.reason == ""
        assert service.routes.topic_list().topic_list == ["T", "broker-b"]
        await service.stop()


def test_a_silent_broker_is_dropped_at_the_scan_after_120_s() -> None:
    trio.run(drops_after_120_s, clock=MockClock(autojump_threshold=0))
