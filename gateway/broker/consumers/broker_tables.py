"""The tables of a broker, which travel together into the constructors of handlers."""

from dataclasses import dataclass

from gateway.broker.consumers.client_registry import ClientRegistry
from gateway.broker.consumers.consumer_offsets import ConsumerOffsets
from gateway.broker.consumers.group_table import GroupTable
from gateway.broker.filters.consumer_filters import ConsumerFilterTable
from gateway.broker.filters.filter_cache import FilterCache
from gateway.broker.topics.topic_table import TopicTable


@dataclass(frozen=True, slots=True)
class BrokerTables:
    """The tables that requests are checked against, and the compiled filters of subscriptions."""

    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    clients: ClientRegistry
    filters: ConsumerFilterTable
    filter_cache: FilterCache
