"""Bodies about the state of running clients."""

from remoting.bodies.heartbeat import SubscriptionData
from remoting.bodies.queues import MessageQueue
from remoting.fields import field, i32, i64
from remoting.json_body import JsonBody


class ProcessQueueInfo(JsonBody):
    """A queue in a push consumer's memory; times in ms, offsets inclusive."""

    commit_offset: i64 = 0
    cached_msg_min_offset: i64 = 0
    cached_msg_max_offset: i64 = 0
    cached_msg_count: i32 = 0
    cached_msg_size_in_mi_b: i32 = 0
    transaction_msg_min_offset: i64 = 0
    transaction_msg_max_offset: i64 = 0
    transaction_msg_count: i32 = 0
    locked: bool = False
    try_unlock_times: i64 = 0
    last_lock_timestamp: i64 = 0
    droped: bool = False
    last_pull_timestamp: i64 = 0
    last_consume_timestamp: i64 = 0


class PopProcessQueueInfo(JsonBody):
    """A queue in a pop consumer's memory."""

    wait_ack_count: i32 = 0
    droped: bool = False
    last_pop_timestamp: i64 = 0


class ConsumeStatus(JsonBody):
    """Rates of one topic: times in ms, rates per second."""

    pull_rt: float = field(wire="pullRT", default=0.0)
    pull_tps: float = field(wire="pullTPS", default=0.0)
    consume_rt: float = field(wire="consumeRT", default=0.0)
    consume_oktps: float = field(wire="consumeOKTPS", default=0.0)
    consume_failed_tps: float = field(wire="consumeFailedTPS", default=0.0)
    consume_failed_msgs: i64 = 0


class ConsumerRunningInfo(JsonBody):
    """The answer to GET_CONSUMER_RUNNING_INFO."""

    properties: dict[str, str] = field(factory=dict)
    subscription_set: list[SubscriptionData] = field(factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = field(factory=dict)
    status_table: dict[str, ConsumeStatus] = field(factory=dict)
    user_consumer_info: dict[str, str] = field(factory=dict)
    jstack: str | None = None


class ConsumeMessageDirectlyResult(JsonBody):
    """The answer to CONSUME_MESSAGE_DIRECTLY; ``consume_result`` is one of the official CMResult's names."""

    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    remark: str | None = None
    spent_time_mills: i64 = 0
