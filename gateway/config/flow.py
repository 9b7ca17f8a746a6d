"""Keys of flow control and quotas: official BrokerConfig names and defaults where there are any.

`gateway/broker/limits/flow_control.py` and `quotas.py` explain their meaning in a server without thread pools.
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
        "whether requests that waited too long are refused instead of served late (official: true)",
        live=True,
    )
    wait_time_send_ms: int = key(
        "waitTimeMillsInSendQueue", 200, "longest wait of a send", low=1, high=_DAY_MS, live=True
    )
    wait_time_pull_ms: int = key(
        "waitTimeMillsInPullQueue", 5_000, "longest wait of a pull or pop", low=1, high=_DAY_MS, live=True
    )
    wait_time_lite_pull_ms: int = key(
        "waitTimeMillsInLitePullQueue",
        5_000,
        "longest wait of a lite pull (code 361)",
        low=1,
        high=_DAY_MS,
        live=True,
    )
    wait_time_heartbeat_ms: int = key(
        "waitTimeMillsInHeartbeatQueue", 31_000, "longest wait of a heartbeat", low=1, high=_DAY_MS, live=True
    )
    wait_time_transaction_ms: int = key(
        "waitTimeMillsInTransactionQueue",
        3_000,
        "longest wait of the end of a transaction",
        low=1,
        high=_DAY_MS,
        live=True,
    )
    wait_time_ack_ms: int = key(
        "waitTimeMillsInAckQueue", 3_000, "longest wait of an ack", low=1, high=_DAY_MS, live=True
    )
    wait_time_admin_ms: int = key(
        "waitTimeMillsInAdminBrokerQueue",
        5_000,
        "longest wait of an admin request",
        low=1,
        high=_DAY_MS,
        live=True,
    )
    page_cache_busy_timeout_ms: int = key(
        "osPageCacheBusyTimeOutMills",
        1_000,
        "duration of a flush above which the disk counts as stalled and sends are refused",
        low=1,
        high=_DAY_MS,
        live=True,
    )
    send_queue_capacity: int = key(
        "sendThreadPoolQueueCapacity",
        10_000,
        "with SYNC_FLUSH, maximum number of sends waiting for the disk",
        low=1,
        high=10_000_000,
        live=True,
    )
    native_sends: str = key(
        "nativeSends",
        "auto",
        "whether the C extension serves plain sends, if it is installed; with require a start without it is an error",
        choices=("auto", "off", "require"),
        live=True,
        unofficial=True,
    )
    send_quota_messages: int = key(
        "sendQuotaMessages",
        0,
        "maximum messages per second from producers; 0: no limit",
        low=0,
        live=True,
        unofficial=True,
    )
    send_quota_bytes: int = key(
        "sendQuotaBytes",
        0,
        "maximum bytes of bodies per second from producers; 0: no limit",
        low=0,
        live=True,
        unofficial=True,
    )
    pull_quota_messages: int = key(
        "pullQuotaMessages",
        0,
        "maximum messages per second to consumers; 0: no limit",
        low=0,
        live=True,
        unofficial=True,
    )
    pull_quota_bytes: int = key(
        "pullQuotaBytes",
        0,
        "maximum bytes of bodies per second to consumers; 0: no limit",
        low=0,
        live=True,
        unofficial=True,
    )
    quota_burst_s: int = key(
        "quotaBurstSeconds",
        1,
        "seconds of a quota that may be used at once after a pause",
        low=1,
        high=3_600,
        live=True,
        unofficial=True,
    )
