"""The namesrv's tables: registered brokers, topics and their queues. No method waits or does I/O.

Theory of operation
-------------------
A broker name has members: one address for each broker id. A member is the record of one registration: its address, the
time of its last sign of life, the connection it came by. There is no second table of living brokers that could disagree
with the addresses: an address is in an answer if, and only if, its member is in the table. A member is removed when it
unregisters, when its connection closes, when it is silent for longer than its timeout, when another address registers
under its name and id, or when its address registers under another id of the name.

Invariants, which hold between any two calls and which `tests/test_route_table.py` checks after random ones:

1. Every broker name has a member, and every topic has a broker name.
2. ``broker in _topics[topic]`` is the same as ``topic in broker.queues``.
3. ``_address_count`` is the number of members, ``_route_count`` the weight of all queues and static topics; only
   brokers of this process make them exceed the limits.
4. A broker of this process (a local member) is in the table from its first registration until it unregisters itself.
   No request can remove it, renew it, or give it another address, and its topics have the queues that it registered.
   A broker process of this server is a local member while it runs (`child_broker.py`). The exception is a master that a
   controller elected (``is_elected``): the one of a newer epoch, which is the state version of its registration, takes
   its place, because it serves the name now, wherever it runs. Who may register at all is access control's business.

As in the official namesrv, requests can still delete a local broker's topics and its write permission. The deleted
topics come back with its next registration, which asks `missing_topics`; the permission comes back by request or when a
topic changes.

A refused registration changes nothing but the time of the last sign of life: a broker that registers one topic too many
keeps the routes it has.

Source: RouteInfoManager, 5.4.0. Deviations: brokers are not told that the lowest broker id of their name changed
(notifyMinBrokerIdChanged); members of one name with different clusters are listed in both clusters while they live, not
for ever; static topics leave with their broker; the protection of local members.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from codec.constants import MASTER_ID
from codec.topics import PERM_WRITE
from gateway.config.limits import NamesrvLimits
from gateway.namesrv.registered_broker import (
    Member,
    RegisteredBroker,
    is_same,
    weight_of,
    with_write,
    without_write,
)
from gateway.namesrv.registration import Registration, refused
from remoting.bodies.queues import DataVersion
from remoting.bodies.routes import (
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from remoting.bodies.topics import TopicList

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS = 120_000
ROUTES_PER_LOGGED_BROKER = 50
UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


@dataclass(frozen=True, slots=True)
class RegistrationResult:
    """The answer to a registration: the addresses of the broker's master, unless it is the master itself.

    ``gets_no_data``: the broker is a replica whose master says that it does not replicate. ``is_change``: the broker is
    new, or its address is.
    """

    ha_address: str | None = None
    master_address: str | None = None
    gets_no_data: bool = False
    is_change: bool = False


class _SliceEnd:
    """The end of a slice of removals: after about ``max_routes`` routes; None for no end."""

    def __init__(self, max_routes: int | None) -> None:
        self._left = math.inf if max_routes is None else max_routes

    def count(self, broker: RegisteredBroker) -> None:
        """Count a broker that is removed. It is logged, which takes as long as many routes."""
        self._left -= len(broker.queues) + ROUTES_PER_LOGGED_BROKER

    @property
    def is_reached(self) -> bool:
        return self._left <= 0


class RouteTable:
    """All tables of a namesrv. ``now`` returns seconds of a monotonic clock.

    ``version`` changes with every change that an answer can show.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._limits = NamesrvLimits()
        self._delete_missing_topics = False
        self._acting_master = False
        self.version = 0
        self._brokers: dict[str, RegisteredBroker] = {}
        self._topics: dict[str, dict[str, RegisteredBroker]] = {}
        self._address_count = 0
        self._route_count = 0

    def reconfigure(
        self, limits: NamesrvLimits, *, delete_missing_topics: bool = False, acting_master: bool = False
    ) -> None:
        """Put changed settings into effect. A lower limit removes nothing."""
        self._limits = limits
        self._delete_missing_topics = delete_missing_topics
        self._acting_master = acting_master
        self.version += 1

    # -- registering ----------------------------------------------------------------------------------------

    def register(
        self, registration: Registration, owner: object | None = None, local_host: str = ""
    ) -> RegistrationResult:
        """Add or renew a broker that registers by request over a connection that reached ``local_host``.

        A registration is ignored if the member of the same id has another address and a newer state. Raises
        RequestError for the name and id of a local member, for a single topic of a new member, and at a limit.
        """
        broker = self._brokers.get(registration.broker_name) or RegisteredBroker(registration.broker_name)
        if self._is_local_broker(broker, registration, local_host):
            return RegistrationResult()
        previous = broker.members.get(registration.broker_id)
        if previous is not None and self._is_outdated(registration, previous):
            return RegistrationResult()
        if previous is None and len(registration.queues) == 1:
            extra = {"broker": registration.broker_name, "address": registration.address}
            log.warning("single topic of an unregistered broker refused", extra=extra)
            raise refused("register broker failed")
        is_succession = previous is not None and previous.is_local
        brings_topics = (is_succession or not broker.has_local_master) and (
            registration.broker_id == MASTER_ID or _is_prime_slave(registration, broker)
        )
        try:
            self._check_limits(registration, broker, brings_topics=brings_topics)
        except Exception:
            if previous is not None and previous.address == registration.address:
                previous.heard_at = self._now()
            raise
        is_moved = previous is None or previous.address != registration.address
        is_changed = previous is None or is_moved or previous.data_version != registration.data_version
        self._set_member(broker, registration, owner, is_local=False)
        if brings_topics:
            self._set_topics(broker, registration, replaces_all=is_changed)
        return _answer(broker, registration, local_host, is_change=is_moved)

    def _is_local_broker(self, broker: RegisteredBroker, registration: Registration, local_host: str) -> bool:
        """Return True for a broker of this process that also registers by request; that registration changes nothing.

        Raises RequestError for any other broker that claims the id or the address of a local member.
        """
        for broker_id, local in broker.members.items():
            if not local.is_local:
                continue
            has_address = registration.address in (local.address, local.address_for(local_host))
            if has_address and broker_id == registration.broker_id:
                return True
            if not has_address and broker_id == registration.broker_id and _succeeds(registration, local):
                continue
            if has_address or broker_id == registration.broker_id:
                self._log_conflict(
                    "registration of a local broker's name refused",
                    registration,
                    local.address_for(local_host),
                )
                raise refused(
                    f"{registration.broker_name} with broker id {broker_id} is a broker of this namesrv's process, at "
                    f"{local.address_for(local_host)}; {registration.address} needs another brokerName, or another "
                    "brokerId and its own address"
                )
        return False

    def _is_outdated(self, registration: Registration, previous: Member) -> bool:
        is_other = previous.address != registration.address and previous.cluster == registration.cluster
        if is_other and previous.data_version.state_version > registration.data_version.state_version:
            self._log_conflict("registration of an older state ignored", registration, previous.address)
            return True
        return False

    def _log_conflict(self, message: str, registration: Registration, other_address: str) -> None:
        extra = {"broker": registration.broker_name, "broker_id": registration.broker_id}
        log.warning(message, extra={**extra, "address": registration.address, "other": other_address})

    def _check_limits(
        self, registration: Registration, broker: RegisteredBroker, *, brings_topics: bool
    ) -> None:
        limits = self._limits
        is_new = registration.broker_id not in broker.members and not broker.ids_at(registration.address)
        if is_new and self._address_count >= limits.max_brokers:
            raise refused(
                f"the namesrv has {self._address_count} broker addresses; maxRegisteredBrokers is "
                f"{limits.max_brokers}: raise it, or stop brokers that are not needed"
            )
        if not brings_topics:
            return
        added = len(registration.queues.keys() - broker.queues.keys())
        if self._drops_missing_topics(registration):
            added -= len(broker.queues.keys() - registration.queues.keys())
        if added > 0 and len(broker.queues) + added > limits.max_topics_per_broker:
            raise refused(
                f"{broker.name} would have {len(broker.queues) + added} topics; maxTopicsPerBroker is "
                f"{limits.max_topics_per_broker}: raise it, or delete topics"
            )
        added += sum(weight_of(mapping) for mapping in registration.mappings.values())
        added -= sum(
            weight_of(broker.mappings[name]) for name in registration.mappings if name in broker.mappings
        )
        self._check_route_count(added)

    def _check_route_count(self, added: int) -> None:
        if added > 0 and self._route_count + added > self._limits.max_topics:
            raise refused(
                f"the namesrv has routes for {self._route_count} topics and {added} were to be added; maxTopics is "
                f"{self._limits.max_topics}: raise it, or delete topics"
            )

    def register_local(
        self, registration: Registration, all_topics: Collection[str], local_host: str = ""
    ) -> RegistrationResult:
        """Add or renew a broker of this process and set the queues of the given topics; no limit applies.

        Another address under its name and id, or its address under another id, is displaced. The first registration of
        a master removes the topics that others had registered under its name; a replica brings topics only while no
        other broker of its name does. A former master that does not know yet that a controller has elected another one
        changes nothing.
        """
        broker = self._brokers.get(registration.broker_name) or RegisteredBroker(registration.broker_name)
        present = broker.members.get(registration.broker_id)
        is_former = registration.is_elected and present is not None and not present.is_local
        if is_former and present is not None and self._is_outdated(registration, present):
            return RegistrationResult()
        brings_topics = registration.broker_id == MASTER_ID or not (
            broker.members.keys() - broker.ids_at(registration.address)
        )
        if brings_topics and (self._delete_missing_topics or not broker.has_local_member):
            self._drop_topics_except(all_topics, broker)
        if brings_topics and not broker.has_local_member:
            self._drop_mappings(broker)
        self._set_member(broker, registration, None, is_local=True)
        for topic, queues in registration.queues.items() if brings_topics else ():
            self._set_queues(topic, broker, queues)
        return _answer(broker, registration, local_host, is_change=present is None)

    def missing_topics(self, broker_name: str, topics: Mapping[str, object]) -> set[str]:
        """Return the topics that a broker name lacks here."""
        broker = self._brokers.get(broker_name)
        return topics.keys() - broker.queues.keys() if broker else set(topics)

    def _set_member(
        self, broker: RegisteredBroker, registration: Registration, owner: object | None, *, is_local: bool
    ) -> None:
        previous = broker.members.get(registration.broker_id)
        if previous is None:
            extra = {"broker": registration.broker_name, "address": registration.address}
            log.info("broker registered", extra=extra)
        elif previous.address != registration.address:
            self._log_conflict("broker replaced by another address", registration, previous.address)
        # One address serves one id: a replica that became master must not stay listed as a replica.
        for broker_id in broker.ids_at(registration.address):
            if broker_id != registration.broker_id:
                del broker.members[broker_id]
                self._address_count -= 1
                self.version += 1
        timeout_ms = DEFAULT_TIMEOUT_MS if registration.timeout_ms is None else registration.timeout_ms
        filter_servers = registration.filter_servers
        if filter_servers is None:
            filter_servers = previous.filter_servers if previous else []
        member = Member(
            registration.address,
            registration.cluster,
            registration.ha_address,
            self._now(),
            timeout_ms,
            _copy_version(registration.data_version),
            owner,
            is_local,
            filter_servers,
            registration.replicates,
            registration.is_elected,
        )
        before = broker.shown_parts(previous)
        broker.members[registration.broker_id] = member
        self._address_count += previous is None
        if is_local or not broker.has_local_member:
            broker.enable_acting_master = bool(registration.acting_master)
            broker.zone_name = registration.zone
        self._brokers[broker.name] = broker
        if broker.shown_parts(member) != before:
            self.version += 1

    def _set_topics(
        self, broker: RegisteredBroker, registration: Registration, *, replaces_all: bool
    ) -> None:
        """Set the queues of topics; without ``replaces_all`` only those that are missing."""
        if self._drops_missing_topics(registration):
            self._drop_topics_except(registration.queues, broker)
        read_only = registration.broker_id != MASTER_ID and broker.enable_acting_master
        for topic, queues in registration.queues.items():
            if replaces_all or topic not in broker.queues:
                self._set_queues(topic, broker, without_write(queues) if read_only else queues)
        if replaces_all and registration.mappings:
            self._set_mappings(broker, registration.mappings)

    def _drops_missing_topics(self, registration: Registration) -> bool:
        return self._delete_missing_topics and not registration.mappings

    def _drop_topics_except(self, kept_topics: Collection[str], broker: RegisteredBroker) -> None:
        for topic in [topic for topic in broker.queues if topic not in kept_topics]:
            self._drop_queues(topic, broker)

    def _set_queues(self, topic: str, broker: RegisteredBroker, queues: QueueData) -> None:
        present = broker.queues.get(topic)
        if present is None:
            holders = self._topics.get(topic)
            if holders is None:
                self._topics[topic] = broker.alone
            elif len(holders) == 1:
                self._topics[topic] = {**holders, broker.name: broker}
            else:
                holders[broker.name] = broker
            self._route_count += 1
        elif is_same(present, queues):
            return
        broker.queues[topic] = queues
        self.version += 1

    def _set_mappings(self, broker: RegisteredBroker, mappings: Mapping[str, TopicQueueMappingInfo]) -> None:
        for topic, mapping in mappings.items():
            present = broker.mappings.get(topic)
            self._route_count += weight_of(mapping) - (weight_of(present) if present else 0)
            broker.mappings[topic] = mapping
        self.version += 1

    # -- signs of life --------------------------------------------------------------------------------------

    def _find(self, cluster: str, broker_name: str, address: str) -> Member | None:
        broker = self._brokers.get(broker_name)
        for member in broker.members.values() if broker else ():
            if (member.cluster, member.address) == (cluster, address):
                return member
        return None

    def record_heartbeat(self, cluster: str, broker_name: str, address: str) -> None:
        """Record that a broker is alive; ignore a broker that is not registered."""
        member = self._find(cluster, broker_name, address)
        if member is not None:
            member.heard_at = self._now()

    def data_version(self, cluster: str, broker_name: str, address: str) -> DataVersion | None:
        """Return the version of the topics that a broker last registered."""
        member = self._find(cluster, broker_name, address)
        return member.data_version if member else None

    # -- removing -------------------------------------------------------------------------------------------

    def unregister(self, broker_name: str, address: str, local_host: str = "") -> None:
        """Remove a broker's address by request, and with the last address of a broker name its routes.

        Raises RequestError for a broker of this process: only that broker itself knows when it stops.
        """
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        for broker_id, member in list(broker.members.items()):
            if member.is_local and address in (member.address, member.address_for(local_host)):
                extra = {"broker": broker_name, "address": address}
                log.warning("unregistration of a local broker refused", extra=extra)
                raise refused(
                    f"{broker_name} at {address} is a broker of this namesrv's process; it unregisters when it stops"
                )
            if member.address == address:
                self._remove_member(broker, broker_id)

    def unregister_local(self, broker_name: str, broker_id: int) -> None:
        """Remove a broker of this process."""
        broker = self._brokers.get(broker_name)
        if broker is not None and broker_id in broker.members and broker.members[broker_id].is_local:
            self._remove_member(broker, broker_id)

    def unregister_owned_by(self, owner: object, max_routes: int | None = None) -> bool:
        """Remove brokers that registered through a closed connection, unless another connection took them over.

        With ``max_routes`` it ends after about that many routes, and returns False if brokers may be left.
        """
        end = _SliceEnd(max_routes)
        for broker, broker_id, member in self._all_members():
            if member.owner is owner:
                if end.is_reached:
                    return False
                end.count(broker)
                self._remove_member(broker, broker_id)
        return True

    def expire_silent_brokers(self, max_routes: int | None = None) -> list[object]:
        """Remove brokers silent for longer than their timeout; return their owners, to be closed.

        With ``max_routes`` it ends after the broker with which about that many routes are gone.
        Source: RouteInfoManager.scanNotActiveBroker.
        """
        now = self._now()
        owners = []
        end = _SliceEnd(max_routes)
        for broker, broker_id, member in self._all_members():
            if not member.is_local and member.heard_at + member.timeout_ms / 1000 < now:
                extra = {"broker": broker.name, "address": member.address, "timeout_ms": member.timeout_ms}
                log.warning("broker expired", extra=extra)
                end.count(broker)
                self._remove_member(broker, broker_id)
                if member.owner is not None:
                    owners.append(member.owner)
                if end.is_reached:
                    break
        return owners

    def _all_members(self) -> list[tuple[RegisteredBroker, int, Member]]:
        return [
            (broker, broker_id, member)
            for broker in self._brokers.values()
            for broker_id, member in broker.members.items()
        ]

    def _remove_member(self, broker: RegisteredBroker, broker_id: int) -> None:
        member = broker.members.pop(broker_id)
        self._address_count -= 1
        self.version += 1
        log.info("broker unregistered", extra={"broker": broker.name, "address": member.address})
        if not broker.members:
            self._remove_name(broker)
        elif broker.enable_acting_master and min(broker.members) > MASTER_ID:
            broker.replace_queues(without_write)

    def _remove_name(self, broker: RegisteredBroker) -> None:
        del self._brokers[broker.name]
        for topic in broker.queues:
            self._drop_holder(topic, broker)
        self._route_count -= len(broker.queues)
        broker.queues.clear()
        self._drop_mappings(broker)

    def _drop_mappings(self, broker: RegisteredBroker) -> None:
        self._route_count -= sum(map(weight_of, broker.mappings.values()))
        broker.mappings.clear()

    def _drop_queues(self, topic: str, broker: RegisteredBroker) -> None:
        del broker.queues[topic]
        self._drop_holder(topic, broker)
        self._route_count -= 1
        self.version += 1

    def _drop_holder(self, topic: str, broker: RegisteredBroker) -> None:
        holders = self._topics[topic]
        if len(holders) == 1:
            del self._topics[topic]
        else:
            del holders[broker.name]

    # -- topics by request ----------------------------------------------------------------------------------

    def register_topic(self, topic: str, all_queues: Iterable[QueueData]) -> bool:
        """Add a topic's queues without a registration; return False if a queue names an unknown broker.

        Raises RequestError at a limit, and for a broker of this process: its topics come only from itself.

        Source: RouteInfoManager.registerTopic, which keeps the queues that precede the unknown one.
        """
        by_broker = {queue_data.broker_name: queue_data for queue_data in all_queues}
        if not by_broker.keys() <= self._brokers.keys():
            log.warning("topic of an unknown broker refused", extra={"topic": topic})
            return False
        brokers = [self._brokers[name] for name in by_broker]
        for broker in brokers:
            if broker.has_local_member:
                raise refused(
                    f"{broker.name} is a broker of this namesrv's process: create the topic at the broker"
                )
            if topic not in broker.queues and len(broker.queues) >= self._limits.max_topics_per_broker:
                raise refused(
                    f"{broker.name} has {len(broker.queues)} topics; maxTopicsPerBroker is "
                    f"{self._limits.max_topics_per_broker}: raise it, or delete topics"
                )
        self._check_route_count(sum(topic not in broker.queues for broker in brokers))
        for broker in brokers:
            self._set_queues(topic, broker, by_broker[broker.name])
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic, or its queues in one cluster; brokers that still have it register it again."""
        for broker in list(self._topics.get(topic, {}).values()):
            if not cluster or any(member.cluster == cluster for member in broker.members.values()):
                self._drop_queues(topic, broker)

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Set or clear the write permission of all topics of a broker name; return the number of topics.

        Setting it gives a topic read and write permission, even if it had neither before.

        Source: RouteInfoManager.operateWritePermOfBroker.
        """
        broker = self._brokers.get(broker_name)
        if broker is None:
            return 0
        broker.replace_queues(with_write if writable else without_write)
        self.version += 1
        return len(broker.queues)

    # -- answers; `local_host` is the address at which the client reached this server -----------------------

    def topic_route(self, topic: str, local_host: str) -> TopicRouteData | None:
        """Return the route of a topic; None when no broker has it."""
        holders = self._topics.get(topic)
        if holders is None:
            return None
        brokers = list(holders.values())
        route = TopicRouteData(
            queue_datas=[broker.queues[topic] for broker in brokers],
            broker_datas=[broker.to_data(local_host) for broker in brokers],
            filter_server_table={
                member.address_for(local_host): member.filter_servers
                for broker in brokers
                for member in broker.members.values()
                if member.filter_servers
            },
        )
        mappings = [(broker, broker.mappings[topic]) for broker in brokers if topic in broker.mappings]
        if mappings:
            route.topic_queue_mapping_by_broker = {
                mapping.bname or broker.name: mapping for broker, mapping in mappings
            }
        if self._acting_master and not topic.startswith(MEMBER_TOPIC_PREFIX):
            _present_acting_masters(route)
        return route

    def cluster_info(self, local_host: str) -> ClusterInfo:
        """Return all brokers by name, and their names by cluster."""
        return ClusterInfo(
            broker_addr_table={name: broker.to_data(local_host) for name, broker in self._brokers.items()},
            cluster_addr_table={cluster: list(names) for cluster, names in self._clusters().items()},
        )

    def _clusters(self) -> dict[str, dict[str, None]]:
        clusters: dict[str, dict[str, None]] = {}
        for broker, _, member in self._all_members():
            clusters.setdefault(member.cluster, {})[broker.name] = None
        return clusters

    def broker_member_group(self, cluster: str, broker_name: str, local_host: str) -> BrokerMemberGroup:
        """Return all addresses of a broker name; none for an unknown one."""
        broker = self._brokers.get(broker_name)
        addresses = broker.addresses_for(local_host) if broker else {}
        return BrokerMemberGroup(cluster=cluster, broker_name=broker_name, broker_addrs=addresses)

    def topic_list(self) -> TopicList:
        return TopicList(topic_list=list(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        names = self._clusters().get(cluster, {}).keys()
        return TopicList(
            topic_list=[
                topic for topic, holders in self._topics.items() if not holders.keys().isdisjoint(names)
            ]
        )

    def system_topics(self, local_host: str) -> TopicList:
        """Return cluster and broker names (which are topics), and the address of one broker to query further."""
        names = [name for cluster, brokers in self._clusters().items() for name in (cluster, *brokers)]
        first = next(iter(self._brokers.values()), None)
        addresses: Iterator[str] = iter(first.addresses_for(local_host).values() if first else ())
        return TopicList(topic_list=names, broker_addr=next(addresses, None))

    def unit_topics(self, *, unit: bool | None = None, unit_sub: bool | None = None) -> TopicList:
        """Return topics whose first queues have the given flags; None matches either value."""
        mask = (UNIT_FLAG if unit is not None else 0) | (UNIT_SUB_FLAG if unit_sub is not None else 0)
        flags = (UNIT_FLAG if unit else 0) | (UNIT_SUB_FLAG if unit_sub else 0)
        return TopicList(
            topic_list=[
                topic
                for topic, holders in self._topics.items()
                if next(iter(holders.values())).queues[topic].topic_sys_flag & mask == flags
            ]
        )


def _is_prime_slave(registration: Registration, broker: RegisteredBroker) -> bool:
    """Return True if a replica would have the lowest id of its broker name, and so bring the topics."""
    other_ids = broker.members.keys() - set(broker.ids_at(registration.address))
    return registration.acting_master is not None and registration.broker_id <= min(
        other_ids, default=registration.broker_id
    )


def _succeeds(registration: Registration, local: Member) -> bool:
    """Return True for a master that was elected after a local member, whose role a controller decides too."""
    is_newer = registration.data_version.state_version > local.data_version.state_version
    return local.is_elected and registration.broker_id == MASTER_ID and is_newer


def _answer(
    broker: RegisteredBroker, registration: Registration, local_host: str, *, is_change: bool
) -> RegistrationResult:
    """Return the answer to a registration: a replica gets the addresses of its master, if that is registered."""
    master = broker.members.get(MASTER_ID)
    if registration.broker_id == MASTER_ID or master is None:
        return RegistrationResult(is_change=is_change)
    addresses = master.ha_address_for(local_host), master.address_for(local_host)
    return RegistrationResult(*addresses, not master.replicates, is_change)


def _copy_version(version: DataVersion) -> DataVersion:
    """Copy a version, because a broker of this process continues to change its own."""
    return DataVersion(
        state_version=version.state_version, timestamp=version.timestamp, counter=version.counter
    )


def _present_acting_masters(route: TopicRouteData) -> None:
    """Present the lowest replica as master where a broker name has none and is read only.

    Source: RouteInfoManager.pickupTopicRouteData with supportActingMaster.
    """
    permissions = {queue_data.broker_name: queue_data.perm for queue_data in route.queue_datas}
    for broker in route.broker_datas:
        addresses = broker.broker_addrs
        headless = bool(addresses) and MASTER_ID not in addresses and broker.enable_acting_master
        if headless and not permissions[broker.broker_name] & PERM_WRITE:
            addresses[MASTER_ID] = addresses.pop(min(addresses))
