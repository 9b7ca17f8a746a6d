"""The endpoint for a cluster that somebody else runs; it is never started, stopped or reconfigured here."""

from compat_tests.endpoints.base import BlockEndpoint, NotPossible
from compat_tests.endpoints.reach import find_broker


class AddressEndpoint(BlockEndpoint):
    """A running cluster, known by the address ("host:port") of its namesrv."""

    kind = "address"

    def __init__(self, namesrv: str, timeout_s: float = 10.0) -> None:
        self.name = namesrv
        self.settings: dict[str, str] = {}
        self._namesrv = namesrv
        self._timeout_s = timeout_s
        self._broker = ""

    @property
    def namesrv(self) -> str:
        return self._namesrv

    @property
    def broker(self) -> str:
        return self._broker

    @property
    def grpc(self) -> str | None:
        return None

    def pids(self) -> list[int]:
        return []

    def logs(self) -> str:
        return ""

    def start(self) -> None:
        if self.settings:
            raise NotPossible(
                f"the settings of {self.name} are not ours to change: {', '.join(self.settings)}"
            )
        self._broker = find_broker(self.namesrv, self._timeout_s)

    def stop(self) -> None:
        """Leave the cluster running."""

    def crash(self) -> None:
        raise NotPossible(f"{self.name} is not ours to kill")

    def close(self) -> None:
        """Leave the cluster running."""
