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
from gateway.shadow.mirror.making import Making
from gateway.shadow.mirror.mirrors import Mirrors
from gateway.shadow.mirror.modes import KeptModes
from gateway.shadow.mirror.rules import Rules
from gateway.shadow.mirror.settings import Mirroring, MirrorRule
from gateway.shadow.replication.service import Keeping
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
        settings: Mirroring,
        declared: dict[str, str],
        make_primary: MakeCluster,
        make_target: MakeCluster,
        keeping: Keeping | None = None,
        identity: str = "",
    ) -> None:
        self._settings = settings
        making = Making(settings, declared, f"mirror@{socket.gethostname()}@{os.getpid()}", target=identity)
        forward, back = (making.directions[side].producers for side in (Side.PRIMARY, Side.TARGET))
        self.primary = make_primary(back.handlers())
        self.target = make_target(forward.handlers())
        making.serve(self.primary, self.target)
        self.making = making
        self.mirrors = Mirrors(Rules(rules or [MirrorRule()]), settings, making)
        self.keeping = keeping
        if keeping is not None:
            making.write_forward_with(keeping.between(self.primary, self.target, self.mirrors))

    def kept_modes(self) -> KeptModes:
        """The file of modes that were set while running; in memory only where mirrors keep nothing in files."""
        path = self._settings.state_file
        return KeptModes(DiskFiles(), path and full_path(path) + ".modes")

    def join(self, hub: Hub) -> None:
        """Makes the mirrors known to a hub."""
        self.mirrors.join(hub)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Mirrors until cancelled. A target that is not there does not keep it from starting."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.primary.run)
            await nursery.start(self.target.run)
            nursery.start_soon(self._look_around)
            if self.keeping is not None:
                nursery.start_soon(self.keeping.run)
            nursery.start_soon(self.making.run)
            await nursery.start(self.mirrors.run)
            task_status.started()

    async def _look_around(self) -> None:
        """Each side's brokers are known before they are needed, if they can be."""
        for cluster in (self.primary, self.target):
            try:
                await cluster.refresh()
            except Exception as problem:  # noqa: BLE001 - whatever a target does wrong; streams try again
                log.warning("cluster cannot be asked", extra={"reason": str(problem)})

    async def drain(self) -> None:
        """Waits until everything is mirrored, at most `drain_ms`; says what is left."""
        with trio.move_on_after(self._settings.drain_ms / 1000):
            while self._queued():  # noqa: ASYNC110 - once, at the end
                await trio.sleep(0.02)
        if self._queued():
            log.warning("exchanges were not mirrored before the end", extra={"count": self._queued()})

    def _queued(self) -> int:
        return sum(stream.queued for stream in self.mirrors.streams())
