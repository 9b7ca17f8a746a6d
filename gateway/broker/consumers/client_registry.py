"""Connected producers and consumers by group, their subscriptions, and notifications about changes of membership.

Heartbeats are parsed in `processors/heartbeats.py`. Everything here belongs to a connection and goes with it: an entry
that a heartbeat adds is removed when its connection closes, and a connection without heartbeats is closed.

The task `ClientRegistry.run` notifies the members of a changed group a moment later, once for all changes of that
moment. When 10,000 clients join one group, notifying all members at each change would take fifty million notices.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import trio

from gateway.broker.consumers.client_protocol import REMOTING
from gateway.broker.consumers.subscription_conflicts import SubscriptionConflict, SubscriptionConflicts
from gateway.broker.topics.limit_errors import limit_error
from gateway.broker.waiting.wake_signal import WakeSignal
from gateway.config.limits import BrokerLimits
from remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from remoting.connection import Connection
from remoting.requests.client import NotifyConsumerIdsChanged
from storage.clock import Clock

log = logging.getLogger(__name__)

DEFAULT_EXPIRY_S = 120.0
"""Time without a heartbeat after which a client counts as gone.

Source: BrokerConfig.channelExpiredTimeout.
"""

BROADCASTING = "BROADCASTING"
NOTIFY_DELAY_S: Final = 0.02
"""Time in which changes of a group are collected before its members are notified."""
PAUSE_PER_NOTICE_S: Final = 0.0001
"""Pause after a round of notices, per notice; one takes 20 us, so notices take at most a sixth of the time."""
NOTICES_PER_SLICE: Final = 50
MEMBERS_PER_SLICE: Final = 1000
SUBSCRIPTION_BYTES: Final = 500
"""Memory of a subscription without its texts."""


class GroupMember:
    """One connection as a member of one group."""

    __slots__ = ("client_id", "connection", "language", "last_seen_ms", "last_seen_s", "protocol", "version")

    def __init__(
        self, connection: Connection, client_id: str, language: str, version: int, protocol: str = REMOTING
    ) -> None:
        self.connection = connection
        self.client_id = client_id
        self.language = language
        self.version = version
        self.protocol = protocol
        self.last_seen_s = 0.0
        self.last_seen_ms = 0

    @property
    def address(self) -> str:
        """``host:port`` of the client's end."""
        host, port = self.connection.remote[:2]
        return f"{host}:{port}"


class ConsumerGroup:
    """The online consumers of one group. Source: ConsumerGroupInfo, 5.4.0."""

    __slots__ = (
        "clients",
        "conflicts",
        "consume_from_where",
        "consume_type",
        "fingerprint",
        "message_model",
        "name",
        "sorted_ids",
        "subscription_bytes",
        "subscriptions",
        "updated_ms",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type: str | None = None
        self.message_model: str | None = None
        self.consume_from_where: str | None = None
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.subscription_bytes = 0
        self.clients: dict[Connection, GroupMember] = {}
        self.sorted_ids: list[str] | None = None
        self.fingerprint: int | None = None  # of the latest heartbeat
        self.updated_ms = 0
        self.conflicts = SubscriptionConflicts()

    @property
    def is_broadcasting(self) -> bool:
        """True when each member consumes everything, so that members need not know of each other."""
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        """Return client ids in the order in which members joined."""
        return [client.client_id for client in self.clients.values()]

    def sorted_client_ids(self) -> list[str]:
        """Return the distinct client ids, sorted. The list must not be changed."""
        if self.sorted_ids is None:
            self.sorted_ids = sorted(set(self.client_ids()))
        return self.sorted_ids

    def find_member(self, client_id: str) -> GroupMember | None:
        """Return the member with a client id; None if there is none."""
        return next((client for client in self.clients.values() if client.client_id == client_id), None)

    def add_member(self, client: GroupMember, data: ConsumerData) -> bool:
        """Add a member and take over its settings of the group.

        Return False when the connection was a member already.
        """
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        member = self.clients.setdefault(client.connection, client)
        # A client keeps its id as long as its connection lives. One that does not is logged, and known by the new id.
        if member.client_id != client.client_id:
            extra = {"group": self.name, "before": member.client_id, "now": client.client_id}
            log.error("connection changed its client id", extra=extra)
            self.clients[client.connection] = client
            self.conflicts.forget(member)
            self.sorted_ids = None
        # The member that is known stays when it sends another heartbeat, since its times and conflicts belong to it.
        if member is client:
            self.sorted_ids = None
        return member is client

    def remove_member(self, connection: Connection) -> GroupMember | None:
        """Remove a member and return it; None if the connection is not a member."""
        self.sorted_ids = None
        member = self.clients.pop(connection, None)
        if member is not None:
            self.conflicts.forget(member)
        return member

    def update_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Take over the subscriptions of a member; return True when the set of topics changed.

        Source: ConsumerGroupInfo.updateSubscription, 5.4.0: newer versions replace older ones, topics that
        are no longer named are removed.
        """
        subscriptions_by_topic = {subscription.topic: subscription for subscription in subscriptions}
        changed = False
        for topic, subscription in subscriptions_by_topic.items():
            # Members send their subscriptions in any order: the version, the time of a member's last change, decides.
            previous = self.subscriptions.get(topic)
            changed = changed or previous is None
            if previous is None or subscription.sub_version > previous.sub_version:
                self.subscriptions[topic] = subscription
                self.subscription_bytes += size_of(subscription) - (size_of(previous) if previous else 0)
        for topic in self.subscriptions.keys() - subscriptions_by_topic.keys():
            log.warning("subscription removed", extra={"group": self.name, "topic": topic})
            self.subscription_bytes -= size_of(self.subscriptions.pop(topic))
            changed = True
        return changed


def size_of(subscription: SubscriptionData) -> int:
    """Estimate the memory of a subscription, in bytes."""
    texts = len(subscription.topic) + len(subscription.sub_string) + sum(map(len, subscription.tags_set))
    return SUBSCRIPTION_BYTES + texts + 100 * (len(subscription.tags_set) + len(subscription.code_set))


class Memberships:
    """The groups of one connection, and the protocol of its client."""

    __slots__ = ("consumer_groups", "producer_groups", "protocol")

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.consumer_groups: set[str] = set()
        self.producer_groups: set[str] = set()

    def __len__(self) -> int:
        return len(self.consumer_groups) + len(self.producer_groups)


class ClientRegistry:
    """All groups with online members. Source: ConsumerManager and ProducerManager, 5.4.0.

    ``limits`` are set again when the configuration changes. A new member beyond them is refused with a RequestError;
    members that are known stay, and their heartbeats count.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        expiry_s: float = DEFAULT_EXPIRY_S,
        notify_changes: bool = True,
        on_group_gone: Callable[[str], None] = lambda group: None,
        limits: BrokerLimits | None = None,
    ) -> None:
        self._clock = clock
        self._expiry_s = expiry_s
        self.notify_changes = notify_changes
        self.limits = limits or BrokerLimits()
        self._producers_by_id: dict[str, GroupMember] = {}
        self._memberships: dict[Connection, Memberships] = {}
        self._member_count = 0
        self._subscription_bytes = 0
        self._to_notify: dict[str, ConsumerGroup] = {}
        self._group_changed = WakeSignal()
        self._on_group_gone = on_group_gone
        self.inconsistent_groups: set[str] = set()
        """Groups whose members subscribe to different messages."""
        self.any_broadcasting = False
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Connection, GroupMember]] = {}

    def take_over(self, previous: "ClientRegistry") -> None:
        """Take the groups of the registry that this one replaces, whose connections are still open.

        Otherwise pulls would be refused until the next heartbeat, up to 30 s later, because their group has no members.
        """
        self._producers_by_id = previous._producers_by_id
        self._memberships = previous._memberships
        self._member_count = previous._member_count
        self._subscription_bytes = previous._subscription_bytes
        self._to_notify = previous._to_notify
        self.inconsistent_groups = previous.inconsistent_groups
        self.any_broadcasting = previous.any_broadcasting
        self.consumers = previous.consumers
        self.producers = previous.producers
        self._group_changed.set()

    # -- reading -------------------------------------------------------------------------------------------

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return the online members of a group, None when there are none."""
        return self.consumers.get(group)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the group's subscription to a topic from its members' latest heartbeats."""
        members = self.consumers.get(group)
        return None if members is None else members.subscriptions.get(topic)

    def may_consume(self, group: str, topic: str) -> bool:
        """Return False when the group's online members say that they do not subscribe to the topic.

        Offsets of the group in such a topic are remains of an earlier subscription.
        """
        members = self.consumers.get(group)
        return members is None or not members.subscriptions or topic in members.subscriptions

    def consumer(self, group: str, client_id: str) -> GroupMember | None:
        """Return an online consumer by its id."""
        members = self.consumers.get(group)
        return None if members is None else members.find_member(client_id)

    def is_member(self, group: str, connection: Connection) -> bool:
        """Tell whether a connection is a consumer of a group."""
        members = self.consumers.get(group)
        return members is not None and connection in members.clients

    def groups_of_topic(self, topic: str) -> set[str]:
        """Return the groups whose online members subscribe to the topic."""
        return {name for name, members in self.consumers.items() if topic in members.subscriptions}

    def next_producer(self, group: str) -> GroupMember | None:
        """Return a producer of a group, in rotation, for requests that any of them can answer; None if there is none.
        Source: getAvailableChannel.
        """
        members = self.producers.get(group)
        if not members:
            return None
        # The dict is the rotation: the producer that is asked moves to its end. Copying the members into a list for
        # each request would take long for a large group.
        connection = next(iter(members))
        members[connection] = chosen = members.pop(connection)
        return chosen

    def producer_by_id(self, client_id: str) -> GroupMember | None:
        """Return an online producer of any group by its client id."""
        return self._producers_by_id.get(client_id)

    def count_clients(self) -> Counter[str]:
        """Return the numbers of connected clients by protocol."""
        return Counter(own.protocol for own in self._memberships.values())

    # -- joining --------------------------------------------------------------------------------------------

    def register_producer(self, group: str, client: GroupMember) -> None:
        """Add a producer, or record that it is alive. Raises RequestError at a limit."""
        members = self.producers.get(group, {})
        member = members.get(client.connection)
        if member is None:
            self._check_new_member(client, len(members))
            self.producers.setdefault(group, members)[client.connection] = member = client
            self._memberships_of(client).producer_groups.add(group)
            self._member_count += 1
            log.info("producer online", extra={"group": group, "client": client.client_id})
        # At each heartbeat: the entry may belong to an earlier connection of this client that is still open.
        self._producers_by_id[member.client_id] = member
        self._mark_seen(member)

    def register_consumer(
        self, client: GroupMember, data: ConsumerData, *, notify: bool = True, subscriptions: bool = True
    ) -> bool:
        """Add a consumer with its subscriptions, or record that it is alive. Return True when the group changed.

        `subscriptions` False means that the heartbeat carries none because they are unchanged (heartbeat version 2).
        Raises RequestError at a limit.
        """
        members = self.consumers.get(data.group_name) or ConsumerGroup(data.group_name)
        if client.connection not in members.clients:
            self._check_new_member(client, len(members.clients))
        if subscriptions:
            self._check_subscriptions(members, data)
        # Nothing is changed before this line, so that a refused heartbeat leaves no trace, not even an empty group.
        self.consumers[data.group_name] = members
        changed = members.add_member(client, data)
        if changed:
            self._memberships_of(client).consumer_groups.add(members.name)
            self._member_count += 1
        # Never reset: the flag only saves pulls the look-up of their group while no group has ever broadcast.
        self.any_broadcasting = self.any_broadcasting or members.is_broadcasting
        if subscriptions:
            before = members.subscription_bytes
            changed = members.update_subscriptions(data.subscription_data_set) or changed
            self._subscription_bytes += members.subscription_bytes - before
            self._find_conflicts(members, members.clients[client.connection], data)
        self._mark_seen(members.clients[client.connection])
        members.updated_ms = self._clock.now_ms()
        if changed:
            log.info("consumer group changed", extra={"group": members.name, "client": client.client_id})
            self._notify_members(members, notify)
        return changed

    def _memberships_of(self, client: GroupMember) -> Memberships:
        own = self._memberships.get(client.connection)
        if own is None:
            own = self._memberships[client.connection] = Memberships(client.protocol)
        return own

    def _find_conflicts(self, members: ConsumerGroup, client: GroupMember, data: ConsumerData) -> None:
        """Log members that disagree, once until they agree or one of them leaves."""
        stated = {subscription.topic: subscription for subscription in data.subscription_data_set}
        for conflict in members.conflicts.note(client, stated, members.clients):
            self._log_conflict(members.name, conflict)
        self._count_inconsistency(members)

    def _log_conflict(self, group: str, conflict: SubscriptionConflict) -> None:
        extra = {
            "group": group,
            "topic": conflict.topic,
            "client": conflict.first.member.client_id,
            "subscription": conflict.first.text,
            "other_client": conflict.second.member.client_id,
            "other_subscription": conflict.second.text,
        }
        log.warning(
            "members of a group subscribe to different messages, so messages are skipped", extra=extra
        )

    def _count_inconsistency(self, members: ConsumerGroup) -> None:
        if members.conflicts.present:
            self.inconsistent_groups.add(members.name)
        else:
            self.inconsistent_groups.discard(members.name)

    def _check_new_member(self, client: GroupMember, members: int) -> None:
        """Raise RequestError if one more member would exceed a limit; the group has ``members`` now."""
        limits, own = self.limits, self._memberships.get(client.connection)
        if own is None and len(self._memberships) >= limits.max_clients:
            raise limit_error("maxClients", limits.max_clients, "clients", "stop some")
        if own is not None and len(own) >= limits.max_groups_per_client:
            raise limit_error("maxGroupsPerClient", limits.max_groups_per_client, "groups of one client")
        if members >= limits.max_members_per_group:
            raise limit_error("maxMembersPerGroup", limits.max_members_per_group, "members of one group")
        if self._member_count >= limits.max_members:
            raise limit_error("maxMembers", limits.max_members, "members of all groups", "stop some")

    def _check_subscriptions(self, members: ConsumerGroup, data: ConsumerData) -> None:
        limits, subscriptions = self.limits, data.subscription_data_set
        if len(subscriptions) > limits.max_subscriptions_per_group:
            raise limit_error(
                "maxSubscriptionsPerGroup", limits.max_subscriptions_per_group, "subscriptions of a group"
            )
        added = sum(
            size_of(subscription) for subscription in subscriptions if self._is_newer(members, subscription)
        )
        if added > 0 and self._subscription_bytes + added > limits.max_subscription_bytes:
            raise limit_error(
                "maxSubscriptionBytes", limits.max_subscription_bytes, "bytes of all groups' subscriptions"
            )

    @staticmethod
    def _is_newer(members: ConsumerGroup, subscription: SubscriptionData) -> bool:
        previous = members.subscriptions.get(subscription.topic)
        return previous is None or subscription.sub_version > previous.sub_version

    def _mark_seen(self, client: GroupMember) -> None:
        client.last_seen_s = self._clock.monotonic()
        client.last_seen_ms = self._clock.now_ms()

    # -- leaving ---------------------------------------------------------------------------------------------

    def unregister_producer(self, group: str, connection: Connection) -> None:
        """Remove a producer that unregisters."""
        members = self.producers.get(group)
        client = None if members is None else members.pop(connection, None)
        if members is None or client is None:
            return
        if not members:
            del self.producers[group]
        if self._producers_by_id.get(client.client_id) is client:
            del self._producers_by_id[client.client_id]
        own = self._memberships[connection]
        own.producer_groups.discard(group)
        # The client may produce in other groups over this connection, and must still be found by its id. Another
        # connection of the same client that has taken the entry keeps it.
        for other in own.producer_groups:
            self._producers_by_id.setdefault(client.client_id, self.producers[other][connection])
            break
        self._note_departure(connection, own)

    def unregister_consumer(self, group: str, connection: Connection, *, notify: bool = True) -> None:
        """Remove a consumer that unregisters, and notify the other members."""
        members = self.consumers.get(group)
        if members is None or members.remove_member(connection) is None:
            return
        own = self._memberships[connection]
        own.consumer_groups.discard(group)
        self._note_departure(connection, own)
        self._count_inconsistency(members)
        if members.clients:
            self._notify_members(members, notify)
        else:
            del self.consumers[group]
            self._subscription_bytes -= members.subscription_bytes
            self._on_group_gone(group)

    def _note_departure(self, connection: Connection, own: Memberships) -> None:
        self._member_count -= 1
        if not own:
            del self._memberships[connection]

    def drop_connection(self, connection: Connection) -> None:
        """Remove a closed connection from all groups, and notify the other members.

        Source: doChannelCloseEvent of both managers, 5.4.0.
        """
        own = self._memberships.get(connection)
        if own is None:
            return
        # Copied, because leaving a group takes it out of the connection's own sets.
        producers, consumers = list(own.producer_groups), list(own.consumer_groups)
        for group in producers:
            self.unregister_producer(group, connection)
        for group in consumers:
            self.unregister_consumer(group, connection)
        extra = {
            "remote": connection.remote,
            "producer_groups": len(producers),
            "consumer_groups": len(consumers),
        }
        log.info("client offline", extra=extra)

    def close_expired(self) -> Iterator[None]:
        """Close connections whose heartbeats for some group stopped, in slices: other tasks may run at each yield.

        Source: scanNotActiveChannel of both managers, 5.4.0. Deviation: the other members are notified at once;
        the official broker forgets to, so they rebalance only by their own timer.
        """
        limit = self._clock.monotonic() - self._expiry_s
        looked_at = 0
        for connection, own in list(self._memberships.items()):
            # A connection that closed since the list was made has no members any more.
            client = self._silent_member(connection, own, limit)
            if client is not None:
                log.warning("client expired", extra={"client": client.client_id, "remote": client.address})
                connection.close("no heartbeat")
                self.drop_connection(connection)
            # A slice is bounded by members: one client may be in thousands of groups.
            looked_at += 1 + len(own)
            if looked_at >= MEMBERS_PER_SLICE:
                looked_at = 0
                yield

    def _silent_member(self, connection: Connection, own: Memberships, limit_s: float) -> GroupMember | None:
        members = [self.producers[group][connection] for group in own.producer_groups]
        members += [self.consumers[group].clients[connection] for group in own.consumer_groups]
        return next((member for member in members if member.last_seen_s < limit_s), None)

    # -- notifying -------------------------------------------------------------------------------------------

    def _notify_members(self, members: ConsumerGroup, notify: bool) -> None:
        if notify and self.notify_changes and not members.is_broadcasting:
            self._to_notify[members.name] = members
            self._group_changed.set()

    async def run(self) -> None:
        """Notify the members of changed groups until cancelled."""
        while True:
            # Cleared before the changes are taken: a group that changes meanwhile ends the wait below.
            self._group_changed.clear()
            sent = 0
            for sent in self.send_notices():  # noqa: B007 - the last number counts
                await trio.lowlevel.checkpoint()
            # Changes during this pause are notified in one round. It grows with the notices that the last round sent.
            await trio.sleep(NOTIFY_DELAY_S + sent * PAUSE_PER_NOTICE_S)
            await self._group_changed.wait(float("inf"))

    def send_notices(self) -> Iterator[int]:
        """Notify the members of all groups that changed, in slices; yield the number of notices sent so far.

        Sending a notice may reveal that a member is gone. That changes its groups again, which the next call notifies.
        """
        changed, self._to_notify = self._to_notify, {}
        sent = 0
        for name, members in changed.items():
            notice = NotifyConsumerIdsChanged(consumer_group=name)
            for connection in list(members.clients):
                connection.send_oneway(notice)
                sent += 1
                if sent % NOTICES_PER_SLICE == 0:
                    yield sent
        yield sent
