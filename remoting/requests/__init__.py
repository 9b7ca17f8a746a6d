"""Every request of the protocol, by area; importing this package fills `declare.REQUESTS`.

Handlers live in `gateway/broker/processors` and `gateway/namesrv`.
"""

from remoting.declare import declare_not_served
from remoting.requests import (
    admin,
    auth,
    client,
    controller,
    groups,
    ha,
    lite,
    locks,
    namesrv,
    offsets,
    pop,
    pull,
    query,
    replication,
    roles,
    send,
    staging,
    timers,
    topics,
    transaction,
)

__all__ = [
    "admin",
    "auth",
    "client",
    "controller",
    "groups",
    "ha",
    "lite",
    "locks",
    "namesrv",
    "offsets",
    "pop",
    "pull",
    "query",
    "replication",
    "roles",
    "send",
    "staging",
    "timers",
    "topics",
    "transaction",
]

declare_not_served(
    "no client or server of 4.9 to 5.5 sends it, and no official server answers it",
    {
        13: "QUERY_BROKER_OFFSET",
        22: "GET_TOPIC_CONFIG_LIST",
        23: "GET_TOPIC_NAME_LIST",
        27: "TRIGGER_DELETE_FILES",
        47: "GET_CLIENT_CONFIG",
        209: "SUSPEND_CONSUMER",
        210: "RESUME_CONSUMER",
        211: "RESET_CONSUMER_OFFSET_IN_CONSUMER",
        212: "RESET_CONSUMER_OFFSET_IN_BROKER",
        213: "ADJUST_CONSUMER_THREAD_POOL",
        214: "WHO_CONSUME_THE_MESSAGE",
        301: "REGISTER_FILTER_SERVER",
        302: "REGISTER_MESSAGE_FILTER_CLASS",
    },
)
declare_not_served(
    "passed among the members of one JRaft controller group, never sent by a broker or client",
    {
        1014: "BROKER_CLOSE_CHANNEL_REQUEST",
        1015: "CHECK_NOT_ACTIVE_BROKER_REQUEST",
        1016: "GET_BROKER_LIVE_INFO_REQUEST",
        1017: "GET_SYNC_STATE_DATA_REQUEST",
        1018: "RAFT_BROKER_HEART_BEAT_EVENT_REQUEST",
    },
)
