"""The body by which a master of this project gives its slaves the tables that official slaves do not copy."""

from remoting.fields import field, i32, i64
from remoting.json_body import JsonBody


class DeletedTopic(JsonBody):
    """The last deletion of a topic: the end of the log at that moment, as a physical offset, and the time in ms."""

    log_end: i64 = 0
    time_ms: i64 = 0


class ReplicatedAccounts(JsonBody):
    """The content of users.json and acls.json; empty at a broker that has none."""

    users: str = ""
    acls: str = ""


class ReplicatedTables(JsonBody):
    """The content of consumerFilter.json and consumerOrderInfo.json, and the deletions of topics.

    ``popped`` are the keys (topic@group) of offsets that pops have moved. ``empty_queues`` has, by topic and queue id,
    the next offset of each queue whose messages have all expired. ``broker_role`` is the master's.
    """

    consumer_filters: str = ""
    ordered_pops: str = ""
    deleted_topics: dict[str, DeletedTopic] = field(factory=dict)
    empty_queues: dict[str, dict[i32, i64]] = field(factory=dict)
    popped: list[str] = field(factory=list)
    broker_role: str = ""
