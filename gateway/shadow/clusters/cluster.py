"""One cluster as seen through its namesrvs: its brokers, and typed requests to them.

Clients' traffic uses connections of its own, in the proxy.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import quote

import trio

from codec.command import Command
from codec.constants import MASTER_ID, ResponseCode
from codec.java_numbers import parse_integer_or, quoted
from remoting.bodies.routes import TopicRouteData
from remoting.connection import Connection, Handler
from remoting.declare import Header, Request
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.frame_connection import FrameConnection
from remoting.limits import ConnectionLimits
from remoting.requests.client import GetConsumerListByGroup
from remoting.requests.namesrv import GetBrokerClusterInfo, GetRouteInfoByTopic
from remoting.transport import Opener as Opener
from remoting.transport import connect

log = logging.getLogger(__name__)

Reply = TypeVar("Reply", bound=Header | None)
Sign = Callable[[Command], None]

CLUSTER_ERRORS = (OSError, RemotingTimeout, RemotingClosed, RequestError)
"""Exceptions of a request that fail because of the cluster: it does not answer, or it refuses."""
MAX_BROKERS: Final = 1024
"""Brokers of a cluster that are known at a time: anybody can register any number of them."""
MAX_BROKER_NAME_CHARS: Final = 200
MAX_KNOWN_CONNECTIONS: Final = 1024
MAX_QUEUES_PER_TOPIC: Final = 10_000
"""Queues of a topic on one broker beyond which it is left alone: official brokers accept any number up to 2^31."""
LARGE_BODY_BYTES: Final = 64 * 1024
"""A larger table is decoded in a thread, as clients' requests would wait for it: 100,000 topics take a second."""
MAX_INPUT_BYTES: Final = 256 * 1024 * 1024
"""Unfinished answers of all connections of a cluster together: each alone may have 64 MiB."""
MAX_DECODING_THREADS: Final = 2
MAX_PORT = 65535
_NO_CONSUMER = "no consumer for this group"
"""Source: ConsumerManageProcessor.getConsumerListByGroup, 5.4.0."""
# The size of the pull answers of a backfill is chosen by the broker.
CONNECTION_LIMITS = ConnectionLimits(max_frame_bytes=64 * 1024 * 1024)


def is_usable_name(broker: str) -> bool:
    """Tell whether a broker may have a name: names become parts of metrics and of file names."""
    return bool(broker) and broker.isprintable() and len(quote(broker, safe="")) <= MAX_BROKER_NAME_CHARS


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[v6]:port". Raises ValueError."""
    host, _, text = address.rpartition(":")
    port = parse_integer_or(text, 0)
    if not host or not 0 < port <= MAX_PORT:
        raise ValueError(f"{quoted(address)!r} is not host:port")
    return host.strip("[]"), port


class Cluster:
    """A pool of connections to one cluster, one per address; opened when first needed and reopened after they broke.

    `run` must be running, since it holds the connections' tasks: ``await nursery.start(cluster.run)``.
    `brokers` maps broker names to addresses by broker id (0 is the master), as of the last `refresh`.
    ``handlers`` answer requests that brokers send over these connections; ``sign`` adds credentials to a request;
    ``opener`` opens connections in another way, e.g. with TLS.
    """

    def __init__(
        self,
        namesrvs: Sequence[str],
        *,
        opener: Opener = connect,
        sign: Sign | None = None,
        handlers: dict[int, Handler] | None = None,
        timeout_s: float = 3.0,
    ) -> None:
        self.namesrvs = tuple(namesrvs)
        self._silent_namesrvs: set[str] = set()
        self.brokers: dict[str, dict[int, str]] = {}
        self._opener = opener
        self._sign = sign
        self._handlers = handlers or {}
        self._timeout_s = timeout_s
        self._nursery: trio.Nursery | None = None
        self._connections: dict[str, FrameConnection] = {}
        self._locks: dict[str, trio.Lock] = {}
        self._grown_bytes = 0
        self._decoding = trio.CapacityLimiter(MAX_DECODING_THREADS)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the connections until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            for connection in self._connections.values():
                connection.close("done")

    async def refresh(self) -> None:
        """Ask a namesrv for the brokers. Raises OSError, RemotingTimeout, RemotingClosed, RequestError."""
        info = (await self.ask_namesrv(GetBrokerClusterInfo())).data
        table = {name: data for name, data in (info.broker_addr_table or {}).items() if is_usable_name(name)}
        # Those that are known stay known, however many others were registered.
        names = [
            *(name for name in self.brokers if name in table),
            *(name for name in table if name not in self.brokers),
        ]
        self.brokers = {name: dict(table[name].broker_addrs) for name in names[:MAX_BROKERS]}

    def master(self, broker: str) -> str:
        """Return the address of a broker's master. Raises KeyError if the last `refresh` did not see it."""
        return self.brokers[broker][MASTER_ID]

    async def route(self, topic: str) -> TopicRouteData:
        """Return the brokers and queues of a topic.

        Raises RequestError (TOPIC_NOT_EXIST), and the errors of `refresh`.
        """
        return (await self.ask_namesrv(GetRouteInfoByTopic(topic=topic))).data

    async def ask_namesrv(self, request: Request[Reply], timeout_s: float | None = None) -> Reply:
        """Ask the first namesrv that answers. Raises the error of the last one.

        One that does not answer is the last to be asked from then on: it would cost each request the whole time limit.
        """
        problem: Exception = OSError("no namesrv is configured")
        for address in sorted(self.namesrvs, key=lambda namesrv: namesrv in self._silent_namesrvs):
            try:
                reply = await self.ask_address(address, request, timeout_s)
                self._silent_namesrvs.discard(address)
                return reply
            # An answer, though a refusal: the other namesrvs would say the same.
            except RequestError:
                raise
            except (OSError, RemotingTimeout, RemotingClosed) as error:
                problem = error
                self._silent_namesrvs.add(address)
        raise problem

    async def ask_broker(self, broker: str, request: Request[Reply], timeout_s: float | None = None) -> Reply:
        """Ask a broker's master. Raises KeyError for an unknown broker, and the errors of `ask_address`."""
        return await self.ask_address(self.master(broker), request, timeout_s)

    async def ask_address(
        self, address: str, request: Request[Reply], timeout_s: float | None = None
    ) -> Reply:
        """Send a request to an address. Raises OSError, RemotingTimeout, RemotingClosed, RequestError."""
        answer = await self.ask_command(address, request.to_command(), timeout_s)
        reply = request.REPLY
        # In place while that is quicker than the way to a thread and back.
        if len(answer.body) <= LARGE_BODY_BYTES or reply is None or reply.BODY is None:
            return request.read_reply(answer)
        return await trio.to_thread.run_sync(request.read_reply, answer, limiter=self._decoding)

    async def ask_command(self, address: str, command: Command, timeout_s: float | None = None) -> Command:
        """Send a command that was built by hand; it is signed as well."""
        connection = await self.connection(address)
        if self._sign is not None:
            self._sign(command)
        return await connection.ask_command(command, self._timeout_s if timeout_s is None else timeout_s)

    async def connection(self, address: str) -> Connection:
        """Return the open connection to an address. Raises OSError, RemotingTimeout if it cannot be opened in time.

        There is no checkpoint if it is open already: a pass through the scheduler costs more than the request.
        """
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        self._forget_closed_connections()
        async with self._locks.setdefault(address, trio.Lock()):
            # Another task may have opened it while this one waited for the lock.
            connection = self._connections.get(address)
            if connection is not None and not connection.closed:
                return connection
            connection = self._connections[address] = await self._open(address)
            return connection

    def _forget_closed_connections(self) -> None:
        """Forget closed connections when there are many: route data can name ever new addresses."""
        if len(self._locks) < MAX_KNOWN_CONNECTIONS:
            return
        for address, lock in list(self._locks.items()):
            connection = self._connections.get(address)
            # A locked one is being opened at this moment.
            if not lock.locked() and (connection is None or connection.closed):
                del self._locks[address]
                self._connections.pop(address, None)

    async def _open(self, address: str) -> FrameConnection:
        if self._nursery is None:
            raise RemotingClosed("the cluster is not running")
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise OSError(str(error)) from error
        with trio.move_on_after(self._timeout_s) as limit:
            transport = await self._opener(host, port)
        if limit.cancelled_caught:
            raise RemotingTimeout(f"no connection to {address} within {self._timeout_s} s")
        connection = FrameConnection(
            transport,
            self._handlers,
            self._nursery,
            CONNECTION_LIMITS,
            on_large_input=self._count_large_input,
        )
        self._nursery.start_soon(connection.run)
        return connection

    def _count_large_input(self, size: int) -> None:
        """Close the connections with the largest unfinished answers while all together hold too much."""
        self._grown_bytes += size
        # Summing up all connections costs time, so only after enough has arrived.
        if self._grown_bytes <= MAX_INPUT_BYTES // 8:
            return
        self._grown_bytes = 0
        by_size = sorted(self._connections.values(), key=lambda connection: connection.input_bytes)
        total = sum(connection.input_bytes for connection in by_size)
        while by_size and total > MAX_INPUT_BYTES:
            largest = by_size.pop()
            total -= largest.input_bytes
            log.warning(
                "connection closed: unfinished answers hold too much", extra={"remote": largest.remote}
            )
            largest.close("unfinished answers over the limit")


async def group_members(cluster: Cluster, broker: str, group: str) -> set[str]:
    """Return the client ids of a group's consumers at a broker; empty if it has none.

    Raises the errors of `ask_broker`.
    """
    try:
        reply = await cluster.ask_broker(broker, GetConsumerListByGroup(consumer_group=group))
    except RequestError as refused:
        if refused.code == ResponseCode.SYSTEM_ERROR and (refused.remark or "").startswith(_NO_CONSUMER):
            return set()
        raise
    return set(reply.data.consumer_id_list)
