"""Keys that bound the state which requests can create in a namesrv and a broker.

Each key limits state that stays after the answer of the request that created it. At the limit, the request is refused
with SYSTEM_ERROR (or the official code where there is one) and a remark that names the key; existing state continues to
work. The official server has none of these keys: its tables grow until the heap is full.
"""

from dataclasses import dataclass

from gateway.config.keys import key

KIB = 1024
MIB = 1024 * 1024
_MANY = 100_000_000


def limit(name: str, default: int, description: str, *, low: int = 1, high: int = _MANY) -> int:
    """Declare a limit that may be changed while the server runs."""
    return key(name, default, description, low=low, high=high, live=True, unofficial=True)


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Limits on the state of one broker. Counts are numbers of entries, sizes are bytes."""

    max_topics: int = limit(
        "maxTopics", 50_000, "maximum number of topics, retry and dead-letter topics included"
    )
    max_queues_per_topic: int = limit(
        "maxQueuesPerTopic", 4_096, "maximum number of read or write queues of a topic", high=65_536
    )
    max_queues: int = limit(
        "maxQueues",
        500_000,
        "maximum number of queues of all topics together; each queue with messages takes 1 to 2 KB of memory",
    )
    max_groups: int = limit("maxSubscriptionGroups", 50_000, "maximum number of subscription groups")
    max_settings_bytes: int = limit(
        "maxSettingsBytes",
        16 * KIB,
        "maximum size of a subscription group's settings as JSON: retry delays, subscriptions, attributes",
        low=64,
        high=16 * MIB,
    )
    max_request_modes: int = limit(
        "maxRequestModes", 100_000, "maximum number of request modes (pull or pop) set for a topic and group"
    )
    max_clients: int = limit("maxClients", 50_000, "maximum number of connections that send heartbeats")
    max_groups_per_client: int = limit(
        "maxGroupsPerClient", 5_000, "maximum number of producer and consumer groups of one client"
    )
    max_members_per_group: int = limit("maxMembersPerGroup", 20_000, "maximum number of clients in a group")
    max_members: int = limit(
        "maxMembers",
        500_000,
        "maximum number of members of all groups together: one client in ten groups counts ten times",
    )
    max_subscriptions_per_group: int = limit(
        "maxSubscriptionsPerGroup", 2_000, "maximum number of topics that one group subscribes to"
    )
    max_subscription_bytes: int = limit(
        "maxSubscriptionBytes",
        256 * MIB,
        "memory for the subscriptions in heartbeats of all groups",
        low=64 * KIB,
        high=64 * 1024 * MIB,
    )
    max_expression_bytes: int = limit(
        "maxFilterExpressionBytes",
        32 * KIB,
        "maximum size of the expression of a subscription (tags or SQL92)",
        high=16 * MIB,
    )
    max_filter_cache_bytes: int = key(
        "maxFilterCacheBytes",
        64 * MIB,
        "memory for compiled filters of subscriptions; those not used lately are dropped and compiled again",
        low=MIB,
        high=1024 * MIB,
        unofficial=True,
    )
    max_consumer_filter_bytes: int = limit(
        "maxConsumerFilterBytes",
        32 * MIB,
        "maximum size of the table of SQL92 filters of groups; those of groups that left make room for new ones",
        low=64 * KIB,
        high=1024 * MIB,
    )
    max_long_polls: int = limit(
        "maxLongPolls",
        100_000,
        "maximum number of waiting pulls, pops and notifications, counted together; a further one is answered at once",
    )
    max_suspend_ms: int = limit(
        "maxSuspendTimeMillis",
        300_000,
        "longest time a pull, pop or notification waits for a message, whatever the client asks for",
        low=1_000,
        high=86_400_000,
    )
    max_outstanding_pops: int = limit(
        "maxOutstandingPops",
        500_000,
        "maximum number of pops with unacked messages; at the limit the oldest one's are delivered again early",
    )
    max_queue_locks: int = limit(
        "maxQueueLocks", 200_000, "maximum number of queues locked by ordered consumers"
    )
    max_metric_series: int = limit(
        "maxMetricSeries",
        1_000,
        "maximum number of topics, and of groups with their topics, that /metrics shows apart; "
        "the others are summed as `other`",
    )
    max_committed_offsets: int = limit(
        "maxCommittedOffsets", 2_000_000, "maximum number of committed offsets: group, topic and queue"
    )
    max_keys_per_message: int = key(
        "maxKeysPerMessage",
        256,
        "maximum number of keys of a message that are indexed; the message is stored with all of them",
        low=1,
        high=32_768,
        unofficial=True,
    )


@dataclass(frozen=True, slots=True)
class NamesrvLimits:
    """Limits on the state of the namesrv. Counts are numbers of entries, sizes are bytes."""

    max_brokers: int = limit(
        "maxRegisteredBrokers", 1_000, "maximum number of registered broker addresses", high=1_000_000
    )
    max_topics_per_broker: int = limit(
        "maxTopicsPerBroker", 100_000, "maximum number of topics of one broker name"
    )
    max_topics: int = limit(
        "maxTopics",
        500_000,
        "maximum number of topics in the route table; a topic counts once for each broker name that has it",
    )
    max_registration_bytes: int = limit(
        "maxRegistrationBytes",
        64 * MIB,
        "maximum size of a registration after decompression",
        low=64 * KIB,
        high=1024 * MIB,
    )
    max_kv_entries: int = limit(
        "maxKvEntries", 10_000, "maximum number of entries of the KV configuration, namespaces included"
    )
    max_kv_bytes: int = limit(
        "maxKvBytes",
        2 * MIB,
        "maximum size of all keys and values of the KV configuration",
        low=64 * KIB,
        high=1024 * MIB,
    )
