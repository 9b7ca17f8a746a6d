"""Connections from driver and executors to a cluster: addresses, credentials, TLS, timeouts and retries.

A `ClusterEndpoint` is a picklable description. Connections are opened where they are used, and belong to one thread.
"""

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from codec.constants import MASTER_ID
from remoting.acl import Credentials, make_signer
from remoting.blocking import BlockingClient
from remoting.bodies.routes import BrokerData
from remoting.declare import Header, Request
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from spark.errors import EndpointError, OptionError
from spark.options import Option, addresses, boolean, integer, text

T = TypeVar("T")
Reply = TypeVar("Reply", bound=Header | None)
Address = tuple[str, int]

TRANSIENT_CODES: Final = frozenset({1, 2, 14, 215, 1500})
"""Refusals worth a retry: SYSTEM_ERROR, SYSTEM_BUSY, SERVICE_NOT_AVAILABLE, FLOW_CONTROL, GO_AWAY."""

OPTIONS: Final = (
    Option(
        "nameServer",
        addresses,
        None,
        "Name server addresses, `host:port;host:port`.",
        ("namesrvAddr",),
    ),
    Option("accessKey", text, None, "Access key, if the cluster requires one (ACL)."),
    Option("secretKey", text, None, "Secret key that belongs to `accessKey`.", secret=True),
    Option(
        "securityToken",
        text,
        None,
        "Security token that belongs to `accessKey`, if one is required.",
        secret=True,
    ),
    Option("tls.enable", boolean, False, "Connect with TLS."),
    Option("tls.caFile", text, None, "File of trusted CA certificates. Default: those of the machine."),
    Option("tls.certFile", text, None, "Client certificate file, if the cluster requires one."),
    Option("tls.keyFile", text, None, "Private key file of the client certificate."),
    Option("tls.keyPassword", text, None, "Password of the private key.", secret=True),
    Option("tls.verify", boolean, True, "Verify the server's certificate."),
    Option("requestTimeoutMs", integer(1), 10_000, "Timeout of one request, ms.", ("pullTimeoutMs",)),
    Option("fetchOffset.numRetries", integer(0), 3, "Retries of a failed request."),
    Option(
        "fetchOffset.retryIntervalMs",
        integer(0),
        200,
        "Pause before the first retry, ms. Doubles with each retry.",
    ),
)


@dataclass(frozen=True, slots=True)
class ClusterEndpoint:
    """Name server addresses, credentials, timeout and retries of a cluster. Picklable; its repr shows no secret."""

    name_servers: tuple[Address, ...]
    credentials: Credentials | None = None
    tls: "TlsOptions | None" = None
    timeout_s: float = 10.0
    retries: int = 3
    retry_interval_s: float = 0.2

    @classmethod
    def from_options(cls, values: Mapping[str, Any], source: str) -> "ClusterEndpoint":
        """Build an endpoint from parsed `OPTIONS`. Raises OptionError if an option is missing or half of a pair."""
        if not values["nameServer"]:
            raise OptionError(f"{source}: option nameServer is required, e.g. 127.0.0.1:9876")
        if bool(values["accessKey"]) != bool(values["secretKey"]):
            raise OptionError(f"{source}: accessKey and secretKey must be given together")
        credentials = None
        if values["accessKey"]:
            credentials = Credentials(values["accessKey"], values["secretKey"], values["securityToken"])
        return cls(
            name_servers=values["nameServer"],
            credentials=credentials,
            tls=TlsOptions.from_options(values) if values["tls.enable"] else None,
            timeout_s=values["requestTimeoutMs"] / 1000,
            retries=values["fetchOffset.numRetries"],
            retry_interval_s=values["fetchOffset.retryIntervalMs"] / 1000,
        )

    def open_connection(self, address: Address) -> BlockingClient:
        """Open a connection. Raises EndpointError if that takes longer than the timeout."""
        try:
            return BlockingClient(
                *address,
                timeout_s=self.timeout_s,
                tls=self.tls.create_context() if self.tls else None,
                sign=make_signer(self.credentials) if self.credentials else None,
            )
        except (RemotingClosed, RemotingTimeout, OSError) as error:
            raise EndpointError(f"{address[0]}:{address[1]}: {error}") from error

    def run_with_retries(self, action: Callable[[], T], what: str) -> T:
        """Return the result of `action`, retrying transient failures with doubling pauses.

        Raises EndpointError after the last attempt, with a text that begins with `what`. Raises RequestError at once
        for a permanent refusal.
        """
        pause_s = self.retry_interval_s
        for attempt in range(self.retries + 1):
            try:
                return action()
            except (EndpointError, RemotingClosed, RemotingTimeout, RequestError) as error:
                if isinstance(error, RequestError) and error.code not in TRANSIENT_CODES:
                    raise
                if attempt == self.retries:
                    raise EndpointError(f"{what}: {error} (after {attempt + 1} attempts)") from error
            time.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("the loop returns or raises")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS settings. Paths are looked up on the machine that connects, executors included."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> "TlsOptions":
        """Build TLS settings from parsed `OPTIONS`."""
        names = ("caFile", "certFile", "keyFile", "keyPassword", "verify")
        return cls(*(values[f"tls.{name}"] for name in names))

    def create_context(self) -> ssl.SSLContext:
        """Load the certificates into an SSL context. Raises OSError if files cannot be read or do not match."""
        from remoting.tls import client_context  # imports trio, a third of a worker's start-up time

        return client_context(
            ca_file=Path(self.ca_file) if self.ca_file else None,
            verify=self.verify,
            check_host=False,
            certificate_file=Path(self.cert_file) if self.cert_file else None,
            key_file=Path(self.key_file) if self.key_file else None,
            key_password=self.key_password,
        )


class Connections:
    """Connections of one thread, one per address, opened on first use and reopened after a failure."""

    def __init__(self, endpoint: ClusterEndpoint) -> None:
        self.endpoint = endpoint
        self._clients: dict[Address, BlockingClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. They are reopened when needed."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def get_client(self, address: Address) -> BlockingClient:
        """Return the connection to a name server or broker. Raises EndpointError."""
        if address not in self._clients:
            self._clients[address] = self.endpoint.open_connection(address)
        return self._clients[address]

    def drop_client(self, address: Address) -> None:
        """Close a connection that failed or has unread answers."""
        client = self._clients.pop(address, None)
        if client is not None:
            client.close()

    def run_at(self, address: Address, action: Callable[[BlockingClient], T], what: str) -> T:
        """Return the result of `action` on the connection to an address, reconnecting on each retry."""

        def attempt() -> T:
            try:
                return action(self.get_client(address))
            except (RemotingClosed, RemotingTimeout):
                self.drop_client(address)
                raise

        return self.endpoint.run_with_retries(attempt, what)

    def request_from(self, address: Address, request: Request[Reply]) -> Reply:
        """Send a request to one server and return its answer. Raises RequestError, EndpointError."""
        return self.run_at(
            address,
            lambda client: client.ask(request),
            f"{type(request).__name__} of {address[0]}:{address[1]}",
        )

    def request_name_server(self, request: Request[Reply]) -> Reply:
        """Return the answer of the first reachable name server. Raises RequestError, EndpointError."""
        return self.run_at_name_server(lambda client: client.ask(request), type(request).__name__)

    def run_at_name_server(self, action: Callable[[BlockingClient], T], what: str) -> T:
        """Return the result of `action` on the first reachable name server. Raises RequestError, EndpointError."""

        def attempt() -> T:
            failures = []
            for address in self.endpoint.name_servers:
                try:
                    return action(self.get_client(address))
                except (EndpointError, RemotingClosed, RemotingTimeout) as error:
                    self.drop_client(address)
                    failures.append(str(error))
            raise EndpointError("; ".join(failures))

        return self.endpoint.run_with_retries(attempt, f"{what} of the name servers")


def master_address(broker: BrokerData) -> Address | None:
    """Return the address of a broker's master, or None if it has no master now."""
    address = broker.broker_addrs.get(MASTER_ID)
    return None if address is None else addresses(address)[0]
