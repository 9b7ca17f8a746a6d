"""The mirror of a running gateway: its own connections to both clusters, the `Mirror` between them, start and stop.

A target that preserves the primary's queue offsets gets messages from a `ForwardReplication` instead of repeated
requests. The composition root passes it in from `gateway/shadow/replication`; the mirror knows only the protocol, so
that replication can import the mirror, and not the reverse.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import trio

from gateway.http_server.errors import HTTP_BAD_GATEWAY, HTTP_CONFLICT, ConsoleError, OperationRefused
from gateway.http_server.server import RouteRegistry
from gateway.runtime.metrics import Metric
from gateway.runtime.state_file import absolute_path
from gateway.runtime.supervise import TaskSupervisor
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster
from gateway.shadow.mirror.check_back_producer import MakeCluster
from gateway.shadow.mirror.diverged_queues import DivergedQueues
from gateway.shadow.mirror.mirror import Mirror
from gateway.shadow.mirror.mirror_direction import make_directions
from gateway.shadow.mirror.mirror_factory import MirrorFactory
from gateway.shadow.mirror.rules import MirrorRules, ModeOverrides
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.traffic.exchange import Hub, Side
from gateway.shadow.traffic.outcome import TargetWriter
from storage.files import DiskFiles

log = logging.getLogger(__name__)


class ForwardReplication(Protocol):
    """Brings the primary's queues to the target in place of resent requests. `tasks` runs its background tasks."""

    tasks: TaskSupervisor

    def make_writer(self, broker: str, target_broker: str) -> TargetWriter:
        """Return the writer for a broker of the primary and its counterpart."""

    async def run(self) -> None:
        """Replicate until cancelled."""

    def collect_metrics(self) -> Iterator[Metric]:
        """Yield metrics."""

    def status(self) -> list[dict[str, Any]]:
        """Return a bounded table of queues for the console and the report."""

    def failing_queues(self) -> Iterator[tuple[str, str]]:
        """Yield the names of a bounded number of queues that are not copied, and why; asked every second."""


LOOKUP_INTERVAL_S: Final = 5.0
"""Seconds between two look-ups of the brokers of both clusters."""
MAX_NAME_CHARS: Final = 255
SwitchMode = Callable[[str, str], Awaitable[None]]
"""Sets the mode of a topic; the mode "" clears the override, so that the rule's mode applies again.

Raises ValueError, OperationRefused, CLUSTER_ERRORS of `cluster`, LookupError.
"""
MakeReplication = Callable[[Cluster, Cluster, MirrorRules, DivergedQueues], ForwardReplication]
"""Makes the replication from primary (first) to target, which obeys the rules and clears marks of completed queues."""


class MirrorService:
    """Builds everything at once; nothing is connected before `run`. Without rules, one rule mirrors everything.

    ``declared`` maps the primary's broker names to the target's. ``target_identity`` is a text that differs from one
    target to another: spill files of one are never sent to another.
    """

    def __init__(
        self,
        rules: Sequence[MirrorRule],
        settings: MirrorSettings,
        declared: dict[str, str],
        make_primary: MakeCluster,
        make_target: MakeCluster,
        make_replication: MakeReplication | None = None,
        target_identity: str = "",
    ) -> None:
        self._settings = settings
        client_id = f"mirror@{socket.gethostname()}@{os.getpid()}"
        directions = make_directions(settings, client_id, make_primary, make_target)
        self.primary = directions[Side.TARGET].destination
        self.target = directions[Side.PRIMARY].destination
        mirror_rules = MirrorRules(rules or [MirrorRule()])
        diverged = DivergedQueues(settings.diverged_marks)
        self.replication: ForwardReplication | None = None
        if make_replication is not None:
            self.replication = make_replication(self.primary, self.target, mirror_rules, diverged)
        self.factory = MirrorFactory(
            settings,
            declared,
            directions,
            target_identity=target_identity,
            make_forward_writer=self.replication.make_writer if self.replication is not None else None,
        )
        self.mirror = Mirror(mirror_rules, settings, self.factory, diverged)

    def supervisors(self) -> Iterator[TaskSupervisor]:
        """Yield the supervisors of all background tasks."""
        yield self.mirror.tasks
        yield from (direction.tasks for direction in self.factory.directions.values())
        if self.replication is not None:
            yield self.replication.tasks

    def open_mode_overrides(self) -> ModeOverrides:
        """Read the file of modes set at run time; without a state file they are in memory only."""
        path = self._settings.state_file
        return ModeOverrides(DiskFiles(), path and absolute_path(path) + ".modes")

    def attach_to(self, hub: Hub) -> None:
        """Make the mirror an observer of a hub."""
        self.mirror.attach_to(hub)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Mirror until cancelled. Starting does not depend on the target being reachable."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.primary.run)
            await nursery.start(self.target.run)
            nursery.start_soon(self._refresh_clusters)
            if self.replication is not None:
                nursery.start_soon(self.replication.run)
            nursery.start_soon(self.factory.run)
            await nursery.start(self.mirror.run)
            task_status.started()

    async def _refresh_clusters(self) -> None:
        """Learn each side's brokers before they are needed, and again and again, because masters move.

        A former master answers much as the master does: it takes consumer offsets, which it then loses.
        """
        while True:
            for cluster in (self.primary, self.target):
                # Whatever a cluster does wrong, the streams try again and report it.
                with contextlib.suppress(Exception):
                    await cluster.refresh()
            await trio.sleep(LOOKUP_INTERVAL_S)

    async def drain(self) -> None:
        """Wait until no exchange is queued, at most `drain_ms`; log how many are left then."""
        with trio.move_on_after(self._settings.drain_ms / 1000):
            while self._count_queued():  # noqa: ASYNC110 - once, at the end
                await trio.sleep(0.02)
        if self._count_queued():
            log.warning("exchanges still queued at shutdown", extra={"count": self._count_queued()})

    def _count_queued(self) -> int:
        return sum(stream.queued for stream in self.mirror.streams())


class MirrorRoutes:
    """`GET /mirror` shows streams, modes and diverged queues. `POST /mirror/mode` sets the `mode` of a `topic`.

    Without a mode, the override of the topic is cleared.
    """

    def __init__(self, mirror: Mirror, switch: SwitchMode) -> None:
        self._mirror = mirror
        self._switch_mode = switch

    def register(self, console: RouteRegistry) -> None:
        """Register both routes."""
        console.get("/mirror", lambda _: self._mirror.status())
        console.post("/mirror/mode", self.switch_mode)

    async def switch_mode(self, body: dict[str, Any]) -> dict[str, Any]:
        """Switch the mode of a topic from now on. Raises ConsoleError for an unknown mode and for a refused switch."""
        topic, mode = body.get("topic"), body.get("mode") or ""
        if not isinstance(topic, str) or not 0 < len(topic) <= MAX_NAME_CHARS or not isinstance(mode, str):
            raise ConsoleError("topic must be a topic name, and mode a mode name or empty")
        try:
            await self._switch_mode(topic, mode)
        except OperationRefused as refused:
            raise ConsoleError(str(refused), HTTP_CONFLICT) from refused
        except CLUSTER_ERRORS as problem:
            raise ConsoleError(f"{type(problem).__name__}: {problem}", HTTP_BAD_GATEWAY) from problem
        except (ValueError, LookupError) as error:
            raise ConsoleError(str(error)) from error
        return {"modes": self._mirror.rules.mode_overrides()}
