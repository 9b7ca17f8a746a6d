"""The ports that stand for the primary's addresses, in a file: clients keep routes, so that a port must not become
another broker's when the gateway starts again.

Not responsible for which port an address gets (topology).
"""

import logging
from collections.abc import Collection
from typing import Any

from gateway.broker.config_file import SmallFiles
from gateway.shadow.state_file import StateFile
from storage.errors import StoreFull

log = logging.getLogger(__name__)


class KeptPorts:
    """Without a path they are in memory only. Raises SettingsError for a file that cannot be read.

    ``broker_port`` is where ports begin; when another one was set meanwhile, those of the file count no longer.
    """

    def __init__(self, files: SmallFiles, path: str, broker_port: int) -> None:
        self._file = StateFile(files, path, "ports")
        self._broker_port = broker_port
        self._ports = self._file.read(self._parse) or {}

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
        """Writes one down; a file that cannot be written is told, and the port is kept in memory."""
        if self._ports.get(address) == port:
            return
        others = {name: each for name, each in self._ports.items() if each != port}
        self._ports = {**others, address: port}
        try:
            self._file.write(broker_port=self._broker_port, ports=self._ports)
        except (OSError, StoreFull) as problem:
            extra = {"upstream": address, "port": port, "reason": str(problem)}
            log.error("a port may be another one after the next start", extra=extra)
