"""Decides who may copy the log over the HA port, whose official protocol knows neither TLS nor credentials.

A slave of this project asks its master for a *ticket*, by a request that access control checks as any other, and begins
its HA connection with it. The ticket is good for one connection and `TICKET_S` seconds. Official masters never get one,
because they do not know the request; official slaves have none, and are admitted by their addresses.

| access control | ``haAllowedAddresses`` | admitted |
|---|---|---|
| off | empty | everybody, as at an official master |
| off | some | these addresses; a ticket proves nothing, because anybody gets one |
| on | empty | slaves with a ticket |
| on | some | slaves with a ticket, and these addresses |

With ``tls.server.mode=enforcing``, connections without TLS are refused, but not those of ``haAllowedAddresses``.
"""

import hmac
import secrets
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

import trio

from gateway.broker.replication.ha_wire import HaWireError
from remoting.tls_acceptor import TlsAcceptor
from remoting.transport import SocketTransport, Transport

PREFACE: Final = b"\xff\xf0RMQHA1"
"""The first bytes of a connection with a ticket: as a report, a negative offset, which no official slave sends."""
READER_PREFACE: Final = b"\xff\xf0RMQRD1"
"""The same of a connection that only reads the log, also at a slave: `store repair --from` fetches damaged bytes so."""
TICKET_BYTES: Final = 32
TICKET_S: Final = 30.0
MAX_TICKETS: Final = 64


def encode_preface(ticket: str, preface: bytes = PREFACE) -> bytes:
    """Return the bytes with which a slave begins its connection. Raises ValueError for what is not a ticket."""
    data = bytes.fromhex(ticket)
    if len(data) != TICKET_BYTES:
        raise ValueError(f"a ticket has {TICKET_BYTES} bytes, not {len(data)}")
    return preface + data


def only_reads(opening: bytes) -> bool:
    """Return True for the opening of a connection that only reads the log."""
    return opening.startswith(READER_PREFACE)


def _parse_networks(texts: str) -> list[IPv4Network | IPv6Network]:
    try:
        return [ip_network(text.strip(), strict=False) for text in texts.split(";") if text.strip()]
    except ValueError as error:
        raise ValueError(f"haAllowedAddresses: {error}") from error


class HaAccess:
    """Admits slaves to one master. ``allowed`` are addresses or networks, separated by semicolons.

    Raises ValueError for a text that is neither.
    """

    def __init__(
        self,
        allowed: str = "",
        *,
        has_access_control: bool = False,
        acceptor: TlsAcceptor | None = None,
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        self._networks = _parse_networks(allowed)
        self._has_access_control = has_access_control
        self._acceptor = acceptor
        self._now = now
        self._tickets: dict[bytes, tuple[float, int | None]] = {}

    async def accept(self, transport: SocketTransport) -> Transport:
        """Return the transport for a new peer, with TLS over it if the peer uses that. Raises OSError."""
        if self._acceptor is None:
            return transport
        return await self._acceptor.accept(transport, allows_plain=self._is_listed(transport.remote[0]))

    def issue_ticket(self, broker_id: int | None = None) -> str:
        """Return a new ticket, for a sender whom access control has let through, with the id that it names."""
        now_s = self._now()
        self._tickets = {ticket: issued for ticket, issued in self._tickets.items() if issued[0] > now_s}
        while len(self._tickets) >= MAX_TICKETS:
            del self._tickets[next(iter(self._tickets))]
        ticket = secrets.token_bytes(TICKET_BYTES)
        self._tickets[ticket] = now_s + TICKET_S, broker_id
        return ticket.hex()

    def find_broker_id(self, opening: bytes) -> int | None:
        """Return the broker id for which the ticket of an opening was issued; None without one. Ask before using it."""
        ticket = opening[len(PREFACE) : len(PREFACE) + TICKET_BYTES]
        return self._tickets[ticket][1] if opening.startswith(PREFACE) and ticket in self._tickets else None

    def read_opening(self, opening: bytes, host: str) -> bytes | None:
        """Return the bytes after the opening of a connection, None while more are needed to decide.

        Raises HaWireError for a peer that is not admitted.
        """
        if len(opening) < len(PREFACE):
            return None
        if not opening.startswith((PREFACE, READER_PREFACE)):
            if not self._is_admitted_by_address(host):
                raise HaWireError(self._refusal(host))
            return opening
        end = len(PREFACE) + TICKET_BYTES
        if len(opening) < end:
            return None
        if not self._redeem(opening[len(PREFACE) : end]) and not self._is_admitted_by_address(host):
            raise HaWireError(self._refusal(host))
        return opening[end:]

    def _redeem(self, ticket: bytes) -> bool:
        """Use a ticket up; return True if it proves something."""
        matches = [candidate for candidate in self._tickets if hmac.compare_digest(candidate, ticket)]
        is_in_time = any(self._tickets.pop(match)[0] > self._now() for match in matches)
        return is_in_time and self._has_access_control

    def _is_admitted_by_address(self, host: str) -> bool:
        return self._is_listed(host) or not (self._networks or self._has_access_control)

    def _is_listed(self, host: str) -> bool:
        try:
            address = ip_address(host.removeprefix("::ffff:"))
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def _refusal(self, host: str) -> str:
        if self._has_access_control:
            return (
                "access control is on, and it has no valid ticket. A slave of this project needs credentials that "
                f"may manage the cluster; for an official slave add {host} to haAllowedAddresses"
            )
        return f"{host} is not in haAllowedAddresses"
