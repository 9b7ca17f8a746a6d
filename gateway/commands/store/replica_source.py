"""Reads the commit log of another replica, for `rmq-gateway store repair --from`.

The bytes come over the HA port, as a slave gets them. A broker of this project is told that they are only read, so that
it does not count the connection as a slave, and serves it also if it is a slave itself. An official broker cannot be
told: it counts a slave that acknowledges nothing. It is asked for its HA address; 4.9 brokers do not know that request,
and listen at the port after the one for requests.
"""

import socket
import ssl
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from codec.constants import ResponseCode
from codec.java_numbers import parse_integer_or
from gateway.admin.errors import Refused
from gateway.broker.replication.ha_access import READER_PREFACE, encode_preface
from gateway.broker.replication.ha_wire import FrameReader, HaWireError, encode_report
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.ha import ExchangeBrokerHaInfo
from remoting.requests.replication import OpenReplication
from remoting.requests.roles import GetBrokerRole
from storage.tools.replica_fetch import CannotFetch
from toolkit.values import Addresses

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

READ_BYTES: Final = 256 * 1024
REPORT_INTERVAL_S: Final = 5.0
"""A master closes the connection of a slave that is silent for 20 s."""
SILENCE_S: Final = 20.0


class ReplicaSource:
    """The log of the broker whose port for requests is ``address``. Raises NotReached, Refused."""

    def __init__(self, client: "AdminClient", address: str, ha_port: int | None = None) -> None:
        ((self._host, port),) = Addresses()(address)
        self._client = client
        self._address = address
        self._is_ours = True
        self._ha_port = ha_port or self._find_ha_port() or port + 1
        table = client.ask(address, GetBrokerRuntimeInfo()).data.table
        self.begin = max(0, parse_integer_or(table.get("commitLogMinOffset", ""), 0))
        self.end = max(0, parse_integer_or(table.get("commitLogMaxOffset", ""), 0))

    def _find_ha_port(self) -> int:
        """Return the HA port as the broker says it, 0 if it does not."""
        try:
            return self._client.ask(self._address, GetBrokerRole()).data.ha_port
        except Refused as refused:
            if refused.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
        self._is_ours = False
        try:
            ha_address = self._client.ask(self._address, ExchangeBrokerHaInfo()).master_ha_address or ""
        except Refused as refused:
            if refused.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return 0
        return parse_integer_or(ha_address.rpartition(":")[2], 0)

    def read(self, start: int) -> Iterator[bytes]:
        """Yield the bytes of the log from the start of a message on, until the caller stops.

        Raises CannotFetch if the replica refuses, ends, or sends what is not its log.
        """
        try:
            with self._connect() as connection:
                yield from self._read(connection, start)
        except (OSError, HaWireError) as error:
            reason = str(error) or type(error).__name__
            raise CannotFetch(f"{self._host}:{self._ha_port} (HA port): {reason}") from error

    def _connect(self) -> socket.socket:
        preface = b""
        if self._is_ours:
            ticket = self._client.ask(self._address, OpenReplication()).ticket
            preface = encode_preface(ticket, READER_PREFACE)
        connection = socket.create_connection((self._host, self._ha_port), self._client.timeout_s)
        try:
            tls = self._client.tls if self._is_ours else None
            if tls is not None:
                connection = tls.wrap_socket(connection, server_hostname=self._client.tls_name or self._host)
            connection.sendall(preface)
            connection.settimeout(REPORT_INTERVAL_S)
        except BaseException:
            connection.close()
            raise
        return connection

    def _read(self, connection: socket.socket, start: int) -> Iterator[bytes]:
        # To an official master 0 means its last file. With 1 it sends the whole log but for the first byte, which is 0.
        report = encode_report(start or 1)
        if not start:
            yield b"\0"
        offset, frames = start or 1, FrameReader()
        connection.sendall(report)
        heard_s = reported_s = time.monotonic()
        while True:
            try:
                data = connection.recv(READ_BYTES)
            except (TimeoutError, ssl.SSLWantReadError):
                data = None
            now_s = time.monotonic()
            if data:
                heard_s = now_s
                for frame_offset, part in frames.feed(data):
                    if frame_offset != offset:
                        raise HaWireError(f"it sends {frame_offset}, and not {offset}")
                    offset += len(part)
                    yield bytes(part)
            elif data is not None:
                raise ConnectionError(
                    f"closed: the replica has no message that begins at {start}, or refuses this host"
                )
            if now_s - heard_s > SILENCE_S:
                raise TimeoutError(f"it sent nothing for {SILENCE_S:g} s")
            if now_s - reported_s > REPORT_INTERVAL_S:
                connection.sendall(report)
                reported_s = now_s
