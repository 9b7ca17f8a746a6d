"""Maps the primary's addresses to the gateway's, as clients see them.

Clients that reach the gateway by different hosts get different addresses, so there is an `AddressView` per host. The
places where addresses stand in frames are known to `address_rewrite.py`; listeners are opened by
`broker_listeners.py`.
"""

from collections.abc import Callable
from functools import lru_cache

from codec.errors import MessageFormatError
from codec.hosts import Host, format_host, pack_host, parse_host

MAX_IGNORED_ADDRESSES = 1000
MAX_ADDRESS_CHARS = 270
"""Longest "host:port" that is looked at: a host name has at most 253 characters."""
AUTO = "auto"
"""The value of the setting `advertise` that stands for the host by which each client reached the gateway."""


@lru_cache(maxsize=1024)
def pack_address(address: str) -> bytes | None:
    """Return the packed form of an address in messages and message ids; None if its host is a name."""
    host, port = parse_host(address)
    try:
        return pack_host((host, port))
    except MessageFormatError:
        return None


class AddressView:
    """Maps the primary's addresses to the gateway's, for clients that reached the gateway by ``host``.

    `gateway_addresses` maps "host:port" texts. `store_hosts` maps packed addresses, as in stored messages, and
    `id_prefixes` their hexadecimal digits, as at the beginning of message ids. These two hold only pairs of the same
    length: both IPv4, or both IPv6. Message ids of other addresses, and of hosts that are names, stay as they are and
    lead to the primary itself. `client_addresses` maps the address under which the primary sees a connected client to
    the client's own.
    """

    __slots__ = (
        "_note_seen",
        "_port_of",
        "client_addresses",
        "gateway_addresses",
        "host",
        "id_prefixes",
        "store_hosts",
    )

    def __init__(
        self,
        host: str,
        port_of: Callable[[str], int],
        note_seen: Callable[[str], None],
        client_addresses: dict[str, str],
    ) -> None:
        self.host = host
        self._port_of = port_of
        self._note_seen = note_seen
        self.client_addresses = client_addresses
        self.gateway_addresses: dict[str, str] = {}
        self.store_hosts: dict[bytes, bytes] = {}
        self.id_prefixes: dict[bytes, bytes] = {}

    def translate_address(self, address: str) -> str:
        """Return the gateway's "host:port" for one of the primary's brokers.

        Reserves a port for an address that is new. Returns the address itself if it gets none.
        """
        gateway_address = self.gateway_addresses.get(address)
        if gateway_address is None:
            port = self._port_of(address)
            return self.add_listener(address, port) if port else address
        self._note_seen(address)
        return gateway_address

    def add_listener(self, address: str, port: int) -> str:
        """Note the port that stands for one of the primary's addresses; return the gateway's address."""
        gateway_address = self.gateway_addresses[address] = format_host((self.host, port))
        self.add_store_host(pack_address(address), gateway_address)
        return gateway_address

    def remove_listener(self, address: str, *store_hosts: bytes | None) -> None:
        """Leave an address, and messages with these packed hosts, as the primary sends them."""
        gateway_address = self.gateway_addresses.pop(address, None)
        packed = pack_address(gateway_address) if gateway_address else None
        if packed is None:
            return
        for store_host in store_hosts:
            if store_host is not None and self.store_hosts.get(store_host) == packed:
                del self.store_hosts[store_host]
                del self.id_prefixes[store_host.hex().upper().encode()]

    def add_store_host(self, store_host: bytes | None, gateway_address: str) -> None:
        """Note the packed host in messages of the broker that a gateway address stands for."""
        packed = pack_address(gateway_address)
        # IPv4 and IPv6 differ in length, and nothing in a message may change its length.
        if store_host is not None and packed is not None and len(store_host) == len(packed):
            self.store_hosts[store_host] = packed
            self.id_prefixes[store_host.hex().upper().encode()] = packed.hex().upper().encode()


class AddressBook:
    """The address views by host. ``advertise`` is a host for all clients, or AUTO.

    ``open_port`` reserves a port for an address and returns it, 0 if that is not possible. ``note_seen`` is called with
    an address that has a port whenever an answer to a client names it.
    """

    def __init__(
        self,
        advertise: str,
        open_port: Callable[[str], int],
        note_seen: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._advertise = advertise
        self._open_port = open_port
        self._note_seen = note_seen
        self._ignored: set[str] = set()
        self._ports: dict[str, int] = {}
        self._store_hosts: dict[str, bytes] = {}
        self._views: dict[str, AddressView] = {}
        self.client_addresses: dict[str, str] = {}

    def view_for(self, local: Host) -> AddressView:
        """Return the view of a client that reached the gateway by this address."""
        host = local[0] if self._advertise == AUTO else self._advertise
        view = self._views.get(host)
        if view is None:
            view = self._views[host] = AddressView(
                host, self._port_of, self._note_seen, self.client_addresses
            )
            for address, port in self._ports.items():
                view.add_listener(address, port)
            for address, store_host in self._store_hosts.items():
                view.add_store_host(store_host, view.gateway_addresses[address])
        return view

    def id_prefix(self, address: str) -> bytes:
        """Return the beginning of a broker's message ids; empty if its name could not be resolved."""
        return (self._store_hosts.get(address) or pack_address(address) or b"").hex().upper().encode()

    def add_listener(self, address: str, port: int) -> None:
        """Note that a listener for one of the primary's addresses is open."""
        self._ports[address] = port
        for view in self._views.values():
            view.add_listener(address, port)

    def remove_listener(self, address: str) -> None:
        """Note that no listener stands for an address any more."""
        self._ports.pop(address, None)
        store_host = self._store_hosts.pop(address, None)
        for view in self._views.values():
            view.remove_listener(address, pack_address(address), store_host)

    def add_store_host(self, address: str, numeric_address: str) -> None:
        """Note the numeric address, as in messages, of a broker whose host is a name."""
        store_host = pack_address(numeric_address)
        if store_host is None:
            return
        self._store_hosts[address] = store_host
        for view in self._views.values():
            view.add_store_host(store_host, view.gateway_addresses[address])

    def _port_of(self, address: str) -> int:
        return 0 if address in self._ignored else self._open_port(address)

    def is_ignored(self, address: str) -> bool:
        """Tell whether an address was given to `ignore_address`: it is not one of the primary's."""
        return address in self._ignored

    def ignore_address(self, address: str) -> None:
        """Leave the address of a broker that registers through the gateway as it is: clients can dial it."""
        # An address of the primary stays one, whoever registers it through the gateway.
        if len(address) > MAX_ADDRESS_CHARS or address in self._ports:
            return
        if len(self._ignored) < MAX_IGNORED_ADDRESSES:
            self._ignored.add(address)
