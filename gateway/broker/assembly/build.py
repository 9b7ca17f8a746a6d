"""Builds the parts of one broker from its configuration and opens its store. Not responsible for running them."""

from collections.abc import Callable

from codec.topics import TIMER_TOPIC
from gateway.broker.advertised_hosts import Hosts
from gateway.broker.broadcast_offsets import BroadcastOffsets
from gateway.broker.client_registry import ClientRegistry
from gateway.broker.consumer_filters import FilterTable
from gateway.broker.consumer_offsets import ConsumerOffsets
from gateway.broker.delay_service import DelayService
from gateway.broker.flow_control import FlowControl
from gateway.broker.group_commit import GroupCommit, RunBlocking
from gateway.broker.group_table import GroupTable
from gateway.broker.long_poll import LongPolls
from gateway.broker.message_writer import Putter
from gateway.broker.pop.service import build_pop
from gateway.broker.processors.broker import Broker
from gateway.broker.pull_handler import Puller
from gateway.broker.queue_locks import QueueLocks
from gateway.broker.quotas import Quotas
from gateway.broker.retry_rules import RetryRules
from gateway.broker.send_handler import Sender
from gateway.broker.staged_batches import Staging
from gateway.broker.store_settings import store_config
from gateway.broker.timer_delivery import Timers
from gateway.broker.timer_metrics import TimerMetrics
from gateway.broker.timer_scheduler import TimerRules
from gateway.broker.topic_table import TopicDefaults, TopicTable
from gateway.broker.traffic_rates import Rates
from gateway.broker.traffic_stats import BrokerStats
from gateway.broker.transaction_checks import TransactionChecks
from gateway.broker.transactions import Transactions
from gateway.broker.unique_keys import UniqueKeys
from gateway.config.process import BrokerConfig
from gateway.runtime.config_file import ConfigFile
from storage.clock import Clock
from storage.files import DiskFiles, Files, MemoryFiles
from storage.staged_files import StagedFiles
from storage.store import MessageStore
from storage.timer_store import TimerStore, TimerStoreConfig


def build_broker(
    config: BrokerConfig,
    *,
    memory: bool,
    clock: Clock,
    run_blocking: RunBlocking,
    port: Callable[[], int],
    files: Files | None = None,
) -> Broker:
    """Opens the store (recovering it if need be) and connects the parts.

    ``port`` tells the port the broker listens on once it does. Raises OSError, CorruptionError.
    """
    settings = store_config(config, memory=memory)
    files = files or (MemoryFiles() if memory else DiskFiles())
    store = MessageStore.open(settings, files, clock)
    return _connected(
        config,
        clock,
        store,
        run_blocking,
        port,
        lambda name: ConfigFile(files, f"{settings.config_path}/{name}"),
    )


def _connected(
    config: BrokerConfig,
    clock: Clock,
    store: MessageStore,
    run_blocking: RunBlocking,
    port: Callable[[], int],
    table_file: Callable[[str], ConfigFile],
) -> Broker:
    """The parts of a broker on its store, each given those it uses."""
    topics = TopicTable(table_file("topics.json"), clock, _topic_defaults(config))
    groups = _group_table(config, table_file("subscriptionGroup.json"), clock)
    offsets = _offset_table(config, table_file("consumerOffset.json"), clock)
    clients = _client_registry(config, clock)
    queue_locks, long_polls = QueueLocks(clock), LongPolls(clock)
    stats = BrokerStats()
    hosts = Hosts(config.broker_ip, port)
    put = Putter(store, long_polls, config.store.max_message_size_bytes)
    timers = _timers(config, store, long_polls, stats, table_file("timermetrics"))
    delay = _delay_service(config, table_file("delayOffset.json"), store, put, timers)
    retry = RetryRules(topics, groups, queue_locks)
    commit = _group_commit(config, store, run_blocking)
    transactions = Transactions(config, clock, store, put, long_polls, commit, hosts, stats)
    checks = TransactionChecks(config, clock, store, topics, offsets, clients, put, transactions.ops)
    sender = Sender(config, topics, store, long_polls, commit, hosts, put, retry, stats, UniqueKeys(clock))
    filters = _filter_table(table_file("consumerFilter.json"), clock, clients)
    flow = _flow_control(config, clock, store, commit, topics)
    broadcasts = BroadcastOffsets(config, clock, clients, offsets, store)
    puller = Puller(
        config, topics, groups, clients, offsets, store, long_polls, hosts, stats, filters, flow.quotas, broadcasts
    )  # fmt: skip
    pop = build_pop(
        config,
        clock,
        store,
        topics,
        groups,
        offsets,
        put,
        long_polls,
        hosts,
        commit,
        stats,
        flow.quotas,
        table_file,
    )
    return Broker(
        config=config, clock=clock, store=store, topics=topics, groups=groups, offsets=offsets,
        clients=clients, queue_locks=queue_locks, long_polls=long_polls, delay=delay, timers=timers, put=put,
        retry=retry, transactions=transactions, transaction_checks=checks, sender=sender, puller=puller,
        commit=commit, hosts=hosts, filters=filters, rates=Rates(stats, clock), stats=stats, flow=flow, pop=pop,
        broadcasts=broadcasts, staging=_staging(config, store, topics, sender, long_polls, stats, run_blocking),
    )  # fmt: skip


def _staging(
    config: BrokerConfig,
    store: MessageStore,
    topics: TopicTable,
    sender: Sender,
    long_polls: LongPolls,
    stats: BrokerStats,
    run_blocking: RunBlocking,
) -> Staging | None:
    if not config.store.staged_publish:
        return None
    files = StagedFiles(store.files, store.config.root)
    most = config.store.staged_max_bytes
    return Staging(files, store, topics, sender, long_polls, stats, run_blocking, most)


def _offset_table(config: BrokerConfig, file: ConfigFile, clock: Clock) -> ConsumerOffsets:
    return ConsumerOffsets(file, clock, server_side_reset=config.use_server_side_reset_offset)


def _filter_table(file: ConfigFile, clock: Clock, clients: ClientRegistry) -> FilterTable:
    filters = FilterTable(file, clock)
    clients.on_group_gone = filters.unregister
    return filters


def _flow_control(
    config: BrokerConfig, clock: Clock, store: MessageStore, commit: GroupCommit, topics: TopicTable
) -> FlowControl:
    flow = FlowControl(config, store, commit, Quotas(config, topics, clock))
    topics.listen(lambda _: flow.refresh())  # After its quotas have heard of it.
    return flow


def _delay_service(
    config: BrokerConfig, file: ConfigFile, store: MessageStore, put: Putter, timers: Timers | None
) -> DelayService:
    levels, clock = config.store.message_delay_level, store.clock
    rules = timers.rules if timers is not None else TimerRules(config, clock, lambda slot_ms: 0)
    put.scheduler = delay = DelayService(file, clock, store, put, levels=levels, timers=rules)
    return delay


def _timers(
    config: BrokerConfig,
    store: MessageStore,
    long_polls: LongPolls,
    stats: BrokerStats,
    metrics_file: ConfigFile,
) -> Timers | None:
    if not config.store.timer_wheel_enable:
        return None
    settings = TimerStoreConfig(
        root=store.config.root,
        config_path=store.config.config_path,
        precision_ms=config.store.timer_slot_ms,
        log_file_bytes=config.store.mapped_file_size_timer_log_bytes,
    )
    waiting = TimerStore(settings, store, TIMER_TOPIC)
    metrics = TimerMetrics(metrics_file, store.clock)
    return Timers(config, waiting, store, long_polls, stats, metrics)


def _group_table(config: BrokerConfig, file: ConfigFile, clock: Clock) -> GroupTable:
    return GroupTable(
        file,
        clock,
        auto_create=config.auto_create_subscription_group,
        create_system_groups=config.enable_create_sys_group,
    )


def _client_registry(config: BrokerConfig, clock: Clock) -> ClientRegistry:
    return ClientRegistry(
        clock,
        expiry_s=config.channel_expired_timeout_ms / 1000,
        notify_changes=config.notify_consumer_ids_changed_enable,
    )


def _group_commit(config: BrokerConfig, store: MessageStore, run_blocking: RunBlocking) -> GroupCommit:
    return GroupCommit(
        store,
        synchronous=config.store.is_sync_flush,
        interval_ms=config.store.flush_interval_commit_log_ms,
        timeout_ms=config.store.sync_flush_timeout_ms,
        run_blocking=run_blocking,
    )


def _topic_defaults(config: BrokerConfig) -> TopicDefaults:
    return TopicDefaults(
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        auto_create=config.auto_create_topic_enable,
        default_queues=config.default_topic_queue_nums,
        cluster_topic_open=config.cluster_topic_enable,
        broker_topic_open=config.broker_topic_enable,
        trace_topic=config.msg_trace_topic_name if config.trace_topic_enable else None,
        timer_topic=config.store.timer_wheel_enable,
    )
