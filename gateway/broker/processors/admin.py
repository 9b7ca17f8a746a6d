"""Administration of the broker as a whole: settings, runtime information, statistics, clean-up."""

import os
import shutil
from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final

from codec.constants import CURRENT_VERSION, ResponseCode, version_name
from gateway.broker.broker import Broker
from gateway.broker.consumers.client_protocol import GRPC, REMOTING
from gateway.broker.messages.advertised_hosts import resolve_numeric
from gateway.broker.messages.stored_messages import earliest_log_timestamp
from gateway.broker.processors.live_config import apply_broker_config
from gateway.broker.processors.log_expiry import expire_messages
from gateway.broker.replication.epochs import NO_END, with_ends
from gateway.broker.replication.status import replication_status
from gateway.broker.statistics.traffic_rates import (
    BROKER,
    DAY_S,
    GROUP_GET,
    HOUR_S,
    MINUTE_S,
    SEND_BACK,
    TOPIC_PUT,
    WindowCount,
)
from gateway.broker.statistics.traffic_stats import ACK, GET, PUT
from gateway.config import official_defaults
from gateway.config.live import MAX_UPDATE_CHARS, ForbiddenKey, PropertiesError, apply_update, list_values
from gateway.config.process import BrokerConfig
from gateway.config.properties_file import decode_text, format_properties, parse_properties
from remoting.bodies.ha import EpochEntry, EpochEntryCache
from remoting.bodies.progress import BrokerStatsData, BrokerStatsItem
from remoting.bodies.topics import KVTable
from remoting.declare import Header
from remoting.errors import RequestError
from remoting.handler_table import HandlerTable
from remoting.requests.admin import (
    DeleteExpiredCommitlog,
    ExportRocksdbConfigToJson,
    GetBrokerConfig,
    GetBrokerConfigReply,
    GetBrokerRuntimeInfo,
    GetBrokerRuntimeInfoReply,
    UpdateBrokerConfig,
)
from remoting.requests.ha import GetBrokerEpochCache, GetBrokerEpochCacheReply
from remoting.requests.query import ViewBrokerStatsData, ViewBrokerStatsDataReply

handlers: HandlerTable[Broker] = HandlerTable()

UNCHANGEABLE_KEYS: Final = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})
"""Source: AdminBrokerProcessor.initConfigBlackList, 5.4.0."""

ZERO_COUNTS: Final = (
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "litePullThreadPoolQueueSize",
    "queryThreadPoolQueueSize",
    "ackThreadPoolQueueSize",
    "EndTransactionQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "litePullThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueHeadWaitTimeMills",
    "pageCacheLockTimeMills",
    "dispatchBehindBytes",
    "dispatchMaxBuffer",
    "remainTransientStoreBufferNumbs",
    "putMessageFailedTimes",
    "putMessageEntireTimeMax",
    "getMessageEntireTimeMax",
)
"""Metrics of threads, queues and buffers that this server does not have; always 0."""
DISTRIBUTION: Final = (
    "[<=0ms]:{} [0~10ms]:0 [10~50ms]:0 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 [1~2s]:0 [2~3s]:0 "
    "[3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0 "
)
"""Storing a message, without its flush, takes microseconds. Source: StoreStatsService, 5.4.0."""
REMOTING_CLIENTS: Final = "remotingClients"
GRPC_CLIENTS: Final = "grpcClients"
STORE_TROUBLE: Final = "storeTrouble"
"""Our own entry of the runtime information: why messages are refused at present."""
QUEUE_CAPACITIES: Final = {
    "sendThreadPoolQueueCapacity": "10000",
    "pullThreadPoolQueueCapacity": "100000",
    "litePullThreadPoolQueueCapacity": "100000",
    "queryThreadPoolQueueCapacity": "20000",
    "ackThreadPoolQueueCapacity": "100000",
    "EndTransactionThreadPoolQueueCapacity": "100000",
}
"""Official defaults, which exporters divide by; this server has no such queues. Source: BrokerConfig, 5.4.0."""
ZERO_RATES: Final = ("putLatency99", "putLatency999")


@GetBrokerConfig.on(handlers)
def get_broker_config(broker: Broker, request: GetBrokerConfig) -> GetBrokerConfigReply:
    """Return all settings as properties text. Source: AdminBrokerProcessor.getBrokerConfig, 5.4.0.

    Official keys that this server does not have are listed with their official defaults, which tools expect.
    """
    version = broker.topics.version.to_json(standard=True).decode()
    reply = GetBrokerConfigReply(version=version)
    reply.body = list_values(broker.config, _listed_besides(broker)).encode()
    return reply


def _listed_besides(broker: Broker) -> dict[str, str]:
    """Return the values of official keys that `BrokerConfig` does not have."""
    return {
        **official_defaults.BROKER,
        **broker.process_values,
        "rocketmqHome": official_defaults.rocketmq_home(),
    }


@UpdateBrokerConfig.on(handlers)
async def update_broker_config(broker: Broker, request: UpdateBrokerConfig) -> None:
    """Change settings until the next start. Source: AdminBrokerProcessor.updateBrokerConfig, 5.4.0.

    Deviation: a key that is unknown, cannot be changed while the server runs, or has an impossible value is
    refused; the official broker applies what it can and ignores the rest.
    """
    text = _announce_listen_port(broker, decode_text(request.body))
    host = _checked_update(broker, text).broker_ip
    numeric_host = None if host == broker.config.broker_ip else await _resolve(broker, host)
    # Computed again, because another request may have changed other settings meanwhile.
    apply_broker_config(broker, _checked_update(broker, text), numeric_host)


def _announce_listen_port(broker: Broker, text: str) -> str:
    """Return a properties text with a changed listenPort as advertisedPort.

    The official broker goes on listening on its old port and announces the new one. Containers whose published port is
    known only after their start rely on it. Source: BrokerController.getBrokerAddr, 5.4.0.
    """
    if "listenPort" not in text or "listenPort" in _black_list(broker) or len(text) > MAX_UPDATE_CHARS:
        return text
    try:
        entries = {entry.key: entry.value for entry in parse_properties(text)}
    except PropertiesError:
        return text  # It is refused when it is applied.
    port, config = entries.pop("listenPort", "").strip(), broker.config
    is_own = port == str(config.listen_port)
    if not port or (is_own and not config.advertised_port):
        return text
    entries.setdefault("advertisedPort", "0" if is_own else port)
    return format_properties(entries)


async def _resolve(broker: Broker, host: str) -> str:
    """Return the address of a new brokerIP1. Raises RequestError for an unknown name."""
    try:
        numeric_host: str = await broker.topics.file.run_blocking(partial(resolve_numeric, host))
    except OSError as error:
        remark = (
            f"brokerIP1: {host} cannot be resolved ({error}); use an address, or a name that the broker knows"
        )
        raise RequestError(ResponseCode.INVALID_PARAMETER, remark) from error
    return numeric_host


def _black_list(broker: Broker) -> AbstractSet[str]:
    return UNCHANGEABLE_KEYS | set(broker.config.config_black_list.split(";"))


def _checked_update(broker: Broker, text: str) -> BrokerConfig:
    """Return the broker's configuration with the changes of a properties text. Raises RequestError."""
    try:
        update = apply_update(broker.config, text, _black_list(broker), _listed_besides(broker))
    except ForbiddenKey as error:
        raise RequestError(ResponseCode.NO_PERMISSION, "Can not update config in black list.") from error
    except PropertiesError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "string2Properties error") from error
    except ValueError as error:
        raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from error
    if update.refusal:
        raise RequestError(ResponseCode.INVALID_PARAMETER, update.refusal)
    return update.config


@GetBrokerRuntimeInfo.on(handlers)
def get_runtime_info(broker: Broker, request: GetBrokerRuntimeInfo) -> GetBrokerRuntimeInfoReply:
    """Return the metrics that the mqadmin commands brokerStatus and clusterList show.
    Source: AdminBrokerProcessor.prepareRuntimeInfo, 5.4.0.
    """
    table = dict.fromkeys(ZERO_COUNTS, "0") | dict.fromkeys(ZERO_RATES, "0.0") | QUEUE_CAPACITIES
    for part in (
        _describe_identity(broker),
        _describe_traffic(broker),
        _describe_disk(broker),
        _describe_clients(broker),
        _describe_replication(broker),
        _describe_delays(broker),
        _describe_timers(broker),
    ):
        table |= part
    return GetBrokerRuntimeInfoReply(data=KVTable(table=table))


def _describe_identity(broker: Broker) -> dict[str, str]:
    now = broker.clock.now_ms()
    started = broker.rates.started_ms
    return {
        "bootTimestamp": str(started),
        "runtime": _duration_text(max(0, now - started)),
        "brokerActive": "true",
        "brokerVersion": str(CURRENT_VERSION),
        "brokerVersionDesc": version_name(CURRENT_VERSION),
        "startAcceptSendRequestTimeStamp": str(broker.config.start_accept_send_timestamp_ms),
    }


def _describe_clients(broker: Broker) -> dict[str, str]:
    """Return the numbers of connected clients by protocol, which official brokers do not tell."""
    counts = broker.clients.count_clients()
    return {REMOTING_CLIENTS: str(counts[REMOTING]), GRPC_CLIENTS: str(counts[GRPC])}


def _duration_text(ms: int) -> str:
    """Format an uptime. Source: StoreStatsService.getFormatRuntime, 5.4.0."""
    seconds = ms // 1000
    days, hours = seconds // 86400, seconds // 3600 % 24
    return f"[ {days} days, {hours} hours, {seconds // 60 % 60} minutes, {seconds % 60} seconds ]"


def _describe_traffic(broker: Broker) -> dict[str, str]:
    rates = broker.rates
    messages, delivered = rates.totals()
    size = sum(tally.bytes for tally in broker.stats.stored.values())
    return {
        "putMessageTimesTotal": str(max(1, messages)),
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": str(size / max(1, messages)),
        "putMessageDistributeTime": DISTRIBUTION.format(messages),
        "putTps": rates.stored_text(),
        "getFoundTps": rates.delivered_text(),
        "getMissTps": rates.missed_text(),
        "getTotalTps": rates.delivered_and_missed_text(),
        "getTransferredTps": rates.delivered_text(),
        "msgPutTotalYesterdayMorning": str(rates.yesterday[0]),
        "msgPutTotalTodayMorning": str(rates.this_morning[0]),
        "msgPutTotalTodayNow": str(messages),
        "msgGetTotalYesterdayMorning": str(rates.yesterday[1]),
        "msgGetTotalTodayMorning": str(rates.this_morning[1]),
        "msgGetTotalTodayNow": str(delivered),
    }


def _describe_disk(broker: Broker) -> dict[str, str]:
    store, config = broker.store, broker.store.config
    ratio = str(store.files.disk_used_ratio(config.root))
    unflushed_bytes = max(0, store.max_physical_offset - store.durable_offset)
    info = {
        "commitLogMinOffset": str(store.min_physical_offset),
        "commitLogMaxOffset": str(store.max_physical_offset),
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{config.commit_log_path}": ratio,
        "consumeQueueDiskRatio": ratio,
        "remainHowManyDataToFlush": _bytes_text(unflushed_bytes),
        "earliestMessageTimeStamp": str(earliest_log_timestamp(broker.store)),
    }
    if store.trouble is not None:
        info[STORE_TROUBLE] = store.trouble
    return info | _describe_capacity(config.root)


def _describe_capacity(root: str) -> dict[str, str]:
    try:
        usage = shutil.disk_usage(root)
    except OSError:  # A store in memory has no directory; tools expect the key anyway.
        usage = shutil.disk_usage(os.sep)
    text = f"Total : {_bytes_text(usage.total)}, Free : {_bytes_text(usage.free)}."
    return {"commitLogDirCapacity": text}


def _bytes_text(count: int) -> str:
    """Format a size. Source: MixAll.humanReadableByteCount with binary units, 5.4.0."""
    if count < 1024:
        return f"{count} B"
    amount, power = float(count), 0
    while amount >= 1024 and power < 6:
        amount, power = amount / 1024, power + 1
    return f"{amount:.1f} {'KMGTPE'[power - 1]}iB"


def _describe_replication(broker: Broker) -> Mapping[str, str]:
    settings, now_ms = broker.config.replication, broker.clock.now_ms()
    return replication_status(broker.replication, broker.store, settings, now_ms).runtime_info()


def _describe_delays(broker: Broker) -> dict[str, str]:
    ends = broker.delay_service.progress()
    return {f"scheduleMessageOffset_{level}": f"{at},{end}" for level, (at, end) in ends.items()}


def _describe_timers(broker: Broker) -> dict[str, str]:
    timers = broker.timer_delivery
    return {
        "timerReadBehind": str(timers.behind_ms // 1000 if timers else 0),
        "timerOffsetBehind": str(timers.behind_messages if timers else 0),
        "timerCongestNum": str(timers.waiting_count if timers else 0),
        "timerEnqueueTps": str(timers.enqueued_per_s if timers else 0.0),
        "timerDequeueTps": str(timers.delivered_per_s if timers else 0.0),
    }


@DeleteExpiredCommitlog.on(handlers)
async def delete_expired_commit_log(broker: Broker, request: DeleteExpiredCommitlog) -> None:
    """Delete files past their retention now. Source: AdminBrokerProcessor.deleteExpiredCommitLog, 5.4.0."""
    max_files = broker.config.store.delete_files_max
    await expire_messages(broker.store, broker.topics.file.run_blocking, max_files, manual=True)


@ViewBrokerStatsData.on(handlers)
def view_stats(broker: Broker, request: ViewBrokerStatsData) -> ViewBrokerStatsDataReply:
    """Return one statistic over a minute, an hour and a day. Source: AdminBrokerProcessor.ViewBrokerStatsData, 5.4.0.

    The statistics are messages and bytes stored per topic and delivered per group, messages that groups sent back, and
    the totals that the broker stored, delivered and acked, under the name of its cluster.
    """
    name, key = request.stats_name, request.stats_key
    statistic = _find_statistic(broker, name, key)
    if statistic is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    unit = name.rpartition("_")[2]
    minute, hour, day = (
        _stats_item(broker.rates.count(*statistic, window), unit) for window in (MINUTE_S, HOUR_S, DAY_S)
    )
    return ViewBrokerStatsDataReply(data=BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day))


def _find_statistic(broker: Broker, name: str, key: str) -> tuple[str, Hashable] | None:
    """Return the kind and the key of a statistic in `TrafficRates`; None for one that was never counted."""
    kind, _, unit = name.rpartition("_")
    topic, _, group = key.partition("@")
    statistic: tuple[str, Hashable] | None = None
    if kind == TOPIC_PUT and unit in ("NUMS", "SIZE"):
        statistic = kind, key
    elif (kind == GROUP_GET and unit in ("NUMS", "SIZE")) or (kind == SEND_BACK and unit == "NUMS"):
        statistic = kind, (group, topic)
    elif kind in (PUT, GET, ACK) and unit == "NUMS" and key == broker.config.broker_cluster_name:
        statistic = BROKER, kind
    return statistic if statistic is not None and broker.rates.has(*statistic) else None


def _stats_item(count: WindowCount, unit: str) -> BrokerStatsItem:
    if unit == "NUMS":
        return BrokerStatsItem(sum=count.messages, tps=count.per_second, avgpt=count.per_request)
    mean = count.bytes / count.messages if count.messages else 0.0
    return BrokerStatsItem(sum=count.bytes, tps=count.per_second * mean, avgpt=count.per_request * mean)


@GetBrokerEpochCache.on(handlers)
def get_epoch_cache(broker: Broker, request: GetBrokerEpochCache) -> GetBrokerEpochCacheReply:
    """Return the epochs of the log; refuse without a controller.

    Source: AdminBrokerProcessor.getBrokerEpochCache, 5.4.0.
    """
    epochs, config = broker.replication.epochs, broker.config
    if epochs is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")
    cache = EpochEntryCache(
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        broker_id=config.broker_id,
        epoch_list=[
            EpochEntry(epoch=entry.epoch, start_offset=entry.start, end_offset=end)
            for entry, end in with_ends(epochs.entries, NO_END)
        ],
        max_offset=broker.store.max_physical_offset,
    )
    return GetBrokerEpochCacheReply(data=cache)


@ExportRocksdbConfigToJson.on(handlers)
def export_rocksdb_config(broker: Broker, request: ExportRocksdbConfigToJson) -> Header:
    """Confirm the export without doing anything, because the tables are JSON files already.
    Source: AdminBrokerProcessor.exportRocksDBConfigToJson, 5.4.0.
    """
    reply = Header()
    reply.remark = "export done."
    return reply
