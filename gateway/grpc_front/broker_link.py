"""The way of RPCs to a broker or namesrv: `BrokerLink` says what they need of it, `LocalLink` stays in this process.

A link belongs to one gRPC client. The broker takes it for the connection of a remoting client with the address of the
gRPC client, so everything that depends on connections works: registered members, waiting pops, notices, access rules.
"""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import trio

from gateway.auth.access_control import Accounts
from gateway.broker.consumers.client_protocol import CLIENT_PROTOCOL, GRPC
from gateway.grpc_front.access import RpcSender
from remoting.acl import Credentials
from remoting.connection import Connection, Handler
from remoting.declare import Header, Request
from remoting.errors import RequestError
from remoting.local_connection import DEFAULT_TIMEOUT_S, LocalConnection, ignore_request

Reply = TypeVar("Reply", bound=Header | None)
OnRequest = Callable[[Request[Any]], None]
"""Takes a notice that a broker sends its client."""


class BrokerLink(Protocol):
    """Carries requests of one client to one broker or namesrv."""

    @property
    def closed(self) -> bool:
        """True once either side has closed the link."""

    async def call(
        self,
        request: Request[Reply],
        sender: RpcSender,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        language: str = "OTHER",
        on_unclaimed: Callable[[Reply], None] | None = None,
    ) -> Reply:
        """Send a request as the sender of an RPC, and return its reply.

        ``on_unclaimed`` gets a reply that came while the RPC was being cancelled.
        Raises RequestError (AccessDenied among them), RemotingTimeout, RemotingClosed.
        """

    def post(self, request: Request[Any], sender: RpcSender) -> None:
        """Send a request without waiting for its answer. Failures are ignored."""

    def close(self, reason: str) -> None:
        """End the link, and the requests that wait for an answer."""


@dataclass(frozen=True, slots=True)
class ServedHandlers:
    """The handlers of one broker or namesrv. ``end_batch`` is called after each request, ``opened`` with each link.

    ``accounts`` are those of its access control, None if it is off.
    """

    handlers: Mapping[int, Handler]
    accounts: Accounts | None = None
    end_batch: Callable[[], None] = lambda: None
    opened: Callable[[Connection], None] = lambda connection: None


class LocalLink:
    """A `BrokerLink` to a broker or namesrv of this process. ``on_request`` gets the notices of the broker."""

    __slots__ = ("_accounts", "_connection")

    def __init__(
        self,
        served: ServedHandlers,
        peer: Connection,
        nursery: trio.Nursery,
        on_request: OnRequest = ignore_request,
    ) -> None:
        self._accounts = served.accounts
        self._connection = LocalConnection(
            served.handlers,
            peer.remote,
            peer.local,
            nursery,
            peer.limits,
            on_batch=served.end_batch,
            on_request=on_request,
        )
        self._connection.state[CLIENT_PROTOCOL] = GRPC
        served.opened(self._connection)

    @property
    def closed(self) -> bool:
        """True once either side has closed the link."""
        return self._connection.closed

    def call(
        self,
        request: Request[Reply],
        sender: RpcSender,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        language: str = "OTHER",
        on_unclaimed: Callable[[Reply], None] | None = None,
    ) -> Coroutine[Any, Any, Reply]:
        """Pass a request to the broker's handler, and return its reply; see `BrokerLink.call`."""
        # Not a coroutine function itself: a second one around each call costs 0.3 us.
        return self._connection.call(
            request,
            self._caller(sender),
            timeout_s=timeout_s,
            language=language,
            on_unclaimed=on_unclaimed,
        )

    def post(self, request: Request[Any], sender: RpcSender) -> None:
        """Pass a request to the broker's handler without waiting for its answer. Failures are ignored."""
        with suppress(RequestError):
            self._connection.post(request, self._caller(sender))

    def close(self, reason: str) -> None:
        """End the link, and the requests that wait for an answer."""
        self._connection.close(reason)

    def _caller(self, sender: RpcSender) -> Credentials | None:
        return None if self._accounts is None else sender.credentials(self._accounts)
