"""Groups of broker parts that travel together into the constructors of handlers."""

from dataclasses import dataclass

from gateway.broker.advertised_hosts import AdvertisedHosts
from gateway.broker.client_registry import ClientRegistry
from gateway.broker.consumer_filters import ConsumerFilterTable
from gateway.broker.consumer_offsets import ConsumerOffsets
from gateway.broker.damaged_records import DamagedRecords
from gateway.broker.filter_cache import FilterCache
from gateway.broker.group_commit import GroupCommit
from gateway.broker.group_table import GroupTable
from gateway.broker.long_poll import LongPolls
from gateway.broker.topic_table import TopicTable
from gateway.broker.traffic_stats import BrokerStats
from storage.store import MessageStore


@dataclass(frozen=True, slots=True)
class BrokerTables:
    """The tables that requests are checked against, and the compiled filters of subscriptions."""

    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    clients: ClientRegistry
    filters: ConsumerFilterTable
    filter_cache: FilterCache


@dataclass(frozen=True, slots=True)
class MessageServices:
    """The store, and the services that are involved whenever a message is stored or read."""

    store: MessageStore
    long_polls: LongPolls
    group_commit: GroupCommit
    hosts: AdvertisedHosts
    stats: BrokerStats
    damaged: DamagedRecords
