"""Test helper: two simulated clusters with a mirror between them, and exchanges made by asking the primary."""

import contextlib
import functools
import inspect
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import trio

from codec.command import encode_command
from codec.message import Message, iter_messages
from gateway.broker.broker import Broker
from gateway.shadow.mirror.diverged_queues import DivergedQueues
from gateway.shadow.mirror.mirror import Mirror
from gateway.shadow.mirror.mirror_direction import make_directions
from gateway.shadow.mirror.mirror_factory import MirrorFactory
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.mirror.stream_account import StreamCounts
from gateway.shadow.tests.faulty_target import FaultyTarget
from gateway.shadow.tests.two_clusters import ClusterView
from gateway.shadow.traffic.exchange import Exchange, Side
from gateway.shadow.traffic.outcome import Outcome
from gateway.tests import cluster as simulation
from gateway.tests.cluster import message, pull
from remoting.bodies.topics import TopicConfig
from remoting.connection import Handler
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.tests.virtual import AsyncTest, set_signature

BROKER = "broker-a"
KEYS = itertools.count()


class MirroredClusters:
    """A primary, a target and a mirror, which observes the exchanges made by `ask` as a client of the primary."""

    def __init__(
        self,
        nursery: trio.Nursery,
        clock: simulation.SimClock,
        rules: Sequence[MirrorRule],
        settings: MirrorSettings,
        brokers: str,
    ) -> None:
        primary, target = simulation.Cluster(nursery, clock), simulation.Cluster(nursery, clock)

        def make_primary(handlers: dict[int, Handler]) -> ClusterView:
            self.primary = ClusterView(primary, handlers=handlers)
            return self.primary

        def make_target(handlers: dict[int, Handler]) -> FaultyTarget:
            self.target = FaultyTarget(target, handlers=handlers)
            return self.target

        directions = make_directions(
            settings,
            "mirror@test",
            make_primary,
            make_target,
            simulation.inline,
        )
        self.factory = MirrorFactory(settings, {}, directions, simulation.inline)
        diverged = DivergedQueues(settings.diverged_marks)
        self.mirror = Mirror(MirrorRules(rules), settings, self.factory, diverged, clock.now_ms)
        self.outcomes: list[Outcome] = []
        self.mirror.add_outcome_listener(self.outcomes.append)
        self.brokers = brokers

    def broker_of(self, side: ClusterView) -> Broker:
        return next(each for each in side.simulated.nodes.values() if each.registrar).broker

    def create_topic(self, name: str = "orders", queues: int = 2, side: ClusterView | None = None) -> None:
        config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        self.broker_of(side or self.primary).topics.update([config])

    async def ask(
        self,
        request: Request[Any],
        *,
        oneway: bool = False,
        observed: bool = True,
        side: Side = Side.PRIMARY,
        **more: Any,
    ) -> Exchange:
        """Send a request, let the mirror observe the exchange, and return it."""
        cluster = self.primary if side is Side.PRIMARY else self.target
        command = request.to_command(7, oneway=oneway)
        sent = encode_command(command)
        address = cluster.master(BROKER)
        if oneway:
            (await cluster.connection(address)).send_command(request.to_command())
            answer = None
        else:
            answer = encode_command(await cluster.ask_command(address, request.to_command()))
        exchange = make_broker_exchange(request.code, sent, answer, side=side, **more)
        if observed:
            self.mirror.observe(exchange)
            self.check_counts()
        return exchange

    def observe_held(self, exchange: Exchange) -> list[Any]:
        """Let the mirror observe an exchange; return a list that receives the client's answer when it is released."""
        answers = []
        if not self.mirror.observe(exchange, answers.append):
            answers.append(exchange.answer)
        return answers

    async def send(self, body: bytes, *, topic: str = "orders", **more: Any) -> Exchange:
        key = more.pop("key", None) or f"{next(KEYS):032X}"
        observed = more.pop("observed", True)
        side = more.pop("side", Side.PRIMARY)
        return await self.ask(message(topic, body, key=key, **more), observed=observed, side=side)

    async def bodies(self, side: ClusterView, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
        return [bytes(each.body) for each in await self.messages(side, topic, queue_id)]

    async def messages(self, side: ClusterView, topic: str = "orders", queue_id: int = 0) -> list[Message]:
        found: list[Message] = []
        offset = 0
        while True:
            try:
                reply = await side.ask_broker(
                    BROKER, pull(topic, offset, queue_id=queue_id, group="TOOLS_CONSUMER")
                )
            except RequestError:
                return found
            if reply.code != 0:
                return found
            found += iter_messages(reply.body)
            offset = reply.next_begin_offset

    async def wait_until_idle(self) -> None:
        """Wait until nothing is queued."""
        with trio.fail_after(3600):
            while any(stream.queued for stream in self.mirror.streams()):
                self.check_counts()
                await trio.sleep(0.05)

    def check_counts(self) -> StreamCounts:
        """Assert that observed = mirrored + skipped + refused + dropped + queued; return the total."""
        total = self.mirror.total_counts()
        queued = sum(stream.queued for stream in self.mirror.streams())
        assert total.observed == total.mirrored + total.skipped + total.refused + total.dropped + queued
        return total


def make_broker_exchange(code: int, request: bytes, answer: bytes | None, **more: Any) -> Exchange:
    """Return an exchange with a broker of the primary that has just ended."""
    now_s = trio.current_time()
    given = {
        "connection": 1, "client": "10.0.0.1:50000", "upstream": "10.0.1.1:10911", "broker": BROKER,
        "wall_ms": simulation.EPOCH_MS, "asked_s": now_s, "forwarded_s": now_s, "answered_s": now_s,
    }  # fmt: skip
    return Exchange(code, request, answer, **{**given, **more})


def mirrored(
    *rules: MirrorRule,
    primary: dict[str, Any] | None = None,
    target: dict[str, Any] | None = None,
    **settings: Any,
) -> Callable[[AsyncTest], Callable[..., None]]:
    """Run ``test(world)`` in virtual time with a mirror of these rules and settings."""

    def wrap(test: AsyncTest) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            random.seed(7)
            clock = simulation.SimClock()
            limits = MirrorSettings(**settings)

            async def main() -> None:
                async with trio.open_nursery() as nursery:
                    world = MirroredClusters(nursery, clock, rules or [MirrorRule()], limits, BROKER)
                    for side, more in ((world.primary, primary), (world.target, target)):
                        await nursery.start(side.run)
                        await side.add_broker(**(more or {}))
                    await nursery.start(world.mirror.run)
                    nursery.start_soon(world.factory.run)
                    await test(world, **fixtures)
                    for side in (world.primary, world.target):
                        with contextlib.suppress(Exception):
                            await side.simulated.stop()
                    nursery.cancel_scope.cancel()

            trio.run(main, clock=clock.trio)

        set_signature(run, list(inspect.signature(test).parameters.values())[1:])
        return run

    return wrap
