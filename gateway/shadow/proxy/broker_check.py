"""Asks an address once whether it is a broker, before any client's bytes go there.

The primary's route data lists whatever registered itself. Without this check, a registration of "10.0.0.5:6379" would
turn the gateway into a relay to that service for everyone who can reach the gateway.

The question is GET_BROKER_RUNTIME_INFO (code 28): it changes nothing, names no topic or group, and every official
broker from 4.0 to 5.x answers it, also on its VIP port. An official Proxy answers that it does not know the request,
and a broker with access control may refuse it. Both will do: what counts is an answer of the remoting protocol to
exactly this request. Anything else (another protocol, silence, an echo) fails the check. A process that poses as a
broker passes; it could pose to the clients without the gateway as well.

A broker that could not be dialed is asked again before the next client is connected to it: another process may have its
address by then.
"""

import ipaddress
import itertools
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Final

import trio

from codec.command import Command, encode_command
from codec.constants import FLAG_RESPONSE
from codec.errors import FrameError
from codec.frames import FrameSplitter
from codec.hosts import format_host, parse_host
from gateway.runtime.running_time import within_running_time
from gateway.shadow.clusters.address_policy import AddressPolicy, AddressRefused, Endpoint
from gateway.shadow.clusters.cluster import Sign
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.transport import Opener, Transport

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES: Final = 1024 * 1024
RECHECK_PAUSE_S: Final = 0.5
"""An address that failed is not asked again before this; clients that want it meanwhile get the same failure."""
MAX_REMEMBERED_FAILURES: Final = 1024
_opaques = itertools.count(1)


class NotABroker(OSError):
    """An address that does not answer as a broker does."""


class BrokerCheck:
    """Dials brokers of one cluster, each address only after it has answered as a broker.

    ``opener`` connects to addresses that ``policy`` allows; ``is_own`` tells whether an address is one of the gateway's
    own listeners, to which it must not connect itself. ``sign`` signs the question.
    """

    def __init__(
        self,
        opener: Opener,
        policy: AddressPolicy,
        *,
        timeout_s: float,
        sign: Sign | None = None,
        is_own: Callable[[Endpoint], bool] = lambda _: False,
    ) -> None:
        self._opener = opener
        self._policy = policy
        self._timeout_s = timeout_s
        self._sign = sign
        self._is_own = is_own
        self._checked: dict[str, Endpoint] = {}
        self._under_way: dict[str, trio.Event] = {}
        self._failures: dict[str, tuple[float, OSError]] = {}

    def is_checked(self, address: str) -> bool:
        """Tell whether an address has answered as a broker, and could be dialed since."""
        return address in self._checked

    def endpoint_of(self, address: str) -> Endpoint | None:
        """Return the numeric address of a broker that has answered."""
        return self._checked.get(address)

    async def dial(self, address: str) -> Transport:
        """Connect to a broker, after checking its address if that was not done yet. Raises OSError."""
        if address not in self._checked:
            await self.check(address)
        try:
            return await self._open(address)
        except OSError:
            self._forget(address)
            raise

    async def check(self, address: str) -> None:
        """Ask an address whether it is a broker. Raises AddressRefused, NotABroker, OSError.

        Several callers share one question.
        """
        while (answered := self._under_way.get(address)) is not None:
            await answered.wait()
            if address in self._checked:
                return
        failure = self._failures.get(address)
        if failure is not None and trio.current_time() < failure[0]:
            # A copy: an exception that is raised again and again collects a traceback each time.
            raise type(failure[1])(*failure[1].args)
        answered = self._under_way[address] = trio.Event()
        try:
            # Whoever else wants this address waits for the event, and shares the result.
            self._checked[address] = await self._ask(address)
            self._failures.pop(address, None)
        except OSError as error:
            self._forget(address)
            self._note_failure(address, error)
            raise
        finally:
            del self._under_way[address]
            answered.set()

    def forget_addresses(self, addresses: Iterable[str]) -> None:
        """Check these addresses again before they are dialed next."""
        for address in addresses:
            self._forget(address)

    async def _ask(self, address: str) -> Endpoint:
        try:
            host, port = parse_host(address)
        except ValueError as error:
            raise AddressRefused(str(error)) from error
        # Pinned, so that the name cannot lead to another address between the check and the next dial.
        endpoint = await self._policy.pin(host, port)
        if self._is_own(endpoint):
            raise AddressRefused(f"{address} is a listener of this gateway")
        question = GetBrokerRuntimeInfo().to_command(next(_opaques))
        if self._sign is not None:
            self._sign(question)
        transport = await self._open(address)
        try:
            await within_running_time(self._timeout_s, lambda: _exchange(transport, question))
            return endpoint
        except trio.TooSlowError:
            raise NotABroker(f"{address} did not answer as a broker within {self._timeout_s:g} s") from None
        except FrameError as error:
            raise NotABroker(f"{address} does not speak the remoting protocol: {error}") from error
        finally:
            transport.close()

    async def _open(self, address: str) -> Transport:
        host, port = parse_host(address)
        try:
            # A pause of this process says nothing about the broker: dozens of clients may wait for their connections.
            return await within_running_time(
                self._timeout_s, lambda: self._opener(host, port), lambda transport: transport.close()
            )
        except trio.TooSlowError:
            raise OSError(f"no connection to {address} within {self._timeout_s:g} s") from None

    def _forget(self, address: str) -> None:
        if self._checked.pop(address, None) is not None:
            self._policy.forget_pin(*parse_host(address))

    def _note_failure(self, address: str, error: OSError) -> None:
        # Anybody can register addresses; the oldest failure is forgotten first.
        while len(self._failures) >= MAX_REMEMBERED_FAILURES:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = trio.current_time() + RECHECK_PAUSE_S, error


async def _exchange(transport: Transport, question: Command) -> None:
    """Send a question, and receive its answer. Raises FrameError, NotABroker, OSError."""
    await transport.send_all(encode_command(question))
    await _receive_answer(transport, question.opaque)


async def _receive_answer(transport: Transport, opaque: int) -> Command:
    """Return the answer with this opaque. Raises FrameError, NotABroker, OSError."""
    splitter, received = FrameSplitter(MAX_ANSWER_BYTES), 0
    while data := await transport.receive(64 * 1024):
        received += len(data)
        for command in splitter.feed(data):
            # An echo of the question is not an answer.
            if command.flag & FLAG_RESPONSE and command.opaque == opaque:
                return command
        if received > MAX_ANSWER_BYTES:
            break
    raise NotABroker(f"{format_host(transport.remote)} did not answer as a broker")


def unmap_host(host: str) -> str:
    """Return the IPv4 address of an IPv6 address such as ::ffff:127.0.0.1; others unchanged."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return host if mapped is None else str(mapped)


def is_local_host(host: str) -> bool:
    """Tell whether a numeric address is one of this machine: only then can a socket be bound to it."""
    host = unmap_host(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
