"""The namesrv's tables: live brokers, clusters, topics and their queues. No method waits or does I/O.

The table knows no connection and no wire format: it only remembers the owner of a registration, and it gets the time
from a function that is passed in.

from outside.

Source: RouteInfoManager, 5.4.0. Deviation: brokers are not told that the lowest broker id of their name changed
(notifyMinBrokerIdChanged), and a refused registration leaves nothing behind.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from codec.topics import PERM_WRITE, READ_WRITE
from gateway.namesrv.addresses import address_for
from remoting.bodies.queues import DataVersion
from remoting.bodies.routes import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from remoting.bodies.topics import TopicConfig, TopicList

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 120_000
MASTER_ID = 0
UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


class BrokerKey(NamedTuple):
    """The identity of a registration."""

    cluster: str
    address: str


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker's description of itself; an ``acting_master`` of None means that the broker is too old to send it.

    ``address`` may be ``auto:port`` (see gateway.namesrv.addresses). ``timeout_ms`` is the silence after which the
    broker is removed, infinity for one of this process. A ``filter_servers`` of None changes nothing.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    mappings: dict[str, TopicQueueMappingInfo] = field(default_factory=dict)
    filter_servers: list[str] | None = None
    zone: str | None = None
    timeout_ms: float | None = None
    acting_master: bool | None = None

    @property
    def key(self) -> BrokerKey:
        return BrokerKey(self.cluster, self.address)


@dataclass(frozen=True, slots=True)
class RegistrationResult:
    """The answer to a registration: the addresses of the broker's master, unless it is the master itself."""

    ha_address: str | None = None
    master_address: str | None = None


@dataclass(slots=True)
class _LiveBroker:
    """One live registration; ``heard_at`` in seconds of the monotonic clock."""

    heard_at: float
    timeout_ms: float
    data_version: DataVersion
    owner: object | None
    ha_address: str


class RouteTable:
    """All tables of a namesrv. No method waits; ``now`` returns seconds of a monotonic clock."""

    def __init__(
        self, now: Callable[[], float], *, delete_missing_topics: bool = False, acting_master: bool = False
    ) -> None:
        self._now = now
        self.delete_missing_topics = delete_missing_topics
        self.acting_master = acting_master
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._alive: dict[BrokerKey, _LiveBroker] = {}
        self._filter_servers: dict[BrokerKey, list[str]] = {}
        self._mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}

    # -- registering and removing brokers --

    def register(self, given: Registration, owner: object | None = None) -> RegistrationResult | None:
        """Add or renew a broker; return None when an unknown broker registers a single topic.

        A registration is ignored if a live broker of the same id has another address and a newer state.
        """
        known = self._brokers.get(given.broker_name)
        previous = known.broker_addrs.get(given.broker_id) if known else None
        if previous is not None and previous != given.address and self._is_outdated(given, previous):
            log.warning(
                "registration of an older state ignored",
                extra={"broker": given.broker_name, "address": given.address, "living": previous},
            )
            self._alive.pop(given.key, None)
            return RegistrationResult()
        if previous is None and len(given.topics) == 1:
            log.warning(
                "single topic of an unregistered broker refused",
                extra={"broker": given.broker_name, "address": given.address},
            )
            return None
        broker = self._update_broker(given)
        if given.broker_id == MASTER_ID or self._is_prime_slave(given, broker):
            self._update_topics(given, broker, first=previous is None)
        self._mark_alive(given, owner)
        return self._registration_result(given, broker)

    def _is_outdated(self, given: Registration, living_address: str) -> bool:
        living = self._alive.get(BrokerKey(given.cluster, living_address))
        return living is not None and living.data_version.state_version > given.data_version.state_version

    def _update_broker(self, given: Registration) -> BrokerData:
        self._clusters.setdefault(given.cluster, {})[given.broker_name] = None
        broker = self._brokers.get(given.broker_name)
        if broker is None:
            broker = BrokerData(cluster=given.cluster, broker_name=given.broker_name)
            self._brokers[given.broker_name] = broker
        broker.enable_acting_master = bool(given.acting_master)
        broker.zone_name = given.zone
        # One address serves one id: a replica that became master must not stay listed as a replica.
        for broker_id in [each for each, address in broker.broker_addrs.items() if address == given.address]:
            del broker.broker_addrs[broker_id]
        broker.broker_addrs[given.broker_id] = given.address
        return broker

    @staticmethod
    def _is_prime_slave(given: Registration, broker: BrokerData) -> bool:
        return given.acting_master is not None and given.broker_id == min(broker.broker_addrs)

    def _update_topics(self, given: Registration, broker: BrokerData, *, first: bool) -> None:
        if self.delete_missing_topics and not given.mappings:
            self._drop_missing_topics(given)
        changed = first or self.is_version_changed(given.key, given.data_version)
        for topic in given.topics.values():
            if changed or given.broker_name not in self._topics.get(topic.topic_name, ()):
                self._set_topic_queues(given, topic, broker)
        if changed:
            for name, mapping in given.mappings.items():
                self._mappings.setdefault(name, {})[mapping.bname or given.broker_name] = mapping

    def _set_topic_queues(self, given: Registration, topic: TopicConfig, broker: BrokerData) -> None:
        read_only = given.broker_id != MASTER_ID and broker.enable_acting_master
        queues = QueueData(
            broker_name=given.broker_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm & ~PERM_WRITE if read_only else topic.perm,
            topic_sys_flag=topic.topic_sys_flag,
        )
        self._topics.setdefault(topic.topic_name, {})[given.broker_name] = queues

    def _drop_missing_topics(self, given: Registration) -> None:
        for name in [name for name, held in self._topics.items() if given.broker_name in held]:
            if name not in given.topics:
                self._drop_queues(name, given.broker_name)

    def _mark_alive(self, given: Registration, owner: object | None) -> None:
        if given.key not in self._alive:
            log.info("broker registered", extra={"broker": given.broker_name, "address": given.address})
        timeout_ms = DEFAULT_TIMEOUT_MS if given.timeout_ms is None else given.timeout_ms
        version = _copy_version(given.data_version)
        self._alive[given.key] = _LiveBroker(self._now(), timeout_ms, version, owner, given.ha_address)
        if given.filter_servers:
            self._filter_servers[given.key] = given.filter_servers
        elif given.filter_servers is not None:
            self._filter_servers.pop(given.key, None)

    def _registration_result(self, given: Registration, broker: BrokerData) -> RegistrationResult:
        master = broker.broker_addrs.get(MASTER_ID)
        if given.broker_id == MASTER_ID or master is None:
            return RegistrationResult()
        alive = self._alive.get(BrokerKey(given.cluster, master))
        return RegistrationResult(alive.ha_address, master) if alive else RegistrationResult()

    def record_heartbeat(self, key: BrokerKey) -> None:
        """Record that a broker is alive; ignore a broker that is not registered."""
        alive = self._alive.get(key)
        if alive is not None:
            alive.heard_at = self._now()

    def data_version(self, key: BrokerKey) -> DataVersion | None:
        """Return the version of the topics that a broker last registered."""
        alive = self._alive.get(key)
        return alive.data_version if alive else None

    def is_version_changed(self, key: BrokerKey, version: DataVersion | None) -> bool:
        """Return True if a broker with topics of this version should register them again."""
        known = self.data_version(key)
        return known is None or known != version

    def unregister(self, cluster: str, address: str, broker_name: str) -> None:
        """Remove a broker's address. With the last address of its name, remove everything the broker registered."""
        key = BrokerKey(cluster, address)
        was_alive = self._alive.pop(key, None) is not None
        self._filter_servers.pop(key, None)
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        broker.broker_addrs = {each: held for each, held in broker.broker_addrs.items() if held != address}
        log.info(
            "broker unregistered", extra={"broker": broker_name, "address": address, "was_alive": was_alive}
        )
        if not broker.broker_addrs:
            self._remove_broker_name(broker)
        elif broker.enable_acting_master and min(broker.broker_addrs) > MASTER_ID:
            for held in self._queues_of(broker_name):
                held.perm &= ~PERM_WRITE

    def _remove_broker_name(self, broker: BrokerData) -> None:
        del self._brokers[broker.broker_name]
        cluster = broker.cluster or ""
        names = self._clusters.get(cluster, {})
        names.pop(broker.broker_name, None)
        if not names:
            self._clusters.pop(cluster, None)
        for topic in [topic for topic, held in self._topics.items() if broker.broker_name in held]:
            self._drop_queues(topic, broker.broker_name)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        held = self._topics[topic]
        held.pop(broker_name, None)
        if not held:
            del self._topics[topic]

    def unregister_owned_by(self, owner: object) -> None:
        """Unregister brokers that registered through a closed connection, unless another connection took them over."""
        for key in [key for key, alive in self._alive.items() if alive.owner is owner]:
            self._unregister_key(key)

    def expire_silent_brokers(self) -> list[object]:
        """Unregister brokers silent for longer than their timeout; return their owners, to be closed.

        Source: RouteInfoManager.scanNotActiveBroker.
        """
        now = self._now()
        silent = {
            k: alive for k, alive in self._alive.items() if alive.heard_at + alive.timeout_ms / 1000 < now
        }
        for key, alive in silent.items():
            log.warning("broker expired", extra={"address": key.address, "timeout_ms": alive.timeout_ms})
            self._unregister_key(key)
        return [alive.owner for alive in silent.values() if alive.owner is not None]

    def _unregister_key(self, key: BrokerKey) -> None:
        for broker in list(self._brokers.values()):
            if broker.cluster == key.cluster and key.address in broker.broker_addrs.values():
                self.unregister(key.cluster, key.address, broker.broker_name)
                return
        self._alive.pop(key, None)

    # -- topics --

    def register_topic(self, topic: str, queues: list[QueueData]) -> bool:
        """Add a topic's queues without a registration; return False when one names an unknown broker.

        Source: RouteInfoManager.registerTopic, which keeps the queues that precede the unknown one.
        """
        if any(each.broker_name not in self._brokers for each in queues):
            log.warning("topic of an unknown broker refused", extra={"topic": topic})
            return False
        if queues:
            self._topics.setdefault(topic, {}).update({each.broker_name: each for each in queues})
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic, or its queues in one cluster; brokers that still have it register it again."""
        if not cluster:
            self._topics.pop(topic, None)
            return
        for broker_name in self._clusters.get(cluster, {}):
            if broker_name in self._topics.get(topic, {}):
                self._drop_queues(topic, broker_name)

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Set or clear the write permission of all topics of a broker name; return the number of topics.

        Setting it gives a topic read and write permission, even if it had neither before.

        Source: RouteInfoManager.operateWritePermOfBroker.
        """
        queues = list(self._queues_of(broker_name))
        for held in queues:
            held.perm = READ_WRITE if writable else held.perm & ~PERM_WRITE
        return len(queues)

    def _queues_of(self, broker_name: str) -> Iterator[QueueData]:
        return (held[broker_name] for held in self._topics.values() if broker_name in held)

    # -- answers; `local_host` is the address at which the client reached this server --

    def topic_route(self, topic: str, local_host: str) -> TopicRouteData | None:
        """Return the route of a topic; None when no live broker has it."""
        queues = self._topics.get(topic, {})
        brokers = [
            self._with_client_addresses(self._brokers[name], local_host)
            for name in queues
            if name in self._brokers
        ]
        if not brokers:
            return None
        route = TopicRouteData(queue_datas=list(queues.values()), broker_datas=brokers)
        route.topic_queue_mapping_by_broker = self._mappings.get(topic)
        if self._filter_servers:
            route.filter_server_table = self._filter_servers_of(queues, local_host)
        if self.acting_master and not topic.startswith(MEMBER_TOPIC_PREFIX):
            _present_acting_masters(route)
        return route

    def _filter_servers_of(self, queues: dict[str, QueueData], local_host: str) -> dict[str, list[str]]:
        found = {}
        for broker in (self._brokers[name] for name in queues if name in self._brokers):
            for address in broker.broker_addrs.values():
                servers = self._filter_servers.get(BrokerKey(broker.cluster or "", address))
                if servers is not None:
                    found[address_for(address, local_host)] = servers
        return found

    @staticmethod
    def _with_client_addresses(broker: BrokerData, local_host: str) -> BrokerData:
        """Return a copy with the addresses that this client can use."""
        return BrokerData(
            cluster=broker.cluster,
            broker_name=broker.broker_name,
            broker_addrs={
                each: address_for(held, local_host) for each, held in sorted(broker.broker_addrs.items())
            },
            zone_name=broker.zone_name,
            enable_acting_master=broker.enable_acting_master,
        )

    def cluster_info(self, local_host: str) -> ClusterInfo:
        """Return all brokers by name, and their names by cluster."""
        return ClusterInfo(
            broker_addr_table={
                name: self._with_client_addresses(broker, local_host)
                for name, broker in self._brokers.items()
            },
            cluster_addr_table={cluster: list(names) for cluster, names in self._clusters.items()},
        )

    def broker_member_group(self, cluster: str, broker_name: str, local_host: str) -> BrokerMemberGroup:
        """Return all addresses of a broker name; none for an unknown one."""
        broker = self._brokers.get(broker_name)
        addresses = self._with_client_addresses(broker, local_host).broker_addrs if broker else {}
        return BrokerMemberGroup(cluster=cluster, broker_name=broker_name, broker_addrs=addresses)

    def topic_list(self) -> TopicList:
        return TopicList(topic_list=list(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        names = self._clusters.get(cluster, {})
        return TopicList(
            topic_list=[topic for topic, held in self._topics.items() if not held.keys().isdisjoint(names)]
        )

    def system_topics(self, local_host: str) -> TopicList:
        """Return cluster and broker names (which are topics), and the address of one broker to query further."""
        names = [each for cluster, brokers in self._clusters.items() for each in (cluster, *brokers)]
        addresses = [address for broker in self._brokers.values() for address in broker.broker_addrs.values()]
        return TopicList(
            topic_list=names, broker_addr=address_for(addresses[0], local_host) if addresses else None
        )

    def unit_topics(self, *, unit: bool | None = None, unit_sub: bool | None = None) -> TopicList:
        """Return topics whose first queues have the given flags; None matches either value."""

        def fits(flag: int) -> bool:
            wanted = ((unit, UNIT_FLAG), (unit_sub, UNIT_SUB_FLAG))
            return all(asked is None or bool(flag & bit) == asked for asked, bit in wanted)

        first_flags = {
            topic: next(iter(held.values())).topic_sys_flag for topic, held in self._topics.items()
        }
        return TopicList(topic_list=[topic for topic, flag in first_flags.items() if fits(flag)])


def _copy_version(version: DataVersion) -> DataVersion:
    """Copy a version, because a broker of this process continues to change its own."""
    return DataVersion(
        state_version=version.state_version, timestamp=version.timestamp, counter=version.counter
    )


def _present_acting_masters(route: TopicRouteData) -> None:
    """Present the lowest replica as master where a broker name has none and is read only.

    Source: RouteInfoManager.pickupTopicRouteData with supportActingMaster.
    """
    permissions = {each.broker_name: each.perm for each in route.queue_datas}
    for broker in route.broker_datas:
        addresses = broker.broker_addrs
        headless = bool(addresses) and MASTER_ID not in addresses and broker.enable_acting_master
        if headless and not permissions[broker.broker_name] & PERM_WRITE:
            addresses[MASTER_ID] = addresses.pop(min(addresses))
