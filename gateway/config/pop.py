"""Keys of pop consumption: official BrokerConfig names and defaults."""

from dataclasses import dataclass

from gateway.config.keys import key

PULL, POP = "PULL", "POP"


@dataclass(frozen=True, slots=True)
class PopSettings:
    """Source: BrokerConfig, 5.4.0, with popConsumerKVServiceEnable=false."""

    revive_queue_num: int = key(
        "reviveQueueNum",
        8,
        "number of queues of the revive topic, which stores checkpoints and acks",
        low=1,
        high=998,
    )
    pop_polling_size: int = key(
        "popPollingSize",
        1024,
        "maximum number of waiting pops of one group and queue; more are answered POLLING_FULL",
        low=0,
        high=1_000_000,
        live=True,
    )
    max_pop_polling_size: int = key(
        "maxPopPollingSize",
        100_000,
        "maximum number of waiting requests of any kind for a pop to wait, too",
        low=0,
        high=10_000_000,
        live=True,
    )
    pop_from_retry_probability: int = key(
        "popFromRetryProbability",
        20,
        "percentage of pops that read the retry topic first",
        low=0,
        high=100,
        live=True,
    )
    pop_from_retry_probability_for_priority: int = key(
        "popFromRetryProbabilityForPriority",
        0,
        "the same percentage for topics of the type PRIORITY",
        low=0,
        high=100,
        live=True,
    )
    priority_order_asc: bool = key(
        "priorityOrderAsc", True, "whether pops start with the last queue of a topic", live=True
    )
    enable_pop_message_threshold: bool = key(
        "enablePopMessageThreshold",
        False,
        "whether a group must ack before it pops more when too many messages of a queue are invisible",
        live=True,
    )
    pop_inflight_message_threshold: int = key(
        "popInflightMessageThreshold",
        10_000,
        "maximum number of invisible messages of one queue with that threshold",
        low=0,
        high=2**31 - 1,
        live=True,
    )
    enable_retry_topic_v2: bool = key(
        "enableRetryTopicV2",
        False,
        "whether pop retry topics are named %RETRY%group+topic, not %RETRY%group_topic",
        live=True,
    )
    retrieve_message_from_pop_retry_topic_v1: bool = key(
        "retrieveMessageFromPopRetryTopicV1",
        True,
        "whether retry topics with the older names are read, too",
        live=True,
    )
    use_separate_retry_queue: bool = key(
        "useSeparateRetryQueue",
        False,
        "whether a pop retry topic has as many queues as its topic",
        live=True,
    )
    pop_response_return_actual_retry_topic: bool = key(
        "popResponseReturnActualRetryTopic",
        False,
        "whether popped messages show the retry topic they come from",
        live=True,
    )
    init_pop_offset_by_check_msg_in_mem: bool = key(
        "initPopOffsetByCheckMsgInMem",
        True,
        "whether a new group starts at the beginning of a short queue, not at its last message",
        live=True,
    )
    enable_notify_after_pop_order_lock_release: bool = key(
        "enableNotifyAfterPopOrderLockRelease",
        True,
        "whether pops in order are woken when messages in flight become visible again",
        live=True,
    )
    skip_when_ck_reput_reach_max_times: bool = key(
        "skipWhenCKRePutReachMaxTimes",
        False,
        "whether a message is dropped after it could not be written for another try 17 times",
        live=True,
    )
    server_load_balancer_enable: bool = key(
        "serverLoadBalancerEnable",
        True,
        "whether the broker assigns queues when clients ask for their assignment",
        live=True,
    )
    default_message_request_mode: str = key(
        "defaultMessageRequestMode",
        PULL,
        "consume mode of groups without one set by mqadmin setConsumeMode",
        choices=(PULL, POP),
        live=True,
    )
    default_pop_share_queue_num: int = key(
        "defaultPopShareQueueNum",
        -1,
        "number of other members that share each member's queues in a POP group; 0 or less: all",
        low=-1,
        high=65_535,
        live=True,
    )
