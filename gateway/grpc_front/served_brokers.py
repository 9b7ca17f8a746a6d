"""The brokers and the namesrv that the gRPC port serves, and the links of each connection to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from codec.topics import PERM_READ, PERM_WRITE
from gateway.auth.access_control import Accounts
from gateway.broker.consumers.group_table import GroupTable
from gateway.broker.topics.attributes import MESSAGE_TYPE
from gateway.broker.topics.topic_table import TopicTable
from gateway.grpc_front import messages
from gateway.grpc_front.broker_link import BrokerLink, LocalLink, OnRequest, ServedHandlers
from gateway.grpc_front.statuses import StatusError
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.topics import TopicConfig
from remoting.connection import Connection
from remoting.connection_state import StateSlot
from remoting.local_connection import ignore_request
from storage.clock import Clock

NAMESRV: Final = ""
"""The name under which a connection keeps its link to the namesrv; no broker has it."""
_LINKS: Final = StateSlot[dict[str, BrokerLink]]("links to the brokers")


@dataclass(frozen=True, slots=True)
class LocalBroker:
    """A broker of this process: its handlers, and the tables that RPCs read, which a change of role replaces."""

    name: str
    served: ServedHandlers
    find_topics: Callable[[], TopicTable]
    find_groups: Callable[[], GroupTable]
    max_message_bytes: Callable[[], int]

    @property
    def topics(self) -> TopicTable:
        """The present topics."""
        return self.find_topics()

    @property
    def groups(self) -> GroupTable:
        """The present consumer groups."""
        return self.find_groups()


@dataclass(slots=True)
class LocalCluster:
    """All brokers of this process, and its namesrv if it has one. ``nursery`` lives as long as the front."""

    brokers: Sequence[LocalBroker]
    namesrv: ServedHandlers | None
    clock: Clock
    nursery: trio.Nursery
    _turn: int = field(default=0, init=False)

    @property
    def guards(self) -> list[Accounts]:
        """The accounts by which brokers and namesrv control access; none without access control."""
        served = [broker.served for broker in self.brokers]
        if self.namesrv is not None:
            served.append(self.namesrv)
        guards = {id(part.accounts): part.accounts for part in served if part.accounts is not None}
        return list(guards.values())

    def broker(self, name: str) -> LocalBroker | None:
        """Return a broker by its name; None if this process has none of that name."""
        return next((broker for broker in self.brokers if broker.name == name), None)

    def open_link(
        self,
        peer: Connection,
        broker: LocalBroker,
        on_request: OnRequest = ignore_request,
    ) -> BrokerLink:
        """Open a link of its own; the caller closes it."""
        return LocalLink(broker.served, peer, self.nursery, on_request)

    def link(self, peer: Connection, broker: LocalBroker) -> BrokerLink:
        """Return the link that all RPCs of a connection share, except those that need one of their own."""
        return self._shared_link(peer, broker.name, broker.served)

    def namesrv_link(self, peer: Connection, namesrv: ServedHandlers) -> BrokerLink:
        """Return the link of a connection to the namesrv."""
        return self._shared_link(peer, NAMESRV, namesrv)

    def _shared_link(self, peer: Connection, name: str, served: ServedHandlers) -> BrokerLink:
        links = peer.state.get(_LINKS)
        if links is None:
            links = peer.state[_LINKS] = {}
            peer.on_close(close_links)
        link = links.get(name)
        if link is None or link.closed:
            link = links[name] = LocalLink(served, peer, self.nursery)
        return link

    # -- topics and groups ---------------------------------------------------------------------------------

    def find_topic(self, topic: str) -> TopicConfig | None:
        """Return a topic from the first broker that has it."""
        return next(
            (config for broker in self.brokers if (config := broker.topics.get(topic)) is not None), None
        )

    def require_topic(self, topic: str) -> TopicConfig:
        """Return a topic. Raises StatusError if no broker has it."""
        config = self.find_topic(topic)
        if config is None:
            raise topic_not_found(topic)
        return config

    def find_group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a consumer group from the first broker that has it."""
        return next(
            (config for broker in self.brokers if (config := broker.groups.get(group)) is not None), None
        )

    def writable_queues(self, topic: str) -> list[tuple[LocalBroker, int]]:
        """Return the brokers that take messages of a topic, with the number of its queues on each."""
        self.require_topic(topic)
        writable = []
        for broker in self.brokers:
            config = broker.topics.get(topic)
            if config is not None and config.perm & PERM_WRITE and config.write_queue_nums > 0:
                writable.append((broker, config.write_queue_nums))
        return writable

    def next_turn(self) -> int:
        """Return a number that grows with each rpc, for choosing queues in rotation."""
        self._turn += 1
        return self._turn

    def readable_broker(self, topic: str, name: str) -> LocalBroker:
        """Return the broker of that name if it has the topic, else any other that has. Raises StatusError."""
        self.require_topic(topic)
        readable = [
            broker
            for broker in self.brokers
            if (config := broker.topics.get(topic)) is not None
            and config.perm & PERM_READ
            and config.read_queue_nums > 0
        ]
        if not readable:
            raise StatusError(messages.FORBIDDEN, "no readable queue")
        return next(
            (broker for broker in readable if broker.name == name), readable[self.next_turn() % len(readable)]
        )


def close_links(peer: Connection) -> None:
    """Close the links of a connection that has ended."""
    for link in (peer.state.get(_LINKS) or {}).values():
        link.close("the client's connection has ended")


def topic_not_found(topic: str) -> StatusError:
    """Return the refusal for a topic that does not exist."""
    return StatusError(
        messages.TOPIC_NOT_FOUND,
        f"No topic route info in name server for the topic: {topic}. Create it first: the gRPC protocol creates no "
        f"topics (rmq-gateway topic create {topic})",
    )


def type_of_topic(config: TopicConfig) -> str:
    """Return the type of the messages that a topic takes. Source: TopicConfig.getTopicMessageType, 5.4.0."""
    return config.attributes.get(MESSAGE_TYPE, "NORMAL")
