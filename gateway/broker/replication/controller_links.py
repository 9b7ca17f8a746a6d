"""Connections to all controllers: heartbeats to each of them, and requests to the one that leads.

Each controller gets heartbeats, whether it leads or not, so that a new leader knows at once who is alive. A connection
stays open, because a controller takes a broker whose heartbeat connection closes for dead. Only a controller that has
not answered for the time after which it would take the broker for dead anyway is connected to anew.

Every answer to GET_METADATA_INFO (1005) names the leading controller. A controller that says so of itself is believed
before others are. If the leader is none of those in ``controllerAddr``, which may have names where it says an address,
it gets a connection of its own.

Every controller has a task of its own, so that one that hangs delays neither the others nor the broker.

Source: ReplicasManager and BrokerOuterAPI, 5.4.0. Deviations: heartbeats are answered, because the lease of a master
depends on that (`fencing.py`), and requests are signed if the broker has credentials.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Final, Protocol, TypeVar

import trio

from codec.command import Command
from codec.constants import ResponseCode
from codec.hosts import format_host
from gateway.broker.replication.master_lookup import Address, cancel_after, parse_address
from gateway.config.replication import ReplicationSettings
from remoting.connection import Connection
from remoting.declare import Header, Request
from remoting.errors import REQUEST_FAILURES, RemotingClosed, RemotingTimeout, RequestError, first_leaf
from remoting.requests.controller import ControllerGetMetadataInfo
from remoting.requests.namesrv import BrokerHeartbeat

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
ANSWER_TIMEOUT_S: Final = 3.0
LOOKUP_INTERVAL_S: Final = 120.0
"""Time between two look-ups of the controllers in DNS."""
MIN_TURN_S: Final = 0.1
"""Shortest time between two turns of one controller's task."""
RETRY_S: Final = 1.0
"""Pause before a controller that cannot be reached is connected to again."""
GONE_S: Final = 0.5
"""Time after the end of the leader's connection in which a refused one shows that its process has ended: it has hardly
elected another master in between."""
MAX_CONTROLLERS: Final = 32
NO_ANSWER: Final = "it does not answer"

Dial = Callable[[str, int], AbstractAsyncContextManager[Connection]]
ResolveHost = Callable[[str], Awaitable[list[str]]]
Reply = TypeVar("Reply", bound=Header)
FAILURES: Final = (*REQUEST_FAILURES, trio.TooSlowError)


class NoLeader(Exception):
    """No controller that can be reached leads."""


class ControllerLink:
    """The connection to one controller.

    ``is_listed`` is False for a controller that only another one has named. ``heartbeat_sent_s`` is when the last
    heartbeat was sent that the controller has answered over the present connection, None before one was.
    ``claims_to_lead`` is what it last said of itself. ``is_silent`` is True while it does not answer in time.
    """

    def __init__(self, address: Address, *, is_listed: bool) -> None:
        self.address = address
        self.is_listed = is_listed
        self.connection: Connection | None = None
        self.heartbeat_sent_s: float | None = None
        self.claims_to_lead = False
        self.is_silent = False

    @property
    def name(self) -> str:
        """The address as text."""
        return format_host(self.address)

    @property
    def is_open(self) -> bool:
        """True while there is a connection."""
        return self.connection is not None and not self.connection.closed

    def reaches(self, address: Address) -> bool:
        """Tell whether the controller is the one at an address, perhaps under another name."""
        return self.address == address or (
            self.connection is not None and tuple(self.connection.remote[:2]) == address
        )


class LinkEvents(Protocol):
    """The user of the links."""

    def heartbeat_over(self, connection: Connection) -> BrokerHeartbeat | None:
        """Return the heartbeat to send over a connection; None while none is to be sent."""

    async def heartbeat_answered(self, link: ControllerLink) -> None:
        """Use the answer of a controller to a heartbeat."""

    def leader_lost(self) -> None:
        """Note that the connection to the leading controller has closed."""

    def leader_gone(self) -> None:
        """Note that nothing listens any more where the leading controller was before its connection closed."""


class ControllerLinks:
    """Keeps the links of one broker. ``now`` is the clock of its lease, ``resolve`` looks a host name up."""

    def __init__(
        self,
        settings: ReplicationSettings,
        dial: Dial,
        now: Callable[[], float],
        sign: Callable[[Command], None] | None = None,
        resolve: ResolveHost | None = None,
    ) -> None:
        self._settings = settings
        self._dial = dial
        self._now = now
        self._sign = sign
        self._resolve = resolve
        self._links: list[ControllerLink] = []
        self._leader: ControllerLink | None = None
        self._lost_leader: ControllerLink | None = None
        self._lost_s = 0.0
        self._leader_known = trio.Event()
        self._wake = trio.Event()
        self._troubles: dict[str, str] = {}

    @property
    def leader(self) -> ControllerLink | None:
        """The link to the leading controller, None while that is not known or not connected."""
        leader = self._leader
        return leader if leader is not None and leader.is_open else None

    @property
    def _seeks_leader(self) -> bool:
        """True if the others are to be asked who leads: nobody is known to, or that one does not answer.

        A leader that hangs or is cut off is replaced after its lease. Its successor must be known before the lease of a
        master ends, although the connection to the former one is still open.
        """
        leader = self.leader
        return leader is None or leader.is_silent

    @property
    def trouble(self) -> str:
        """The reasons why no leader is known, or why it is of no use; "" without any."""
        reasons = [f"{name}: {reason}" for name, reason in self._troubles.items()]
        if not reasons and self.leader is None:
            return "none of the controllers leads"
        return "; ".join(reasons)

    # -- asking -------------------------------------------------------------------------------------------------------

    async def ask_leader(self, request: Request[Reply], timeout_s: float = ANSWER_TIMEOUT_S) -> Reply:
        """Send a request to the leading controller, waiting for one to be known.

        Raises NoLeader, RequestError, RemotingClosed, RemotingTimeout.
        """
        return await self.ask(await self.wait_for_leader(timeout_s), request, timeout_s)

    async def wait_for_leader(self, timeout_s: float = ANSWER_TIMEOUT_S) -> ControllerLink:
        """Return the link to the leading controller, as soon as it is known. Raises NoLeader."""
        with trio.move_on_after(timeout_s):
            while self.leader is None:
                self.wake()
                await self._leader_known.wait()
        leader = self.leader
        if leader is None:
            raise NoLeader(self.trouble)
        return leader

    async def ask(self, link: ControllerLink, request: Request[Reply], timeout_s: float) -> Reply:
        """Send a request over a link. A controller that answers that it does not lead is not asked again."""
        if link.connection is None:
            raise RemotingClosed(f"no connection to {link.name}")
        try:
            return await link.connection.ask(request, timeout_s, self._sign)
        except RequestError as refusal:
            if refusal.code == ResponseCode.CONTROLLER_NOT_LEADER:
                self._forget_leader(link)
            raise

    def wake(self) -> None:
        """Send the next heartbeats at once, and ask who leads if that is not known."""
        event, self._wake = self._wake, trio.Event()
        event.set()

    def _forget_leader(self, link: ControllerLink) -> None:
        link.claims_to_lead = False
        if self._leader is link:
            self._leader = None
            self.wake()

    def _set_leader(self, link: ControllerLink) -> None:
        if self._leader is not link:
            log.info("leading controller", extra={"controller": link.name})
        self._leader = link
        event, self._leader_known = self._leader_known, trio.Event()
        event.set()

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self, events: LinkEvents) -> None:
        """Keep all controllers connected until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for address in await self._find_addresses():
                    self._add_link(nursery, events, address, is_listed=True)
                await trio.sleep(LOOKUP_INTERVAL_S if self._links else RETRY_S)

    async def _find_addresses(self) -> list[Address]:
        """Return the addresses of ``controllerAddr``; none while they cannot be looked up."""
        addresses = [parse_address(text) for text in self._settings.controller_addr.split(";") if text]
        if not self._settings.fetch_controller_addr_by_dns_lookup or self._resolve is None:
            return addresses
        ((host, port),) = addresses
        try:
            return [(resolved, port) for resolved in await self._resolve(host)]
        except OSError as error:
            self._note_failure(host, str(error))
            return []

    def _add_link(
        self, nursery: trio.Nursery, events: LinkEvents, address: Address, *, is_listed: bool
    ) -> None:
        if any(link.reaches(address) for link in self._links) or len(self._links) >= MAX_CONTROLLERS:
            return
        link = ControllerLink(address, is_listed=is_listed)
        self._links.append(link)
        nursery.start_soon(self._serve, nursery, events, link)

    async def _serve(self, nursery: trio.Nursery, events: LinkEvents, link: ControllerLink) -> None:
        """Stay connected to one controller. One that is not listed is given up when it cannot be reached."""
        try:
            while True:
                is_connected = False
                try:
                    # Only the connecting is limited in time: its nursery ends with the connection.
                    with trio.CancelScope(deadline=trio.current_time() + CONNECT_TIMEOUT_S) as scope:
                        async with self._dial(*link.address) as connection:
                            scope.deadline, is_connected = inf, True
                            if self._is_double(link, connection):
                                return
                            await self._exchange(nursery, events, link, connection)
                    if scope.cancelled_caught:
                        self._settle_loss(events, link, is_refused=False)
                        self._note_failure(link.name, "no connection in time")
                except* FAILURES as problems:
                    leaf = first_leaf(problems)
                    self._note_failure(link.name, str(leaf) or type(leaf).__name__)
                    if not is_connected:
                        self._settle_loss(events, link, is_refused=isinstance(leaf, ConnectionRefusedError))
                finally:
                    has_worked = link.heartbeat_sent_s is not None
                    link.connection = link.heartbeat_sent_s = None
                if not is_connected and not link.is_listed:
                    return
                # At once after the end of a connection that worked: a leader has taken this broker for dead.
                # A process that is killed may still take a connection while the kernel closes its others one by one, so
                # one that ends before an answer says nothing: the next attempt follows soon.
                await trio.sleep(0 if has_worked else MIN_TURN_S if self._lost_leader is link else RETRY_S)
        finally:
            self._links.remove(link)

    def _settle_loss(self, events: LinkEvents, link: ControllerLink, *, is_refused: bool) -> None:
        """Find out, by the first connection that fails, whether the leader whose connection has closed is gone."""
        if self._lost_leader is link:
            self._lost_leader = None
            if is_refused and self._now() - self._lost_s < GONE_S:
                events.leader_gone()

    def _is_double(self, link: ControllerLink, connection: Connection) -> bool:
        """Tell whether a controller is connected under another name: heartbeats over two connections confuse it."""
        if link.is_listed:
            return False
        host, port = connection.remote[:2]
        double = next((other for other in self._links if other.is_open and other.reaches((host, port))), None)
        return double is not None

    async def _exchange(
        self, nursery: trio.Nursery, events: LinkEvents, link: ControllerLink, connection: Connection
    ) -> None:
        """Send heartbeats, and ask for the leader, until the connection closes or nothing is answered any more."""
        link.connection, link.is_silent = connection, False
        closed = trio.Event()

        def note_close(_: Connection) -> None:
            closed.set()
            if self._leader is link:
                if self._lost_leader is not link:
                    self._lost_leader, self._lost_s = link, self._now()
                events.leader_lost()

        connection.on_close(note_close)
        settings = self._settings
        answered_s, asked_leader_s = self._now(), -inf
        async with trio.open_nursery() as tasks:
            tasks.start_soon(cancel_after, closed, tasks.cancel_scope)
            while True:
                wake, turn_s = self._wake, self._now()
                must_ask = turn_s >= asked_leader_s + settings.sync_controller_metadata_period_ms / 1000
                is_answered = await self._send_heartbeat(events, link, connection)
                if must_ask or self._seeks_leader:
                    asked_leader_s = turn_s
                    names_leader = await self._ask_for_leader(nursery, events, link, connection)
                    is_answered = names_leader or bool(is_answered)
                if link.heartbeat_sent_s is not None and link.heartbeat_sent_s >= turn_s:
                    await events.heartbeat_answered(link)
                if is_answered:
                    answered_s = self._now()
                elif (
                    is_answered is False
                    and self._now() - answered_s > settings.controller_heartbeat_timeout_ms / 1000
                ):
                    raise RemotingTimeout(NO_ANSWER)
                await trio.sleep(MIN_TURN_S)
                with trio.move_on_after(settings.broker_heartbeat_interval_ms / 1000 - MIN_TURN_S):
                    await wake.wait()
        raise RemotingClosed(f"the connection to {link.name} has closed")

    async def _send_heartbeat(
        self, events: LinkEvents, link: ControllerLink, connection: Connection
    ) -> bool | None:
        """Send a heartbeat; return False if it is not answered, None if there is none to send yet."""
        heartbeat = events.heartbeat_over(connection)
        if heartbeat is None:
            return None
        sent_s = self._now()
        command = heartbeat.to_command()
        if self._sign is not None:
            self._sign(command)
        try:
            answer = await connection.ask_command(command, self._longest_wait_s)
        except RemotingTimeout:
            self._note_silence(link)
            return False
        link.is_silent = False
        if self._lost_leader is link:
            self._lost_leader = None
        if answer.code == ResponseCode.SUCCESS:
            link.heartbeat_sent_s = sent_s
            self._note_success(link.name)
        else:
            self._note_failure(link.name, f"heartbeat refused: {answer.remark} ({answer.code})")
        return True

    async def _ask_for_leader(
        self, nursery: trio.Nursery, events: LinkEvents, link: ControllerLink, connection: Connection
    ) -> bool:
        """Ask a controller who leads; return False if it does not answer."""
        try:
            answer = await connection.ask(ControllerGetMetadataInfo(), self._longest_wait_s, self._sign)
        except RemotingTimeout:
            self._note_silence(link)
            return False
        except RequestError as refusal:
            self._note_failure(link.name, str(refusal))
            return True
        link.claims_to_lead = answer.is_leader
        if answer.is_leader:
            self._set_leader(link)
        elif self._leader is link:
            self._forget_leader(link)
        if self._seeks_leader and answer.controller_leader_address:
            try:
                address = parse_address(answer.controller_leader_address)
            except ValueError as error:
                self._note_failure(link.name, str(error))
            else:
                self._add_link(nursery, events, address, is_listed=False)
        return True

    @property
    def _longest_wait_s(self) -> float:
        return self._settings.send_heartbeat_timeout_ms / 1000

    def _note_silence(self, link: ControllerLink) -> None:
        if not link.is_silent:
            link.is_silent = True
            if self._leader is link:
                self.wake()
        self._note_failure(link.name, NO_ANSWER)

    def _note_failure(self, name: str, reason: str) -> None:
        if self._troubles.get(name) != reason:
            log.warning("controller cannot be used", extra={"controller": name, "reason": reason})
        self._troubles[name] = reason

    def _note_success(self, name: str) -> None:
        if self._troubles.pop(name, None) is not None:
            log.info("controller can be used again", extra={"controller": name})
