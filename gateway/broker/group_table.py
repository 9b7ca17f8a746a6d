"""Consumer groups of one broker and their permissions, stored in subscriptionGroup.json.

Online members are in `client_registry.py`, consumer offsets in `consumer_offsets.py`.
"""

import logging
from collections.abc import Iterable

from codec import topics as topic_names
from gateway.broker import name_validation as names
from gateway.broker.attributes import GROUP_ATTRIBUTES, apply_changes
from gateway.broker.topic_table import count_change
from gateway.runtime.config_file import ConfigFile
from remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from remoting.bodies.queues import DataVersion
from storage.clock import Clock

log = logging.getLogger(__name__)

FORBIDDEN_READ_BIT = 2
"""Bit of a group's forbidden flags that closes a topic for reading.

Source: PermName.INDEX_PERM_READ, 5.4.0.
"""


class GroupTable:
    """All groups by name. Every change is written at once. Source: SubscriptionGroupManager, 5.4.0."""

    def __init__(
        self, file: ConfigFile, clock: Clock, *, auto_create: bool = True, create_system_groups: bool = True
    ) -> None:
        self.file = file
        self._clock = clock
        self.auto_create = auto_create
        self.create_system_groups = create_system_groups
        self.table: dict[str, SubscriptionGroupConfig] = {
            group: SubscriptionGroupConfig(group_name=group) for group in topic_names.PREDEFINED_GROUPS
        }
        self.forbidden: dict[str, dict[str, int]] = {}
        self.version = DataVersion(timestamp=clock.now_ms())
        self._load()

    def _load(self) -> None:
        saved = self.file.load(SubscriptionGroupWrapper.from_json)
        if saved is not None:
            self.table.update(saved.subscription_group_table)
            self.forbidden.update(saved.forbidden_table)
            self.version = saved.data_version

    # -- reading -------------------------------------------------------------------------------------------

    def __contains__(self, group: str) -> bool:
        return group in self.table

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return an existing group."""
        return self.table.get(group)

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group. Create a missing one with default settings if that is allowed; else return None.
        Source: SubscriptionGroupManager.findSubscriptionGroupConfig, 5.4.0.
        """
        config = self.table.get(group)
        if config is not None:
            return config
        allowed = self.auto_create or (self.create_system_groups and topic_names.is_system_group(group))
        if not allowed or names.group_name_error(group) is not None:
            return None
        config = SubscriptionGroupConfig(group_name=group)
        self._store_configs([config])
        return config

    def snapshot(self) -> SubscriptionGroupWrapper:
        """Return groups, forbidden flags and version as they go to files and other brokers, not copied."""
        return SubscriptionGroupWrapper(
            subscription_group_table=self.table, forbidden_table=self.forbidden, data_version=self.version
        )

    # -- changing ------------------------------------------------------------------------------------------

    def update(self, changes: Iterable[SubscriptionGroupConfig]) -> None:
        """Create or replace groups. Their `attributes` are modifications (``+key``, ``-key``) of the present ones.

        Raises ValueError with the official text before anything is changed.
        """
        configs = list(changes)
        for config in configs:
            known = self.table.get(config.group_name)
            present = None if known is None else known.attributes
            config.attributes = apply_changes(GROUP_ATTRIBUTES, present, config.attributes)
        self._store_configs(configs)

    def delete(self, group: str) -> bool:
        """Delete a group and its flags; return False when there was none."""
        self.forbidden.pop(group, None)
        if self.table.pop(group, None) is None:
            return False
        self._commit_change()
        return True

    def disable(self, group: str) -> None:
        """Forbid a group to consume."""
        config = self.table.get(group)
        if config is not None:
            config.consume_enable = False
            self._commit_change()

    def is_forbidden(self, group: str, topic: str, bit: int = FORBIDDEN_READ_BIT) -> bool:
        """Tell whether a group may not use a topic, whatever the topic's own permission says."""
        return bool(self.forbidden and self.forbidden.get(group, {}).get(topic, 0) >> bit & 1)

    def set_forbidden(self, group: str, topic: str, forbidden: bool, bit: int = FORBIDDEN_READ_BIT) -> None:
        """Set or clear a flag of a group and topic.

        Deviation: clearing the last flag of one topic leaves the group's other topics as they are; the
        official broker forgets them all.
        """
        topics = self.forbidden.setdefault(group, {})
        flags = topics.get(topic, 0)
        flags = flags | 1 << bit if forbidden else flags & ~(1 << bit)
        topics[topic] = flags
        if not flags:
            del topics[topic]
        if not topics:
            del self.forbidden[group]
        self._commit_change()

    def _store_configs(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        for config in configs:
            self.table[config.group_name] = config
            log.info("consumer group stored", extra={"group": config.group_name})
        self._commit_change()

    def _commit_change(self) -> None:
        count_change(self.version, self._clock.now_ms())
        self.persist()

    def persist(self) -> None:
        """Write subscriptionGroup.json. When the disk fails, `catch_up` tries again."""
        self.file.try_replace(self.snapshot().to_json())

    def catch_up(self) -> None:
        """Write what an earlier `persist` could not."""
        if self.file.is_behind:
            self.persist()
