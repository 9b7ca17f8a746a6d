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
    plain_acl,
    pop,
    pull,
    query,
    replication,
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
    "plain_acl",
    "pop",
    "pull",
    "query",
    "replication",
    "send",
    "staging",
    "timers",
    "topics",
    "transaction",
]

_UNUSED = "no client or server of 4.9 to 5.5 sends it, and no official server answers it"
_RAFT = "passed among the members of one JRaft controller group, never sent by a broker or client"

for _code in (13, 22, 23, 27, 47, 209, 210, 211, 212, 213, 214, 301, 302):
    declare_not_served(_code, _UNUSED)
for _code in (1014, 1015, 1016, 1017, 1018):
    declare_not_served(_code, _RAFT)
