"""Makes the parts of mirror streams, for both directions: target writers, backlogs, and the state they share.

A mirror usually sends what the primary answered to the target. While the target leads a topic (mode target-primary), it
sends what the target answered back to the primary. So there are two `MirrorDirection`s, each with its own offset map,
half messages and check-back producer, and a writer needs both: an offset that was learned on the way there is
translated on the way back.
"""

from collections.abc import Callable, Mapping
from functools import partial

import trio

from codec.sysflag import TRANSACTION_NONE
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.clusters.broker_pairs import PairedWriter, find_counterpart
from gateway.shadow.mirror.backlog import Backlog, BacklogListener
from gateway.shadow.mirror.check_back_producer import CheckBackProducer, MakeCluster
from gateway.shadow.mirror.half_messages import HalfMessages
from gateway.shadow.mirror.mirror_state import MirrorState
from gateway.shadow.mirror.mirror_stream import ProbedWriter
from gateway.shadow.mirror.offset_map import OffsetMap
from gateway.shadow.mirror.resend_writer import ResendWriter
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.mirror.spill_backlog import SpillBacklog
from gateway.shadow.mirror.spill_directory import SetAsideDirectory, SpillDirectory, StreamKey
from gateway.shadow.mirror.stream_account import StreamCounts
from gateway.shadow.traffic.exchange import Exchange, Side
from gateway.shadow.traffic.outcome import TargetWriter
from gateway.shadow.traffic.subject import Subject

MakeWriter = Callable[[str, str], TargetWriter]
"""Makes a writer for a broker of the primary and its counterpart at the target."""


class MirrorDirection:
    """The cluster that one side's exchanges are written to, with the state and the producer for it.

    ``suffix`` is appended to the name of the state file, which the constructor reads.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        client_id: str,
        suffix: str,
        make_destination: MakeCluster,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
    ) -> None:
        path = settings.state_file and settings.state_file + suffix
        halves = HalfMessages(settings.half_messages)
        interval_s = settings.state_interval_ms / 1000
        self.state = MirrorState(OffsetMap(settings.offset_runs), halves, path, interval_s, run_blocking)
        self.producer = CheckBackProducer(client_id, halves, make_destination)
        self.destination = self.producer.target
        self.tasks = TaskSupervisor("mirror back" if suffix else "mirror forth")
        self.state.load_file()

    async def run(self) -> None:
        """Write the state file and send the producer's heartbeats, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tasks.keep_running, "save the mirror state", self.state.run)
            nursery.start_soon(self.tasks.keep_running, "heartbeats as a producer", self.producer.run)


def make_directions(
    settings: MirrorSettings,
    client_id: str,
    make_primary: MakeCluster,
    make_target: MakeCluster,
    run_blocking: RunBlocking = trio.to_thread.run_sync,
) -> dict[Side, MirrorDirection]:
    """Return both directions, keyed by the side whose exchanges are written to the other side."""
    return {
        Side.PRIMARY: MirrorDirection(settings, client_id, "", make_target, run_blocking),
        Side.TARGET: MirrorDirection(settings, client_id, ".back", make_primary, run_blocking),
    }


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
        """Return the backlog of a stream, with files behind it if the settings ask for them."""
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
