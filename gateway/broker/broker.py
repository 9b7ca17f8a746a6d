"""The parts of one broker as handlers receive them: a record without behaviour.

`assembly/build.py` builds it, `assembly/service.py` runs it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from gateway.auth.access_control import Accounts
from gateway.broker.consumers.broadcast_offsets import BroadcastOffsets
from gateway.broker.consumers.client_registry import ClientRegistry
from gateway.broker.consumers.consumer_offsets import ConsumerOffsets
from gateway.broker.consumers.group_table import GroupTable
from gateway.broker.consumers.queue_locks import QueueLocks
from gateway.broker.delayed.delay_service import DelayService
from gateway.broker.delayed.timer_delivery import TimerDelivery
from gateway.broker.filters.consumer_filters import ConsumerFilterTable
from gateway.broker.filters.filter_cache import FilterCache
from gateway.broker.limits.flow_control import FlowControl
from gateway.broker.messages.advertised_hosts import AdvertisedHosts
from gateway.broker.messages.answer_gate import AnswerGate
from gateway.broker.messages.damaged_records import DamagedRecords
from gateway.broker.messages.group_commit import GroupCommit
from gateway.broker.messages.message_writer import MessageWriter
from gateway.broker.pop.service import PopService
from gateway.broker.replication.parts import Replication
from gateway.broker.requests.pull_handler import PullHandler
from gateway.broker.requests.retry_rules import RetryRules
from gateway.broker.requests.send_handler import SendHandler
from gateway.broker.requests.staged_batches import StagedBatches
from gateway.broker.statistics.traffic_rates import TrafficRates
from gateway.broker.statistics.traffic_stats import BrokerStats
from gateway.broker.topics.topic_table import TopicTable
from gateway.broker.transactions.end_transaction import EndTransactionHandler
from gateway.broker.transactions.transaction_checks import TransactionChecks
from gateway.broker.waiting.long_poll import LongPolls
from gateway.config.process import BrokerConfig
from remoting.bodies.routes import TopicRouteData
from storage.clock import Clock
from storage.store import MessageStore

FindRoute = Callable[[str], Awaitable[TopicRouteData | None]]
"""Asks a namesrv on which brokers a topic is; None when the topic is unknown or no namesrv answers."""


class RouteLookup:
    """Finds the route of a topic on this broker and others. A broker without a namesrv has no source, so no routes."""

    def __init__(self) -> None:
        self._sources: list[FindRoute] = []

    def add_source(self, source: FindRoute) -> None:
        """Ask this source as well, after those added earlier."""
        self._sources.append(source)

    async def find_route(self, topic: str) -> TopicRouteData | None:
        """Return the first route that a source knows, None when none does."""
        for source in self._sources:
            route = await source(topic)
            if route is not None:
                return route
        return None


@dataclass(slots=True)
class Broker:
    """The parts that a handler may use. Each handler takes the two or three that it needs."""

    config: BrokerConfig
    clock: Clock
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    clients: ClientRegistry
    queue_locks: QueueLocks
    long_polls: LongPolls
    delay_service: DelayService
    timer_delivery: TimerDelivery | None
    writer: MessageWriter
    retry_rules: RetryRules
    transactions: EndTransactionHandler
    transaction_checks: TransactionChecks
    send_handler: SendHandler
    pull_handler: PullHandler
    pop: PopService
    broadcasts: BroadcastOffsets
    group_commit: GroupCommit
    answer_gate: AnswerGate
    hosts: AdvertisedHosts
    consumer_filters: ConsumerFilterTable
    filter_cache: FilterCache
    rates: TrafficRates
    flow_control: FlowControl
    staged_batches: StagedBatches | None
    stats: BrokerStats
    damaged: DamagedRecords
    replication: Replication
    process_values: Mapping[str, str]
    """Settings of the process under their official keys, for the listing of the configuration."""
    accounts: Accounts | None = None
    routes: RouteLookup = field(default_factory=RouteLookup)
