"""The address that a broker shows to clients: as store host of messages, in message ids and in refusals.

The namesrv applies the same rule to the routes that it hands out.
"""

import logging
import socket
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

from codec.errors import MessageFormatError
from codec.hosts import pack_address, pack_host
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6
from remoting.connection import Connection
from remoting.connection_state import StateSlot

log = logging.getLogger(__name__)

AUTO = "auto"


class HostView:
    """The peer's and the broker's address for one connection, packed as messages store them.

    ``dialled`` is the host that the peer dialled.
    """

    __slots__ = (
        "__weakref__",
        "_message_id",
        "born_host",
        "dialled",
        "message_id",
        "store_host",
        "sys_flag",
    )

    def __init__(self, remote: tuple[str, int], local: tuple[str, int], dialled: str = "") -> None:
        self.born_host = _pack_or_loopback(remote)
        self.dialled = dialled
        self.show(local)

    def show(self, local: tuple[str, int]) -> None:
        """Show the broker under this address from now on."""
        self.store_host = _pack_or_loopback(local)
        born_v6, store_v6 = len(self.born_host) > 8, len(self.store_host) > 8
        self.sys_flag = (BORN_HOST_V6 if born_v6 else 0) | (STORE_HOST_V6 if store_v6 else 0)
        # Formats the message id of a physical offset in one operation; clients dial the address in it.
        self._message_id = self.store_host.hex().upper() + "%016X"
        self.message_id = self._message_id.__mod__

    def message_ids(self, physical_offsets: list[int]) -> str:
        """Return the message ids of a batch in the form that its answer lists them."""
        return ((self._message_id + ",") * len(physical_offsets))[:-1] % tuple(physical_offsets)


HOST_VIEW: Final = StateSlot[HostView]("host view")


def _pack_or_loopback(host: tuple[str, int]) -> bytes:
    """Pack an address as messages store it. Host names, which memory streams have, are stored as loopback."""
    try:
        return pack_host(host)
    except MessageFormatError:
        return pack_host(("127.0.0.1", host[1]))


def resolve_numeric(host: str) -> str:
    """Return the numeric address of a host, since message ids hold numbers; ``auto`` stays as it is.

    Blocks for a name. Raises OSError for an unknown one.
    """
    if host == AUTO:
        return host
    try:
        pack_address(host)
        return host
    except MessageFormatError:
        return socket.gethostbyname(host)


def resolve_or_loopback(host: str) -> str:
    """Return the numeric address of a host; an unknown name becomes loopback."""
    try:
        return resolve_numeric(host)
    except OSError as error:
        log.warning("advertised host name cannot be resolved", extra={"host": host, "reason": str(error)})
        return "127.0.0.1"


class AdvertisedHosts:
    """Provides every connection with its `HostView`. ``auto`` advertises the address that the peer dialled.

    ``port`` returns the port that the broker listens on, ``advertised_port`` is another one that leads there, or 0.
    """

    def __init__(self, advertise: str, port: Callable[[], int], advertised_port: int = 0) -> None:
        self._advertise = advertise
        self._advertised_port = advertised_port
        self._numeric = resolve_or_loopback(advertise)
        self._port = port
        self._views: WeakSet[HostView] = WeakSet()

    def advertise(self, host: str, numeric: str | None, port: int = 0) -> None:
        """Show another host and port to all clients from now on, also to those that are connected.

        ``numeric`` is the host's address, from `resolve_numeric`; None for the same host as before. Port 0 stands for
        the one listened on.
        """
        self._advertise, self._numeric, self._advertised_port = host, numeric or self._numeric, port
        for view in self._views:
            view.show((self._numeric_for(view.dialled), self._shown_port()))

    def view_of(self, connection: Connection) -> HostView:
        """Return the view of a connection, which is created on the first call."""
        view = connection.state.get(HOST_VIEW)
        if view is None:
            dialled = connection.local[0]
            shown = self._numeric_for(dialled), self._shown_port()
            view = connection.state[HOST_VIEW] = HostView(connection.remote, shown, dialled)
            self._views.add(view)
        return view

    def _shown_port(self) -> int:
        return self._advertised_port or self._port()

    def _numeric_for(self, dialled: str) -> str:
        return dialled if self._numeric == AUTO else self._numeric

    def address_for(self, connection: Connection) -> tuple[str, int]:
        """Return the host and port at which this peer should dial the broker."""
        host = connection.local[0] if self._advertise == AUTO else self._advertise
        return host, self._shown_port()

    def own_address(self) -> tuple[str, int]:
        """Return the numeric host and port for messages that the broker writes itself, without a peer."""
        return ("127.0.0.1" if self._numeric == AUTO else self._numeric), self._shown_port()
