"""Makes what mirrors need: clusters' counterparts, writers, queues and what they remember, for both directions.

Not responsible for configuration files (config is) nor for clusters' life.
"""

from collections.abc import Callable, Mapping
from functools import partial

import trio

from codec.sysflag import TRANSACTION_NONE
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.supervise import tireless
from gateway.shadow.clusters.broker_pairs import PairedWriter, counterpart
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.mirror.backlog import Backlog
from gateway.shadow.mirror.check_back_producer import CheckBackProducer
from gateway.shadow.mirror.half_messages import HalfMessages
from gateway.shadow.mirror.mirror import ProbedWriter
from gateway.shadow.mirror.mirror_state import MirrorState
from gateway.shadow.mirror.offset_map import OffsetMap
from gateway.shadow.mirror.resend_writer import ResendWriter
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.mirror.spill_backlog import SpillBacklog
from gateway.shadow.mirror.spill_directory import SetAsideDirectory, SpillDirectory, StreamKey
from gateway.shadow.mirror.stream_account import StreamCounts
from gateway.shadow.traffic.exchange import Exchange, Side
from gateway.shadow.traffic.outcome import Writer
from gateway.shadow.traffic.subject import Subject

MakeWriter = Callable[[str, str], Writer]
"""Makes a writer for a broker of the primary and its counterpart at the target."""


class MirrorDirection:
    """What one side's exchanges need to get to the other side.

    `handlers` belong to the cluster written to, which `serve` then names.
    """

    def __init__(
        self, settings: MirrorSettings, client_id: str, suffix: str, run_blocking: RunBlocking
    ) -> None:
        path = settings.state_file and settings.state_file + suffix
        halves = HalfMessages(settings.half_messages)
        interval_s = settings.state_interval_ms / 1000
        self.state = MirrorState(OffsetMap(settings.offset_runs), halves, path, interval_s, run_blocking)
        self.producer = CheckBackProducer(client_id, halves)

    async def run(self) -> None:
        """Keeps state and producers, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tireless, self.state.run)
            nursery.start_soon(tireless, self.producer.run)


class MirrorFactory:
    """See `mirrors.Making`. ``declared`` maps the primary's broker names to the target's; ``target`` is a text that
    tells this target from others."""

    def __init__(
        self,
        settings: MirrorSettings,
        declared: Mapping[str, str],
        client_id: str,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
        target: str = "",
    ) -> None:
        self._settings = settings
        self._resuming = SpillDirectory(settings, target, run_blocking)
        self._run_blocking = run_blocking
        self._declared = {
            Side.PRIMARY: dict(declared),
            Side.TARGET: {theirs: ours for ours, theirs in declared.items()},
        }
        self.directions = {
            Side.PRIMARY: MirrorDirection(settings, client_id, "", run_blocking),
            Side.TARGET: MirrorDirection(settings, client_id, ".back", run_blocking),
        }
        self._clusters: dict[Side, Cluster] = {}
        self._make_forward: MakeWriter | None = None

    def write_forward_with(self, make: MakeWriter) -> None:
        """Sets another writer to the target than `SentWriter`, such as one that keeps offsets."""
        self._make_forward = make

    def serve(self, primary: Cluster, target: Cluster) -> None:
        """Says which clusters there are; their handlers are those of the direction that writes to them."""
        self._clusters = {Side.PRIMARY: primary, Side.TARGET: target}
        self.directions[Side.PRIMARY].producer.serve(target)
        self.directions[Side.TARGET].producer.serve(primary)
        for direction in self.directions.values():
            direction.state.load_file()

    async def run(self) -> None:
        """Keeps what both directions remember, until cancelled."""
        async with trio.open_nursery() as nursery:
            for direction in self.directions.values():
                nursery.start_soon(direction.run)

    def writer(self, side: Side, broker: str, counts: Callable[[], StreamCounts]) -> ProbedWriter:
        """For what a broker answered, on which side."""
        other = Side.TARGET if side is Side.PRIMARY else Side.PRIMARY
        source, target = self._clusters[side], self._clusters[other]
        direction, opposite = self.directions[side], self.directions[other]

        def make(target_broker: str) -> Writer:
            if side is Side.PRIMARY and self._make_forward is not None:
                return self._make_forward(broker, target_broker)
            direction.producer.map_broker(broker, target_broker)
            parts = direction.state, direction.producer, counts, opposite.state.offsets
            named = partial(self._name_at, side, broker)
            return ResendWriter(source, target, broker, target_broker, *parts, named)

        return PairedWriter(target, broker, self._declared[side], make)

    def _name_at(self, side: Side, broker: str) -> str:
        """What one side calls a broker of the primary. Raises LookupError."""
        if side is Side.PRIMARY:
            return broker
        return counterpart(broker, self._clusters[side].brokers, self._declared[Side.PRIMARY])

    def backlog(self, place: StreamKey, rule: MirrorRule) -> Backlog:
        """For the stream of a rule and broker."""
        settings = self._settings
        if settings.spill == "disk":
            directory, owner = self._resuming.stream_path(place), self._resuming.stream_owner(rule)
            return SpillBacklog(settings, directory, self._run_blocking, owner)
        return Backlog(settings.queue_messages, settings.queue_bytes)

    def left(self, rules: MirrorRules) -> list[StreamKey]:
        """The streams an earlier run left something for."""
        return self._resuming.find_resumable(rules)

    async def aside(self) -> list[SetAsideDirectory]:
        """What earlier runs left for another configuration."""
        return await self._resuming.read_set_aside()

    def ended(self, exchange: Exchange, subject: Subject) -> None:
        """Remembers how a half message ended whose end did not get to the target, which will ask."""
        halves = self.directions[exchange.side].state.halves
        half = halves.find_half(exchange.broker, subject.unique_key)
        if half is not None:
            half.record_decision(max(subject.number, TRANSACTION_NONE))
            halves.note_change()

    def half_topic(self, exchange: Exchange, subject: Subject) -> str:
        """The topic of a half message that was sent before this process began; "" when it is not known."""
        half = self.directions[exchange.side].state.halves.find_half(exchange.broker, subject.unique_key)
        return half.topic if half is not None else ""
