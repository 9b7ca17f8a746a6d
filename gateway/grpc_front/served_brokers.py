"""The brokers and the namesrv of this process, and the links of each gRPC connection to them."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from gateway.auth.access_control import Accounts
from gateway.broker.consumers.group_table import GroupTable
from gateway.broker.topics.topic_table import TopicTable
from gateway.grpc_front.access import RpcSender
from gateway.grpc_front.broker_link import BrokerLink, LocalLink, OnRequest, ServedHandlers
from gateway.grpc_front.cluster import ServedBroker, ServedCluster
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.topics import TopicConfig
from remoting.connection import Connection
from remoting.connection_state import StateSlot
from remoting.local_connection import ignore_request
from remoting.requests.namesrv import GetRouteInfoByTopic
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


class LocalCluster(ServedCluster):
    """All brokers of this process, and its namesrv if it has one.

    ``answer_waiting`` makes the brokers answer requests that wait for messages.
    """

    def __init__(
        self,
        brokers: Sequence[LocalBroker],
        namesrv: ServedHandlers | None,
        clock: Clock,
        nursery: trio.Nursery,
        answer_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(clock, nursery)
        self.brokers = brokers
        self.namesrv = namesrv
        self._answer_waiting = answer_waiting
        self._by_name = {broker.name: broker for broker in reversed(brokers)}

    @property
    def guards(self) -> list[Accounts]:
        """The accounts by which brokers and namesrv control access; none without access control."""
        served = [broker.served for broker in self.brokers]
        if self.namesrv is not None:
            served.append(self.namesrv)
        guards = {id(part.accounts): part.accounts for part in served if part.accounts is not None}
        return list(guards.values())

    async def check_route(self, peer: Connection, topic: str, sender: RpcSender) -> None:
        """Ask the namesrv of this process, if it has one."""
        if self.namesrv is not None:
            link = self._shared_link(peer, NAMESRV, self.namesrv)
            await link.call(GetRouteInfoByTopic(topic=topic, accept_standard_json_only=True), sender)

    # -- brokers and links ---------------------------------------------------------------------------------

    @property
    def max_message_bytes(self) -> int:
        """Largest body of a message that every broker takes."""
        return min(broker.max_message_bytes() for broker in self.brokers)

    def broker(self, name: str) -> LocalBroker | None:
        """Return a broker by its name; None if this process has none of that name."""
        return self._by_name.get(name)

    async def brokers_for(self, topics: Iterable[str]) -> Sequence[ServedBroker]:
        """Return all brokers, whatever the topics are: they are few, and cost nothing to reach."""
        return self.brokers

    async def call_each(
        self, brokers: Sequence[ServedBroker], call: Callable[[ServedBroker], Awaitable[None]]
    ) -> None:
        """Call one broker after the other: they answer at once."""
        for broker in brokers:
            await call(broker)

    def open_link(
        self, peer: Connection, broker: ServedBroker, on_request: OnRequest = ignore_request
    ) -> BrokerLink:
        """Open a link of its own; the caller closes it."""
        return LocalLink(self._by_name[broker.name].served, peer, self.nursery, on_request)

    def link(self, peer: Connection, broker: ServedBroker) -> BrokerLink:
        """Return the link that all RPCs of a connection share, except those that need one of their own."""
        return self._shared_link(peer, broker.name, self._by_name[broker.name].served)

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

    def brokers_of(self, topic: str) -> list[tuple[ServedBroker, TopicConfig]]:
        """Return the brokers that have a topic, each with its configuration there."""
        return [
            (broker, config) for broker in self.brokers if (config := broker.topics.get(topic)) is not None
        ]

    def find_topic(self, topic: str) -> TopicConfig | None:
        """Return a topic from the first broker that has it."""
        for broker in self.brokers:
            if (config := broker.topics.get(topic)) is not None:
                return config
        return None

    def find_group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a consumer group from the first broker that has it."""
        for broker in self.brokers:
            if (config := broker.groups.get(group)) is not None:
                return config
        return None

    def release_waiting(self) -> None:
        """Have the brokers answer receives that wait for messages."""
        self._answer_waiting()


def close_links(peer: Connection) -> None:
    """Close the links of a connection that has ended."""
    for link in (peer.state.get(_LINKS) or {}).values():
        link.close("the client's connection has ended")
