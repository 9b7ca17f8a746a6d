"""SQL92 filters of consumer groups, stored in consumerFilter.json.

The language lives in `sql92/`, the list of connected clients in `client_registry.py`.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from codec import fastjson
from codec.constants import ResponseCode
from codec.message import stored_properties
from codec.properties import RETRY_TOPIC, find_property
from codec.topics import RETRY_PREFIX, group_of_retry_topic
from gateway.broker.bloom_filter_bits import BITS, bit_positions
from gateway.broker.message_filter import SQL92, MessageFilter, MessageTest, is_tag_type
from gateway.broker.sql92 import SqlError, compile_sql
from gateway.runtime.config_file import ChangingTable, ConfigFile
from remoting.bodies.heartbeat import SubscriptionData
from remoting.errors import RequestError
from storage.clock import Clock

if TYPE_CHECKING:
    from gateway.broker.sql92 import SqlFilter

log = logging.getLogger(__name__)

DEAD_FILTER_RETENTION_MS: Final = 24 * 3600 * 1000
"""Time for which a filter outlives its group. Source: BrokerConfig.filterDataCleanTimeSpan."""
RESTORED_FILTER_AGE_MS: Final = 30 * 1000
"""A restored filter without a saved time of death counts as having died this long ago.

Source: ConsumerFilterManager.decode.
"""
_RETRY_TOPIC: Final = RETRY_TOPIC.encode()


class ConsumerFilter:
    """One group's filter in one topic. Source: ConsumerFilterData, 5.4.0.

    ``compiled`` is None only for a saved expression that this broker cannot parse; such a filter lets everything pass.
    """

    __slots__ = ("born_ms", "compiled", "dead_ms", "expression", "group", "topic", "version")

    def __init__(self, topic: str, group: str, expression: str, version: int, born_ms: int) -> None:
        self.topic = topic
        self.group = group
        self.expression = expression
        self.version = version
        self.born_ms = born_ms
        self.dead_ms = 0
        self.compiled: SqlFilter | None = None

    @property
    def is_dead(self) -> bool:
        """True when no member of the group subscribes with it any more."""
        return self.dead_ms >= self.born_ms

    def matches_subscription(self, subscription: SubscriptionData) -> bool:
        """Tell whether a subscription has the same expression."""
        return (subscription.expression_type, subscription.sub_string) == (SQL92, self.expression)

    def to_value(self) -> dict[str, Any]:
        """Return the filter's object in consumerFilter.json."""
        bits = {"bitNum": BITS, "bitPos": bit_positions(f"{self.group}#{self.topic}")}
        return {
            "bloomFilterData": bits,
            "bornTime": self.born_ms,
            "clientVersion": self.version,
            "consumerGroup": self.group,
            "dead": self.is_dead,
            "deadTime": self.dead_ms,
            "expression": self.expression,
            "expressionType": SQL92,
            "topic": self.topic,
        }


class ConsumerFilterTable(ChangingTable):
    """Filters by topic and group. Source: ConsumerFilterManager, 5.4.0."""

    def __init__(self, file: ConfigFile, clock: Clock) -> None:
        super().__init__(file)
        self._clock = clock
        self.table: dict[str, dict[str, ConsumerFilter]] = file.load(self._parse_file) or {}

    # -- registering ----------------------------------------------------------------------------------------

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Store the filters of a heartbeat. The group's filters in other topics become dead.

        An expression that cannot be parsed registers nothing, and pulls get the refusal that the official broker sends.
        """
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                self._register_one(group, subscription)
        for data in self.of_group(group):
            if data.topic not in topics:
                self._mark_dead(data)

    def _register_one(self, group: str, subscription: SubscriptionData) -> None:
        topic, version = subscription.topic, subscription.sub_version
        old = self.get(topic, group)
        if old is None or (version > old.version and not old.matches_subscription(subscription)):
            self._replace_filter(group, subscription)
        elif version > old.version or (version == old.version and old.is_dead):
            old.version, old.dead_ms = version, 0
            self._dirty = True

    def _replace_filter(self, group: str, subscription: SubscriptionData) -> None:
        """Register a new expression, or remove the old one when the new one is invalid."""
        topic, now_ms = subscription.topic, self._clock.now_ms()
        data = ConsumerFilter(topic, group, subscription.sub_string, subscription.sub_version, now_ms)
        try:
            if subscription.expression_type != SQL92:
                raise SqlError("unknown expression type")
            data.compiled = compile_sql(data.expression)
        except SqlError as error:
            extra = {"group": group, "topic": topic, "reason": str(error)}
            log.error("subscription expression is invalid", extra=extra)
            self._remove_filter(topic, group)
            return
        self.table.setdefault(topic, {})[group] = data
        self._dirty = True
        log.info("consumer filter registered", extra={"group": group, "topic": topic})

    def _remove_filter(self, topic: str, group: str) -> None:
        groups = self.table.get(topic, {})
        if groups.pop(group, None) is not None:
            self._dirty = True
            if not groups:
                del self.table[topic]

    def unregister(self, group: str) -> None:
        """Mark the filters of a group as dead after its last member left."""
        for data in self.of_group(group):
            self._mark_dead(data)

    def _mark_dead(self, data: ConsumerFilter) -> None:
        if not data.is_dead:
            data.dead_ms = self._clock.now_ms()
            self._dirty = True

    # -- reading --------------------------------------------------------------------------------------------

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return the filter of a group in a topic."""
        groups = self.table.get(topic)
        return None if groups is None else groups.get(group)

    def of_group(self, group: str) -> list[ConsumerFilter]:
        """Return all filters of a group."""
        return [groups[group] for groups in self.table.values() if group in groups]

    def message_filter(self, topic: str, group: str, version: int, *, retried: bool) -> MessageFilter:
        """Return the filter of a group whose version is at least that of its subscription. Raises RequestError.

        With ``retried``, the filter of the topic they were first sent to is applied to messages of retry topics.
        Source: PullMessageProcessor.processRequest, ExpressionForRetryMessageFilter, 5.4.0.
        """
        data = self.get(topic, group)
        if data is None:
            remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
            raise RequestError(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
        if data.version < version:
            remark = "the consumer's consumer filter data not latest"
            raise RequestError(ResponseCode.FILTER_DATA_NOT_LATEST, remark)
        if retried and topic.startswith(RETRY_PREFIX):
            return MessageFilter(None, self._retried_message_test(group_of_retry_topic(topic)))
        return MessageFilter(None, None) if data.compiled is None else MessageFilter.from_sql(data.compiled)

    def _retried_message_test(self, group: str) -> MessageTest:
        def matches(message: memoryview) -> bool:
            properties = stored_properties(message)
            topic = find_property(properties, _RETRY_TOPIC)
            data = None if topic is None else self.get(str(topic, "utf-8", "replace"), group)
            if data is None or data.compiled is None:
                return True
            return data.compiled.matches(properties)

        return matches

    # -- the file -------------------------------------------------------------------------------------------

    def _parse_file(self, content: bytes) -> dict[str, dict[str, ConsumerFilter]]:
        """Parse the saved filters, which all count as dead until their groups connect again."""
        table: dict[str, dict[str, ConsumerFilter]] = {}
        try:
            for topic, of_topic in fastjson.loads(content)["filterDataByTopic"].items():
                saved = of_topic["groupFilterData"].values()
                table[topic] = {each["consumerGroup"]: self._restore_filter(topic, each) for each in saved}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no table of filters: {error!r}") from error
        return table

    def _restore_filter(self, topic: str, saved: dict[str, Any]) -> ConsumerFilter:
        version, born_ms = int(saved["clientVersion"]), int(saved["bornTime"])
        data = ConsumerFilter(topic, saved["consumerGroup"], saved["expression"], version, born_ms)
        data.dead_ms = int(saved["deadTime"]) or max(self._clock.now_ms() - RESTORED_FILTER_AGE_MS, born_ms)
        try:
            data.compiled = compile_sql(data.expression)
        except SqlError as error:
            log.error("saved consumer filter is invalid", extra={"topic": topic, "reason": str(error)})
        return data

    def prepare_save(self) -> None:
        """Remove filters whose groups left more than `DEAD_FILTER_RETENTION_MS` ago."""
        oldest_ms = self._clock.now_ms() - DEAD_FILTER_RETENTION_MS
        groups = [data for of_topic in self.table.values() for data in of_topic.values()]
        for data in groups:
            if data.is_dead and data.dead_ms <= oldest_ms:
                self._remove_filter(data.topic, data.group)

    def to_json(self) -> bytes:
        """Return the content of consumerFilter.json."""
        table = {
            topic: {
                "groupFilterData": {group: data.to_value() for group, data in groups.items()},
                "topic": topic,
            }
            for topic, groups in self.table.items()
        }
        return fastjson.dumps({"filterDataByTopic": table})
