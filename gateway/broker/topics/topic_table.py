"""Topics of one broker with their queues, permissions and attributes, stored in topics.json.

Listeners are called after each change; one of them registers the topics with namesrvs. Requests are checked in
`processors/topics.py`.

A change takes effect at once, in memory. What survives a killed process:

- A topic that an administrator created, changed or deleted: the answer waits until the file is written. If it cannot
  be written, the change is undone and refused.
- A topic that a send or a heartbeat created: the file is written as soon as the answer is sent, but not more often than
  every `SAVE_INTERVAL_S`. If the process is killed before that, `restore_topics` finds the topic by its messages when
  the broker starts again.

A power failure in the second after that may undo a change. Deviation: the official broker writes the whole file, on
the thread of the request, whenever a send creates a topic, a thousand times for a thousand topics.
Source: TopicConfigManager and ConfigManager.persist, 5.4.0.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from codec import topics as topic_names
from codec.constants import ResponseCode
from gateway.broker.topics.attributes import TOPIC_ATTRIBUTES, UNSUPPORTED_ATTRIBUTES, apply_changes
from gateway.broker.topics.encoded_entries import EncodedEntries
from gateway.broker.topics.limit_errors import limit_error
from gateway.config.limits import BrokerLimits
from gateway.runtime.config_file import ConfigFile, SettingsTable
from gateway.runtime.saved_tables import load_table, parse_entries, parse_name, parse_version
from remoting.bodies.queues import DataVersion
from remoting.bodies.topics import TopicConfig, TopicConfigSerializeWrapper
from remoting.errors import RequestError
from storage.clock import Clock

log = logging.getLogger(__name__)

SAVE_INTERVAL_S: Final = 0.25
"""Shortest time between two writes of topics or groups that were created automatically."""


MAX_COUNTED_QUEUES: Final = 65_536
"""Largest number of queues of a topic that is read from a file: the greatest value of ``maxQueuesPerTopic``."""


class TopicChange(NamedTuple):
    """Topics that were created or changed, and names of topics that were deleted.

    Both are empty when only the version changed.
    """

    stored: Sequence[TopicConfig] = ()
    deleted: Sequence[str] = ()


Listener = Callable[[TopicChange], None]

SCHEDULE_QUEUES = 18
BENCHMARK_QUEUES = 1024
SYS_FLAG_UNIT = 1
SYS_FLAG_UNIT_SUB = 2


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """Broker settings that decide which topics exist from the start and how others are created."""

    cluster_name: str
    broker_name: str
    auto_create: bool = True
    default_queues: int = 8
    cluster_topic_open: bool = True
    broker_topic_open: bool = True
    trace_topic: str | None = None
    revive_queues: int = 8
    timer_topic: bool = True


def unit_flags(*, unit: bool, subscribed: bool) -> int:
    """Return the topic sys flag of unit mode. Source: TopicSysFlag.buildSysFlag, 5.4.0."""
    return (SYS_FLAG_UNIT if unit else 0) | (SYS_FLAG_UNIT_SUB if subscribed else 0)


def initial_system_topics(settings: TopicDefaults) -> list[TopicConfig]:
    """Return the topics that every broker has from its first start. Source: TopicConfigManager.init, 5.4.0."""
    cluster = settings.cluster_name
    cluster_perm = topic_names.PERM_INHERIT | (topic_names.READ_WRITE if settings.cluster_topic_open else 0)
    broker_perm = topic_names.PERM_INHERIT | (topic_names.READ_WRITE if settings.broker_topic_open else 0)
    topics = [
        _topic_config(topic_names.SELF_TEST_TOPIC),
        _topic_config(topic_names.BENCHMARK_TOPIC, BENCHMARK_QUEUES),
        _topic_config(cluster, 16, cluster_perm),
        _topic_config(settings.broker_name, 1, broker_perm),
        _topic_config(topic_names.OFFSET_MOVED_TOPIC),
        _topic_config(topic_names.SCHEDULE_TOPIC, SCHEDULE_QUEUES),
        _topic_config(f"{cluster}_REPLY_TOPIC"),
        _topic_config(f"{topic_names.SYSTEM_PREFIX}REVIVE_LOG_{cluster}", settings.revive_queues),
        _topic_config(
            f"{topic_names.SYSTEM_PREFIX}SYNC_BROKER_MEMBER_{settings.broker_name}",
            1,
            topic_names.PERM_INHERIT,
        ),
        _topic_config(topic_names.TRANS_HALF_TOPIC),
        _topic_config(topic_names.TRANS_OP_TOPIC),
        _topic_config(topic_names.ROCKSDB_TRANS_HALF_TOPIC),
        _topic_config(topic_names.ROCKSDB_TRANS_OP_TOPIC),
    ]
    if settings.auto_create:
        topics.append(_default_topic(settings.default_queues))
    if settings.trace_topic is not None:
        topics.append(_topic_config(settings.trace_topic))
    if settings.timer_topic:
        topics.append(_topic_config(topic_names.TIMER_TOPIC))
    return topics


def _default_topic(queues: int) -> TopicConfig:
    perm = topic_names.PERM_INHERIT | topic_names.READ_WRITE
    return _topic_config(topic_names.DEFAULT_TOPIC, queues, perm)


def _topic_config(name: str, queues: int = 1, perm: int = topic_names.READ_WRITE, **more: Any) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, **more)


class TopicTable(SettingsTable):
    """All topics by name. Every change is passed to the listeners; `save_changes` writes it.

    ``limits`` are set again when the configuration changes. A topic beyond them is refused with a RequestError; topics
    from another broker's file are served, however many they are.
    Source: TopicConfigManager, 5.4.0. ValueError carries the official text about an invalid change.
    """

    def __init__(
        self, file: ConfigFile, clock: Clock, settings: TopicDefaults, limits: BrokerLimits | None = None
    ) -> None:
        super().__init__(file)
        self.limits = limits or BrokerLimits()
        self._clock = clock
        self._settings = settings
        self._listeners: list[Listener] = []
        # Counted, since two requests may delete one topic at once.
        self._being_deleted: Counter[str] = Counter()
        started_with = initial_system_topics(settings)
        self.system_topics = topic_names.SYSTEM_TOPICS | {topic.topic_name for topic in started_with}
        self.table: dict[str, TopicConfig] = {topic.topic_name: topic for topic in started_with}
        self.version = DataVersion(timestamp=clock.now_ms())
        self.auto_create = settings.auto_create
        saved = file.load(_parse_file)
        self.saved_ms = 0 if saved is None else saved.data_version.timestamp
        if saved is not None:
            self.table.update(saved.topic_config_table)
            self.version = saved.data_version
        self.closed_to_producers = {topic for topic in self.table if self.is_closed_to_producers(topic)}
        self._queue_count = sum(map(_count_queues, self.table.values()))
        self.encoded = EncodedEntries()
        for config in self.table.values():
            self.encoded.put(config.topic_name, config)
        self._warn_of_unsupported_attributes()

    def _warn_of_unsupported_attributes(self) -> None:
        """Log the topics of a store taken over from an official broker that behave differently here."""
        for topic, config in self.table.items():
            for key, value in UNSUPPORTED_ATTRIBUTES.items():
                if config.attributes.get(key) == value:
                    log.warning(
                        "topic attribute has no effect on this broker",
                        extra={"topic": topic, "attribute": f"{key}={value}"},
                    )

    # -- reading -------------------------------------------------------------------------------------------

    def get(self, topic: str) -> TopicConfig | None:
        """Return the topic, None when there is none of that name."""
        return self.table.get(topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self.table

    def is_system(self, topic: str) -> bool:
        """Tell whether clients may not define this topic. Source: TopicValidator.isSystemTopic, 5.4.0."""
        return topic in self.system_topics or topic.startswith(topic_names.SYSTEM_PREFIX)

    def is_closed_to_producers(self, topic: str) -> bool:
        """Tell whether only the broker itself may write to this topic.

        ``closed_to_producers`` holds the existing ones. The configured trace topic is open whatever its name is.
        """
        return topic != self._settings.trace_topic and topic_names.is_closed_to_producers(topic)

    def is_ordered(self, topic: str) -> bool:
        """Tell whether a topic prefers order to availability while a broker is absent."""
        config = self.table.get(topic)
        return config is not None and config.order

    def queue_ids(self, queues: int) -> range:
        """Return the ids of a topic's queues, for answers that list them all: no more than maxQueuesPerTopic.

        A file of another broker may hold a topic of two thousand million queues.
        """
        return range(min(queues, self.limits.max_queues_per_topic))

    def add_listener(self, listener: Listener) -> None:
        """Call ``listener`` with each change."""
        self._listeners.append(listener)

    # -- creating ---------------------------------------------------------------------------------

    def create_for_send(
        self, topic: str, default_topic: str, client_queues: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Return the topic. Create a missing one like the default topic; return None when that does not allow it.
        Source: TopicConfigManager.createTopicInSendMessageMethod, 5.4.0.
        """
        existing = self.table.get(topic)
        if existing is not None:
            return existing
        default = self.table.get(default_topic)
        if default is None or not self._is_inheritable(default):
            log.warning("topic not created", extra={"topic": topic, "default_topic": default_topic})
            return None
        queues = max(0, min(client_queues, default.write_queue_nums, self.limits.max_queues_per_topic))
        config = _topic_config(
            topic, queues, default.perm & ~topic_names.PERM_INHERIT, topic_sys_flag=sys_flag
        )
        config.topic_filter_type = default.topic_filter_type
        self._store_configs([config])
        return config

    def _is_inheritable(self, default: TopicConfig) -> bool:
        if default.topic_name == topic_names.DEFAULT_TOPIC and not self.auto_create:
            return False
        return bool(default.perm & topic_names.PERM_INHERIT)

    def create_for_send_back(
        self,
        topic: str,
        queues: int,
        perm: int = topic_names.READ_WRITE,
        *,
        order: bool = False,
        sys_flag: int = 0,
    ) -> TopicConfig:
        """Return a group's retry or dead letter topic, with its order flag updated. Create a missing one.
        Source: TopicConfigManager.createTopicInSendMessageBackMethod, 5.4.0.
        """
        existing = self.table.get(topic)
        if existing is None:
            queues = min(queues, self.limits.max_queues_per_topic)
            existing = _topic_config(topic, queues, perm, order=order, topic_sys_flag=sys_flag)
            self._store_configs([existing])
        elif existing.order != order:
            existing.order = order
            self._store_configs([existing])
        return existing

    def create_if_absent(self, config: TopicConfig) -> TopicConfig:
        """Return the existing topic, or store the given one when it is new. Raises RequestError at a limit."""
        existing = self.table.get(config.topic_name)
        if existing is None:
            self._check_queues(config)
            self._store_configs([config])
        return existing or config

    # -- changing ------------------------------------------------------------------------------------------

    def update(self, changes: Iterable[TopicConfig], *, by_broker: bool = False) -> None:
        """Create or replace topics. Their `attributes` are modifications (``+key``, ``-key``) of the present ones.

        A change by the broker itself stays in effect even if it cannot be written.
        Raises ValueError or RequestError before anything is changed.
        Source: TopicConfigManager.updateTopicConfigList, 5.4.0.
        """
        configs = list(changes)
        for config in configs:
            self._check_queues(config)
            previous = self.table.get(config.topic_name)
            if "+reserve.time" in config.attributes:
                raise ValueError("Update topic reserveTime not supported")
            attributes = None if previous is None else previous.attributes
            config.attributes = apply_changes(TOPIC_ATTRIBUTES, attributes, config.attributes)
        before = [(config.topic_name, self.table.get(config.topic_name)) for config in configs]
        self._store_configs(configs, None if by_broker else lambda: self._put_back(before))

    def _put_back(self, entries: list[tuple[str, TopicConfig | None]]) -> None:
        """Give topics their earlier settings, after a change that could not be stored."""
        for topic, config in reversed(entries):
            self._drop(topic)
            if config is not None:
                self._insert(config)
        stored = [config for _, config in entries if config is not None]
        self._commit_change(TopicChange(stored, [topic for topic, config in entries if config is None]))

    def _check_queues(self, config: TopicConfig) -> None:
        max_queues = self.limits.max_queues_per_topic
        if max(config.read_queue_nums, config.write_queue_nums) > max_queues:
            raise limit_error("maxQueuesPerTopic", max_queues, "queues of a topic", "create fewer")

    def delete(self, topic: str) -> bool:
        """Delete a topic; return False when there was none. The caller removes its messages and offsets."""
        config = self._drop(topic)
        if config is None:
            return False
        self._commit_change(TopicChange(deleted=[topic]), lambda: self._put_back([(topic, config)]))
        return True

    def put_back(self, config: TopicConfig) -> None:
        """Restore a deleted topic whose messages could not be deleted."""
        self._put_back([(config.topic_name, config)])

    def adopt(
        self, configs: Mapping[str, TopicConfig], version: DataVersion, *, is_whole: bool = True
    ) -> list[str]:
        """Take over the topics of this broker's master, with their version; return the names of deleted topics.

        All changes are made at once, so that no topic is missing meanwhile. ``is_whole``: the master listed all its
        topics, so that others are deleted, except those that every broker has.
        """
        changed = [config for name, config in configs.items() if self.table.get(name) != config]
        vanished = [name for name in self.table if name not in configs and name not in self.system_topics]
        deleted = vanished if is_whole else []
        for name in deleted:
            self._drop(name)
        for config in changed:
            self._drop(config.topic_name)
            self._insert(config)
        if changed or deleted or self.version != version:
            self.version = copy(version)
            self.note_change()
            for listener in self._listeners:
                listener(TopicChange(changed, deleted))
        return deleted

    @contextmanager
    def no_creation(self, topics: Sequence[str]) -> Iterator[None]:
        """Refuse to create these topics, so that what is deleted of them is not that of new ones."""
        self._being_deleted.update(topics)
        try:
            yield
        finally:
            self._being_deleted -= Counter(topics)

    def _drop(self, topic: str) -> TopicConfig | None:
        config = self.table.pop(topic, None)
        if config is not None:
            self._queue_count -= _count_queues(config)
            self.encoded.remove(topic)
            self.closed_to_producers.discard(topic)
        return config

    def _insert(self, config: TopicConfig) -> None:
        self._queue_count += _count_queues(config)
        self.table[config.topic_name] = config
        if self.is_closed_to_producers(config.topic_name):
            self.closed_to_producers.add(config.topic_name)
        self.encoded.put(config.topic_name, config)

    def mark_ordered(self, topics: Iterable[str]) -> None:
        """Set the order flag of the topics that a namesrv lists as ordered.

        Source: TopicConfigManager.updateOrderTopicConfig, 5.4.0.
        """
        changed = [
            self.table[topic] for topic in topics if topic in self.table and not self.table[topic].order
        ]
        for config in changed:
            config.order = True
        if changed:
            self._store_configs(changed)

    def set_auto_create(self, auto_create: bool, default_queues: int) -> None:
        """Set whether a send creates its topic. The default topic, from which it is copied, is added if it is missing.

        Deviation: the official broker adds the default topic at its start only.
        """
        self.auto_create = auto_create
        if auto_create and topic_names.DEFAULT_TOPIC not in self.table:
            self._store_configs([_default_topic(default_queues)])

    def begin_epoch(self, epoch: int) -> None:
        """Count the epoch of a master in the version: namesrvs ignore a former master with a lower one."""
        if self.version.state_version != epoch:
            self.version.state_version = epoch
            self._commit_change(TopicChange())

    def bump_version(self) -> None:
        """Count a change that no topic shows, such as the broker's permission, so that namesrvs are updated."""
        self._commit_change(TopicChange())

    def _store_configs(self, configs: Sequence[TopicConfig], undo: Callable[[], None] | None = None) -> None:
        latest = {config.topic_name: config for config in configs}
        for name in self._being_deleted:
            if name in latest:
                remark = f"the topic {name} is being deleted, try again"
                raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        # One by one: the difference of two dictionaries' keys takes as long as there are topics.
        new = sum(name not in self.table and name not in self.system_topics for name in latest)
        if new and len(self.table) + new > self.limits.max_topics:
            raise limit_error("maxTopics", self.limits.max_topics, "topics", "delete some")
        before = sum(_count_queues(self.table[name]) for name in latest if name in self.table)
        added = sum(map(_count_queues, latest.values())) - before
        if added > 0 and self._queue_count + added > self.limits.max_queues:
            raise limit_error("maxQueues", self.limits.max_queues, "queues of all topics", "delete topics")
        self._queue_count -= before
        for config in latest.values():
            self._insert(config)
            log.info("topic stored", extra={"topic": config.topic_name, "queues": config.write_queue_nums})
        self._commit_change(TopicChange(stored=configs), undo)

    def _commit_change(self, change: TopicChange, undo: Callable[[], None] | None = None) -> None:
        count_change(self.version, self._clock.now_ms())
        self.note_change(undo)
        for listener in self._listeners:
            listener(change)

    def encode_slices(self) -> Iterator[bytes]:
        """Yield the content of topics.json."""
        yield self.encoded.fill(TopicConfigSerializeWrapper(data_version=self.version), "topicConfigTable")


def _count_queues(config: TopicConfig) -> int:
    """Return the number of queues; the table of another broker may claim thousands of millions."""
    return min(max(config.read_queue_nums, config.write_queue_nums, 0), MAX_COUNTED_QUEUES)


def _parse_file(content: bytes) -> TopicConfigSerializeWrapper:
    """Parse topics.json. An entry that cannot be read is left out. Raises ValueError."""
    saved = load_table(content)
    topics = parse_entries("topics.json", saved.get("topicConfigTable"), _parse_topic)
    version = parse_version(saved.get("dataVersion"))
    return TopicConfigSerializeWrapper(topic_config_table=topics, data_version=version or DataVersion())


def _parse_topic(key: object, value: object) -> tuple[str, TopicConfig]:
    config = TopicConfig.from_value(value)
    config.topic_name = parse_name(key)
    config.read_queue_nums = min(config.read_queue_nums, MAX_COUNTED_QUEUES)
    config.write_queue_nums = min(config.write_queue_nums, MAX_COUNTED_QUEUES)
    return config.topic_name, config


def count_change(version: DataVersion, now_ms: int) -> None:
    """Count one change of a table. Source: DataVersion.nextVersion, 5.4.0."""
    version.timestamp = now_ms
    version.counter += 1
