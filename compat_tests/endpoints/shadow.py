"""Another endpoint behind our shadow gateway, which only forwards here: `rmq-gateway shadow`."""

import json
from collections.abc import Sequence

from compat_tests.endpoints.base import LocalEndpoint, ServesOnPorts
from compat_tests.endpoints.front import FrontEndpoint
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.endpoints.probe import wait_for_route


class ShadowEndpoint(FrontEndpoint, ServesOnPorts):
    """A gateway, whose addresses are those of this endpoint, and the `primary` behind it.

    The gateway keeps running while the primary is stopped or killed, as it would in production. `extra`: further
    options of `shadow`, e.g. ("--set", "listen.vip=false").
    """

    kind = command = "shadow"

    def __init__(self, primary: LocalEndpoint, extra: tuple[str, ...] = ()) -> None:
        super().__init__(primary, extra)
        self.primary = primary
        self.namesrv_port, self.broker_port = find_server_ports()

    def options(self) -> Sequence[str]:
        # The primary's broker gets a fixed port; brokers that register during a run get free ones.
        tables = {
            "primary.namesrv": json.dumps([self.primary.namesrv]),
            "listen.namesrv_port": str(self.namesrv_port),
            "listen.broker_port": "0",
            "listen.ports": f"{{{json.dumps(self.primary.broker)} = {self.broker_port}}}",
            "console.port": "0",
        }
        return [word for key, value in tables.items() for word in ("--set", f"{key}={value}")]

    def start(self) -> None:
        super().start()
        wait_for_route(self.namesrv, self.broker_port, self.start_timeout_s, self._check_alive)
