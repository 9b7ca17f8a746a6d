"""The ports that stand for the primary's addresses, in a file: clients keep routes, so that a port must not become
another broker's when the gateway starts again.

Not responsible for which port an address gets (topology).
"""

import logging
from collections.abc import Collection
from typing import Any

import trio

from gateway.runtime.config_file import SmallFiles
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.state_file import StateFile
from storage.errors import StoreFull

log = logging.getLogger(__name__)


class KeptPorts:
    """Without a path they are in memory only. Raises SettingsError for a file that cannot be read.

    ``broker_port`` is where ports begin; when another one was set meanwhile, those of the file count no longer.
    """

    def __init__(
        self,
        files: SmallFiles,
        path: str,
        broker_port: int,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
    ) -> None:
        self._file = StateFile(files, path, "ports", run_blocking)
        self._broker_port = broker_port
        self._ports = self._saved = self._file.read(self._parse) or {}

    def _parse(self, value: Any) -> dict[str, int]:
        ports = {str(address): int(port) for address, port in value["ports"].items()}
        before = int(value["broker_port"])
        if before != self._broker_port:
            log.warning("broker_port is another one: ports are given anew", extra={"before": before})
            return {}
        return ports

    def get(self, address: str) -> int | None:
        """The port an address had."""
        return self._ports.get(address)

    def taken(self) -> Collection[int]:
        """All ports that stand for an address, whether it is there now or not."""
        return self._ports.values()

    def put(self, address: str, port: int) -> None:
        """From now on a port stands for an address; `save` writes that down."""
        others = {name: each for name, each in self._ports.items() if each != port}
        self._ports = {**others, address: port}

    async def save(self) -> None:
        """Writes down what is new; a file that cannot be written is told, and tried again with the next new port."""
        ports = self._ports
        if ports == self._saved:
            return
        self._saved = ports
        try:
            await self._file.write(broker_port=self._broker_port, ports=ports)
        except (OSError, StoreFull) as problem:
            extra = {"path": self._file.path, "reason": str(problem)}
            log.error("ports may be other ones after the next start", extra=extra)
