"""The file that keeps which listener port stands for which address of the primary.

Clients cache routes, so after a restart of the gateway a port must not lead to another broker. `broker_listeners.py`
decides which port an address gets.
"""

import logging
from collections.abc import Collection
from typing import Any, Final

import trio

from gateway.runtime.config_file import SmallFiles
from gateway.runtime.run_blocking import RunBlocking
from gateway.runtime.state_file import StateFile
from gateway.shadow.clusters.cluster import MAX_PORT
from storage.errors import StoreFull

log = logging.getLogger(__name__)

MAX_SAVED_PORTS: Final = 4096


class ListenerPorts:
    """Ports by address, in memory only if the path is empty. Raises SettingsError for a file that cannot be read.

    ``broker_port`` is the setting that assigned ports begin with. If it has changed, the file's ports are discarded.
    """

    def __init__(
        self,
        files: SmallFiles,
        path: str,
        broker_port: int,
        run_blocking: RunBlocking = trio.to_thread.run_sync,
    ) -> None:
        loss = "ports are assigned anew, and clients that cached one may reach another broker"
        self._file = StateFile(files, path, "ports", run_blocking, loss=loss)
        self._broker_port = broker_port
        self._writing = trio.Lock()
        self._ports = self._saved_ports = self._file.read(self._parse) or {}

    def _parse(self, value: Any) -> dict[str, int]:
        ports: dict[str, int] = value["ports"]
        before = value["broker_port"]
        if not all(type(port) is int and 0 < port <= MAX_PORT for port in ports.values()):
            raise ValueError("a port is not a number from 1 to 65535")
        if before != self._broker_port:
            log.warning("broker_port has changed: assigning all ports anew", extra={"before": before})
            return {}
        return ports

    def find_port(self, address: str) -> int | None:
        """Return the port that an address had."""
        return self._ports.get(address)

    def assigned_ports(self) -> Collection[int]:
        """Return all ports that stand for an address, whether or not the broker exists now."""
        return self._ports.values()

    def assign_port(self, address: str, port: int) -> None:
        """Let a port stand for an address from now on; `save` writes it to the file.

        Beyond `MAX_SAVED_PORTS` the addresses that were assigned first are forgotten.
        """
        if self._ports.get(address) == port:
            return
        # The address moves to the end, because the oldest assignments are forgotten from the beginning.
        remaining = [item for item in self._ports.items() if item[0] != address and item[1] != port]
        self._ports = {**dict(remaining[-MAX_SAVED_PORTS + 1 :]), address: port}

    async def save(self) -> None:
        """Write changes to the file. A failure is logged, and the next change is a new attempt."""
        async with self._writing:
            ports = self._ports
            if ports == self._saved_ports:
                return
            self._saved_ports = ports
            try:
                await self._file.write(broker_port=self._broker_port, ports=ports)
            except (OSError, StoreFull) as problem:
                extra = {"path": self._file.path, "reason": str(problem)}
                log.error("cannot save listener ports: they may differ after a restart", extra=extra)
