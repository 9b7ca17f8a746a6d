"""How the endpoint is reached from driver and executors: addresses, credentials, TLS, patience.

An `Endpoint` is a picklable description; connections are opened where they are used and belong to one thread.

Not responsible for what is asked, nor for which topics there are.
"""

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar

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

_MASTER_ID: Final = 0
TRANSIENT_CODES: Final = frozenset({1, 2, 14, 215})
"""Refusals that may be over a moment later: SYSTEM_ERROR, SYSTEM_BUSY, SERVICE_NOT_AVAILABLE, FLOW_CONTROL."""

OPTIONS: Final = (
    Option(
        "nameServer",
        addresses,
        None,
        "Addresses of the name servers, `host:port;host:port`.",
        ("namesrvAddr",),
    ),
    Option("accessKey", text, None, "Access key where the cluster asks for one (ACL)."),
    Option("secretKey", text, None, "Secret of that key.", secret=True),
    Option("securityToken", text, None, "Security token of that key, where one is needed.", secret=True),
    Option("tls.enable", boolean, False, "Speak TLS."),
    Option("tls.caFile", text, None, "File with the certificates to trust; without it the machine's own."),
    Option("tls.certFile", text, None, "The client's certificate, where the cluster asks for one."),
    Option("tls.keyFile", text, None, "The key of that certificate."),
    Option("tls.keyPassword", text, None, "Password of that key.", secret=True),
    Option("tls.verify", boolean, True, "Check the server's certificate."),
    Option("requestTimeoutMs", integer(1), 10_000, "How long one answer may take, ms.", ("pullTimeoutMs",)),
    Option("fetchOffset.numRetries", integer(0), 3, "How often a request that failed is asked again."),
    Option(
        "fetchOffset.retryIntervalMs", integer(0), 200, "Pause before the first retry, ms; doubled at each."
    ),
)


@dataclass(frozen=True, slots=True)
class ClusterEndpoint:
    """Where the name servers are and how to speak with them and the brokers. Picklable; prints no secret."""

    name_servers: tuple[Address, ...]
    credentials: Credentials | None = None
    tls: "TlsOptions | None" = None
    timeout_s: float = 10.0
    retries: int = 3
    retry_interval_s: float = 0.2

    @classmethod
    def from_options(cls, values: Mapping[str, Any], source: str) -> "ClusterEndpoint":
        """From what `read_options` made of `OPTIONS`. Raises OptionError for what is missing or half given."""
        if not values["nameServer"]:
            raise OptionError(f"{source}: option nameServer is needed, e.g. 127.0.0.1:9876")
        if bool(values["accessKey"]) != bool(values["secretKey"]):
            raise OptionError(f"{source}: accessKey and secretKey are only of use together")
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
        """A new connection. Raises EndpointError when there is none within the timeout."""
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
        """What `action` returns; failures that may be over a moment later are tried again, with growing pauses.

        Raises EndpointError, which says what was tried, after the last; a refusal for good (RequestError) at once.
        """
        pause_s = self.retry_interval_s
        for attempt in range(self.retries + 1):
            try:
                return action()
            except (EndpointError, RemotingClosed, RemotingTimeout, RequestError) as error:
                if isinstance(error, RequestError) and error.code not in TRANSIENT_CODES:
                    raise
                if attempt == self.retries:
                    raise EndpointError(f"{what}: {error} (asked {attempt + 1} times)") from error
            time.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("the loop returns or raises")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How connections are encrypted; paths are those of the machine that connects, executors included."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> "TlsOptions":
        """From what `read_options` made of `OPTIONS`."""
        names = ("caFile", "certFile", "keyFile", "keyPassword", "verify")
        return cls(*(values[f"tls.{name}"] for name in names))

    def create_context(self) -> ssl.SSLContext:
        """Raises OSError for files that cannot be read or do not fit."""
        from remoting.tls import client_context  # it brings trio, which takes a third of a worker's start

        return client_context(
            ca_file=Path(self.ca_file) if self.ca_file else None,
            verify=self.verify,
            check_host=False,
            certificate_file=Path(self.cert_file) if self.cert_file else None,
            key_file=Path(self.key_file) if self.key_file else None,
            key_password=self.key_password,
        )


class Connections:
    """The connections of one thread, one per address, opened when first needed and again after a failure."""

    def __init__(self, endpoint: ClusterEndpoint) -> None:
        self.endpoint = endpoint
        self._clients: dict[Address, BlockingClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close them all; they are opened again when needed."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def get_client(self, address: Address) -> BlockingClient:
        """The connection to a name server or broker. Raises EndpointError."""
        if address not in self._clients:
            self._clients[address] = self.endpoint.open_connection(address)
        return self._clients[address]

    def drop_client(self, address: Address) -> None:
        """Forget a connection that failed or was left in the middle of something."""
        client = self._clients.pop(address, None)
        if client is not None:
            client.close()

    def run_at(self, address: Address, action: Callable[[BlockingClient], T], what: str) -> T:
        """What `action` makes of the connection, tried again on a new one as `Endpoint.retry` says."""

        def attempt() -> T:
            try:
                return action(self.get_client(address))
            except (RemotingClosed, RemotingTimeout):
                self.drop_client(address)
                raise

        return self.endpoint.run_with_retries(attempt, what)

    def request_from(self, address: Address, request: Request[Reply]) -> Reply:
        """One answer of one server. Raises RequestError, EndpointError."""
        return self.run_at(
            address,
            lambda client: client.ask(request),
            f"{type(request).__name__} of {address[0]}:{address[1]}",
        )

    def request_name_server(self, request: Request[Reply]) -> Reply:
        """The answer of the first name server that can be reached. Raises RequestError, EndpointError."""
        return self.run_at_name_server(lambda client: client.ask(request), type(request).__name__)

    def run_at_name_server(self, action: Callable[[BlockingClient], T], what: str) -> T:
        """What `action` makes of the first name server that can be reached. Raises RequestError, EndpointError."""

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
    """Where a broker's master is; None while it has none."""
    address = broker.broker_addrs.get(_MASTER_ID)
    return None if address is None else addresses(address)[0]
