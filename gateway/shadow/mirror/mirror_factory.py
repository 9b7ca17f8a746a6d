"""Makes the parts of mirror streams, for both directions: target writers and backlogs.

A writer needs both `MirrorDirection`s: an offset that was learned on the way to the target is translated on the way
back.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import trio

from codec.sysflag import TRANSACTION_NONE
from gateway.runtime.run_blocking import RunBlocking
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.clusters.cluster_pair import find_counterpart
from gateway.shadow.mirror.backlog import Backlog, BacklogListener
from gateway.shadow.mirror.mirror_direction import MirrorDirection
from gateway.shadow.mirror.mirror_stream import ProbedWriter
from gateway.shadow.mirror.resend_writer import ResendWriter
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.mirror.spill_backlog import SpillBacklog
from gateway.shadow.mirror.spill_directory import SetAsideDirectory, SpillDirectory, StreamKey
from gateway.shadow.mirror.stream_account import StreamCounts
from gateway.shadow.traffic.exchange import Exchange, Side
from gateway.shadow.traffic.outcome import Outcome, TargetWriter
from gateway.shadow.traffic.subject import Subject
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerRuntimeInfo

MakeWriter = Callable[[str, str], TargetWriter]
"""Makes a writer for a broker of the primary and its counterpart at the target."""


class MirrorFactory:
    """Makes a writer and a backlog for each stream.

    ``declared`` maps the primary's broker names to the target's. ``target_identity`` is a text that differs from one
    target to another; spill files of one are never resumed for another. ``make_forward_writer`` replaces
    `ResendWriter` on the way to the target.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        declared: Mapping[str, str],
        directions: Mapping[Side, MirrorDirection],
        run_blocking: RunBlocking = trio.to_thread.run_sync,
        target_identity: str = "",
        make_forward_writer: MakeWriter | None = None,
    ) -> None:
        self.directions = directions
        self._settings = settings
        self._spill_directory = SpillDirectory(settings, target_identity, run_blocking)
        self._run_blocking = run_blocking
        self._counterparts = {
            Side.PRIMARY: dict(declared),
            Side.TARGET: {target_name: primary_name for primary_name, target_name in declared.items()},
        }
        self._clusters = {
            Side.PRIMARY: directions[Side.TARGET].destination,
            Side.TARGET: directions[Side.PRIMARY].destination,
        }
        self._make_forward_writer = make_forward_writer

    async def run(self) -> None:
        """Run both directions, until cancelled."""
        async with trio.open_nursery() as nursery:
            for direction in self.directions.values():
                nursery.start_soon(direction.run)

    def make_writer(self, side: Side, broker: str, counts: StreamCounts) -> ProbedWriter:
        """Return the writer for a broker's exchanges that one side answered. ``broker`` is its name at the primary."""
        other = Side.TARGET if side is Side.PRIMARY else Side.PRIMARY
        source, target = self._clusters[side], self._clusters[other]
        direction, opposite = self.directions[side], self.directions[other]

        def make(target_broker: str) -> TargetWriter:
            if side is Side.PRIMARY and self._make_forward_writer is not None:
                return self._make_forward_writer(broker, target_broker)
            direction.producer.map_broker(broker, target_broker)
            return ResendWriter(
                source,
                target,
                broker,
                target_broker,
                direction.state,
                direction.producer,
                counts,
                opposite.state.offsets,
                partial(self._broker_name_at, side, broker),
            )

        return PairedWriter(target, broker, self._counterparts[side], make)

    def _broker_name_at(self, side: Side, broker: str) -> str:
        """Return the name that one side uses for a broker of the primary. Raises LookupError."""
        if side is Side.PRIMARY:
            return broker
        return find_counterpart(broker, self._clusters[side].brokers, self._counterparts[Side.PRIMARY])

    def make_backlog(self, key: StreamKey, rule: MirrorRule, listener: BacklogListener) -> Backlog:
        """Return the backlog of a stream, with a spill queue on disk if the settings ask for one."""
        settings = self._settings
        if settings.spill == "disk":
            path, owner = self._spill_directory.stream_path(key), self._spill_directory.stream_owner(rule)
            return SpillBacklog(settings, listener, path, self._run_blocking, owner)
        return Backlog(settings.queue_messages, settings.queue_bytes, listener)

    def find_resumable_streams(self, rules: MirrorRules) -> list[StreamKey]:
        """Return the streams whose spill files of an earlier run are resumed."""
        return self._spill_directory.find_resumable(rules)

    async def find_set_aside(self) -> list[SetAsideDirectory]:
        """Return the spill directories that belong to another configuration."""
        return await self._spill_directory.read_set_aside()

    def note_undelivered_end(self, exchange: Exchange, subject: Subject) -> None:
        """Remember the decision of an END_TRANSACTION that was not delivered, as the answer to a later check-back."""
        halves = self.directions[exchange.side].state.halves
        half = halves.find_half(exchange.broker, subject.unique_key)
        if half is not None:
            half.record_decision(max(subject.number, TRANSACTION_NONE))
            halves.note_change()

    def find_half_topic(self, exchange: Exchange, subject: Subject) -> str:
        """Return the topic of a half message that an earlier process sent; "" when it is not known."""
        halves = self.directions[exchange.side].state.halves
        half = halves.find_half(exchange.broker, subject.unique_key)
        return half.topic if half is not None else ""


class PairedWriter:
    """A `TargetWriter` that is created when its cluster first answers; until then writing fails."""

    def __init__(
        self,
        cluster: Cluster,
        broker: str,
        declared: Mapping[str, str],
        make: Callable[[str], TargetWriter],
    ) -> None:
        self._cluster = cluster
        self._broker = broker
        self._declared = declared
        self._make = make
        self._writer: TargetWriter | None = None
        self._name = ""

    async def write(self, exchanges: Sequence[Exchange]) -> list[Outcome]:
        """See `TargetWriter`."""
        if self._writer is None:
            self._writer = self._make(await self._find_broker())
        return await self._writer.write(exchanges)

    async def probe(self) -> None:
        """Send a request that changes nothing to the counterpart. Raises CLUSTER_ERRORS, LookupError."""
        await self._cluster.refresh()
        name = self._name or await self._find_broker()
        with contextlib.suppress(RequestError):  # a broker that refuses is reachable
            await self._cluster.ask_broker(name, GetBrokerRuntimeInfo())

    async def _find_broker(self) -> str:
        if not self._cluster.brokers:
            await self._cluster.refresh()
        self._name = find_counterpart(self._broker, self._cluster.brokers, self._declared)
        return self._name
