"""Test helper: two simulated clusters with a mirror between them, and exchanges made by asking the primary."""

import contextlib
import functools
import inspect
import itertools
import random

import trio

from codec.command import encode_command
from codec.message import iter_messages
from gateway.shadow.mirror.diverged_queues import DivergedQueues
from gateway.shadow.mirror.mirror import Mirror
from gateway.shadow.mirror.mirror_factory import MirrorFactory, make_directions
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.tests.faulty_target import FaultyTarget
from gateway.shadow.tests.two_clusters import Seen
from gateway.shadow.traffic.exchange import Exchange, Side
from gateway.tests import cluster as simulation
from gateway.tests.cluster import message, pull
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError

BROKER = "broker-a"
KEYS = itertools.count()


class MirroredClusters:
    """A primary, a target and a mirror, which observes the exchanges made by `ask` as a client of the primary."""

    def __init__(self, nursery, clock, rules, settings, brokers):
        primary, target = simulation.Cluster(nursery, clock), simulation.Cluster(nursery, clock)
        directions = make_directions(
            settings,
            "mirror@test",
            lambda handlers: Seen(primary, handlers=handlers),
            lambda handlers: FaultyTarget(target, handlers=handlers),
            simulation.inline,
        )
        self.primary = directions[Side.TARGET].destination
        self.target = directions[Side.PRIMARY].destination
        self.factory = MirrorFactory(settings, {}, directions, simulation.inline)
        diverged = DivergedQueues(settings.diverged_marks)
        self.mirror = Mirror(MirrorRules(rules), settings, self.factory, diverged, clock.now_ms)
        self.outcomes = []
        self.mirror.add_outcome_listener(self.outcomes.append)
        self.brokers = brokers

    def broker_of(self, side):
        return next(each for each in side.simulated.nodes.values() if each.registrar).broker

    def create_topic(self, name="orders", queues=2, side=None):
        config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        self.broker_of(side or self.primary).topics.update([config])

    async def ask(self, request, *, oneway=False, observed=True, side=Side.PRIMARY, **more):
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

    def observe_held(self, exchange):
        """Let the mirror observe an exchange; return a list that receives the client's answer when it is released."""
        answers = []
        self.mirror.observe(exchange)
        if not self.mirror.answer_holder.hold_answer(exchange, answers.append):
            answers.append(exchange.answer)
        return answers

    async def send(self, body, *, topic="orders", **more):
        key = more.pop("key", None) or f"{next(KEYS):032X}"
        observed = more.pop("observed", True)
        side = more.pop("side", Side.PRIMARY)
        return await self.ask(message(topic, body, key=key, **more), observed=observed, side=side)

    async def bodies(self, side, topic="orders", queue_id=0):
        return [bytes(each.body) for each in await self.messages(side, topic, queue_id)]

    async def messages(self, side, topic="orders", queue_id=0):
        found, offset = [], 0
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

    async def wait_until_idle(self):
        """Wait until nothing is queued."""
        with trio.fail_after(3600):
            while any(stream.queued for stream in self.mirror.streams()):
                self.check_counts()
                await trio.sleep(0.05)

    def check_counts(self):
        """Assert that observed = mirrored + skipped + refused + dropped + queued; return the total."""
        total = self.mirror.total_counts()
        queued = sum(stream.queued for stream in self.mirror.streams())
        assert total.observed == total.mirrored + total.skipped + total.refused + total.dropped + queued
        return total


def make_broker_exchange(code, request, answer, **more):
    """Return an exchange with a broker of the primary that has just ended."""
    now_s = trio.current_time()
    given = {
        "connection": 1, "client": "10.0.0.1:50000", "upstream": "10.0.1.1:10911", "broker": BROKER,
        "wall_ms": simulation.EPOCH_MS, "asked_s": now_s, "forwarded_s": now_s, "answered_s": now_s,
    }  # fmt: skip
    return Exchange(code, request, answer, **{**given, **more})


def mirrored(*rules, primary=None, target=None, **settings):
    """Run ``test(world)`` in virtual time with a mirror of these rules and settings."""

    def wrap(test):
        @functools.wraps(test)
        def run(**fixtures):
            random.seed(7)
            clock = simulation.SimClock()
            limits = MirrorSettings(**settings)

            async def main():
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

        signature = inspect.signature(test)
        run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
        return run

    return wrap
