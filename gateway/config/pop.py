"""Keys of pop consumption: official BrokerConfig names and defaults. How pops are served is not here."""

from dataclasses import dataclass

from gateway.config.keys import key

PULL, POP = "PULL", "POP"


@dataclass(frozen=True, slots=True)
class PopSettings:
    """Source: BrokerConfig, 5.4.0, with popConsumerKVServiceEnable=false."""

    revive_queue_num: int = key(
        "reviveQueueNum",
        8,
        "queues of the revive topic, where checkpoints and acks are kept",
        low=1,
        high=998,
    )
    pop_polling_size: int = key(
        "popPollingSize",
        1024,
        "most pops of one group and queue that wait; more are answered POLLING_FULL",
        low=0,
        high=1_000_000,
        live=True,
    )
    max_pop_polling_size: int = key(
        "maxPopPollingSize",
        100_000,
        "most requests of any kind that may wait when a pop wants to",
        low=0,
        high=10_000_000,
        live=True,
    )
    pop_from_retry_probability: int = key(
        "popFromRetryProbability",
        20,
        "percentage of pops that look for messages to retry first",
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
        "priorityOrderAsc", True, "whether pops look at the last queue of a topic first", live=True
    )
    enable_pop_message_threshold: bool = key(
        "enablePopMessageThreshold",
        False,
        "whether a group has to ack before it pops more, when too much of a queue is out",
        live=True,
    )
    pop_inflight_message_threshold: int = key(
        "popInflightMessageThreshold",
        10_000,
        "messages of one queue that may be out then",
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
        "whether the older retry topics are read as well when the new names are in use",
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
        "whether a message that could not be written for another try is given up after 17 times",
        live=True,
    )
    server_load_balancer_enable: bool = key(
        "serverLoadBalancerEnable",
        True,
        "whether queues are shared out when clients ask for their assignment",
        live=True,
    )
    default_message_request_mode: str = key(
        "defaultMessageRequestMode",
        PULL,
        "how groups consume that were not told by mqadmin setConsumeMode",
        choices=(PULL, POP),
        live=True,
    )
    default_pop_share_queue_num: int = key(
        "defaultPopShareQueueNum",
        -1,
        "how many other members share each member's queues in such a POP group; 0 or less: all",
        low=-1,
        high=65_535,
        live=True,
    )
