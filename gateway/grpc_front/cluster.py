"""The brokers that the gRPC front serves, as its RPCs see them, wherever these brokers run.

`LocalCluster` (`served_brokers.py`) has the brokers of this process, whose handlers and tables are called directly.
`RemoteCluster` (`remote_cluster.py`) has those that a namesrv knows, over connections. RPCs read topics and groups
without waiting; a remote cluster has them loaded before (`ServedCluster.load`).
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import trio

from codec.topics import PERM_READ, PERM_WRITE
from gateway.auth.access_control import Accounts
from gateway.broker.topics.attributes import MESSAGE_TYPE
from gateway.grpc_front import messages
from gateway.grpc_front.access import RpcSender
from gateway.grpc_front.broker_link import BrokerLink, OnRequest
from gateway.grpc_front.statuses import StatusError
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.topics import TopicConfig
from remoting.connection import Connection
from remoting.local_connection import ignore_request
from storage.clock import Clock


class ServedBroker(Protocol):
    """A broker that RPCs reach through links."""

    @property
    def name(self) -> str:
        """The broker's name, which receipt handles carry."""


class ServedCluster(ABC):
    """All served brokers, and their namesrv. ``nursery`` lives as long as the front."""

    loads_tables = False
    """True if topics and groups must be loaded before RPCs read them."""

    def __init__(self, clock: Clock, nursery: trio.Nursery) -> None:
        self.clock = clock
        self.nursery = nursery
        self._turn = 0

    # -- who may do what -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def guards(self) -> list[Accounts]:
        """The accounts by which RPCs are verified; none without access control."""

    async def load_sender(self, sender: RpcSender) -> None:  # noqa: B027 - the accounts of a process are at hand
        """Make sure that the accounts can tell whether they know the sender of an RPC."""

    @abstractmethod
    async def check_route(self, peer: Connection, topic: str, sender: RpcSender) -> None:
        """Let the namesrv decide whether a sender may know a topic, and whether there is one. Raises RequestError."""

    # -- brokers and links ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def max_message_bytes(self) -> int:
        """Largest body of a message that every broker takes."""

    @abstractmethod
    def broker(self, name: str) -> ServedBroker | None:
        """Return a broker by its name; None if no broker of that name is served."""

    @abstractmethod
    async def brokers_for(self, topics: Iterable[str]) -> Sequence[ServedBroker]:
        """Return the brokers at which a client of these topics is registered."""

    @abstractmethod
    async def call_each(
        self, brokers: Sequence[ServedBroker], call: Callable[[ServedBroker], Awaitable[None]]
    ) -> None:
        """Do the same at several brokers. Raises the refusal of any of them."""

    @abstractmethod
    def open_link(
        self, peer: Connection, broker: ServedBroker, on_request: OnRequest = ignore_request
    ) -> BrokerLink:
        """Open a link of its own; the caller closes it."""

    @abstractmethod
    def link(self, peer: Connection, broker: ServedBroker) -> BrokerLink:
        """Return the link that all RPCs of a connection share, except those that need one of their own."""

    # -- topics and groups ---------------------------------------------------------------------------------

    async def load(self, topics: Iterable[str], group: str = "") -> None:  # noqa: B027 - local tables are at hand
        """Make sure that topics, and a consumer group, can be read without waiting."""

    @abstractmethod
    def brokers_of(self, topic: str) -> list[tuple[ServedBroker, TopicConfig]]:
        """Return the brokers that have a topic, each with its configuration there."""

    @abstractmethod
    def find_group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a consumer group from the first broker that has it."""

    def find_topic(self, topic: str) -> TopicConfig | None:
        """Return a topic from the first broker that has it."""
        brokers = self.brokers_of(topic)
        return brokers[0][1] if brokers else None

    def require_topic(self, topic: str) -> TopicConfig:
        """Return a topic. Raises StatusError if no broker has it."""
        config = self.find_topic(topic)
        if config is None:
            raise topic_not_found(topic)
        return config

    def require_brokers_of(self, topic: str) -> list[tuple[ServedBroker, TopicConfig]]:
        """Return the brokers that have a topic. Raises StatusError if there is none."""
        brokers = self.brokers_of(topic)
        if not brokers:
            raise topic_not_found(topic)
        return brokers

    def writable_queues(self, topic: str, *, is_ordered: bool) -> list[tuple[ServedBroker, int]]:
        """Return the brokers that take messages of a topic, with the number of its queues on each.

        Where messages ``is_ordered`` go depends on all queues, so none is left out for a broker that fails now. It must
        not depend on the order of a route either: brokers are sorted by name. Source: MessageQueueSelector, 5.4.0.
        """
        writable = [
            (broker, config.write_queue_nums)
            for broker, config in self.require_brokers_of(topic)
            if config.perm & PERM_WRITE and config.write_queue_nums > 0
        ]
        if len(writable) > 1:
            writable.sort(key=_broker_name)
        return writable

    def next_turn(self) -> int:
        """Return a number that grows with each rpc, for choosing queues in rotation."""
        self._turn += 1
        return self._turn

    def readable_broker(self, topic: str, name: str) -> ServedBroker:
        """Return the broker of that name if it has the topic, else any other that has. Raises StatusError."""
        readable = [
            broker
            for broker, config in self.require_brokers_of(topic)
            if config.perm & PERM_READ and config.read_queue_nums > 0
        ]
        if not readable:
            raise StatusError(messages.FORBIDDEN, "no readable queue")
        return next(
            (broker for broker in readable if broker.name == name), readable[self.next_turn() % len(readable)]
        )

    # -- the end -------------------------------------------------------------------------------------------

    @abstractmethod
    def release_waiting(self) -> None:
        """Have receives that wait for messages answered now."""


def _broker_name(item: tuple[ServedBroker, int]) -> str:
    return item[0].name


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
