"""A gateway for tests of moves, with simulated clusters, producers and consumers.

It passes requests to either cluster as a director says, mirrors sends of the primary to the target, and can be killed.
"""

import itertools
from collections.abc import Set
from typing import Any

import trio

from codec.command import Command, encode_command
from gateway.shadow.clusters.cluster_pair import ClusterPair
from gateway.shadow.cutover.bypass_watch import BypassWatch
from gateway.shadow.cutover.checks import MoveChecks
from gateway.shadow.cutover.director import MoveDirector
from gateway.shadow.cutover.move_file import MoveFile
from gateway.shadow.cutover.move_traffic import SEND_CODES, MoveTraffic, topic_of_send
from gateway.shadow.cutover.mover import Mover
from gateway.shadow.cutover.settings import CutoverSettings
from gateway.shadow.tests.two_clusters import ClusterView
from gateway.shadow.traffic.exchange import Exchange, Hub, Side
from gateway.tests.cluster import bodies, inline, message, pull
from remoting.declare import Request
from remoting.requests.offsets import UpdateConsumerOffset
from storage.files import MemoryFiles

OPAQUES = itertools.count(1)
STATE = "/shadow/moves.json"


class SimulatedMirror:
    """Resends messages of the primary to the target in order, `delay_s` later. An `Observer` and a `MirrorControl`."""

    def __init__(self, target: ClusterView, delay_s: float = 0.01) -> None:
        self.target = target
        self.delay_s = delay_s
        self.stopped: set[str] = set()
        self.queue: list[tuple[str, Command]] = []
        self.wake = trio.Event()

    def codes(self) -> Set[int]:
        return SEND_CODES

    def observe(self, exchange: Exchange) -> None:
        topic = topic_of_send(exchange.request_command)
        if exchange.side is Side.PRIMARY and topic not in self.stopped and exchange.answer_command.code == 0:
            self.queue.append((topic, exchange.request_command))
            self.wake.set()

    async def run(self) -> None:
        while True:
            await self.wake.wait()
            while self.queue:
                await trio.sleep(self.delay_s)
                await self.target.ask_command(self.target.master("broker-a"), self.queue[0][1])
                self.queue.pop(0)
            self.wake = trio.Event()

    def count_waiting(self, topic: str) -> int:
        return sum(each == topic for each, _ in self.queue)

    def stop_mirroring(self, topic: str) -> None:
        self.stopped.add(topic)

    def resume_mirroring(self, topic: str) -> None:
        self.stopped.discard(topic)

    def is_led_by_target(self, topic: str) -> bool:
        return False


class SimulatedGateway:
    """Takes requests like a proxy, by `ask`. `restart` loses everything that is not in files."""

    def __init__(
        self,
        primary: ClusterView,
        target: ClusterView,
        files: MemoryFiles,
        nursery: trio.Nursery,
        *,
        preserves_offsets: bool = True,
        settings: CutoverSettings | None = None,
    ) -> None:
        self.primary, self.target, self.files, self.nursery = primary, target, files, nursery
        self.preserves_offsets = preserves_offsets
        self.settings = settings or CutoverSettings(state_file=STATE)
        self.mirror = SimulatedMirror(target)
        nursery.start_soon(self.mirror.run)
        self.restart()

    def restart(self) -> None:
        self.hub, self.traffic = Hub(), MoveTraffic()
        self.director = MoveDirector(self.hub, self.traffic)
        self.hub.set_director(self.director)
        self.hub.add_observer(self.traffic)
        self.hub.add_observer(self.mirror)
        self.mirror.stopped.clear()
        sides = ClusterPair(self.primary, self.target, lambda broker: broker, self.preserves_offsets)
        clock = self.primary.simulated.clock
        self.checks = MoveChecks(sides, self.traffic, self.mirror, self.settings, clock.now_ms)
        book = MoveFile(self.files, self.settings.state_file, inline)
        self.bypass = BypassWatch(sides, lambda: book)
        self.mover = Mover(book, self.director, self.checks, self.settings, clock.now_ms, self.bypass)
        self.mover.resume_moves()

    async def ask(self, request: Request[Any]) -> tuple[Any, Side]:
        """Return the typed answer of a request, and the side that it came from."""
        command = request.to_command(next(OPAQUES))
        frame = encode_command(command)
        side = await self._wait_for_side(request.code, frame)
        cluster = self.primary if side is Side.PRIMARY else self.target
        begun = trio.current_time()
        answer = await cluster.ask_command(cluster.master("broker-a"), command, 60)
        times = {"asked_s": begun, "forwarded_s": begun, "answered_s": trio.current_time()}
        self.hub.publish_exchange(
            Exchange(
                request.code, frame, encode_command(answer), connection=1, client="c", upstream="u", wall_ms=0,
                broker="broker-a", side=side, **times,
            )
        )  # fmt: skip
        return request.read_reply(answer), side

    async def _wait_for_side(self, code: int, frame: bytes) -> Side:
        while True:
            side = self.hub.choose_side(code, frame) if self.hub.is_directed(code) else Side.PRIMARY
            if side is not Side.WAIT:
                return side
            decided = trio.Event()
            self.hub.call_after_decision(decided.set)
            await decided.wait()


class SimulatedProducer:
    """Sends numbered messages of a topic to its queues in turn, one at a time, until `stopped` is set."""

    def __init__(
        self, gateway: SimulatedGateway, topic: str = "orders", queues: int = 2, pause_s: float = 0.05
    ) -> None:
        self.gateway, self.topic, self.queues, self.pause_s = gateway, topic, queues, pause_s
        self.sent: list[tuple[int, bytes, Side]] = []
        self.slowest_s = 0.0
        self.stopped = False

    async def run(self) -> None:
        for number in itertools.count():
            if self.stopped:
                return
            queue, body = number % self.queues, b"%d" % number
            begun = trio.current_time()
            _, side = await self.gateway.ask(
                message(self.topic, body, queue_id=queue, key=f"K{self.topic}{number}")
            )
            self.slowest_s = max(self.slowest_s, trio.current_time() - begun)
            self.sent.append((queue, body, side))
            await trio.sleep(self.pause_s)

    def of(self, queue: int) -> list[bytes]:
        return [body for at, body, _ in self.sent if at == queue]


class SimulatedConsumer:
    """The only consumer of a group: pulls each queue, with long polls if `wait_ms` is set, and commits its offsets."""

    def __init__(
        self,
        gateway: SimulatedGateway,
        topic: str = "orders",
        group: str = "GID",
        queues: int = 2,
        pause_s: float = 0.2,
        wait_ms: int = 0,
    ) -> None:
        self.gateway, self.topic, self.group, self.pause_s = gateway, topic, group, pause_s
        self.wait_ms = wait_ms
        self.offsets = dict.fromkeys(range(queues), 0)
        self.got: list[tuple[int, bytes]] = []
        self.sides: list[Side] = []

    async def run(self) -> None:
        if self.wait_ms:
            async with trio.open_nursery() as nursery:
                for queue in self.offsets:
                    nursery.start_soon(self._poll_queue, queue)
        while True:
            for queue in self.offsets:
                await self.pull_once(queue)
            await trio.sleep(self.pause_s)

    async def _poll_queue(self, queue: int) -> None:
        while True:
            await self.pull_once(queue)

    async def pull_once(self, queue: int) -> None:
        request = pull(
            self.topic, self.offsets[queue], queue_id=queue, group=self.group, wait_ms=self.wait_ms
        )
        reply, side = await self.gateway.ask(request)
        if reply.code in (0, 21):
            self.got += [(queue, body) for body in bodies(reply)]
            self.sides += [side] * len(bodies(reply))
            self.offsets[queue] = reply.next_begin_offset
        await self.gateway.ask(
            UpdateConsumerOffset(
                consumer_group=self.group, topic=self.topic, queue_id=queue, commit_offset=self.offsets[queue]
            )
        )

    def of(self, queue: int) -> list[bytes]:
        return [body for at, body in self.got if at == queue]
