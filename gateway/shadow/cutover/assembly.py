"""Builds the cut-over of a gateway from its configuration and its other parts."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.runtime.metrics import MetricRegistry
from gateway.runtime.state_file import absolute_path
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.clusters.cluster_pair import ClusterPair, find_counterpart
from gateway.shadow.clusters.full_sync import FullSync
from gateway.shadow.compare.parity import (
    PARITY_OF_MOVES,
    ComparedClusters,
    ParityOptions,
    ParityRange,
    ParityResult,
    compare_topics,
)
from gateway.shadow.cutover.bypass_watch import BypassWatch
from gateway.shadow.cutover.checks import MoveCheck, MoveChecks
from gateway.shadow.cutover.console_routes import CutoverConsoleRoutes
from gateway.shadow.cutover.director import MoveDirector
from gateway.shadow.cutover.mode_switch import ModeSwitch
from gateway.shadow.cutover.move_file import MoveFile
from gateway.shadow.cutover.move_traffic import MoveTraffic
from gateway.shadow.cutover.mover import Mover
from gateway.shadow.cutover.settings import CutoverSettings
from gateway.shadow.mirror.mirror import Mirror
from gateway.shadow.mirror.service import MirrorService
from gateway.shadow.mirror.settings import OFF
from gateway.shadow.traffic.exchange import Hub, Side
from storage.clock import SystemClock
from storage.files import DiskFiles

KIND_OURS: Final = "ours"
MAX_SHOWN_TOPICS: Final = 100
"""Topics whose last parity check the report shows."""


def pair_clusters(primary: Cluster, target: Cluster, declared: Mapping[str, str], kind: str) -> ClusterPair:
    """Return the two clusters as a pair.

    ``declared`` maps the primary's broker names to the target's; ``kind`` is the kind of the target.
    """

    def name(broker: str) -> str:
        return find_counterpart(broker, target.brokers, declared)

    return ClusterPair(primary, target, name, kind == KIND_OURS)


def open_move_file(settings: CutoverSettings) -> MoveFile:
    """Open the file of moves. Raises SettingsError if it cannot be read."""
    return MoveFile(DiskFiles(), absolute_path(settings.state_file))


class ModeMirrorControl:
    """Stops and resumes mirroring of a topic by its mode; a mode that was set by hand is restored afterwards."""

    def __init__(self, mirrors: Mirror) -> None:
        self._mirrors = mirrors
        self._before: dict[str, str | None] = {}

    def count_waiting(self, topic: str) -> int:
        """See `MirrorControl.count_waiting`."""
        return self._mirrors.count_queued_of(topic)

    def is_led_by_target(self, topic: str) -> bool:
        """See `MirrorControl.is_led_by_target`."""
        return self._mirrors.rules.target_leads(topic)

    def stop_mirroring(self, topic: str) -> None:
        """See `MirrorControl.stop_mirroring`."""
        # Several steps stop the same topic. Only the first one sees the mode that was set by hand.
        if topic not in self._before:
            self._before[topic] = self._mirrors.rules.mode_overrides().get(topic)
            self._mirrors.moved_topics.add(topic)
            self._mirrors.set_mode(topic, OFF)

    def resume_mirroring(self, topic: str) -> None:
        """See `MirrorControl.resume_mirroring`."""
        if topic in self._before:
            self._mirrors.moved_topics.discard(topic)
            self._mirrors.apply_mode(topic, self._before.pop(topic) or "")


class ParityCheck:
    """Compares the content of a topic: the last `parity_s` seconds, and everything since mirroring first lacked a
    message.
    """

    def __init__(
        self, clusters: ClusterPair, settings: CutoverSettings, mirrors: Mirror, now_ms: Callable[[], int]
    ) -> None:
        self._clusters = ComparedClusters(clusters.primary, clusters.target, clusters.counterpart)
        self._how = ParityOptions(same_offsets=clusters.preserves_offsets, lag_s=settings.catch_up_ms / 1000)
        self._settings = settings
        self._mirrors = mirrors
        self._now_ms = now_ms
        self._results: dict[str, ParityResult] = {}
        self._checked_ms = 0

    def last_result(self) -> dict[str, Any]:
        """Return the last results of all topics together as a JSON object; empty before the first check."""
        if not self._results:
            return {}
        merged = ParityResult(seconds=sum(result.seconds for result in self._results.values()))
        for result in self._results.values():
            merged.queues += result.queues
        return {"at_ms": self._checked_ms, PARITY_OF_MOVES: list(self._results), **merged.to_value()}

    async def __call__(self, topic: str, not_before_ms: int) -> MoveCheck:
        """Return the check called parity. Raises CLUSTER_ERRORS."""
        marks = self._mirrors.diverged.marks_of_topic(topic)
        wanted_ms = [self._now_ms() - self._settings.parity_s * 1000, *(mark.since_ms for mark in marks)]
        since_ms = max(min(wanted_ms), not_before_ms)
        result = await compare_topics(
            self._clusters, [topic], self._how, self._now_ms, ParityRange(from_ms=since_ms)
        )
        self._results.pop(topic, None)  # so that the latest are the last
        self._results[topic] = result
        while len(self._results) > MAX_SHOWN_TOPICS:
            del self._results[next(iter(self._results))]
        self._checked_ms = self._now_ms()
        return judge_parity(result)


def judge_parity(result: ParityResult) -> MoveCheck:
    """Return the check for a parity result.

    It holds if the clusters differ in nothing but the places of messages that have no place of their own.
    """
    names = ("missing", "extra", "duplicated", "changed", "problems")
    wrong = {name: result.total(name) for name in names}
    wrong["reordered"] = sum(queue.disordered for queue in result.queues)
    reason = ", ".join(f"{count} {name}" for name, count in wrong.items() if count)
    measured = f"{result.total('same')} of {result.total('primary')} messages are the same"
    apart = result.total("reordered") - wrong["reordered"]
    if apart:
        measured += f", {apart} at other places, where transactions end or delays are over"
    return MoveCheck("parity", not reason, measured, reason)


class Cutover:
    """The cut-over of one gateway. Call `resume_moves` before the first client is served."""

    def __init__(
        self,
        settings: CutoverSettings,
        hub: Hub,
        service: MirrorService,
        declared: Mapping[str, str],
        kind: str,
        target_problem: Callable[[], str] = lambda: "",
        *,
        replicates_dead_letters: bool = True,
    ) -> None:
        clock = SystemClock()
        traffic = MoveTraffic()
        self.director = MoveDirector(hub, traffic, service.mirror.rules)
        hub.set_director(self.director)
        hub.add_observer(traffic)
        clusters = pair_clusters(service.primary, service.target, declared, kind)
        self.parity = parity = (
            ParityCheck(clusters, settings, service.mirror, clock.now_ms) if settings.parity_s else None
        )
        checks = MoveChecks(
            clusters,
            traffic,
            ModeMirrorControl(service.mirror),
            settings,
            clock.now_ms,
            parity,
            target_problem,
        )
        moves = open_move_file(settings)
        self.bypass = BypassWatch(clusters, lambda: moves)
        self.mover = Mover(
            moves,
            self.director,
            checks,
            settings,
            clock.now_ms,
            self.bypass,
            replicates_dead_letters=replicates_dead_letters,
        )
        self.mode_switch = ModeSwitch(
            service.mirror, self.mover, self.director, service.open_mode_overrides()
        )
        offsets = service.factory.directions[Side.PRIMARY].state.offsets
        self.console_routes = CutoverConsoleRoutes(
            self.mover,
            FullSync(
                clusters,
                lambda broker, topic, queue, offset: offsets.translate((broker, topic, queue), offset),
            ),
        )

    def resume_moves(self) -> None:
        """Restore the modes and continue the moves as the files say."""
        self.mode_switch.restore_modes()
        self.mover.resume_moves()

    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics of mover and director."""
        registry.register(self.mover.collect_metrics)
        registry.register(self.director.collect_metrics)
