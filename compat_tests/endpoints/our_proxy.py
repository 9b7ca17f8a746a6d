"""Another endpoint with our gRPC front as a process of its own before it: `rmq-gateway proxy`."""

from collections.abc import Sequence

from compat_tests.endpoints.base import LocalEndpoint
from compat_tests.endpoints.front import FrontEndpoint
from compat_tests.endpoints.ports import find_ports


class OurProxyEndpoint(FrontEndpoint):
    """A cluster at its own addresses, whose 5.x clients connect to our proxy."""

    kind = command = "proxy"

    def __init__(self, cluster: LocalEndpoint, extra: tuple[str, ...] = ()) -> None:
        super().__init__(cluster, extra)
        self._grpc_port = find_ports(1)[0]

    @property
    def namesrv(self) -> str:
        return self.behind.namesrv

    @property
    def broker(self) -> str:
        return self.behind.broker

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self._grpc_port}"

    def options(self) -> Sequence[str]:
        return ["--namesrv", self.namesrv, "--host", "127.0.0.1", "--port", str(self._grpc_port)]
