"""Construction of a broker's parts from its configuration."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Final

from codec.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_GROUP, TRANS_HALF_TOPIC
from gateway.auth.access_control import Accounts
from gateway.broker.assembly.crash_mark import Crash, CrashMark
from gateway.broker.broker import Broker
from gateway.broker.consumers.broadcast_offsets import BroadcastOffsets
from gateway.broker.consumers.broker_tables import BrokerTables
from gateway.broker.consumers.client_registry import ClientRegistry
from gateway.broker.consumers.consumer_offsets import ConsumerOffsets
from gateway.broker.consumers.group_table import GroupTable
from gateway.broker.consumers.offset_journal import OffsetJournal, Record, open_journal
from gateway.broker.consumers.queue_locks import QueueLocks
from gateway.broker.delayed.delay_service import DelayService
from gateway.broker.delayed.timer_delivery import TimerDelivery
from gateway.broker.delayed.timer_metrics import TimerMetrics
from gateway.broker.delayed.timer_scheduler import TimerScheduler
from gateway.broker.delayed.timer_takeover import StoreRole, TakeoverState, take_timers_over
from gateway.broker.filters.consumer_filters import ConsumerFilterTable
from gateway.broker.filters.filter_cache import FilterCache
from gateway.broker.limits.flow_control import FlowControl
from gateway.broker.limits.quotas import Quotas
from gateway.broker.messages.advertised_hosts import AdvertisedHosts
from gateway.broker.messages.answer_gate import AnswerGate
from gateway.broker.messages.damaged_records import DamagedRecords
from gateway.broker.messages.group_commit import GroupCommit
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.messages.message_writer import MessageAppender, MessageWriter
from gateway.broker.messages.store_settings import build_store_config
from gateway.broker.pop.receipts import REVIVE_GROUP
from gateway.broker.pop.service import build_pop
from gateway.broker.replication.auto_switch_follower import EpochHandshake
from gateway.broker.replication.auto_switch_master import AutoSwitchMaster
from gateway.broker.replication.confirmation import Confirmation
from gateway.broker.replication.epochs import EpochTable
from gateway.broker.replication.follower import Follower, FollowerTimes, GroupName
from gateway.broker.replication.ha_access import HaAccess
from gateway.broker.replication.ha_server import OPEN_ACCESS, HaServer
from gateway.broker.replication.in_sync import InSyncRule, requires_replicas
from gateway.broker.replication.master_lookup import Address, MasterLookup
from gateway.broker.replication.members import ReplicaGroup
from gateway.broker.replication.parts import PeerLinks, Replication, SlaveParts
from gateway.broker.replication.sync_state import SyncStateRule, requires_sync_state
from gateway.broker.replication.table_sync import ReplicatedParts, TableSync
from gateway.broker.requests.pull_handler import PullHandler
from gateway.broker.requests.retry_rules import RetryRules
from gateway.broker.requests.send_handler import SendHandler, UniqueKeyGenerator
from gateway.broker.requests.slave_reads import SlaveReads
from gateway.broker.requests.staged_batches import StagedBatches
from gateway.broker.statistics.traffic_rates import TrafficRates
from gateway.broker.statistics.traffic_stats import BrokerStats
from gateway.broker.topics.topic_recovery import restore_topics
from gateway.broker.topics.topic_table import TopicDefaults, TopicTable
from gateway.broker.transactions.end_transaction import EndTransactionHandler
from gateway.broker.transactions.transaction_checks import TransactionChecks
from gateway.broker.waiting.long_poll import LongPolls
from gateway.broker.waiting.wake_signal import WakeSignal
from gateway.config.process import BrokerConfig
from gateway.config.replication import Role
from gateway.runtime.config_file import ConfigFile
from gateway.runtime.run_blocking import RunBlocking
from remoting.reactor import Reactor
from storage.clock import Clock
from storage.config import StoreConfig
from storage.confirmed_store import ConfirmedStore
from storage.errors import StoreFull
from storage.files import DiskFiles, Files, MemoryFiles
from storage.staged_files import StagedFiles
from storage.store import MessageStore, may_have_lost_power
from storage.timer_store import TimerStore, TimerStoreConfig

CONFIRMED_HALVES: Final = "confirmed half messages"
EXPECTED_TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
"""Tables that every used store has. Most of the others come back by themselves, from heartbeats and deliveries."""
PROGRESS_TABLES = ("consumerOffset.json", "delayOffset.json", "consumerOrderInfo.json", "takeover.json")
"""Tables of progress: how far messages have been consumed or delivered."""
PLAIN_LINKS: Final = PeerLinks()


class BrokerBuilder:
    """Builds the parts of one broker, at its start and whenever it changes its role.

    ``port`` returns the port on which the broker listens; ``process_values`` are listed among its settings.
    ``accounts`` are those of access control, None if it is off. ``files`` are those on disk, or new ones in memory.
    ``links`` connect a slave with its master, and ``ha_access`` admits slaves to this broker's HA port.
    """

    def __init__(
        self,
        memory: bool,
        clock: Clock,
        run_blocking: RunBlocking,
        port: Callable[[], int],
        files: Files | None = None,
        process_values: Mapping[str, str] = MappingProxyType({}),
        reactor: Reactor | None = None,
        accounts: Accounts | None = None,
        links: PeerLinks = PLAIN_LINKS,
        ha_access: HaAccess = OPEN_ACCESS,
    ) -> None:
        self._memory = memory
        self._clock = clock
        self._run_blocking = run_blocking
        self._port = port
        self.files = files or (MemoryFiles() if memory else DiskFiles())
        self._process_values = process_values
        self._reactor = reactor
        self._accounts = accounts
        self._links = links
        self._ha_access = ha_access
        self._crash_mark: CrashMark | None = None

    def build(self, config: BrokerConfig) -> Broker:
        """Open the store, recovering it if needed, and connect the parts. Raises OSError, CorruptionError."""
        return self._connect(config, self._open_store(config))

    async def rebuild(self, config: BrokerConfig, between: Callable[[], object]) -> Broker:
        """Call ``between`` while the store is closed, then build as `build` does, with a thread for all that is slow.

        Raises whatever ``between`` raises, OSError, StoreError, ValueError for a table that cannot be read. The store
        is closed then.
        """

        def open_store() -> MessageStore:
            between()
            return self._open_store(config)

        store = await self._run_blocking(open_store)
        try:
            return self._connect(config, store)
        except BaseException:
            # Without a word about a clean close: the next opening recovers.
            store.close(clean=False)
            raise

    def store_config(self, config: BrokerConfig) -> StoreConfig:
        """Return the settings with which the store of a broker is opened."""
        return build_store_config(config, memory=self._memory)

    def _open_store(self, config: BrokerConfig) -> MessageStore:
        store_config = self.store_config(config)
        abort = self.files.read_small(store_config.abort_path)
        if may_have_lost_power(self.files, abort):
            self._crashes(config).note(Crash(was_unclean=True, lost_power=True))
        store_class = ConfirmedStore if store_config.awaits_confirmation else MessageStore
        return store_class.open(store_config, self.files, self._clock)

    def _crashes(self, config: BrokerConfig) -> CrashMark:
        """Return the crashes that are not dealt with. Without a controller all are, before the store is closed."""
        if self._crash_mark is None:
            config_path = "" if config.controlled is None else self.store_config(config).config_path
            self._crash_mark = CrashMark(self.files, config_path)
        return self._crash_mark

    def _connect(self, config: BrokerConfig, store: MessageStore) -> Broker:
        crashes = self._crashes(config)
        if store.crashed:
            crashes.note(Crash(was_unclean=True))
        table_file = partial(self._table_file, store)
        epochs = self._open_epochs(config, store)
        rule = _in_sync_rule(config, store, epochs)
        confirmation = _confirmation(store, rule)
        services = _services(config, store, self._run_blocking, self._port, self._reactor, rule, confirmation)
        replication = Replication(
            _ha_server(config, services, self._reactor, rule, self._ha_access, epochs),
            ReplicaGroup(config.broker_id),
            TakeoverState(table_file("takeover.json")),
            rule,
            epochs,
        )
        try:
            broker = _connect_parts(
                config,
                store,
                services,
                replication,
                self._run_blocking,
                self._accounts,
                table_file,
                self._process_values,
                self._reactor.seconds_since_readable if self._reactor else lambda: 0.0,
                has_crashed=crashes.crash.was_unclean,
            )
        except BaseException:
            services.group_commit.close()
            raise
        if config.controlled is not None and config.role is Role.MASTER:
            broker.topics.begin_epoch(config.controlled.master_epoch)
        if not config.is_undecided:
            crashes.settle(
                is_master=config.role is Role.MASTER,
                awaits_confirmation=broker.delay_service.awaits_confirmation,
            )
        replication.confirmation = confirmation
        if confirmation is not None:
            _watch_confirmation(broker, confirmation)
        if config.role is Role.SLAVE:
            replication.slave = slave = _slave_parts(broker, self._links, self._run_blocking)
            replication.follower = slave.follower
        return broker

    def _open_epochs(self, config: BrokerConfig, store: MessageStore) -> EpochTable | None:
        """Return the epochs of a log that is just opened, a new one begun at a master; None without a controller.

        A master that still has the epoch of before begins it anew after a loss of power, which may have cost it its
        last messages: an official slave would not notice. Raises StoreFull, OSError.
        """
        if config.controlled is None:
            return None
        end, master_epoch = store.max_physical_offset, config.controlled.master_epoch
        epochs = EpochTable(store.files, store.config.root)
        epochs.trim(end)
        if config.role is Role.MASTER:
            goes_on = epochs.newest is not None and epochs.newest.epoch == master_epoch
            if not goes_on or self._crashes(config).crash.lost_power:
                epochs.append(master_epoch, end)
        return epochs

    def _table_file(self, store: MessageStore, name: str) -> ConfigFile:
        return ConfigFile(
            self.files,
            f"{store.config.config_path}/{name}",
            self._run_blocking,
            is_expected=store.was_used and name in EXPECTED_TABLES,
            flush_store=store.flush if name in PROGRESS_TABLES else None,
        )


def _slave_parts(broker: Broker, links: PeerLinks, run_blocking: RunBlocking) -> SlaveParts:
    settings = broker.config.replication
    lookup = MasterLookup(settings.ha_master_address)

    parts = ReplicatedParts(
        broker.store,
        broker.topics,
        broker.groups,
        broker.offsets,
        broker.delay_service,
        broker.pop.request_modes,
        broker.pop.state.reviver,
        broker.pop.state.ordered_pops,
        broker.consumer_filters,
        broker.replication.takeover,
        broker.long_polls,
        broker.accounts,
    )
    table_sync = TableSync(parts, lookup, links.dial, run_blocking, links.sign, lambda: follower.is_copying)

    def queues_grew(queues: Iterable[tuple[str, int]]) -> None:
        for topic, queue_id in queues:
            table_sync.note_topic(topic)
            broker.long_polls.mark_grown(topic, queue_id)
        broker.long_polls.answer_marked()

    def note_compared(ha_address: Address) -> None:
        broker.replication.takeover.note_compared()
        table_sync.note_compared(ha_address)

    times = FollowerTimes(
        settings.ha_send_heartbeat_interval_ms / 1000, settings.ha_housekeeping_interval_ms / 1000
    )
    follower = Follower(
        broker.store,
        lookup,
        links.open_transport,
        links.dial,
        queues_grew,
        links.sign,
        times,
        links.open_secure,
        note_compared,
        check_crc=settings.check_crc_in_slave,
        broker_id=broker.config.broker_id,
        handshake=_handshake(broker),
        group=GroupName(broker.config.broker_cluster_name, broker.config.broker_name),
    )
    return SlaveParts(lookup, follower, table_sync)


def _handshake(broker: Broker) -> EpochHandshake | None:
    """Return the handshake of a slave under a controller, None without one."""
    epochs, controlled, settings = (
        broker.replication.epochs,
        broker.config.controlled,
        broker.config.replication,
    )
    if epochs is None or controlled is None:
        return None
    return EpochHandshake(
        broker.store,
        epochs,
        controlled.broker_id,
        master_epoch=controlled.master_epoch,
        begins_at_last_file=settings.sync_from_last_file,
        is_learner=settings.async_learner,
        hides_unconfirmed=settings.all_ack_in_sync_state_set,
    )


def _connect_parts(
    config: BrokerConfig,
    store: MessageStore,
    services: MessageServices,
    replication: Replication,
    run_blocking: RunBlocking,
    accounts: Accounts | None,
    table_file: Callable[[str], ConfigFile],
    process_values: Mapping[str, str],
    waited_s: Callable[[], float],
    *,
    has_crashed: bool,
) -> Broker:
    """Build the parts of a broker on its store, each from those it uses."""
    clock = store.clock
    tables = _tables(config, store, table_file)
    takeover = replication.takeover
    takes_over = config.role is Role.MASTER and takeover.role is not StoreRole.MASTER
    was_cut = store.has_progress_of_cut
    # A former master that crashed may become master again, and the store is closed cleanly before that.
    if config.role is Role.MASTER or was_cut or (config.is_undecided and takeover.role is StoreRole.MASTER):
        _limit_offsets(tables.offsets, store, is_cut_off=takes_over or was_cut)
    if config.role is Role.MASTER:
        restore_topics(tables.topics, store)
    elif not config.is_undecided:
        takeover.begin_following(has_messages=store.max_physical_offset > store.min_physical_offset)
    if was_cut and takeover.role is StoreRole.SLAVE:
        takeover.forget_progress()
        # What was revived or decided after the cut is undone. The master's progress replaces this soon.
        tables.offsets.restart_groups({REVIVE_GROUP: -1, TRANS_GROUP: 0})
    timer_delivery = _timer_delivery(config, services, table_file("timermetrics"), takeover)
    delay_service = _delay_service(
        config,
        table_file("delayOffset.json"),
        services,
        timer_delivery,
        takes_over=takes_over,
        has_crashed=has_crashed,
    )
    if was_cut:
        # Until all is saved: a process that is killed before then has to do it again.
        with suppress(StoreFull, OSError):
            for table in (tables.offsets, delay_service, takeover):
                table.persist()
            store.forget_progress_of_cut()
    writer = MessageWriter(store, services.long_polls, delay_service)
    queue_locks = QueueLocks(clock, limits=config.limits)
    retry_rules = RetryRules(tables.topics, tables.groups, queue_locks, services.stats)
    transactions = EndTransactionHandler(config, tables.topics, services, writer)
    send_handler = SendHandler(
        config, tables.topics, services, writer, retry_rules, UniqueKeyGenerator(clock)
    )
    flow_control = _flow_control(config, services, tables.topics, waited_s)
    broadcasts = BroadcastOffsets(config, tables, store)
    pop = build_pop(config, tables, services, writer, flow_control.quotas, table_file)
    pop.state.reviver.prune_popped_keys(takeover.popped_keys)
    if config.role is Role.SLAVE and takeover.has_own_pops:
        # Before the log is cut, and the records of pops with it.
        takeover.note_popped_keys(pop.state.reviver.popped_keys)
    return Broker(
        config=config,
        clock=clock,
        store=store,
        topics=tables.topics,
        groups=tables.groups,
        offsets=tables.offsets,
        clients=tables.clients,
        consumer_filters=tables.filters,
        filter_cache=tables.filter_cache,
        queue_locks=queue_locks,
        long_polls=services.long_polls,
        group_commit=services.group_commit,
        answer_gate=services.answer_gate,
        hosts=services.hosts,
        stats=services.stats,
        damaged=services.damaged,
        rates=TrafficRates(services.stats, clock),
        delay_service=delay_service,
        timer_delivery=timer_delivery,
        writer=writer,
        retry_rules=retry_rules,
        transactions=transactions,
        transaction_checks=TransactionChecks(config, tables, services, writer, transactions.op_messages),
        send_handler=send_handler,
        pull_handler=PullHandler(
            config,
            tables,
            services,
            flow_control.quotas,
            broadcasts,
            SlaveReads(config, lambda: replication.follows_master),
        ),
        pop=pop,
        broadcasts=broadcasts,
        flow_control=flow_control,
        accounts=accounts,
        staged_batches=_staged_batches(config, services, tables.topics, send_handler, run_blocking),
        replication=replication,
        process_values=process_values,
    )


def _limit_offsets(offsets: ConsumerOffsets, store: MessageStore, *, is_cut_off: bool) -> None:
    """Move consumer offsets that are beyond the end of their queue back to it, after every crash of a master.

    A disk may have gone away, and come back without its last writes, in the same boot. A slave's table is its master's,
    and may be ahead of messages that are still to be copied: when it takes over, or its log was cut, they will not come
    any more (``is_cut_off``).
    """
    if (store.crashed or is_cut_off) and offsets.limit_to_queues(store.next_queue_offset, REVIVE_GROUP):
        # At once, because the next messages get the queue offsets that such a group would skip.
        with suppress(StoreFull, OSError):
            offsets.persist()


def _services(
    config: BrokerConfig,
    store: MessageStore,
    run_blocking: RunBlocking,
    port: Callable[[], int],
    reactor: Reactor | None,
    in_sync: InSyncRule | SyncStateRule | None,
    confirmation: Confirmation | None,
) -> MessageServices:
    commit = _group_commit(config, store, run_blocking, reactor)
    requires = requires_replicas if config.controlled is None else requires_sync_state
    rule = in_sync if in_sync is not None and requires(in_sync.settings) else None
    gate = AnswerGate(
        store,
        commit,
        flush_timeout_ms=config.store.sync_flush_timeout_ms,
        replication=rule if confirmation is None else confirmation,
    )
    if confirmation is not None:
        confirmation.add_position_listener(gate.note_replicated)
    elif rule is not None:
        rule.add_listener(gate.note_replicated)
    return MessageServices(
        store,
        LongPolls(store.clock, store),
        commit,
        gate,
        AdvertisedHosts(config.broker_ip, port, config.advertised_port),
        BrokerStats(),
        DamagedRecords(config.broker_name),
    )


def _confirmation(store: MessageStore, rule: InSyncRule | SyncStateRule | None) -> Confirmation | None:
    if not isinstance(store, ConfirmedStore) or not isinstance(rule, SyncStateRule):
        return None
    return Confirmation(store, rule)


def _watch_confirmation(broker: Broker, confirmation: Confirmation) -> None:
    """Tell those who wait for messages of those that have become readable."""

    def queues_grew(queues: Iterable[tuple[str, int]]) -> None:
        for topic, queue_id in queues:
            broker.long_polls.mark_grown(topic, queue_id)
            if topic == SCHEDULE_TOPIC:
                broker.delay_service.note_readable(queue_id)
            elif topic == TIMER_TOPIC and broker.timer_delivery is not None:
                broker.timer_delivery.arrived.set()
            elif topic == TRANS_HALF_TOPIC:
                broker.long_polls.mark_work(CONFIRMED_HALVES, broker.transaction_checks.ask_about_confirmed)
        broker.long_polls.answer_marked()

    confirmation.add_listener(queues_grew)


def _in_sync_rule(
    config: BrokerConfig, store: MessageStore, epochs: EpochTable | None
) -> InSyncRule | SyncStateRule | None:
    if not config.replication.is_sync_master:
        return None
    role = config.controlled
    if role is not None and epochs is not None:
        return SyncStateRule(
            config.replication,
            role.broker_id,
            lambda: store.max_physical_offset,
            role.sync_set,
            role.sync_set_epoch,
            confirmed=store.readable_until,
            epoch_start=0 if epochs.newest is None else epochs.newest.start,
            now_s=store.clock.monotonic,
        )
    return InSyncRule(config.replication, lambda: store.max_physical_offset)


def _ha_server(
    config: BrokerConfig,
    services: MessageServices,
    reactor: Reactor | None,
    rule: InSyncRule | SyncStateRule | None,
    access: HaAccess,
    epochs: EpochTable | None,
) -> HaServer:
    gate, refusal, open_stream = services.answer_gate, None, None
    if config.role is Role.SLAVE:
        refusal = f"{config.broker_name} is a slave itself"
    elif config.store.staged_publish:
        refusal = f"{config.broker_name} has stagedPublish: a slave would get no staged messages"
    if epochs is not None and config.controlled is not None:
        store = services.store
        open_stream = AutoSwitchMaster(
            store.commit_log,
            epochs,
            config.controlled.broker_id,
            lambda: rule.confirm_offset if isinstance(rule, SyncStateRule) else store.max_physical_offset,
        ).open_stream
    return HaServer(
        config.broker_name,
        services.store,
        config.replication,
        rule,
        has_waiting_answers=lambda: gate.held_count > 0,
        reactor=reactor,
        access=access,
        refusal=refusal,
        open_stream=open_stream,
    )


def _tables(
    config: BrokerConfig, store: MessageStore, table_file: Callable[[str], ConfigFile]
) -> BrokerTables:
    clock = store.clock
    journal: OffsetJournal | None = None
    records: list[Record] = []
    if not isinstance(store.files, MemoryFiles):  # what is in memory only is gone with the process
        journal, records = open_journal(
            store.files, store.config.root, config.store.offset_journal_bytes, was_killed=store.was_killed
        )
    filter_cache = FilterCache(config.limits)
    filters = ConsumerFilterTable(table_file("consumerFilter.json"), clock, filter_cache, config.limits)
    return BrokerTables(
        TopicTable(table_file("topics.json"), clock, _topic_defaults(config), config.limits),
        _group_table(config, table_file("subscriptionGroup.json"), clock),
        ConsumerOffsets(
            table_file("consumerOffset.json"),
            clock,
            server_side_reset=config.use_server_side_reset_offset,
            limits=config.limits,
            journal=journal,
            records=records,
        ),
        ClientRegistry(
            clock,
            expiry_s=config.channel_expired_timeout_ms / 1000,
            notify_changes=config.notify_consumer_ids_changed_enable,
            on_group_gone=filters.unregister,
            limits=config.limits,
        ),
        filters,
        filter_cache,
    )


def _staged_batches(
    config: BrokerConfig,
    services: MessageServices,
    topics: TopicTable,
    send_handler: SendHandler,
    run_blocking: RunBlocking,
) -> StagedBatches | None:
    if not config.store.staged_publish:
        return None
    files = StagedFiles(services.store.files, services.store.config.root)
    return StagedBatches(files, services, topics, send_handler, run_blocking, config.store.staged_max_bytes)


def _flow_control(
    config: BrokerConfig, services: MessageServices, topics: TopicTable, waited_s: Callable[[], float]
) -> FlowControl:
    store = services.store
    flow = FlowControl(config, services, Quotas(config, topics, store.clock), waited_s)
    # Listeners run in order: the quotas, which added theirs when constructed, must be updated first.
    topics.add_listener(lambda _: flow.note_topic_change())
    return flow


def _delay_service(
    config: BrokerConfig,
    file: ConfigFile,
    services: MessageServices,
    timers: TimerDelivery | None,
    *,
    takes_over: bool,
    has_crashed: bool,
) -> DelayService:
    store = services.store
    if timers is not None:
        scheduler = timers.scheduler
    else:
        scheduler = TimerScheduler(config, store.clock, lambda slot_ms: 0, WakeSignal())
    appender = MessageAppender(store, services.long_polls)
    return DelayService(
        file,
        store.clock,
        store,
        appender,
        services.stats,
        services.damaged,
        WakeSignal(),
        levels=config.store.message_delay_level,
        timers=scheduler,
        follows_master=config.role is Role.SLAVE,
        takes_over=takes_over,
        has_crashed=has_crashed,
    )


def _timer_delivery(
    config: BrokerConfig, services: MessageServices, metrics_file: ConfigFile, takeover: TakeoverState
) -> TimerDelivery | None:
    # The timers of a slave wait at its master, whose progress is copied for the time after a promotion.
    if config.role is Role.SLAVE:
        return None
    if not config.store.timer_wheel_enable:
        takeover.end_takeover()
        return None
    store = services.store
    settings = TimerStoreConfig(
        root=store.config.root,
        config_path=store.config.config_path,
        precision_ms=config.store.timer_slot_ms,
        log_file_bytes=config.store.mapped_file_size_timer_log_bytes,
    )
    timer_takeover = take_timers_over(takeover, settings, store)
    timer_store = TimerStore(settings, store, TIMER_TOPIC)
    metrics = TimerMetrics(metrics_file, store.clock)
    return TimerDelivery(config, timer_store, services, metrics, timer_takeover)


def _group_table(config: BrokerConfig, file: ConfigFile, clock: Clock) -> GroupTable:
    return GroupTable(
        file,
        clock,
        auto_create=config.auto_create_subscription_group,
        create_system_groups=config.enable_create_sys_group,
        limits=config.limits,
    )


def _group_commit(
    config: BrokerConfig, store: MessageStore, run_blocking: RunBlocking, reactor: Reactor | None
) -> GroupCommit:
    return GroupCommit(
        store,
        synchronous=config.store.is_sync_flush,
        interval_ms=config.store.flush_interval_commit_log_ms,
        run_blocking=run_blocking,
        reactor=reactor,
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
