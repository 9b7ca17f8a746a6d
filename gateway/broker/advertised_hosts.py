"""Which address the broker shows: as store host of messages, in message ids and in refusals.

Not responsible for the routes a namesrv hands out (the same rule is applied there).
"""

import logging
import socket
from collections.abc import Callable

from codec.errors import MessageFormatError
from codec.hosts import pack_address, pack_host
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6
from remoting.connection import Connection

log = logging.getLogger(__name__)

AUTO = "auto"


class HostView:
    """One connection's view: the peer's address and ours, packed as messages keep them."""

    __slots__ = ("_message_id", "born_host", "message_id", "store_host", "sys_flag")

    def __init__(self, remote: tuple[str, int], local: tuple[str, int]) -> None:
        self.born_host = _pack_or_loopback(remote)
        self.store_host = _pack_or_loopback(local)
        born_v6, store_v6 = len(self.born_host) > 8, len(self.store_host) > 8
        self.sys_flag = (BORN_HOST_V6 if born_v6 else 0) | (STORE_HOST_V6 if store_v6 else 0)
        # The message id of a physical offset, as clients dial it: one formatting operation.
        self._message_id = self.store_host.hex().upper() + "%016X"
        self.message_id = self._message_id.__mod__

    def message_ids(self, physical_offsets: list[int]) -> str:
        """The message ids of a batch, as its answer lists them."""
        return ((self._message_id + ",") * len(physical_offsets))[:-1] % tuple(physical_offsets)


def _pack_or_loopback(host: tuple[str, int]) -> bytes:
    """An address as messages hold it; one that is a name (as in memory streams) counts as loopback."""
    try:
        return pack_host(host)
    except MessageFormatError:
        return pack_host(("127.0.0.1", host[1]))


def resolve_numeric(host: str) -> str:
    """The address a name stands for, since message ids hold numbers; loopback when nobody knows it."""
    try:
        pack_address(host)
        return host
    except MessageFormatError:
        try:
            return socket.gethostbyname(host)
        except OSError as error:
            log.warning("the advertised name has no address", extra={"host": host, "reason": str(error)})
            return "127.0.0.1"


class AdvertisedHosts:
    """Gives every connection its `HostView`; with ``auto`` ours is the address that the peer dialled."""

    def __init__(self, advertise: str, port: Callable[[], int]) -> None:
        self._advertise = advertise
        self._numeric = advertise if advertise == AUTO else resolve_numeric(advertise)
        self._port = port

    def view_of(self, connection: Connection) -> HostView:
        """The view, made once per connection."""
        view: HostView | None = connection.state.get("hosts")
        if view is None:
            host = connection.local[0] if self._numeric == AUTO else self._numeric
            view = connection.state["hosts"] = HostView(connection.remote, (host, self._port()))
        return view

    def address_for(self, connection: Connection) -> tuple[str, int]:
        """The broker's host and port as this peer should dial them."""
        host = connection.local[0] if self._advertise == AUTO else self._advertise
        return host, self._port()

    def own_address(self) -> tuple[str, int]:
        """Numeric host and port where no peer is involved (messages the broker itself writes)."""
        return ("127.0.0.1" if self._numeric == AUTO else self._numeric), self._port()
