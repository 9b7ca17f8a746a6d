"""The way of RPCs to brokers in other processes: `RemoteLink` carries requests over connections of `remoting`.

Theory of operation
-------------------
A broker recognises a client by its connection: members of groups, the producers that it asks about half messages,
waiting pops. So each gRPC connection has a connection of its own to each broker that it uses (`BrokerSession`), where
the official Proxy shares a few among all clients. Brokers then see each client for itself, a check-back arrives at the
client that is asked, and pops that wait end with their client. The price is one connection for each client and broker,
and one more for each further client that shares a gRPC connection, because a connection stands for one member only.

Several links share a session. It is opened by the first request, and closed when no link and no request uses it any
more, or as soon as either side closes the connection; its links are then closed, and whoever needs one opens another.
Closing the link of a member must end its membership, so it takes the session away from the other links: these go on
only until their requests are answered.

A pop cannot be taken back. When its receive is given up, its answer may still come: it is handed to ``on_unclaimed``,
which returns the messages.
"""

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import trio

from codec.command import Command
from codec.constants import FLAG_RESPONSE, LANGUAGE_CODES, ResponseCode
from gateway.broker.consumers.client_protocol import GRPC, PROTOCOL_FIELD
from gateway.grpc_front.access import RpcSender
from gateway.grpc_front.broker_link import OnRequest
from remoting.connection import Connection, Handler
from remoting.declare import Header, Request
from remoting.eager import enter_task
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.frame_connection import FrameConnection
from remoting.local_connection import DEFAULT_TIMEOUT_S
from remoting.requests.client import HeartBeat, NotifyConsumerIdsChanged
from remoting.requests.transaction import CheckTransactionState

log = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=Header | None)

MAX_UNCLAIMED: Final = 1_000
"""Given up pops of one session whose answers are still waited for. Messages of more become visible by themselves."""
_NO_MESSAGES: Final = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}
"""The header of a pop's answer without messages."""


class RemoteBroker:
    """A broker that a namesrv knows. ``address`` is that of its present master."""

    __slots__ = ("address", "avoided_until_s", "name", "named_s")

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.named_s = -math.inf
        """Time of the event loop at which a namesrv named the broker last."""
        self.avoided_until_s = 0.0
        """Time of the event loop until which messages rather go to other brokers."""


class SessionOwner(Protocol):
    """Opens the connections of sessions, signs their requests, and learns how they fare."""

    async def dial(self, broker: RemoteBroker, handlers: Mapping[int, Handler]) -> FrameConnection:
        """Connect to a broker's master. Raises RemotingClosed, RemotingTimeout."""

    def sign(self, command: Command, sender: RpcSender) -> None:
        """Sign a request as the sender of its RPC. Raises AccessDenied."""

    def note_end(self, session: "BrokerSession") -> None:
        """Take note that a session is closed."""

    def note_failure(self, broker: RemoteBroker) -> None:
        """Take note that a broker cannot be reached, or does not answer."""

    def explain_refusal(self, request: Request[Any], refusal: RequestError) -> RequestError:
        """Return a broker's refusal as RPCs know it, and take note of it: the broker may not be the right one."""


class AwaitedReply:
    """The answer to a request, which somebody waits for, or which comes when nobody does any more."""

    __slots__ = ("answer", "arrived", "on_unclaimed")

    def __init__(self) -> None:
        self.answer: Command | None = None
        self.arrived = trio.Event()
        self.on_unclaimed: Callable[[Command], None] | None = None

    def take(self, answer: Command | None) -> None:
        """Take the answer; None at the end of the connection."""
        if self.on_unclaimed is None:
            self.answer = answer
            self.arrived.set()
        elif answer is not None:
            self.on_unclaimed(answer)

    def release(self) -> None:
        """Answer a pop that waits without messages."""
        if not self.arrived.is_set():
            self.answer = Command(ResponseCode.POLLING_TIMEOUT, 0, FLAG_RESPONSE, dict(_NO_MESSAGES), b"")
            self.arrived.set()


class BrokerSession:
    """A connection to a broker, opened by the first request, which several links share."""

    def __init__(self, broker: RemoteBroker, owner: SessionOwner) -> None:
        self.broker = broker
        self.owner = owner
        self.closed = False
        self.shared_link: RemoteLink | None = None
        """The link that all RPCs of a gRPC connection share, if this session has it."""
        self.on_request: OnRequest | None = None
        """Takes the requests of the broker to the member that this connection stands for; None without a member."""
        self.unclaimed = 0
        self.polls: set[AwaitedReply] = set()
        """Pops that wait for messages."""
        self._connection: FrameConnection | None = None
        self._opening = trio.Lock()
        self._users = 0

    # -- life ----------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Count a link or a request that needs the session."""
        self._users += 1

    def release(self) -> None:
        """End what `hold` counted; the last one closes the connection."""
        self._users -= 1
        if not self._users:
            self.close("nobody needs it any more")

    def close(self, reason: str) -> None:
        """Close the connection, and so all links. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.owner.note_end(self)
        if self._connection is not None:
            self._connection.close(reason)

    def end_membership(self) -> None:
        """Take the session away from its links, so that the connection ends with the requests in progress."""
        self.on_request = None
        if self.shared_link is not None:
            self.shared_link.close("the member has left")

    # -- the connection ------------------------------------------------------------------------------------

    @property
    def connection(self) -> FrameConnection | None:
        """The open connection, None before the first request and after the end."""
        return None if self.closed else self._connection

    async def connect(self) -> FrameConnection:
        """Return the connection, opening it first if need be. Raises RemotingClosed, RemotingTimeout."""
        if self._connection is not None:
            return self._connection
        async with self._opening:
            if self._connection is None and not self.closed:
                await self._open()
        if self._connection is None or self.closed:
            raise RemotingClosed(f"the connection to broker {self.broker.name} is closed")
        return self._connection

    async def _open(self) -> None:
        handlers: dict[int, Handler] = {
            CheckTransactionState.code: self._take_check,
            NotifyConsumerIdsChanged.code: lambda connection, command: None,
        }
        try:
            connection = await self.owner.dial(self.broker, handlers)
        except (RemotingClosed, RemotingTimeout):
            self.close("it cannot be opened")
            raise
        self._connection = connection
        connection.on_close(lambda _: self.close("the broker has closed it"))
        if self.closed:  # Everybody left while it was opened.
            connection.close("nobody needs it any more")

    def _take_check(self, connection: Connection, command: Command) -> None:
        if self.on_request is not None:
            self.on_request(CheckTransactionState.from_command(command, connection.limits.max_json_values))

    def release_polls(self) -> None:
        """Answer the pops that wait, without messages."""
        for pending in self.polls:
            pending.release()


class RemoteLink:
    """A `BrokerLink` over a session. ``is_member`` if the connection stands for a member of groups."""

    __slots__ = ("_is_closed", "_is_member", "session")

    def __init__(self, session: BrokerSession, *, is_member: bool = False) -> None:
        self.session = session
        self._is_closed = False
        self._is_member = is_member
        session.hold()

    @property
    def closed(self) -> bool:
        """True once either side has closed the link."""
        return self._is_closed or self.session.closed

    async def call(
        self,
        request: Request[Reply],
        sender: RpcSender,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        language: str = "OTHER",
        on_unclaimed: Callable[[Reply], None] | None = None,
    ) -> Reply:
        """Send a request to the broker, and return its reply; see `BrokerLink.call`."""
        await enter_task()
        session = self.session
        if self.closed:
            raise RemotingClosed(f"the connection to broker {session.broker.name} is closed")
        session.hold()
        try:
            connection = await session.connect()
            command = self._command(request, sender, language)
            answer = await self._ask(connection, command, request, timeout_s, on_unclaimed)
        except (RemotingClosed, RemotingTimeout):
            session.owner.note_failure(session.broker)
            raise
        finally:
            session.release()
        try:
            return request.read_reply(answer)
        except RequestError as refusal:
            raise session.owner.explain_refusal(request, refusal) from refusal

    def _command(self, request: Request[Any], sender: RpcSender, language: str) -> Command:
        command = request.to_command()
        # Brokers read it as an enumeration, so other names would be errors.
        command.language = language if language in LANGUAGE_CODES else "OTHER"
        if command.code == HeartBeat.code:
            command.ext[PROTOCOL_FIELD] = GRPC
        self.session.owner.sign(command, sender)
        return command

    async def _ask(
        self,
        connection: FrameConnection,
        command: Command,
        request: Request[Reply],
        timeout_s: float,
        on_unclaimed: Callable[[Reply], None] | None,
    ) -> Command:
        session, pending = self.session, AwaitedReply()
        waits = ResponseCode.POLLING_TIMEOUT in request.ACCEPT_CODES
        connection.send_command(command, pending.take)
        if waits:
            session.polls.add(pending)
        is_claimed = False
        try:
            with trio.move_on_after(timeout_s):
                await pending.arrived.wait()
                # An answer that `release` made stands for one that may still come.
                is_claimed = pending.answer is None or pending.answer.opaque == command.opaque
        finally:
            session.polls.discard(pending)
            if not is_claimed:
                self._leave(connection, command, pending, request, on_unclaimed)
        if not pending.arrived.is_set():
            raise RemotingTimeout(
                f"no answer from broker {session.broker.name} within {timeout_s:.1f} s to code {command.code}"
            )
        if pending.answer is None:
            raise RemotingClosed(
                f"the connection to broker {session.broker.name} was closed before its answer to code {command.code}"
            )
        return pending.answer

    def _leave(
        self,
        connection: FrameConnection,
        command: Command,
        pending: AwaitedReply,
        request: Request[Reply],
        on_unclaimed: Callable[[Reply], None] | None,
    ) -> None:
        """Stop waiting for an answer; ``on_unclaimed`` gets it if it is there, or comes later."""
        session = self.session

        def pass_on(answer: Command) -> None:
            if on_unclaimed is not None:
                with suppress(RequestError, RemotingClosed):
                    on_unclaimed(request.read_reply(answer))

        def take_late(answer: Command) -> None:
            session.unclaimed -= 1
            pass_on(answer)

        if pending.answer is not None and pending.answer.opaque == command.opaque:
            pass_on(pending.answer)
        elif on_unclaimed is None or session.unclaimed >= MAX_UNCLAIMED:
            connection.forget_request(command)
        else:
            session.unclaimed += 1
            pending.on_unclaimed = take_late

    def post(self, request: Request[Any], sender: RpcSender) -> None:
        """Send a request without waiting for its answer. Failures are ignored.

        A closed link does so too, as long as others use the connection: it returns messages of late answers.
        """
        connection = self.session.connection
        if connection is not None:
            with suppress(RequestError, RemotingClosed):
                connection.send_command(self._command(request, sender, "OTHER"))

    def close(self, reason: str) -> None:
        """End the link. Requests that wait are answered until the connection closes."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_member:
            self.session.end_membership()
        self.session.release()
