"""Application of changed settings to a running broker. `gateway/config/live.py` decides which settings may change."""

from gateway.broker.broker import Broker
from gateway.broker.messages.advertised_hosts import resolve_numeric
from gateway.broker.messages.store_settings import changed_store_config
from gateway.config.process import BrokerConfig


def apply_broker_config(broker: Broker, config: BrokerConfig, numeric_host: str | None = None) -> None:
    """Pass the new settings to every part, and notify namesrvs when the broker's permission or address changed.

    ``numeric_host`` is the address of a new `broker_ip`, for which `resolve_numeric` may have to ask a server.
    """
    old, broker.config = broker.config, config
    shown, shown_before = (
        (settings.broker_permission, settings.broker_ip, settings.advertised_port)
        for settings in (config, old)
    )
    if shown[1:] != shown_before[1:]:
        is_same = config.broker_ip == old.broker_ip
        numeric = None if is_same else numeric_host or resolve_numeric(config.broker_ip)
        broker.hosts.advertise(config.broker_ip, numeric, config.advertised_port)
    broker.store.reconfigure(changed_store_config(broker.store.config, config))
    broker.group_commit.reconfigure(interval_ms=config.store.flush_interval_commit_log_ms)
    broker.answer_gate.reconfigure(flush_timeout_ms=config.store.sync_flush_timeout_ms)
    broker.replication.reconfigure(config.replication)
    broker.send_handler.reconfigure(config)
    broker.pull_handler.reconfigure(config)
    broker.flow_control.reconfigure(config)
    broker.pop.reconfigure(config)
    broker.broadcasts.reconfigure(config)
    if broker.timer_delivery is not None:
        broker.timer_delivery.reconfigure(config)
    broker.transactions.reconfigure(config)
    broker.transaction_checks.reconfigure(config)
    broker.topics.limits = broker.groups.limits = broker.clients.limits = config.limits
    broker.queue_locks.limits = broker.offsets.limits = config.limits
    broker.consumer_filters.limits = broker.filter_cache.limits = config.limits
    broker.topics.set_auto_create(config.auto_create_topic_enable, config.default_topic_queue_nums)
    broker.groups.auto_create = config.auto_create_subscription_group
    broker.groups.create_system_groups = config.enable_create_sys_group
    broker.offsets.server_side_reset = config.use_server_side_reset_offset
    broker.clients.notify_changes = config.notify_consumer_ids_changed_enable
    if shown != shown_before:
        broker.topics.bump_version()
