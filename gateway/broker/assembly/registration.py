"""Registration of a broker and its topics with namesrvs: in the same process by a call, elsewhere by requests.

Source: BrokerController.registerBrokerAll and BrokerOuterAPI, 5.4.0. Deviation: one connection to each namesrv stays
open and a lost one is noticed at once, so that a namesrv that restarts knows its brokers after a second.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio

from codec.constants import ResponseCode
from codec.hashing import crc32
from gateway.broker.advertised_hosts import AUTO
from gateway.broker.processors.broker import Broker
from gateway.namesrv.addresses import join_address
from gateway.namesrv.route_table import Registration, RouteTable
from remoting.bodies.registration import RegisterBrokerBody
from remoting.bodies.routes import TopicRouteData
from remoting.bodies.topics import TopicConfig, TopicConfigAndMappingSerializeWrapper
from remoting.client import open_client
from remoting.connection import Connection
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.namesrv import GetRouteInfoByTopic, RegisterBroker, UnregisterBroker

log = logging.getLogger(__name__)

RETRY_INTERVAL_S: Final = 1.0
UNREGISTER_TIMEOUT_S: Final = 1.0
Dial = Callable[[str, int], AbstractAsyncContextManager[Connection]]
FAILURES: Final = (OSError, RemotingClosed, RemotingTimeout, RequestError)


def split_addresses(text: str) -> list[tuple[str, int]]:
    """Parse ``host:port;host:port`` (IPv6 hosts in brackets). Raise ValueError that names the invalid part."""
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdecimal():
            raise ValueError(f"namesrvAddr: {part} is not host:port")
        pairs.append((host.strip("[]"), int(port)))
    return pairs


class Registrar:
    """Registers one broker, renews the registration, and unregisters the broker at the end.

    ``local`` is the route table of the namesrv in this process, if there is one.
    """

    def __init__(self, broker: Broker, port: int, local: RouteTable | None, dial: Dial = open_client) -> None:
        self.dial = dial
        self._leaving = False
        self._broker = broker
        self._port = port
        self._local = local
        self._connections = [
            NamesrvConnection(self, address) for address in split_addresses(broker.config.namesrv_addr)
        ]
        broker.topics.add_listener(self._topics_changed)
        broker.routes.add_source(self.find_route)

    def _topics_changed(self, topics: Sequence[TopicConfig]) -> None:
        self.register_locally()
        for namesrv in self._connections:
            namesrv.changed.set()

    def register_locally(self) -> None:
        """Register with the namesrv of this process, if there is one."""
        if self._local is not None and not self._leaving:
            self._local.register(self._local_registration(), self)

    def _local_registration(self) -> Registration:
        config, topics = self._broker.config, self._broker.topics
        host = config.broker_ip
        address = f"{AUTO}:{self._port}" if host == AUTO else join_address(host, self._port)
        return Registration(
            cluster=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            address=address,
            topics=topics.table,
            data_version=topics.version,
            timeout_ms=float("inf"),
        )

    @property
    def period_s(self) -> float:
        """Seconds after which the registration is renewed even if no topic changed."""
        return self._broker.config.register_nameserver_period_ms / 1000

    @property
    def timeout_s(self) -> float:
        """Longest duration of one registration, in seconds."""
        return self._broker.config.register_broker_timeout_ms / 1000

    def address_through(self, connection: Connection) -> str:
        """Return the address to register: with ``auto``, the one from which this connection reaches the namesrv."""
        host = self._broker.config.broker_ip
        return join_address(connection.local[0] if host == AUTO else host, self._port)

    def registration_request(self, connection: Connection) -> RegisterBroker:
        """Return the registration of all topics."""
        config = self._broker.config
        address = self.address_through(connection)
        topics = self._broker.topics.snapshot()
        wrapper = TopicConfigAndMappingSerializeWrapper(
            topic_config_table=topics.topic_config_table, data_version=topics.data_version
        )
        body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=[]).to_json()
        request = RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=join_address(address.rpartition(":")[0].strip("[]"), config.ha_address_port),
            broker_id=config.broker_id,
            enable_acting_master=False,
            compressed=False,
            body_crc32=crc32(body),
        )
        request.body = body
        return request

    def unregistration_request(self, connection: Connection) -> UnregisterBroker:
        """Return the request that unregisters the broker."""
        config = self._broker.config
        return UnregisterBroker(
            broker_name=config.broker_name,
            broker_addr=self.address_through(connection),
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )

    async def find_route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic from the first namesrv that answers; None when it does not know the topic."""
        if self._local is not None:
            return self._local.topic_route(topic, "127.0.0.1")
        for namesrv in self._connections:
            try:
                return await namesrv.query_route(topic)
            except FAILURES as problem:
                if isinstance(problem, RequestError) and problem.code == ResponseCode.TOPIC_NOT_EXIST:
                    return None
                log.debug("route query failed", extra={"topic": topic, "reason": str(problem)})
        return None

    async def run(self) -> None:
        """Keep the broker registered with other namesrvs until cancelled."""
        async with trio.open_nursery() as nursery:
            for namesrv in self._connections:
                nursery.start_soon(namesrv.run)

    async def unregister_all(self) -> None:
        """Unregister from all namesrvs for good. A namesrv that does not answer lets the registration expire."""
        self._leaving = True
        config = self._broker.config
        if self._local is not None:
            address = self._local_registration().address
            self._local.unregister(config.broker_cluster_name, address, config.broker_name)
        async with trio.open_nursery() as nursery:
            for namesrv in self._connections:
                nursery.start_soon(namesrv.unregister)


class NamesrvConnection:
    """The connection to one namesrv."""

    def __init__(self, registrar: Registrar, address: tuple[str, int]) -> None:
        self._registrar = registrar
        self._address = address
        self._connection: Connection | None = None
        self._reachable = True
        self._left = False
        self.changed = trio.Event()

    async def run(self) -> None:
        """Stay connected and registered until `unregister`: register after each change, period and failure."""
        while not self._left:
            try:
                async with self._registrar.dial(*self._address) as connection:
                    self._connection = connection
                    await self._keep_registered(connection)
            except* FAILURES as problems:
                self._note_failure(problems.exceptions[0])
            self._connection = None
            await trio.sleep(RETRY_INTERVAL_S)

    async def _keep_registered(self, connection: Connection) -> None:
        connection.on_close(lambda _: self.changed.set())
        while not connection.closed and not self._left:
            self.changed = trio.Event()
            await connection.ask(self._registrar.registration_request(connection), self._registrar.timeout_s)
            self._note_success()
            with trio.move_on_after(self._registrar.period_s):
                await self.changed.wait()

    def _note_failure(self, problem: BaseException) -> None:
        if self._reachable:
            log.warning(
                "registration with namesrv failed", extra={"namesrv": self._address, "reason": str(problem)}
            )
        self._reachable = False

    def _note_success(self) -> None:
        if not self._reachable:
            log.info("registration with namesrv works again", extra={"namesrv": self._address})
        self._reachable = True

    async def query_route(self, topic: str) -> TopicRouteData:
        """Query a route over the open connection.

        Raises RemotingClosed when there is none, or any other of FAILURES.
        """
        if self._connection is None:
            raise RemotingClosed("no connection to the namesrv")
        return (await self._connection.ask(GetRouteInfoByTopic(topic=topic))).data

    async def unregister(self) -> None:
        """Unregister over the open connection, if there is one, and stop registering."""
        self._left = True
        connection = self._connection
        if connection is None or connection.closed:
            return
        try:
            await connection.ask(self._registrar.unregistration_request(connection), UNREGISTER_TIMEOUT_S)
        except FAILURES as problem:
            log.debug(
                "unregistering from namesrv failed", extra={"namesrv": self._address, "reason": str(problem)}
            )
