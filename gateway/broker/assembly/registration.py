"""Registration of a broker and its topics with namesrvs: in the same process by a call, elsewhere by requests.

Source: BrokerController.registerBrokerAll and BrokerOuterAPI, 5.4.0. Deviation: one connection to each namesrv stays
open and a lost one is noticed at once, so that a namesrv that restarts knows its brokers after a second. With the
namesrv of the same process only changed topics are registered, and periodically those that it lacks.

The list of namesrvs may change (`namesrv_lookup.py`). A namesrv that leaves it stays registered with for the time in
which clients read the list again, because they would find no route there any more.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

import trio

from codec.command import Command
from codec.constants import ResponseCode
from codec.hashing import crc32
from codec.topics import READ_WRITE
from gateway.broker.assembly.namesrv_lookup import Address, NamesrvLookup, split_addresses
from gateway.broker.broker import Broker
from gateway.broker.messages.advertised_hosts import AUTO
from gateway.broker.replication.members import HEARTBEAT_INTERVAL_S
from gateway.broker.topics.topic_table import TopicChange
from gateway.config.process import LOOPBACK
from gateway.config.replication import Role
from gateway.namesrv.addresses import join_address
from gateway.namesrv.registration import Registration, queue_data
from gateway.namesrv.route_table import RouteTable
from remoting.bodies.registration import RegisterBrokerBody
from remoting.bodies.routes import BrokerData, TopicRouteData
from remoting.bodies.topics import TopicConfig, TopicConfigAndMappingSerializeWrapper
from remoting.client import open_client
from remoting.connection import Connection
from remoting.errors import REQUEST_FAILURES, RemotingClosed, RemotingTimeout, RequestError, first_leaf
from remoting.requests.namesrv import (
    BrokerHeartbeat,
    GetBrokerClusterInfo,
    GetBrokerMemberGroup,
    GetRouteInfoByTopic,
    RegisterBroker,
    RegisterBrokerReply,
    UnregisterBroker,
)

log = logging.getLogger(__name__)

SUPERVISOR: Final = "supervisor"
RETRY_INTERVAL_S: Final = 1.0
LOOK_TIMEOUT_S: Final = 4.0
MASTERLESS_PERIOD_S: Final = 2.0
LIVENESS_TIMEOUT_S: Final = 3.0
"""Time in which the owner of a broker name must accept a connection to count as alive."""
UNREGISTER_TIMEOUT_S: Final = 1.0
RETIREMENT_S: Final = 150.0
"""Time for which a namesrv that left the list stays registered with. Stock clients read the list every 120 s."""
UNHURRIED_TOPICS: Final = 1_000
PAUSE_S_PER_TOPIC: Final = 20e-6
"""Encoding takes 2 us for each topic and decoding 4 us, so a broker whose topics change all the time spends a tenth of
its time on registrations, not all of it."""
Dial = Callable[[str, int], AbstractAsyncContextManager[Connection]]
OpenConnection = Callable[[], AbstractAsyncContextManager[Connection]]


@dataclass(frozen=True, slots=True)
class Rival:
    """A live broker that has the name of this master, as a namesrv says: the reason for storing nothing."""

    reason: str
    namesrv: Address


class NameTaken(Exception):
    """Another live broker is registered under this broker's name."""


FAILURES: Final = (*REQUEST_FAILURES, NameTaken)


def permission_mask(broker_permission: int) -> int:
    """Return the mask for the permissions of all topics of a broker; -1 while it is readable and writable.

    Source: BrokerController.registerBrokerAll, 5.4.0.
    """
    return -1 if broker_permission & READ_WRITE == READ_WRITE else broker_permission


def masked_topics(topics: Mapping[str, TopicConfig], mask: int) -> dict[str, TopicConfig]:
    """Return copies of topics with the permissions that the mask leaves."""
    masked = {name: copy(topic) for name, topic in topics.items()}
    for topic in masked.values():
        topic.perm &= mask
    return masked


def _address(host: str, port: int) -> str:
    return f"{AUTO}:{port}" if host == AUTO else join_address(host, port)


class Registrar:
    """Registers one broker, renews the registration, and unregisters the broker at the end.

    ``local`` is the route table of the namesrv in this process, if there is one. ``open_supervisor`` opens the
    connection to a supervisor whose namesrv the broker registers with as well. ``sign`` signs requests to namesrvs.
    ``lookup`` has the other namesrvs; None for those of the configuration. ``on_name_taken`` is called with the reason
    when a namesrv knows another live broker by this name and id, and with "" when none does any more.
    """

    def __init__(
        self,
        broker: Broker,
        port: int,
        local: RouteTable | None,
        dial: Dial = open_client,
        open_supervisor: OpenConnection | None = None,
        sign: Callable[[Command], None] | None = None,
        lookup: NamesrvLookup | None = None,
        on_name_taken: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._sign = sign
        self._on_name_taken = on_name_taken
        self._dial = dial
        self._leaving = False
        self._own_addresses: set[str] = set()
        self._rivals: dict[str, Rival] = {}
        """Live brokers that have this master's name, by address. A namesrv that restarts has forgotten them."""
        self._is_blocked = False
        self._registered: tuple[int, str, int] | None = None
        self._broker = broker
        self._port = port
        self._local = local
        self._lookup = lookup or NamesrvLookup(broker.config)
        self._listed = {address: self._connection_to(address) for address in self._lookup.initial}
        self._retired: dict[Address, NamesrvConnection] = {}
        self._supervisor = (
            NamesrvConnection(self, SUPERVISOR, open_supervisor) if open_supervisor is not None else None
        )
        self.is_paused = False
        """True while nobody is to be sent to the broker, because it has no store."""
        self._watch(broker)

    def _watch(self, broker: Broker) -> None:
        broker.topics.add_listener(self._topics_changed)
        broker.routes.add_source(self.find_route)

    def follow(self, broker: Broker) -> None:
        """Register these parts of the broker, whose role may be another, from now on."""
        was_master = self.is_master
        if broker is not self._broker:
            self._broker = broker
            self._watch(broker)
        # A master that only waits for its slaves from now on, or not any more, still is one of two.
        if not (was_master and self.is_master) or self.takes_over_name:
            self._rivals.clear()
            if self._supervisor is not None:
                self._supervisor.refusal = ""
        self.is_paused = False
        self.register_locally()
        for namesrv in self._connections:
            namesrv.register_again()
        self.note_name_owner()

    async def leave(self) -> None:
        """Unregister from all namesrvs until `follow` is called."""
        self.is_paused = True
        await self._unregister(lambda namesrv: namesrv.leave())

    def _connection_to(self, address: Address) -> "NamesrvConnection":
        return NamesrvConnection(self, join_address(*address), partial(self._dial, *address))

    @property
    def _connections(self) -> list["NamesrvConnection"]:
        """All namesrvs elsewhere that the broker registers with, in the order in which they are asked."""
        supervisor = [] if self._supervisor is None else [self._supervisor]
        return [*supervisor, *self._listed.values(), *self._retired.values()]

    def _topics_changed(self, change: TopicChange) -> None:
        if change.stored:
            self._register_locally(topic.topic_name for topic in change.stored)
        else:
            self.renew_locally()
        for namesrv in self._connections:
            namesrv.changed.set()

    def register_locally(self) -> None:
        """Register all topics with the namesrv of this process, if there is one."""
        self._register_locally(self._broker.topics.table)

    def renew_locally(self) -> None:
        """Register the topics that the namesrv of this process lacks; all when permission or address changed."""
        config, topics = self._broker.config, self._broker.topics.table
        if self._local is None:
            return
        if self._registered != self._shown_settings:
            self._register_locally(topics)
        else:
            self._register_locally(self._local.missing_topics(config.broker_name, topics))

    def _register_locally(self, topics: Iterable[str]) -> None:
        if self._local is None or self._leaving or self.is_paused or self._is_blocked:
            return
        config, table = self._broker.config, self._broker.topics.table
        self._registered = self._shown_settings
        mask = permission_mask(config.broker_permission)
        host = config.broker_ip
        registration = Registration(
            cluster=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            address=_address(host, self._shown_port),
            ha_address=_address(config.ha_host, config.ha_address_port),
            queues={name: queue_data(config.broker_name, table[name], mask) for name in topics},
            data_version=self._broker.topics.version,
            acting_master=self.sends_heartbeats or None,
            is_elected=self.is_controlled,
        )
        result = self._local.register_local(registration, table, LOOPBACK)
        self._broker.replication.note_master(result.ha_address, result.master_address)

    @property
    def _shown_port(self) -> int:
        """The port in routes: the one listened on, unless another one leads there."""
        return self._broker.config.advertised_port or self._port

    @property
    def _shown_settings(self) -> tuple[int, str, int]:
        """The settings that routes depend on."""
        config = self._broker.config
        return config.broker_permission, config.broker_ip, config.advertised_port

    @property
    def period_s(self) -> float:
        """Seconds after which the registration is renewed even if no topic changed.

        A slave that does not know its master learns of it from the answer.
        """
        period_s = self._broker.config.register_nameserver_period_ms / 1000
        return min(period_s, MASTERLESS_PERIOD_S) if self._broker.replication.lacks_master else period_s

    @property
    def timeout_s(self) -> float:
        """Longest duration of one registration, in seconds."""
        return self._broker.config.register_broker_timeout_ms / 1000

    async def pause_between_registrations(self) -> None:
        """Wait in proportion to the number of topics, if there are many."""
        pause_s = (len(self._broker.topics.table) - UNHURRIED_TOPICS) * PAUSE_S_PER_TOPIC
        if pause_s > 0:
            await trio.sleep(pause_s)

    def address_through(self, connection: Connection) -> str:
        """Return the address to register: with ``auto``, the one from which this connection reaches the namesrv."""
        host = self._broker.config.broker_ip
        return join_address(connection.local[0] if host == AUTO else host, self._shown_port)

    def note_name_owner(self) -> None:
        """Pass on what the namesrvs say about the owner of the name."""
        refusal = "" if self._supervisor is None else self._supervisor.refusal
        reasons = [*(rival.reason for rival in self._rivals.values()), refusal]
        reason = reasons[0] if self.is_master else ""
        self._on_name_taken(reason)
        was_blocked, self._is_blocked = self._is_blocked, bool(reason)
        if self._is_blocked and self._local is not None:
            # Its clients would come here, and be refused.
            config = self._broker.config
            self._local.unregister_local(config.broker_name, config.broker_id)
        if was_blocked and not reason:
            self.register_locally()
            for namesrv in self._connections:
                namesrv.changed.set()

    def is_taken_elsewhere(self, namesrv: "NamesrvConnection") -> bool:
        """Return True if a live broker has this master's name, although this namesrv does not say so.

        Its clients would come here, and be refused.
        """
        supervisor = self._supervisor
        is_refused = supervisor is not None and supervisor is not namesrv and bool(supervisor.refusal)
        return self.is_master and (bool(self._rivals) or is_refused)

    async def look_for_other_master(self) -> None:
        """Ask the namesrvs for the owner of the name before the broker serves anybody, for a moment at most.

        A master that comes back after another one took over must not acknowledge a single message.
        """
        if self._broker.config.role is not Role.MASTER or self._broker.config.takes_over_name:
            return
        with trio.move_on_after(LOOK_TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                for namesrv in self._listed.values():
                    nursery.start_soon(namesrv.look_for_other_master)
        self.note_name_owner()

    @property
    def takes_over_name(self) -> bool:
        """True if a namesrv is not asked for the owner of the name before the first registration there."""
        return self._broker.config.takes_over_name

    @property
    def is_controlled(self) -> bool:
        """True if a controller decides who the master is."""
        return self._broker.config.controlled is not None

    @property
    def is_master(self) -> bool:
        """True if the broker registers as the master of its name."""
        return self._broker.config.role is Role.MASTER

    def note_registered_address(self, address: str) -> None:
        """Remember an address as one of this broker: a namesrv may list it after the settings have changed."""
        self._own_addresses.add(address)

    async def check_name(self, connection: Connection) -> None:
        """Raise NameTaken if the namesrv knows another live broker by this broker's name.

        It would lose its route and its clients to this broker. A broker that is gone does not count, although a namesrv
        lists it for two minutes. A namesrv that cannot answer the question does not know one.

        A master also looks for those that were listed before, or that another namesrv lists. They are forgotten when
        they are gone, and when the namesrv that listed them does so in another role.
        """
        broker, config = self._broker, self._broker.config
        brokers: dict[str, BrokerData] = {}
        try:
            brokers = (await connection.ask(GetBrokerClusterInfo(), sign=self.sign)).data.broker_addr_table
        except RequestError as problem:
            log.debug("brokers of the namesrv not listed", extra={"reason": str(problem)})
        namesake = brokers.get(config.broker_name)
        listed_owner = "" if namesake is None else namesake.broker_addrs.get(config.broker_id, "")
        addresses = {address for data in brokers.values() for address in data.broker_addrs.values()}
        for owner in dict.fromkeys([*([listed_owner] if listed_owner else []), *self._rivals]):
            rival = self._rivals.get(owner)
            is_own = owner in self._own_addresses or owner == self.address_through(connection)
            has_other_role = (
                owner != listed_owner
                and owner in addresses
                and rival is not None
                and rival.namesrv == connection.remote
            )
            if is_own or has_other_role or not await self._is_another_broker(owner):
                self._rivals.pop(owner, None)
                continue
            reason = self._describe_owner(owner)
            if broker is self._broker and self.is_master:
                namesrv = connection.remote if owner == listed_owner or rival is None else rival.namesrv
                self._rivals[owner] = Rival(reason, namesrv)
            raise NameTaken(reason)
        self.note_name_owner()

    def _describe_owner(self, owner: str) -> str:
        text = f"the live broker at {owner} has the name {self._broker.config.broker_name} there. "
        if self.is_master:
            text += "If it took over from this one, make this one its slave (rmq-gateway broker demote). Otherwise set "
        else:
            text += "Set "
        return text + "another brokerName, or takeOverBrokerName=true to take its clients over"

    async def _is_another_broker(self, address: str) -> bool:
        """Return True if something else than this broker accepts connections at an address."""
        try:
            ((host, port),) = split_addresses(address)
            with trio.move_on_after(LIVENESS_TIMEOUT_S):
                async with self._dial(host, port) as connection:
                    is_own_host = connection.local[0] == connection.remote[0]
                    return not (is_own_host and port == self._port)
        except* (ValueError, *FAILURES):
            pass
        return False

    def registration_request(self, connection: Connection) -> RegisterBroker:
        """Return the registration of all topics."""
        config = self._broker.config
        address = self.address_through(connection)
        topics, mask = self._broker.topics, permission_mask(config.broker_permission)
        wrapper = TopicConfigAndMappingSerializeWrapper(data_version=topics.version)
        content = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=[])
        if mask == -1:
            body = topics.encoded.fill(content, "topicConfigTable")
        else:
            wrapper.topic_config_table = masked_topics(topics.table, mask)
            body = content.to_json()
        ha_host = config.ha_host if config.ha_host != AUTO else address.rpartition(":")[0].strip("[]")
        request = RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=join_address(ha_host, config.ha_address_port),
            broker_id=config.broker_id,
            heartbeat_timeout_millis=config.broker_not_active_timeout_ms if self.sends_heartbeats else None,
            enable_acting_master=self.sends_heartbeats,
            compressed=False,
            body_crc32=crc32(body),
        )
        request.body = body
        return request

    def sign(self, command: Command) -> None:
        """Sign a request to a namesrv, if the broker has credentials."""
        if self._sign is not None:
            self._sign(command)

    def note_answer(self, answer: RegisterBrokerReply) -> None:
        """Take over the addresses of the master, which a namesrv tells a slave."""
        self._broker.replication.note_master(answer.ha_server_addr, answer.master_addr)

    # -- a slave that may act as master ---------------------------------------------------------------------------

    @property
    def sends_heartbeats(self) -> bool:
        """True if namesrvs are to notice within seconds that the broker is gone, and a slave may act as master then."""
        return self._broker.config.replication.enable_slave_acting_master

    def send_heartbeat(self, connection: Connection) -> None:
        """Tell a namesrv that the broker lives, without waiting for an answer. Raises RemotingClosed."""
        config = self._broker.config
        command = BrokerHeartbeat(
            cluster_name=config.broker_cluster_name,
            broker_addr=self.address_through(connection),
            broker_name=config.broker_name,
        ).to_command()
        self.sign(command)
        connection.send_command(command)

    async def ask_members(self, connection: Connection) -> None:
        """Ask a namesrv which brokers of this name are registered. Raises one of FAILURES."""
        config = self._broker.config
        request = GetBrokerMemberGroup(
            cluster_name=config.broker_cluster_name, broker_name=config.broker_name
        )
        group = (await connection.ask(request, sign=self.sign)).data.broker_member_group
        if group is not None and group.broker_addrs:
            replication = self._broker.replication
            lacked_master = replication.lacks_master
            replication.note_members(group.broker_addrs)
            if replication.lacks_master and not lacked_master:
                # The answer to a registration says where the log of another master is copied from.
                for namesrv in self._connections:
                    namesrv.changed.set()

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
        """Return the route of a topic from the first namesrv that answers; None when it does not know the topic.

        One that did not answer last time is asked after the others: each request would wait for it.
        """
        if self._local is not None:
            return self._local.topic_route(topic, "127.0.0.1")
        for namesrv in sorted(self._connections, key=lambda namesrv: namesrv.failed_route_query):
            try:
                route = await namesrv.query_route(topic)
                namesrv.failed_route_query = False
                return route
            except FAILURES as problem:
                namesrv.failed_route_query = not isinstance(problem, RequestError)
                if isinstance(problem, RequestError) and problem.code == ResponseCode.TOPIC_NOT_EXIST:
                    return None
                log.debug("route query failed", extra={"topic": topic, "reason": str(problem)})
        return None

    async def run(self) -> None:
        """Keep the broker registered until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._local is not None:
                nursery.start_soon(self._keep_registered_locally, self._local)
            for namesrv in self._connections:
                nursery.start_soon(namesrv.run)
            if self._lookup.may_change:
                nursery.start_soon(self._follow_list, nursery)

    async def _follow_list(self, nursery: trio.Nursery) -> None:
        """Look the list of namesrvs up periodically, and register with those that it has."""
        while not self._leaving:
            namesrvs = await self._lookup.look_up()
            self._retired = {
                address: connection for address, connection in self._retired.items() if not connection.is_over
            }
            if namesrvs is not None and not self._leaving:
                self._change_list(namesrvs, nursery)
            # Without any namesrv no client finds the broker: a whole period is too long for the next attempt.
            await trio.sleep(self._lookup.period_s if self._listed else RETRY_INTERVAL_S)

    def _change_list(self, namesrvs: list[Address], nursery: trio.Nursery) -> None:
        if namesrvs == list(self._listed):
            return
        log.info(
            "list of namesrvs changed",
            extra={
                "before": ";".join(join_address(*address) for address in self._listed),
                "namesrvs": ";".join(join_address(*address) for address in namesrvs),
            },
        )
        before, self._listed = self._listed, {}
        listed_before = frozenset(before)
        for address in namesrvs:
            connection = before.pop(address, None) or self._retired.pop(address, None)
            if connection is None or connection.is_over:
                connection = self._connection_to(address)
                nursery.start_soon(connection.run)
            connection.run_until(inf)
            if address not in listed_before:
                connection.changed.set()  # It may have stopped registering while it was retired.
            self._listed[address] = connection
        for address, connection in before.items():
            self._retired[address] = connection
            connection.run_until(trio.current_time() + RETIREMENT_S)

    def renew_listed(self) -> None:
        """Register again over all listed connections, because a retired one has closed.

        A namesrv forgets a broker when the connection of its last registration closes. If the retired address was
        another name of a listed namesrv, that may have been the retired connection.
        """
        for namesrv in self._listed.values():
            namesrv.changed.set()

    def is_replaced(self, retired: "NamesrvConnection") -> bool:
        """Return True for a retired connection to a peer that a listed connection registers with as well."""
        return retired in self._retired.values() and any(
            namesrv.registered_peer == retired.peer for namesrv in self._listed.values()
        )

    async def _keep_registered_locally(self, local: RouteTable) -> None:
        """Heal the routes of the namesrv in this process: a request may have deleted topics there."""
        renewed_s = trio.current_time()
        while True:
            if self.sends_heartbeats:
                await trio.sleep(HEARTBEAT_INTERVAL_S)
                config = self._broker.config
                group = local.broker_member_group(config.broker_cluster_name, config.broker_name, LOOPBACK)
                self._broker.replication.note_members(group.broker_addrs)
            else:
                await trio.sleep(self.period_s)
            if trio.current_time() >= renewed_s + self.period_s:
                self.renew_locally()
                renewed_s = trio.current_time()

    async def unregister_all(self) -> None:
        """Unregister from all namesrvs for good. A namesrv that does not answer lets the registration expire."""
        self._leaving = True
        await self._unregister(lambda namesrv: namesrv.unregister())

    async def _unregister(self, unregister: Callable[["NamesrvConnection"], Awaitable[None]]) -> None:
        config = self._broker.config
        if self._local is not None:
            self._local.unregister_local(config.broker_name, config.broker_id)
        async with trio.open_nursery() as nursery:
            for namesrv in self._connections:
                nursery.start_soon(unregister, namesrv)


class NamesrvConnection:
    """The connection to one namesrv, whose ``name`` is its address or "supervisor"."""

    def __init__(self, registrar: Registrar, name: str, open_connection: OpenConnection) -> None:
        self._registrar = registrar
        self._name = name
        self._open_connection = open_connection
        self._connection: Connection | None = None
        self._has_registered = False
        self._reachable = True
        self._is_unregistered = False
        self._is_first_registration = True
        self._scope = trio.CancelScope()
        self.changed = trio.Event()
        self.failed_route_query = False
        """True if this namesrv did not answer when it was last asked for a route."""
        self.refusal = ""
        """The reason for which a supervisor does not register the broker, "" if it does."""

    async def look_for_other_master(self) -> None:
        """Ask once whether another live broker has the name. A namesrv that cannot be reached says nothing."""
        try:
            async with self._open_connection() as connection:
                await self._registrar.check_name(connection)
        except* NameTaken as taken:
            log.debug("name of the broker taken", extra={"reason": str(first_leaf(taken))})
        except* FAILURES as problems:
            log.debug("owner of the name not known", extra={"reason": str(problems.exceptions[0])})

    def run_until(self, end_s: float) -> None:
        """Let `run` end at a time. That closes the connection, and the namesrv then forgets the broker."""
        self._scope.deadline = end_s

    @property
    def is_over(self) -> bool:
        """True when `run` ends because its time has come."""
        return self._scope.cancel_called

    @property
    def peer(self) -> Address | None:
        """The address of the namesrv at the other end; None while there is no connection."""
        return None if self._connection is None else self._connection.remote

    @property
    def registered_peer(self) -> Address | None:
        """The address of the namesrv; None until the broker is registered there over the present connection."""
        return self.peer if self._has_registered else None

    async def run(self) -> None:
        """Stay connected and registered until `unregister`: register after each change, period and failure."""
        # `run` may be started again after a defect; a scope cannot.
        with trio.CancelScope(deadline=self._scope.deadline) as self._scope:
            try:
                await self._reconnect()
            finally:
                self._connection = None
                if self.is_over:
                    self._registrar.renew_listed()

    async def _reconnect(self) -> None:
        while not self._is_unregistered:
            try:
                async with self._open_connection() as connection:
                    self._connection = connection
                    self._has_registered = False
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._send_heartbeats, connection)
                        await self._keep_registered(connection)
                        nursery.cancel_scope.cancel()
            except* FAILURES as problems:
                self._note_failure(first_leaf(problems))
            self._connection = None
            await trio.sleep(RETRY_INTERVAL_S)

    @property
    def _must_check_name(self) -> bool:
        """True at every registration of a master, because another broker may have become the master meanwhile.

        The supervisor checks it itself, and a controller elects one master only. A slave, and a master that takes the
        name over, differ: one asks before its first registration only, the other one after that.
        """
        if self._name == SUPERVISOR or self._registrar.is_controlled:
            return False
        if self._registrar.is_master:
            return not (self._is_first_registration and self._registrar.takes_over_name)
        return self._is_first_registration and not self._registrar.takes_over_name

    async def _keep_registered(self, connection: Connection) -> None:
        connection.on_close(lambda _: self.changed.set())
        while not connection.closed and not self._is_unregistered:
            self.changed = trio.Event()
            # The namesrv then has its last registration from the listed connection, which stays open.
            if not self._registrar.is_replaced(self) and not self._registrar.is_paused:
                if self._must_check_name:
                    await self._registrar.check_name(connection)
                if not self._registrar.is_paused and not self._registrar.is_taken_elsewhere(self):
                    await self._register(connection)
            with trio.move_on_after(self._registrar.period_s):
                await self.changed.wait()

    async def _send_heartbeats(self, connection: Connection) -> None:
        """Send heartbeats while registered, and ask for the members of the group, if a slave may act as master."""
        registrar, knows_members = self._registrar, True
        while registrar.sends_heartbeats:
            await trio.sleep(HEARTBEAT_INTERVAL_S)
            if not self._has_registered or registrar.is_paused:
                continue
            try:
                registrar.send_heartbeat(connection)
                if knows_members:
                    await registrar.ask_members(connection)
            except RequestError as problem:
                log.warning(
                    "the namesrv does not list the members of a broker group",
                    extra={"namesrv": self._name, "reason": problem.remark},
                )
                knows_members = False
            except (RemotingClosed, RemotingTimeout) as problem:
                # `_keep_registered` sees to it: the next registration fails as well.
                log.debug("heartbeat failed", extra={"namesrv": self._name, "reason": str(problem)})

    async def _register(self, connection: Connection) -> None:
        request = self._registrar.registration_request(connection)
        answer = await connection.ask(request, self._registrar.timeout_s, self._registrar.sign)
        self._registrar.note_answer(answer)
        self._registrar.note_registered_address(request.broker_addr)
        self._is_first_registration = False
        self._has_registered = True
        self._note_success()
        await self._registrar.pause_between_registrations()

    def _note_failure(self, problem: BaseException) -> None:
        if self._reachable:
            log.warning(
                "registration with namesrv failed", extra={"namesrv": self._name, "reason": str(problem)}
            )
        self._reachable = False
        # The supervisor refuses a master only because another of its processes is the master.
        if self._name == SUPERVISOR and isinstance(problem, RequestError):
            self.refusal = str(problem)
        self._registrar.note_name_owner()

    def _note_success(self) -> None:
        if self.refusal:
            self.refusal = ""
            self._registrar.note_name_owner()
        if not self._reachable:
            log.info("registration with namesrv works again", extra={"namesrv": self._name})
        self._reachable = True

    async def query_route(self, topic: str) -> TopicRouteData:
        """Query a route over the open connection.

        Raises RemotingClosed when there is none, or any other of FAILURES.
        """
        if self._connection is None:
            raise RemotingClosed("no connection to the namesrv")
        return (await self._connection.ask(GetRouteInfoByTopic(topic=topic), sign=self._registrar.sign)).data

    async def unregister(self) -> None:
        """Unregister over the open connection, if there is one, and stop registering."""
        self._is_unregistered = True
        await self.leave()

    def register_again(self) -> None:
        """Register at once, after checking that no other broker has the name and the id, which may be another now."""
        self._is_first_registration = True
        self.changed.set()

    async def leave(self) -> None:
        """Unregister over the open connection, if there is one."""
        connection = self._connection
        if connection is None or connection.closed:
            return
        try:
            request = self._registrar.unregistration_request(connection)
            await connection.ask(request, UNREGISTER_TIMEOUT_S, self._registrar.sign)
        except FAILURES as problem:
            log.debug(
                "unregistering from namesrv failed", extra={"namesrv": self._name, "reason": str(problem)}
            )
