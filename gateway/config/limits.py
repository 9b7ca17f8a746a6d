"""Keys that bound what strangers can make a namesrv and a broker hold.

Every bound is on state that a request creates and that stays after its answer. At a bound the request is refused with
SYSTEM_ERROR (or the official code where there is one) and a remark that names the key; what exists goes on working.
The official server has none of these keys: its tables grow until the heap is full.
"""

from dataclasses import dataclass

from gateway.config.keys import key

KIB = 1024
MIB = 1024 * 1024
_MANY = 100_000_000


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Limits on the state of one broker. Counts are numbers of entries, sizes are bytes."""

    max_topics: int = key(
        "maxTopics",
        50_000,
        "maximum number of topics, retry and dead-letter topics included",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_queues_per_topic: int = key(
        "maxQueuesPerTopic",
        4_096,
        "maximum number of read or write queues of a topic",
        low=1,
        high=65_536,
        live=True,
        ours=True,
    )
    max_queues: int = key(
        "maxQueues",
        500_000,
        "maximum number of queues of all topics together; each queue with messages takes 1 to 2 KB of memory",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_groups: int = key(
        "maxSubscriptionGroups",
        50_000,
        "maximum number of subscription groups",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_settings_bytes: int = key(
        "maxSettingsBytes",
        16 * KIB,
        "maximum size of a subscription group's settings as JSON: retry delays, subscriptions, attributes",
        low=64,
        high=16 * MIB,
        live=True,
        ours=True,
    )
    max_request_modes: int = key(
        "maxRequestModes",
        100_000,
        "maximum number of request modes (pull or pop) set for a topic and group",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_clients: int = key(
        "maxClients",
        50_000,
        "maximum number of connections that send heartbeats",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_groups_per_client: int = key(
        "maxGroupsPerClient",
        5_000,
        "maximum number of producer and consumer groups of one client",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_members_per_group: int = key(
        "maxMembersPerGroup",
        20_000,
        "maximum number of clients in a group",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_members: int = key(
        "maxMembers",
        500_000,
        "maximum number of members of all groups together: one client in ten groups counts ten times",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_subscriptions_per_group: int = key(
        "maxSubscriptionsPerGroup",
        2_000,
        "maximum number of topics that one group subscribes to",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_subscription_bytes: int = key(
        "maxSubscriptionBytes",
        256 * MIB,
        "memory for the subscriptions in heartbeats of all groups",
        low=64 * KIB,
        high=64 * 1024 * MIB,
        live=True,
        ours=True,
    )
    max_expression_bytes: int = key(
        "maxFilterExpressionBytes",
        32 * KIB,
        "maximum size of the expression of a subscription (tags or SQL92)",
        low=1,
        high=16 * MIB,
        live=True,
        ours=True,
    )
    max_filter_cache_bytes: int = key(
        "maxFilterCacheBytes",
        64 * MIB,
        "memory for compiled filters of subscriptions; those not used lately are dropped and compiled again",
        low=MIB,
        high=1024 * MIB,
        ours=True,
    )
    max_consumer_filter_bytes: int = key(
        "maxConsumerFilterBytes",
        32 * MIB,
        "maximum size of the table of SQL92 filters of groups; those of groups that left make room for new ones",
        low=64 * KIB,
        high=1024 * MIB,
        live=True,
        ours=True,
    )
    max_long_polls: int = key(
        "maxLongPolls",
        100_000,
        "maximum number of waiting pulls, pops and notifications; a further one is answered at once",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_suspend_ms: int = key(
        "maxSuspendTimeMillis",
        300_000,
        "longest time a pull, pop or notification waits for a message, whatever the client asks for",
        low=1_000,
        high=86_400_000,
        live=True,
        ours=True,
    )
    max_outstanding_pops: int = key(
        "maxOutstandingPops",
        500_000,
        "maximum number of pops with unacked messages; at the limit the oldest one's are delivered again early",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_queue_locks: int = key(
        "maxQueueLocks",
        200_000,
        "maximum number of queues locked by ordered consumers",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_committed_offsets: int = key(
        "maxCommittedOffsets",
        2_000_000,
        "maximum number of committed offsets: group, topic and queue",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_keys_per_message: int = key(
        "maxKeysPerMessage",
        256,
        "maximum number of keys of a message that are indexed; the message is stored with all of them",
        low=1,
        high=32_768,
        ours=True,
    )


@dataclass(frozen=True, slots=True)
class NamesrvLimits:
    """Limits on the state of the namesrv. Counts are numbers of entries, sizes are bytes."""

    max_brokers: int = key(
        "maxRegisteredBrokers",
        1_000,
        "maximum number of registered broker addresses",
        low=1,
        high=1_000_000,
        live=True,
        ours=True,
    )
    max_topics_per_broker: int = key(
        "maxTopicsPerBroker",
        100_000,
        "maximum number of topics of one broker name",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_topics: int = key(
        "maxTopics",
        500_000,
        "maximum number of topics in the route table; a topic counts once for each broker name that has it",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_registration_bytes: int = key(
        "maxRegistrationBytes",
        64 * MIB,
        "maximum size of a registration after decompression",
        low=64 * KIB,
        high=1024 * MIB,
        live=True,
        ours=True,
    )
    max_kv_entries: int = key(
        "maxKvEntries",
        10_000,
        "maximum number of entries of the KV configuration, namespaces included",
        low=1,
        high=_MANY,
        live=True,
        ours=True,
    )
    max_kv_bytes: int = key(
        "maxKvBytes",
        2 * MIB,
        "maximum size of all keys and values of the KV configuration",
        low=64 * KIB,
        high=1024 * MIB,
        live=True,
        ours=True,
    )
