"""The mirror of one gateway: clusters of its own, mirrors between them, started and ended together.

Not responsible for the forwarder, whose hub it joins.
"""

import logging
import os
import socket
from collections.abc import Sequence
from typing import Protocol

import trio

from gateway.runtime.state_file import full_path
from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.mirror.mirror import Mirror
from gateway.shadow.mirror.mirror_factory import MirrorFactory
from gateway.shadow.mirror.mode_overrides import ModeOverrides
from gateway.shadow.mirror.rules import MirrorRules
from gateway.shadow.mirror.settings import MirrorRule, MirrorSettings
from gateway.shadow.replication.service import ReplicationService
from gateway.shadow.traffic.exchange import Hub, Side
from remoting.connection import Handler
from storage.files import DiskFiles

log = logging.getLogger(__name__)


class MakeCluster(Protocol):
    """Makes a cluster with connections of its own; ``handlers`` answer what its brokers ask."""

    def __call__(self, handlers: dict[int, Handler]) -> Cluster: ...


class MirrorService:
    """Builds everything; nothing is connected before `run`. Without rules one takes everything.

    ``keeping`` is for a target that keeps the primary's queue offsets. ``identity`` tells this target from others:
    files of what waits for one are never brought to another.
    """

    def __init__(
        self,
        rules: Sequence[MirrorRule],
        settings: MirrorSettings,
        declared: dict[str, str],
        make_primary: MakeCluster,
        make_target: MakeCluster,
        keeping: ReplicationService | None = None,
        identity: str = "",
    ) -> None:
        self._settings = settings
        making = MirrorFactory(
            settings, declared, f"mirror@{socket.gethostname()}@{os.getpid()}", target=identity
        )
        forward, back = (making.directions[side].producer for side in (Side.PRIMARY, Side.TARGET))
        self.primary = make_primary(back.handlers())
        self.target = make_target(forward.handlers())
        making.serve(self.primary, self.target)
        self.factory = making
        self.mirror = Mirror(MirrorRules(rules or [MirrorRule()]), settings, making)
        self.replication = keeping
        if keeping is not None:
            making.write_forward_with(keeping.between(self.primary, self.target, self.mirror))

    def open_mode_overrides(self) -> ModeOverrides:
        """The file of modes that were set while running; in memory only where mirrors keep nothing in files."""
        path = self._settings.state_file
        return ModeOverrides(DiskFiles(), path and full_path(path) + ".modes")

    def attach_to(self, hub: Hub) -> None:
        """Makes the mirrors known to a hub."""
        self.mirror.attach_to(hub)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Mirrors until cancelled. A target that is not there does not keep it from starting."""
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
        """Each side's brokers are known before they are needed, if they can be."""
        for cluster in (self.primary, self.target):
            try:
                await cluster.refresh()
            except Exception as problem:  # noqa: BLE001 - whatever a target does wrong; streams try again
                log.warning("cluster cannot be asked", extra={"reason": str(problem)})

    async def drain(self) -> None:
        """Waits until everything is mirrored, at most `drain_ms`; says what is left."""
        with trio.move_on_after(self._settings.drain_ms / 1000):
            while self._count_queued():  # noqa: ASYNC110 - once, at the end
                await trio.sleep(0.02)
        if self._count_queued():
            log.warning("exchanges were not mirrored before the end", extra={"count": self._count_queued()})

    def _count_queued(self) -> int:
        return sum(stream.queued for stream in self.mirror.streams())
