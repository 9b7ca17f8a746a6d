"""Consumer groups of one broker and their permissions, stored in subscriptionGroup.json.

Online members are in `client_registry.py`, consumer offsets in `consumer_offsets.py`.

A change takes effect at once, in memory. An administrator's change is in the file before its answer leaves; a group
that was created automatically is written right after it, at most every `topic_table.SAVE_INTERVAL_S`. If the process
is killed before that, the group is created again by its next heartbeat.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy

from codec import topics as topic_names
from codec.java_numbers import I32, quoted, read_json_integer
from gateway.broker.topics import name_validation as names
from gateway.broker.topics.attributes import GROUP_ATTRIBUTES, apply_changes
from gateway.broker.topics.encoded_entries import EncodedEntries
from gateway.broker.topics.limit_errors import limit_error
from gateway.broker.topics.topic_table import count_change
from gateway.config.limits import BrokerLimits
from gateway.runtime.config_file import ConfigFile, SettingsTable, replace_entry
from gateway.runtime.saved_tables import load_table, parse_entries, parse_name, parse_version
from remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from remoting.bodies.queues import DataVersion
from storage.clock import Clock

log = logging.getLogger(__name__)

FORBIDDEN_READ_BIT = 2
"""Bit of a group's forbidden flags that closes a topic for reading.

Source: PermName.INDEX_PERM_READ, 5.4.0.
"""


class GroupTable(SettingsTable):
    """All groups by name. `save_changes` writes them. Source: SubscriptionGroupManager, 5.4.0.

    ``limits`` are set again when the configuration changes. A group beyond them is refused with a RequestError.
    """

    def __init__(
        self,
        file: ConfigFile,
        clock: Clock,
        *,
        auto_create: bool = True,
        create_system_groups: bool = True,
        limits: BrokerLimits | None = None,
    ) -> None:
        super().__init__(file)
        self.limits = limits or BrokerLimits()
        self._clock = clock
        self.auto_create = auto_create
        self.create_system_groups = create_system_groups
        self.table: dict[str, SubscriptionGroupConfig] = {
            group: SubscriptionGroupConfig(group_name=group) for group in topic_names.PREDEFINED_GROUPS
        }
        self.forbidden: dict[str, dict[str, int]] = {}
        self.version = DataVersion(timestamp=clock.now_ms())
        self.encoded = EncodedEntries()
        self._load()

    def _load(self) -> None:
        saved = self.file.load(_parse_file)
        if saved is not None:
            self.table.update(saved.subscription_group_table)
            self.forbidden.update(saved.forbidden_table)
            self.version = saved.data_version
        for config in self.table.values():
            self.encoded.put(config.group_name, config)

    # -- reading -------------------------------------------------------------------------------------------

    def __contains__(self, group: str) -> bool:
        return group in self.table

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return an existing group."""
        return self.table.get(group)

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group. Create a missing one with default settings if that is allowed; else return None.
        Raises RequestError at the limit of groups.
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

    # -- changing ------------------------------------------------------------------------------------------

    def update(self, changes: Iterable[SubscriptionGroupConfig]) -> None:
        """Create or replace groups. Their `attributes` are modifications (``+key``, ``-key``) of the present ones.

        Raises ValueError with the official text, or RequestError, before anything is changed.
        """
        configs = list(changes)
        for config in configs:
            previous = self.table.get(config.group_name)
            present = None if previous is None else previous.attributes
            config.attributes = apply_changes(GROUP_ATTRIBUTES, present, config.attributes)
            self._check_size(config)
        before = [(config.group_name, self.table.get(config.group_name)) for config in configs]
        self._store_configs(configs, lambda: self._put_back(before))

    def _put_back(self, entries: list[tuple[str, SubscriptionGroupConfig | None]]) -> None:
        """Give groups their earlier settings, after a change that could not be stored."""
        for group, config in reversed(entries):
            replace_entry(self.table, group, config)
            if config is None:
                self.encoded.remove(group)
            else:
                self.encoded.put(group, config)
        self._commit_change()

    def _check_size(self, config: SubscriptionGroupConfig) -> None:
        """Refuse lists of retry delays and subscriptions that no group needs."""
        max_bytes = self.limits.max_settings_bytes
        if len(config.to_json()) > max_bytes:
            raise limit_error(
                "maxSettingsBytes", max_bytes, "bytes of a group's settings", "shorten its lists"
            )

    def delete(self, group: str) -> bool:
        """Delete a group and its flags; return False when there was none."""
        forbidden = self.forbidden.pop(group, None)
        config = self.table.pop(group, None)
        if config is None and forbidden is None:
            return False

        def undo() -> None:
            replace_entry(self.forbidden, group, forbidden)
            self._put_back([(group, config)])

        if config is not None:
            self.encoded.remove(group)
        self._commit_change(undo)
        return config is not None

    def adopt(
        self,
        groups: Mapping[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, dict[str, int]],
        version: DataVersion,
        *,
        is_whole: bool = True,
    ) -> list[str]:
        """Take over the groups of this broker's master, with their version; return the names of deleted groups.

        All changes are made at once, so that no group is missing meanwhile. ``is_whole``: the master listed all its
        groups, so that others are deleted, except those that every broker has.
        """
        changed = [config for name, config in groups.items() if self.table.get(name) != config]
        vanished = [
            name for name in self.table if name not in groups and name not in topic_names.PREDEFINED_GROUPS
        ]
        deleted = vanished if is_whole else []
        for name in deleted:
            del self.table[name]
            self.encoded.remove(name)
        for config in changed:
            self.table[config.group_name] = config
            self.encoded.put(config.group_name, config)
        is_forbidden_changed = is_whole and self.forbidden != forbidden
        if is_forbidden_changed:
            self.forbidden = dict(forbidden)
        if changed or deleted or is_forbidden_changed or self.version != version:
            self.version = copy(version)
            self.note_change()
        return deleted

    def disable(self, group: str) -> None:
        """Forbid a group to consume."""
        config = self.table.get(group)
        if config is not None:
            config.consume_enable = False
            self._store_configs([config])

    def is_forbidden(self, group: str, topic: str, bit: int = FORBIDDEN_READ_BIT) -> bool:
        """Tell whether a group may not use a topic, whatever the topic's own permission says."""
        return bool(self.forbidden and self.forbidden.get(group, {}).get(topic, 0) >> bit & 1)

    def set_forbidden(
        self, group: str, topic: str, forbidden: bool, bit: int = FORBIDDEN_READ_BIT, *, is_undo: bool = False
    ) -> None:
        """Set or clear a flag of a group and topic. ``is_undo``: take back a change that could not be stored.

        Deviation: clearing the last flag of one topic leaves the group's other topics as they are; the
        official broker forgets them all.
        """
        topics = self.forbidden.get(group, {})
        flags = topics.get(topic, 0)
        was_forbidden = bool(flags >> bit & 1)
        flags = flags | 1 << bit if forbidden else flags & ~(1 << bit)
        if flags and topic not in topics and self._count_forbidden() >= self.limits.max_groups:
            raise limit_error("maxSubscriptionGroups", self.limits.max_groups, "forbidden topics of groups")
        self.forbidden[group] = topics
        topics[topic] = flags
        if not flags:
            del topics[topic]
        if not topics:
            del self.forbidden[group]
        if is_undo:
            self._commit_change()
        else:
            self._commit_change(lambda: self.set_forbidden(group, topic, was_forbidden, bit, is_undo=True))

    def _count_forbidden(self) -> int:
        return sum(map(len, self.forbidden.values()))

    def _store_configs(
        self, configs: list[SubscriptionGroupConfig], undo: Callable[[], None] | None = None
    ) -> None:
        new = {config.group_name for config in configs if config.group_name not in self.table}
        if new and len(self.table) + len(new) > self.limits.max_groups:
            raise limit_error(
                "maxSubscriptionGroups", self.limits.max_groups, "subscription groups", "delete some"
            )
        for config in configs:
            self.table[config.group_name] = config
            self.encoded.put(config.group_name, config)
            log.info("consumer group stored", extra={"group": config.group_name})
        self._commit_change(undo)

    def _commit_change(self, undo: Callable[[], None] | None = None) -> None:
        count_change(self.version, self._clock.now_ms())
        self.note_change(undo)

    def encode_slices(self) -> Iterator[bytes]:
        """Yield the content of subscriptionGroup.json."""
        body = SubscriptionGroupWrapper(forbidden_table=self.forbidden, data_version=self.version)
        yield self.encoded.fill(body, "subscriptionGroupTable")


def _parse_file(content: bytes) -> SubscriptionGroupWrapper:
    """Parse subscriptionGroup.json. An entry that cannot be read is left out. Raises ValueError."""
    saved, file = load_table(content), "subscriptionGroup.json"
    groups = parse_entries(file, saved.get("subscriptionGroupTable"), _parse_group)
    forbidden = parse_entries(f"forbidden topics of {file}", saved.get("forbiddenTable"), _parse_forbidden)
    version = parse_version(saved.get("dataVersion"))
    return SubscriptionGroupWrapper(
        subscription_group_table=groups, forbidden_table=forbidden, data_version=version or DataVersion()
    )


def _parse_group(key: object, value: object) -> tuple[str, SubscriptionGroupConfig]:
    config = SubscriptionGroupConfig.from_value(value)
    config.group_name = parse_name(key)
    return config.group_name, config


def _parse_forbidden(group: object, value: object) -> tuple[str, dict[str, int]]:
    flags = parse_entries(
        f"forbidden topics of the group {quoted(str(group))}",
        value,
        lambda topic, bits: (parse_name(topic), read_json_integer(bits, I32)),
    )
    return parse_name(group), flags
