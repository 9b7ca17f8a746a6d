"""The services of the message path, which travel together into the constructors of handlers."""

from dataclasses import dataclass

from gateway.broker.messages.advertised_hosts import AdvertisedHosts
from gateway.broker.messages.answer_gate import AnswerGate
from gateway.broker.messages.damaged_records import DamagedRecords
from gateway.broker.messages.group_commit import GroupCommit
from gateway.broker.statistics.traffic_stats import BrokerStats
from gateway.broker.waiting.long_poll import LongPolls
from storage.store import MessageStore


@dataclass(frozen=True, slots=True)
class MessageServices:
    """The store, and the services that are involved whenever a message is stored or read."""

    store: MessageStore
    long_polls: LongPolls
    group_commit: GroupCommit
    answer_gate: AnswerGate
    hosts: AdvertisedHosts
    stats: BrokerStats
    damaged: DamagedRecords
