"""One cluster as seen through its namesrvs: its brokers, and typed requests to them.

Masters move between addresses: a replica takes over, by an operator, a controller or an election of DLedger. So a
request to a broker by its name (`Cluster.find_master`) looks the name up again after its master did not answer, or
answered as only a slave does. A former master that still answers everything is noticed by the next `refresh`.

Clients' traffic uses connections of its own, in the proxy.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import quote

import trio

from codec.command import Command
from codec.constants import MASTER_ID, ResponseCode
from codec.hosts import parse_host
from gateway.shadow.traffic.resend import FROM_SLAVE
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
MIN_LOOKUP_INTERVAL_S: Final = 0.5
"""Shortest time between two look-ups of brokers whose masters are in doubt."""
_CODES_OF_SLAVES: Final = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE}
)
"""Codes with which a slave refuses what only its master does. A master has them too, which costs a look-up."""
_NO_CONSUMER = "no consumer for this group"
"""Source: ConsumerManageProcessor.getConsumerListByGroup, 5.4.0."""
# The size of the pull answers of a backfill is chosen by the broker.
CONNECTION_LIMITS = ConnectionLimits(max_frame_bytes=64 * 1024 * 1024)


def is_usable_name(broker: str) -> bool:
    """Tell whether a broker may have a name: names become parts of metrics and of file names."""
    return bool(broker) and broker.isprintable() and len(quote(broker, safe="")) <= MAX_BROKER_NAME_CHARS


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
        self._doubtful: set[str] = set()
        """Addresses of masters that did not answer, or refused what a slave refuses, since the last `refresh`."""
        self._looked_up_s = -math.inf
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
        self._looked_up_s = trio.current_time()
        doubtful, self._doubtful = self._doubtful, set()
        try:
            info = (await self.ask_namesrv(GetBrokerClusterInfo())).data
        except BaseException:
            self._doubtful |= doubtful
            raise
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

    async def find_master(self, broker: str) -> str:
        """Return the address of a broker's master, after a `refresh` if it is unknown or in doubt.

        Raises KeyError if the cluster has no such broker, or it has no master at the moment.
        """
        address = self.brokers.get(broker, {}).get(MASTER_ID)
        is_due = trio.current_time() >= self._looked_up_s + MIN_LOOKUP_INTERVAL_S
        if is_due and (address is None or address in self._doubtful):
            # Without an answer the address that is known is tried: the namesrv may be what has failed.
            with contextlib.suppress(*CLUSTER_ERRORS):
                await self.refresh()
        return self.master(broker)

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
        return await self.ask_address(await self.find_master(broker), request, timeout_s)

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
        try:
            answer = await connection.ask_command(
                command, self._timeout_s if timeout_s is None else timeout_s
            )
        except (OSError, RemotingTimeout, RemotingClosed):
            self.doubt_master(address)
            raise
        if answer.code in _CODES_OF_SLAVES or FROM_SLAVE in (answer.remark or ""):
            self.doubt_master(address)
        return answer

    def doubt_master(self, address: str) -> None:
        """Note that an address may not be that of a master any more: `find_master` looks its name up again."""
        if any(addresses.get(MASTER_ID) == address for addresses in self.brokers.values()):
            self._doubtful.add(address)

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
            try:
                connection = self._connections[address] = await self._open(address)
            except (OSError, RemotingTimeout):
                self.doubt_master(address)
                raise
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
            host, port = parse_host(address)
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
