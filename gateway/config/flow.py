"""Keys of flow control and quotas: official BrokerConfig names and defaults where there are any.

What they mean for a server without thread pools is said in gateway.broker.flow_control and gateway.broker.quotas.
"""

from dataclasses import dataclass

from gateway.config.keys import key

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """Source: BrokerConfig and MessageStoreConfig, 5.4.0. Times in milliseconds, quotas per second."""

    broker_fast_failure_enable: bool = key(
        "brokerFastFailureEnable",
        False,
        "whether what waited too long is refused instead of served late (official: true)",
        live=True,
    )
    wait_time_send_ms: int = key(
        "waitTimeMillsInSendQueue", 200, "longest wait of a send", low=1, high=_DAY_MS, live=True
    )
    wait_time_pull_ms: int = key(
        "waitTimeMillsInPullQueue", 5_000, "longest wait of a pull or pop", low=1, high=_DAY_MS, live=True
    )
    wait_time_lite_pull_ms: int = key(
        "waitTimeMillsInLitePullQueue", 5_000, "the same for code 361", low=1, high=_DAY_MS, live=True
    )
    wait_time_heartbeat_ms: int = key(
        "waitTimeMillsInHeartbeatQueue", 31_000, "the same for heartbeats", low=1, high=_DAY_MS, live=True
    )
    wait_time_transaction_ms: int = key(
        "waitTimeMillsInTransactionQueue",
        3_000,
        "the same for ends of transactions",
        low=1,
        high=_DAY_MS,
        live=True,
    )
    wait_time_ack_ms: int = key(
        "waitTimeMillsInAckQueue", 3_000, "the same for acks of pops", low=1, high=_DAY_MS, live=True
    )
    wait_time_admin_ms: int = key(
        "waitTimeMillsInAdminBrokerQueue", 5_000, "the same for admin tools", low=1, high=_DAY_MS, live=True
    )
    page_cache_busy_timeout_ms: int = key(
        "osPageCacheBusyTimeOutMills",
        1_000,
        "a flush that takes longer means a stalled disk, which refuses sends",
        low=1,
        high=_DAY_MS,
        live=True,
    )
    send_queue_capacity: int = key(
        "sendThreadPoolQueueCapacity",
        10_000,
        "with SYNC_FLUSH, most sends that wait for the disk",
        low=1,
        high=10_000_000,
        live=True,
    )
    send_quota_messages: int = key(
        "sendQuotaMessages", 0, "most messages/s producers may send, 0 is any", low=0, live=True, ours=True
    )
    send_quota_bytes: int = key(
        "sendQuotaBytes", 0, "most bytes/s of bodies they may send, 0 is any", low=0, live=True, ours=True
    )
    pull_quota_messages: int = key(
        "pullQuotaMessages",
        0,
        "most messages/s consumers get, 0 is any",
        low=0,
        live=True,
        ours=True,
    )
    pull_quota_bytes: int = key(
        "pullQuotaBytes", 0, "most bytes/s they get, 0 is any", low=0, live=True, ours=True
    )
    quota_burst_s: int = key(
        "quotaBurstSeconds",
        1,
        "so many seconds of a quota may be used at once after a pause",
        low=1,
        high=3_600,
        live=True,
        ours=True,
    )
