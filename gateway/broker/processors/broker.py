"""The parts of one broker, as handlers receive them: a record without behaviour.

Not responsible for building or running the parts; `gateway.server` is.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gateway.broker.advertised_hosts import Hosts
from gateway.broker.broadcast_offsets import BroadcastOffsets
from gateway.broker.client_registry import ClientRegistry
from gateway.broker.consumer_filters import FilterTable
from gateway.broker.consumer_offsets import ConsumerOffsets
from gateway.broker.delay_service import DelayService
from gateway.broker.flow_control import FlowControl
from gateway.broker.group_commit import GroupCommit
from gateway.broker.group_table import GroupTable
from gateway.broker.long_poll import LongPolls
from gateway.broker.message_writer import Putter
from gateway.broker.pop.service import PopParts
from gateway.broker.pull_handler import Puller
from gateway.broker.queue_locks import QueueLocks
from gateway.broker.retry_rules import RetryRules
from gateway.broker.send_handler import Sender
from gateway.broker.staged_batches import Staging
from gateway.broker.timer_delivery import Timers
from gateway.broker.topic_table import TopicTable
from gateway.broker.traffic_rates import Rates
from gateway.broker.traffic_stats import BrokerStats
from gateway.broker.transaction_checks import TransactionChecks
from gateway.broker.transactions import Transactions
from gateway.config.process import BrokerConfig
from remoting.bodies.routes import TopicRouteData
from storage.clock import Clock
from storage.store import MessageStore

FindRoute = Callable[[str], Awaitable[TopicRouteData | None]]
"""Where a topic is, on this broker and others, as a namesrv knows it; None when none does."""


async def unknown_route(topic: str) -> TopicRouteData | None:
    """What a broker without a namesrv knows of routes."""
    return None


@dataclass(slots=True)
class Broker:
    """What a handler may use; it takes the two or three parts it needs."""

    config: BrokerConfig
    clock: Clock
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    clients: ClientRegistry
    queue_locks: QueueLocks
    long_polls: LongPolls
    delay: DelayService
    timers: Timers | None
    put: Putter
    retry: RetryRules
    transactions: Transactions
    transaction_checks: TransactionChecks
    sender: Sender
    puller: Puller
    pop: PopParts
    broadcasts: BroadcastOffsets
    commit: GroupCommit
    hosts: Hosts
    filters: FilterTable
    rates: Rates
    flow: FlowControl
    staging: Staging | None
    stats: BrokerStats = field(default_factory=BrokerStats)
    find_route: FindRoute = unknown_route
