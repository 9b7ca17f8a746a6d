"""Connected producers and consumers by group, their subscriptions, and notifications about changes of membership.

Heartbeats are parsed in `processors/heartbeats.py`.
"""

import logging
from collections.abc import Callable, Iterable

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


class GroupMember:
    """One connection as a member of one group."""

    __slots__ = ("client_id", "connection", "language", "last_seen_ms", "last_seen_s", "version")

    def __init__(self, connection: Connection, client_id: str, language: str, version: int) -> None:
        self.connection = connection
        self.client_id = client_id
        self.language = language
        self.version = version
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
        "consume_from_where",
        "consume_type",
        "message_model",
        "name",
        "subscriptions",
        "updated_ms",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type: str | None = None
        self.message_model: str | None = None
        self.consume_from_where: str | None = None
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.clients: dict[Connection, GroupMember] = {}
        self.updated_ms = 0

    @property
    def is_broadcasting(self) -> bool:
        """True when each member consumes everything, so that members need not know of each other."""
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        """Return client ids in the order in which members joined."""
        return [client.client_id for client in self.clients.values()]

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
        known = self.clients.setdefault(client.connection, client)
        if known.client_id != client.client_id:
            extra = {"group": self.name, "before": known.client_id, "now": client.client_id}
            log.error("connection changed its client id", extra=extra)
            self.clients[client.connection] = client
        return known is client

    def update_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Take over the subscriptions of a member; return True when the set of topics changed.

        Source: ConsumerGroupInfo.updateSubscription, 5.4.0: newer versions replace older ones, topics that
        are no longer named are removed.
        """
        wanted = {each.topic: each for each in subscriptions}
        changed = False
        for topic, subscription in wanted.items():
            known = self.subscriptions.get(topic)
            changed = changed or known is None
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[topic] = subscription
        for topic in self.subscriptions.keys() - wanted.keys():
            log.warning("subscription removed", extra={"group": self.name, "topic": topic})
            del self.subscriptions[topic]
            changed = True
        return changed


class ClientRegistry:
    """All groups with online members. Source: ConsumerManager and ProducerManager, 5.4.0."""

    def __init__(
        self,
        clock: Clock,
        *,
        expiry_s: float = DEFAULT_EXPIRY_S,
        notify_changes: bool = True,
        on_group_gone: Callable[[str], None] = lambda group: None,
    ) -> None:
        self._clock = clock
        self._expiry_s = expiry_s
        self.notify_changes = notify_changes
        self._fingerprints: dict[str, int] = {}
        self._producer_turn = 0
        self._to_notify: dict[str, ConsumerGroup] = {}
        self._notifying = False
        self._on_group_gone = on_group_gone
        self.any_broadcasting = False
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Connection, GroupMember]] = {}

    # -- reading -------------------------------------------------------------------------------------------

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return the online members of a group, None when there are none."""
        return self.consumers.get(group)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the group's subscription to a topic from its members' latest heartbeats."""
        members = self.consumers.get(group)
        return None if members is None else members.subscriptions.get(topic)

    def consumer(self, group: str, client_id: str) -> GroupMember | None:
        """Return an online consumer by its id."""
        members = self.consumers.get(group)
        return None if members is None else members.find_member(client_id)

    def groups_of_topic(self, topic: str) -> set[str]:
        """Return the groups whose online members subscribe to the topic."""
        return {name for name, members in self.consumers.items() if topic in members.subscriptions}

    def next_producer(self, group: str) -> GroupMember | None:
        """Return a producer of a group, in rotation, for requests that any of them can answer; None if there is none.
        Source: getAvailableChannel.
        """
        members = list(self.producers.get(group, {}).values())
        if not members:
            return None
        self._producer_turn += 1
        return members[self._producer_turn % len(members)]

    def producer_by_id(self, client_id: str) -> GroupMember | None:
        """Return an online producer by its id, in whatever group."""
        for members in self.producers.values():
            for client in members.values():
                if client.client_id == client_id:
                    return client
        return None

    # -- joining --------------------------------------------------------------------------------------------

    def register_producer(self, group: str, client: GroupMember) -> None:
        """Add a producer, or record that it is alive."""
        members = self.producers.setdefault(group, {})
        known = members.setdefault(client.connection, client)
        self._mark_seen(known)
        if known is client:
            log.info("producer online", extra={"group": group, "client": client.client_id})

    def register_consumer(
        self, client: GroupMember, data: ConsumerData, *, notify: bool = True, subscriptions: bool = True
    ) -> bool:
        """Add a consumer with its subscriptions, or record that it is alive. Return True when the group changed.

        `subscriptions` False means that the heartbeat carries none because they are unchanged (heartbeat version 2).
        """
        members = self.consumers.get(data.group_name)
        if members is None:
            members = self.consumers[data.group_name] = ConsumerGroup(data.group_name)
        changed = members.add_member(client, data)
        # Never reset: the flag only saves pulls a lookup.
        self.any_broadcasting = self.any_broadcasting or members.is_broadcasting
        if subscriptions:
            changed = members.update_subscriptions(data.subscription_data_set) or changed
        self._mark_seen(members.clients[client.connection])
        members.updated_ms = self._clock.now_ms()
        if changed:
            log.info("consumer group changed", extra={"group": members.name, "client": client.client_id})
            self._notify_members(members, notify)
        return changed

    def update_fingerprint(self, group: str, fingerprint: int) -> bool:
        """Store the fingerprint of a group's latest heartbeat; return True when an earlier one differs."""
        before = self._fingerprints.get(group)
        self._fingerprints[group] = fingerprint
        return before is not None and before != fingerprint

    def _mark_seen(self, client: GroupMember) -> None:
        client.last_seen_s = self._clock.monotonic()
        client.last_seen_ms = self._clock.now_ms()

    # -- leaving ---------------------------------------------------------------------------------------------

    def unregister_producer(self, group: str, connection: Connection) -> None:
        """Remove a producer that unregisters."""
        members = self.producers.get(group)
        if members is not None and (client := members.pop(connection, None)) is not None:
            log.info("producer offline", extra={"group": group, "client": client.client_id})
            if not members:
                del self.producers[group]

    def unregister_consumer(self, group: str, connection: Connection, *, notify: bool = True) -> None:
        """Remove a consumer that unregisters, and notify the other members."""
        members = self.consumers.get(group)
        if members is None:
            return
        client = members.clients.pop(connection, None)
        if client is not None:
            log.info("consumer offline", extra={"group": group, "client": client.client_id})
        self._handle_departure(members, notify)

    def drop_connection(self, connection: Connection) -> None:
        """Remove a closed connection from all groups, and notify the other members.

        Source: doChannelCloseEvent of both managers, 5.4.0.
        """
        for group in [group for group, members in self.producers.items() if connection in members]:
            self.unregister_producer(group, connection)
        for members in [members for members in self.consumers.values() if connection in members.clients]:
            client = members.clients.pop(connection)
            log.info("consumer offline", extra={"group": members.name, "client": client.client_id})
            self._handle_departure(members, notify=True)

    def _handle_departure(self, members: ConsumerGroup, notify: bool) -> None:
        if members.clients:
            self._notify_members(members, notify)
        elif self.consumers.pop(members.name, None) is not None:
            self._on_group_gone(members.name)

    def close_expired(self) -> None:
        """Close connections whose heartbeats for some group stopped.

        Source: scanNotActiveChannel of both managers, 5.4.0. Deviation: the other members are notified at once;
        the official broker forgets to, so they rebalance only by their own timer.
        """
        limit = self._clock.monotonic() - self._expiry_s
        clients: list[GroupMember] = [
            client for members in self.producers.values() for client in members.values()
        ]
        clients += [client for members in self.consumers.values() for client in members.clients.values()]
        for client in clients:
            if client.last_seen_s < limit:
                log.warning("client expired", extra={"client": client.client_id, "remote": client.address})
                client.connection.close("no heartbeat")
                self.drop_connection(client.connection)

    # -- notifying -------------------------------------------------------------------------------------------

    def _notify_members(self, members: ConsumerGroup, notify: bool) -> None:
        if not (notify and self.notify_changes) or members.is_broadcasting:
            return
        self._to_notify[members.name] = members
        if not self._notifying:
            self._notifying = True
            try:
                self._send_notifications()
            finally:
                self._notifying = False

    def _send_notifications(self) -> None:
        """Notify the members of changed groups until no group has changed since.

        Sending a notification may reveal that a member is gone, which changes the group again. A loop is used because
        recursion would be as deep as the number of members that disappear together.
        """
        while self._to_notify:
            name, members = self._to_notify.popitem()
            notice = NotifyConsumerIdsChanged(consumer_group=name)
            for connection in list(members.clients):
                connection.send_oneway(notice)
