"""A whole cluster in one test: namesrv, brokers and typed clients over memory streams, on virtual time."""

import contextlib
import functools
import inspect
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import trio
import trio.testing
from trio.testing import MockClock, memory_stream_pair

from codec.command import Command
from codec.message import Message, iter_messages
from codec.properties import encode_properties
from codec.topics import DEFAULT_TOPIC, retry_topic
from gateway.auth.access_control import Accounts
from gateway.broker.assembly.build import PLAIN_LINKS, BrokerBuilder
from gateway.broker.assembly.namesrv_lookup import FetchList, NamesrvLookup, ResolveHost
from gateway.broker.assembly.registration import Registrar
from gateway.broker.assembly.role_control import RoleLinks
from gateway.broker.assembly.saved_role import SavedRole
from gateway.broker.assembly.service import BrokerService
from gateway.broker.broker import Broker
from gateway.broker.replication.parts import PeerLinks
from gateway.config.process import NamesrvConfig
from gateway.namesrv.service import NamesrvService
from gateway.tests.configs import broker_config
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.bodies.routes import TopicRouteData
from remoting.connection import Connection, Handler
from remoting.errors import RemotingClosed, RequestError
from remoting.frame_connection import FrameConnection
from remoting.handler_table import NO_GUARD, Guard
from remoting.limits import ConnectionLimits
from remoting.requests.client import (
    GetConsumerListByGroup,
    HeartBeat,
    NotifyConsumerIdsChanged,
    UnregisterClient,
)
from remoting.requests.namesrv import GetRouteInfoByTopic
from remoting.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from remoting.requests.pull import PullMessage, PullMessageReply
from remoting.requests.send import ConsumerSendMsgBack, SendMessageReply, SendMessageV2
from remoting.server import ServerLimits
from remoting.tests.virtual import AsyncTest, set_signature
from remoting.transport import StreamTransport
from storage.files import Files, MemoryFiles
from toolkit.address_server import AddressServerError

Address = tuple[str, int]

EPOCH_MS = 1_700_000_000_000
PORT = 10911
NAMESRV = ("10.0.0.1", 9876)
SMALL = {
    "mapped_file_size_commit_log_bytes": 1 << 20,
    "mapped_file_size_consume_queue_bytes": 20_000,
    "max_hash_slots": 500,
    "max_index_entries": 2000,
    "max_message_size_bytes": 100_000,
    "offset_journal_bytes": 1 << 16,
}


class SimClock:
    """Wall and monotonic time of the servers, driven by the scheduler's clock, which jumps while every task waits."""

    def __init__(self) -> None:
        self.trio = MockClock(autojump_threshold=0)

    def now_ms(self) -> int:
        return EPOCH_MS + round(self.trio.current_time() * 1000)

    def monotonic(self) -> float:
        return self.trio.current_time()


async def inline(work: Callable[[], Any]) -> Any:
    """Run blocking work in the event loop."""
    await trio.lowlevel.checkpoint()
    return work()


async def no_list(url: str) -> str:
    raise AddressServerError(f"address server {url}: nobody there")


async def no_address(host: str) -> list[str]:
    raise OSError(f"{host} is not known")


def simulated(test: AsyncTest) -> Callable[..., None]:
    """Run ``test(cluster, …)`` in virtual time with a seeded random generator, and stop the cluster after it."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        random.seed(7)
        clock = SimClock()

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                cluster = Cluster(nursery, clock)
                await test(cluster, **fixtures)
                await cluster.stop()
                nursery.cancel_scope.cancel()

        trio.run(main, clock=clock.trio)

    set_signature(run, list(inspect.signature(test).parameters.values())[1:])
    return run


async def settle() -> None:
    """Wait until no task can run at this moment."""
    await trio.testing.wait_all_tasks_blocked()


class Node:
    """One server of the cluster, which can be stopped and crashed."""

    def __init__(
        self, service: BrokerService | NamesrvService, address: Address, registrar: Registrar | None = None
    ) -> None:
        self.service = service
        self.address = address
        self.registrar = registrar
        self.beside: Callable[[], Awaitable[None]] | None = None
        """Runs beside the server until that has ended."""
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    @property
    def broker(self) -> Broker:
        assert isinstance(self.service, BrokerService)
        return self.service.broker

    async def run(self) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                if self.registrar is not None:
                    nursery.start_soon(self.registrar.run)
                if self.beside is not None:
                    nursery.start_soon(self.beside)
                await self.service.run([])
                nursery.cancel_scope.cancel()
        self.ended.set()

    async def stop(self) -> None:
        """Shut down in order, as after SIGTERM."""
        if self.registrar is not None:
            await self.registrar.unregister_all()
        await self.service.stop()
        await self.ended.wait()

    async def crash(self) -> None:
        """End without closing anything. Files keep their content of this moment."""
        self.service.close = lambda: None
        self.scope.cancel()
        await self.ended.wait()


class Cluster:
    """Servers by address, and connections to them."""

    def __init__(self, nursery: trio.Nursery, clock: SimClock) -> None:
        self.nursery = nursery
        self.clock = clock
        self.nodes: dict[Address, Node] = {}
        self._ports = itertools.count(40_000)

    # -- servers --------------------------------------------------------------------------------------------

    async def namesrv(
        self,
        limits: ConnectionLimits | None = None,
        guard: Guard = NO_GUARD,
        address: Address | None = None,
        **settings: Any,
    ) -> Node:
        """Start, or restart, the namesrv, or one at another address that no broker registers with."""
        service = NamesrvService(
            NamesrvConfig(**settings),
            self.clock,
            limits or ConnectionLimits(),
            ServerLimits(),
            memory=True,
            run_blocking=inline,
            guard=guard,
        )
        return await self._start(Node(service, address or NAMESRV))

    async def add_broker(
        self,
        name: str = "broker-a",
        host: str | None = None,
        *,
        files: Files | None = None,
        limits: ConnectionLimits | None = None,
        local: Node | None = None,
        guard: Guard = NO_GUARD,
        accounts: Accounts | None = None,
        fetch_list: FetchList | None = None,
        resolve_host: ResolveHost | None = None,
        links: PeerLinks = PLAIN_LINKS,
        **settings: Any,
    ) -> Node:
        """Start a broker. `local` is a namesrv of the same process.

        `fetch_list` stands for the address server, and `resolve_host` for DNS. `links` lead from a slave to its master.
        """
        host = host or f"10.0.1.{len(self.nodes)}"
        remote = f"{NAMESRV[0]}:{NAMESRV[1]}" if NAMESRV in self.nodes and local is None else ""
        config = broker_config(
            broker_name=name, store_path_root_dir=f"/{name}", broker_ip=host, listen_port=PORT,
            **{"namesrv_addr": remote, **SMALL, **settings},
        )  # fmt: skip
        builder = BrokerBuilder(
            False, self.clock, inline, lambda: PORT, files if files is not None else MemoryFiles(),
            accounts=accounts, links=links,
        )  # fmt: skip
        saved_role = SavedRole(builder.files, builder.store_config(config).config_path, config)
        config = saved_role.apply(config)
        broker = builder.build(config)
        service = BrokerService(
            broker,
            limits or ConnectionLimits(),
            ServerLimits(),
            inline,
            guard=guard,
            builder=builder,
            role_links=RoleLinks(self.client, saved_role=saved_role),
        )
        routes = local.service.routes if local is not None else None
        lookup = NamesrvLookup(config, fetch_list or no_list, resolve_host or no_address)
        registrar = Registrar(
            broker, PORT, routes, self.client, lookup=lookup, on_name_taken=service.note_other_master
        )
        service.add_user(registrar)
        await registrar.look_for_other_master()
        registrar.register_locally()
        return await self._start(Node(service, (host, PORT), registrar))

    async def _start(self, node: Node) -> Node:
        self.nodes[node.address] = node
        self.nursery.start_soon(node.run)
        await settle()
        return node

    async def stop(self) -> None:
        for node in list(self.nodes.values()):
            if not node.ended.is_set():
                await node.stop()

    # -- clients --------------------------------------------------------------------------------------------

    async def open_transport(self, host: str, port: int) -> StreamTransport:
        """Connect to a server. Raise OSError when no server runs there."""
        await trio.lowlevel.checkpoint()
        return self._transport((host, port), "10.1.0.2")

    def _transport(self, address: Address, host: str) -> StreamTransport:
        node = self.nodes.get(tuple(address))
        if node is None or node.ended.is_set():
            raise ConnectionRefusedError(f"nobody at {address}")
        here, there = memory_stream_pair()
        own = (host, next(self._ports))
        self.nursery.start_soon(
            node.service.server.serve_transport, StreamTransport(there, remote=own, local=tuple(address))
        )
        return StreamTransport(here, remote=tuple(address), local=own)

    def dial(
        self,
        address: Address,
        handlers: dict[int, Handler] | None = None,
        *,
        host: str = "10.1.0.1",
        limits: ConnectionLimits | None = None,
    ) -> Connection:
        """Connect to a server. Raise OSError when no server runs there."""
        transport = self._transport(address, host)
        connection = FrameConnection(transport, handlers or {}, self.nursery, limits or ConnectionLimits())
        self.nursery.start_soon(connection.run)
        return connection

    @contextlib.asynccontextmanager
    async def client(self, host: str, port: int) -> AsyncIterator[Connection]:
        """Connect to a server for the duration of a block."""
        connection = self.dial((host, port))
        try:
            yield connection
        finally:
            connection.close("done")


def message(
    topic: str = "orders",
    body: bytes = b"hello",
    *,
    queue_id: int = 0,
    tags: str | None = None,
    key: str | None = "U1",
    properties: dict[str, str] | None = None,
    **more: Any,
) -> SendMessageV2:
    """Build a send request; `key` None sends no unique key."""
    fields = {"TAGS": tags, "UNIQ_KEY": key, **(properties or {})}
    encoded = encode_properties({name: value for name, value in fields.items() if value is not None})
    request = SendMessageV2(
        **{
            "producer_group": "PID", "topic": topic, "default_topic": DEFAULT_TOPIC, "default_topic_queue_nums": 4,
            "queue_id": queue_id, "sys_flag": 0, "born_timestamp": EPOCH_MS, "flag": 0,
            "properties": encoded.decode(), **more,
        }
    )  # fmt: skip
    request.body = body
    return request


COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4


def pull(
    topic: str = "orders",
    offset: int = 0,
    *,
    queue_id: int = 0,
    group: str = "GID",
    wait_ms: int = 0,
    tags: str = "*",
    commit: int | None = None,
    **more: Any,
) -> PullMessage:
    """Build a pull request with its subscription. `wait_ms` makes it a long poll, `commit` commits an offset."""
    flags = SUBSCRIPTION | (SUSPEND if wait_ms else 0) | (COMMIT if commit is not None else 0)
    return PullMessage(
        **{
            "consumer_group": group, "topic": topic, "queue_id": queue_id, "queue_offset": offset,
            "max_msg_nums": 32, "sys_flag": flags, "commit_offset": commit or 0, "suspend_timeout_millis": wait_ms,
            "subscription": tags, "sub_version": 0, **more,
        }
    )  # fmt: skip


def bodies(reply: PullMessageReply) -> list[bytes]:
    """Return the bodies of the messages in a pull's reply."""
    return [bytes(each.body) for each in iter_messages(reply.body)] if reply.body else []


class Producer:
    """Sends to all queues of a topic in turn, following its route."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._connections: dict[Address, Connection] = {}
        self._turn = 0

    def to(self, address: Address) -> Connection:
        known = self._connections.get(address)
        if known is None or known.closed:
            known = self._connections[address] = self._cluster.dial(address)
        return known

    async def queues(self, topic: str) -> list[tuple[Address, str, int]]:
        """Return (address, broker name, queue id) of every queue. A topic without a route uses the default topic's."""
        try:
            route = await self.to(NAMESRV).ask(GetRouteInfoByTopic(topic=topic))
        except RequestError:
            route = await self.to(NAMESRV).ask(GetRouteInfoByTopic(topic=DEFAULT_TOPIC))
        return queues_of(route.data)

    async def send(self, topic: str, body: bytes, **more: Any) -> SendMessageReply:
        queues = await self.queues(topic)
        address, _, queue_id = queues[self._turn % len(queues)]
        self._turn += 1
        return await self.to(address).ask(message(topic, body, queue_id=queue_id, **more))


def queues_of(route: TopicRouteData) -> list[tuple[Address, str, int]]:
    """Return (address, broker name, queue id) of every queue of a route."""
    addresses = {}
    for data in route.broker_datas:
        host, _, port = data.broker_addrs[0].rpartition(":")
        addresses[data.broker_name] = (host, int(port))
    return sorted(
        (addresses[data.broker_name], data.broker_name, queue_id)
        for data in route.queue_datas
        for queue_id in range(min(data.read_queue_nums, 4))
    )


class Consumer:
    """A push consumer: heartbeats, shares queues with its group, long polls, commits, sends back failures."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topic: str,
        client_id: str,
        listen: Callable[[Message], object],
    ) -> None:
        self._cluster = cluster
        self.group = group
        self.topic = topic
        self.client_id = client_id
        self._listen = listen
        self._connections: dict[Address, Connection] = {}
        self._scopes: dict[tuple[str, Address, int], trio.CancelScope] = {}
        self.notified = 0
        self.got: list[tuple[int, bytes, int]] = []
        self.stopped = False

    async def start(self) -> Self:
        await self.rebalance()
        return self

    def _to(self, address: Address) -> Connection:
        known = self._connections.get(address)
        if known is None or known.closed:
            handlers = {NotifyConsumerIdsChanged.code: self._ids_changed}
            known = self._connections[address] = self._cluster.dial(address, handlers)
        return known

    def _ids_changed(self, connection: Connection, command: Command) -> None:
        self.notified += 1
        connection.spawn(self.rebalance)

    async def beat(self, address: Address) -> None:
        topics = (self.topic, retry_topic(self.group))
        consumer = ConsumerData(
            group_name=self.group, consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[SubscriptionData(topic=topic, sub_version=1) for topic in topics],
        )  # fmt: skip
        data = HeartbeatData(client_id=self.client_id, consumer_data_set=[consumer])
        await self._to(address).ask(HeartBeat(data=data))

    async def rebalance(self) -> None:
        """Take a share of the queues of both topics, and end the pulls of lost queues."""
        if self.stopped:
            return
        mine = set()
        for topic in (self.topic, retry_topic(self.group)):
            try:
                route = await self._to(NAMESRV).ask(GetRouteInfoByTopic(topic=topic))
            except RequestError:
                continue
            queues = queues_of(route.data)
            for address in {address for address, _, _ in queues}:
                await self.beat(address)
            ask = GetConsumerListByGroup(consumer_group=self.group)
            members = sorted((await self._to(queues[0][0]).ask(ask)).data.consumer_id_list)
            share = queues[members.index(self.client_id) :: len(members)]
            mine |= {(topic, address, queue_id) for address, _, queue_id in share}
        for queue in self._scopes.keys() - mine:
            self._scopes.pop(queue).cancel()
        for queue in sorted(mine - self._scopes.keys()):
            self._scopes[queue] = trio.CancelScope()
            self._cluster.nursery.start_soon(self._consume, self._scopes[queue], *queue)

    @property
    def queues(self) -> set[tuple[str, Address, int]]:
        """The (topic, address, queue id) that it consumes."""
        return set(self._scopes)

    async def _consume(self, scope: trio.CancelScope, topic: str, address: Address, queue_id: int) -> None:
        with scope, contextlib.suppress(RemotingClosed):
            ask = QueryConsumerOffset(consumer_group=self.group, topic=topic, queue_id=queue_id)
            try:
                offset = (await self._to(address).ask(ask)).offset
            except RequestError:
                offset = 0
            while not self.stopped:
                request = pull(topic, offset, queue_id=queue_id, group=self.group, wait_ms=15_000)
                reply = await self._to(address).ask(request, timeout_s=30)
                for each in iter_messages(reply.body) if reply.body else ():
                    await self._handle(address, each)
                offset = reply.next_begin_offset
                await self._to(address).ask(
                    UpdateConsumerOffset(
                        consumer_group=self.group, topic=topic, queue_id=queue_id, commit_offset=offset
                    )
                )

    async def _handle(self, address: Address, each: Message) -> None:
        self.got.append((self._cluster.clock.now_ms() - EPOCH_MS, bytes(each.body), each.reconsume_times))
        if not self._listen(each):
            back = ConsumerSendMsgBack(
                offset=each.physical_offset, group=self.group, delay_level=0, origin_msg_id=each.msg_id,
                origin_topic=each.topic, max_reconsume_times=2,
            )  # fmt: skip
            await self._to(address).ask(back)

    async def stop(self, *, politely: bool = True) -> None:
        """Leave the group. Without `politely`, the connections are cut."""
        self.stopped = True
        for scope in self._scopes.values():
            scope.cancel()
        for address, connection in self._connections.items():
            if politely and address != NAMESRV:
                await connection.ask(UnregisterClient(client_id=self.client_id, consumer_group=self.group))
            connection.close("stopped")
