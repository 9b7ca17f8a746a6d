"""The answer of `/rocketmq/nsaddr`: the namesrvs that clients shall use, which know no other way to find one.

Stock clients build the address from the property ``rocketmq.namesrv.domain`` (Go: from the URL of a resolver) and read
``host:port[;host:port]``. They add ``-NAME`` for the name of a unit; all names get the same list. The page needs no
token: these clients cannot send one, it changes nothing, and it names only addresses that every client is given.
"""

import re
from collections.abc import Callable
from typing import Final

from gateway.config.process import AUTO, ServeConfig
from gateway.http_server.errors import ConsoleError
from gateway.http_server.http_connection import Page
from gateway.namesrv.addresses import join_address
from gateway.runtime.published_ports import find_default_gateway, host_for

PATH_PREFIX: Final = "/rocketmq/nsaddr"
_PATH: Final = re.compile(re.escape(PATH_PREFIX) + r"(-[A-Za-z0-9%|_.-]{1,255})?")


class AddressServer:
    """Names the namesrvs of the setting addressServerList. ``find_port`` returns the port of this process's namesrv.

    ``auto`` in the list is that namesrv, at the host that is advertised to clients (brokerIP1), or else at the one
    where the request arrived. ``find_advertised`` returns that host: it may change while the process runs.
    """

    def __init__(
        self, config: ServeConfig, find_port: Callable[[], int | None], find_advertised: Callable[[], str]
    ) -> None:
        self._entries = [entry for entry in config.process.address_server_list.split(";") if entry]
        self._find_advertised = find_advertised
        self._has_published_ports = config.process.published_ports
        self._gateway = find_default_gateway() if config.process.published_ports else None
        self._find_port = find_port

    def list_page(self, path: str, remote: str, local: str) -> Page:
        """Return the list for a client at ``remote`` whose request arrived at ``local``. Raises ConsoleError."""
        if _PATH.fullmatch(path) is None:
            raise ConsoleError(f"the list of namesrvs is at {PATH_PREFIX} and {PATH_PREFIX}-NAME", 404)
        own = self._own_address(remote, local)
        namesrvs = [own if entry == AUTO else entry for entry in self._entries]
        text = ";".join(dict.fromkeys(filter(None, namesrvs)))
        if not text:
            raise ConsoleError("this process has no namesrv: name others in addressServerList", 404)
        return Page("text/plain; charset=utf-8", text.encode())

    def _own_address(self, remote: str, local: str) -> str | None:
        port = self._find_port()
        if port is None:
            return None
        advertised = self._find_advertised()
        if advertised != AUTO:
            return join_address(advertised, port)
        host = host_for(self._gateway, remote, local) if self._has_published_ports else local
        return join_address(host, port)
