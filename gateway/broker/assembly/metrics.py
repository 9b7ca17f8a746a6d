"""All metrics of one broker: the official ones, and our own of its store, its waiting requests and skipped records."""

from collections.abc import Iterator

from gateway.broker.assembly.consumer_lag import ConsumerLags
from gateway.broker.assembly.native_sends import NativeSends
from gateway.broker.assembly.official_metrics import (
    MILLISECONDS,
    Labels,
    connection_count_metrics,
    execution_time_metrics,
    node_labels,
    revived_metrics,
    storage_metrics,
    timer_metrics,
    timer_traffic_metrics,
    traffic_metrics,
    transaction_metrics,
)
from gateway.broker.broker import Broker
from gateway.broker.pop.reviver import Reviver
from gateway.broker.replication.status import replication_status
from gateway.broker.statistics.traffic_stats import BrokerStats
from gateway.config.replication import Role
from gateway.runtime.metrics import Distribution, Metric
from storage.store import MessageStore

Sample = Metric | Distribution | None


def store_metrics(part: str, store: MessageStore) -> Iterator[Metric]:
    """Yield whether the store of a broker, ``part``, takes messages, and why not."""
    labels = {"part": part}
    failed = store.flushes.failure is not None
    takes = float(store.trouble is None)
    yield Metric("store_writable", takes, "1 while the store takes messages of all sizes", "gauge", labels)
    meaning = "1 after a flush to the disk failed; the store then takes no messages until a restart"
    yield Metric("store_flush_failed", float(failed), meaning, "gauge", labels)
    meaning = "1 while messages are refused: the disk is fuller than diskSpaceWarningLevelRatio or has no room for them"
    is_full = store.disk_full or store.refusal is not None
    yield Metric("store_disk_full", float(is_full), meaning, "gauge", labels)


def replication_metrics(part: str, broker: Broker) -> Iterator[Metric]:
    """Yield role and state of a broker's replication."""
    settings, labels = broker.config.replication, {"part": part}
    status = replication_status(broker.replication, broker.store, settings, broker.clock.now_ms())
    is_master = settings.role is Role.MASTER
    meaning = "1 for a master, 0 for a slave"
    yield Metric("replication_is_master", float(is_master), meaning, "gauge", labels)
    meaning = "1 while a slave cannot copy its master until an operator decides, or two slaves of a master have one id"
    yield Metric("replication_trouble", float(bool(status.trouble)), meaning, "gauge", labels)
    if is_master:
        yield Metric("replication_slaves", len(status.slaves), "slaves that are connected", "gauge", labels)
        meaning = "slaves that are less than haMaxGapNotInSync behind"
        yield Metric("replication_in_sync_slaves", status.in_sync_count, meaning, "gauge", labels)
        behind = [
            ({**labels, "slave": slave.address}, slave.behind_bytes, slave.behind_ms)
            for slave in status.slaves
        ]
    else:
        behind = [(labels, status.behind_bytes, status.behind_ms)]
        follower = broker.replication.follower
        if follower is not None:
            meaning = (
                "messages of the master that a slave refused and fetched again, because their CRC was wrong"
            )
            refused = follower.damaged_messages
            yield Metric("replication_damaged_messages_total", refused, meaning, labels=labels)
        if status.last_cut is not None:
            meaning = "bytes cut off because the master did not have them, the last time"
            yield Metric("replication_last_cut_bytes", status.last_cut.size_bytes, meaning, "gauge", labels)
            meaning = "time of the last cut"
            cut_s = status.last_cut.time_ms / 1000
            yield Metric("replication_last_cut_timestamp_seconds", cut_s, meaning, "gauge", labels)
    for slave_labels, behind_bytes, behind_ms in behind:
        meaning = "bytes of the master's log that a slave does not have, -1 while unknown"
        yield Metric("replication_behind_bytes", behind_bytes, meaning, "gauge", slave_labels)
        meaning = "age of the oldest message that a slave does not have, in ms; -1 while unknown"
        yield Metric("replication_behind_ms", behind_ms, meaning, "gauge", slave_labels)


def controlled_metrics(part: str, broker: Broker) -> Iterator[Metric]:
    """Yield the role that controllers gave a broker, and what of its log is confirmed; nothing without controllers."""
    role, replication = broker.config.controlled, broker.replication
    if role is None:
        return
    labels = {"part": part}
    meaning = "epoch of the role that the controllers gave; it grows with each election"
    yield Metric("replication_epoch", role.master_epoch, meaning, "gauge", labels)
    log_end = broker.store.max_physical_offset
    meaning = "bytes of the log that are not confirmed by all replicas in sync, as far as this broker knows"
    unconfirmed = max(0, log_end - replication.confirm_offset(log_end))
    yield Metric("replication_unconfirmed_bytes", unconfirmed, meaning, "gauge", labels)
    if replication.sync_state is not None:
        members = len(replication.sync_state.members)
        meaning = "replicas in sync as the controller accepted them last, this master included"
        yield Metric("replication_sync_set_size", members, meaning, "gauge", labels)


def fence_metric(part: str, reason: str) -> Metric:
    """Return whether a broker refuses requests because its role is not certain."""
    meaning = "1 while the broker has no role, or no controller confirms the role of this master"
    return Metric("replication_fenced", float(bool(reason)), meaning, "gauge", {"part": part})


def native_metrics(part: str, native_sends: NativeSends, stats: BrokerStats) -> Iterator[Metric]:
    """Yield how many sends the C extension took, and whether it takes any now."""
    labels, stored = {"part": part}, sum(count.requests for count in stats.stored.values())
    meaning = "plain sends that the C extension took"
    yield Metric("native_sends_total", native_sends.frames, meaning, labels=labels)
    # The counts of a slave that becomes master begin anew.
    share = min(1.0, native_sends.frames / stored) if stored else 0.0
    yield Metric(
        "native_sends_share", share, "their share of all requests that stored messages", "gauge", labels
    )
    is_on = float(native_sends.take is not None)
    meaning = "1 while plain sends are taken, 0 while each is looked at, or without the extension"
    yield Metric("native_sends_on", is_on, meaning, "gauge", labels)


def broker_metrics(part: str, broker: Broker) -> Iterator[Sample]:
    """Yield all metrics of a broker, our own with the label ``part``; None wherever other tasks may run in between."""
    yield from broker.damaged.metrics()
    yield from store_metrics(part, broker.store)
    yield from replication_metrics(part, broker)
    yield from controlled_metrics(part, broker)
    labels = {"part": part}
    yield Metric(
        "waiting_requests", len(broker.long_polls), "requests that wait for messages", "gauge", labels
    )
    meaning = "consumer groups whose members subscribe to different messages, so that some are skipped"
    yield Metric("inconsistent_groups", len(broker.clients.inconsistent_groups), meaning, "gauge", labels)
    held = broker.answer_gate.held_count
    yield Metric("held_answers", held, "answers that wait for the disk or for replicas", "gauge", labels)
    meaning = "flushes of the commit log to the disk"
    yield Metric("flushes_total", broker.group_commit.flushes, meaning, labels=labels)
    meaning = "duration of the longest flush since the start"
    yield Metric("longest_flush_seconds", broker.group_commit.longest_flush_s, meaning, "gauge", labels)
    checks = broker.transaction_checks
    meaning = "times that a producer was asked about a half message"
    yield Metric("transaction_checks_total", checks.check_backs, meaning, labels=labels)
    meaning = "half messages that were given up after too many checks, or too old"
    yield Metric("half_messages_given_up_total", checks.given_up, meaning, labels=labels)
    yield from _official_metrics(broker)


def _official_metrics(broker: Broker) -> Iterator[Sample]:
    config = broker.config
    node, limit = node_labels(config.broker_cluster_name, config.broker_name), config.limits.max_metric_series
    yield from _counts(broker, node)
    yield from storage_metrics(broker.store, node)
    yield from traffic_metrics(broker.stats, node, limit)
    yield None
    yield from connection_count_metrics(broker.clients, node, limit)
    yield from transaction_metrics(broker.stats, node, limit)
    if broker.timer_delivery is not None:
        yield from timer_metrics(broker.timer_delivery, node, limit)
        yield from timer_traffic_metrics(broker.stats, node, limit)
    yield from execution_time_metrics(broker.stats, node)
    yield from revived_metrics(broker.stats, node, limit)
    reviver = broker.pop.state.reviver
    yield from _pop_metrics(reviver, node)
    lags = ConsumerLags(broker.store, broker.topics, broker.offsets, broker.clients, reviver)
    yield from lags.metrics(node, limit)


def _pop_metrics(reviver: Reviver, node: Labels) -> Iterator[Metric]:
    """Yield the state of pop consumption. Source: PopMetricsManager, 5.4.0."""
    for progress in reviver.queue_progress():
        of_queue = {**node, "queue_id": str(progress.queue_id)}
        meaning = "records of a revive queue from the oldest pop on that is not done"
        yield Metric(
            "rocketmq_pop_revive_lag", progress.records_behind, meaning, "gauge", of_queue, MILLISECONDS
        )
        meaning = "age of the oldest pop that is not done, in ms"
        yield Metric(
            "rocketmq_pop_revive_latency", progress.oldest_age_ms, meaning, "gauge", of_queue, MILLISECONDS
        )
    meaning = "pops that are neither acknowledged nor revived"
    yield Metric("rocketmq_pop_checkpoint_buffer_size", len(reviver), meaning, "gauge", node)


def _counts(broker: Broker, node: Labels) -> Iterator[Metric]:
    permission, topics, groups = (
        broker.config.broker_permission,
        len(broker.topics.table),
        len(broker.groups.table),
    )
    yield Metric("rocketmq_broker_permission", permission, "4 read, 2 write, 6 both", "gauge", node)
    yield Metric("rocketmq_topic_number", topics, "topics", "gauge", node)
    yield Metric("rocketmq_consumer_group_number", groups, "subscription groups", "gauge", node)
    waiting = broker.transaction_checks.count_open()
    meaning = "half messages that wait for a decision"
    yield Metric("rocketmq_half_messages", waiting, meaning, "gauge", node)
