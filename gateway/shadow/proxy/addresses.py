"""What the primary's addresses are called by clients that reached us by one of our hosts.

Not responsible for which listeners there are (topology is), nor for where addresses stand in answers (rewrite).
"""

from collections.abc import Callable
from functools import lru_cache

from codec.errors import MessageFormatError
from codec.hosts import Host, pack_host
from gateway.shadow.clusters.cluster import split_address

MOST_LEFT_ALONE = 1000
AUTO = "auto"
"""Instead of a host: the one by which a client reached us."""


def joined(host: str, port: int) -> str:
    """ "host:port", an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@lru_cache(maxsize=1024)
def packed(address: str) -> bytes | None:
    """The form an address has in messages and message ids; None for a name."""
    host, port = split_address(address)
    try:
        return pack_host((host, port))
    except MessageFormatError:
        return None


class View:
    """The primary's addresses, and what they become for clients that reached us by ``host``.

    `hosts` holds the packed forms, as stored messages have them, `ids` their hexadecimal digits, as message ids
    begin: only of pairs of the same length, i.e. both IPv4 or both IPv6. Of other pairs, and of hosts that are
    names, ids stay as they are and lead to the primary itself. `clients` are those connected now, by the address
    under which the primary sees them.
    """

    __slots__ = ("_port_of", "clients", "host", "hosts", "ids", "ours", "theirs")

    def __init__(self, host: str, port_of: Callable[[str], int], clients: dict[str, str]) -> None:
        self.host = host
        self._port_of = port_of
        self.clients = clients
        self.ours: dict[str, str] = {}
        self.theirs: dict[str, str] = {}
        self.hosts: dict[bytes, bytes] = {}
        self.ids: dict[bytes, bytes] = {}

    def name(self, address: str) -> str:
        """Our "host:port" for one of the primary's brokers; a listener is opened for one not known yet.

        The address itself when that is not possible.
        """
        known = self.ours.get(address)
        if known is None:
            port = self._port_of(address)
            return self.add(address, port) if port else address
        return known

    def add(self, address: str, port: int) -> str:
        """Notes the port of our listener for one of the primary's addresses."""
        ours = self.ours[address] = joined(self.host, port)
        self.theirs[ours] = address
        self.add_store_host(packed(address), ours)
        return ours

    def add_store_host(self, theirs: bytes | None, ours: str) -> None:
        """Notes that messages of one of our addresses name a packed host, which may have come from a name."""
        known = packed(ours)
        if theirs is not None and known is not None and len(theirs) == len(known):
            self.hosts[theirs] = known
            self.ids[theirs.hex().upper().encode()] = known.hex().upper().encode()


class AddressBook:
    """The views by host. ``advertise`` is a host for all clients, or AUTO."""

    def __init__(self, advertise: str, open_port: Callable[[str], int]) -> None:
        self._advertise = advertise
        self._open_port = open_port
        self._left_alone: set[str] = set()
        self._ports: dict[str, int] = {}
        self._stored_as: dict[str, bytes] = {}
        self._views: dict[str, View] = {}
        self.clients: dict[str, str] = {}

    def view_for(self, local: Host) -> View:
        """The view of a client that reached us by this address."""
        host = local[0] if self._advertise == AUTO else self._advertise
        view = self._views.get(host)
        if view is None:
            view = self._views[host] = View(host, self._port_of, self.clients)
            for address, port in self._ports.items():
                view.add(address, port)
            for address, store_host in self._stored_as.items():
                view.add_store_host(store_host, view.ours[address])
        return view

    def id_prefix(self, address: str) -> bytes:
        """How ids of a broker's messages begin; empty when it has a name that could not be looked up."""
        return (self._stored_as.get(address) or packed(address) or b"").hex().upper().encode()

    def add(self, address: str, port: int) -> None:
        """A listener for one of the primary's addresses is open."""
        self._ports[address] = port
        for view in self._views.values():
            view.add(address, port)

    def add_store_host(self, address: str, numeric: str) -> None:
        """One of the primary's addresses has a name that is this numeric address, as its messages say."""
        store_host = packed(numeric)
        if store_host is None:
            return
        self._stored_as[address] = store_host
        for view in self._views.values():
            view.add_store_host(store_host, view.ours[address])

    def _port_of(self, address: str) -> int:
        return 0 if address in self._left_alone else self._open_port(address)

    def leaves_alone(self, address: str) -> bool:
        """Whether an address is not the primary's."""
        return address in self._left_alone

    def leave_alone(self, address: str) -> None:
        """A broker registers through the gateway: clients of the gateway know it by the address it names."""
        if address not in self._ports and len(self._left_alone) < MOST_LEFT_ALONE:
            self._left_alone.add(address)
