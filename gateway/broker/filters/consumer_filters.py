"""SQL92 filters of consumer groups, stored in consumerFilter.json.

A heartbeat only records the expression. It is compiled by the first pull that needs it (`filter_cache.py`), so the
compiled filter of a group is in no table here. The language lives in `sql92/`, the list of connected clients in
`client_registry.py`.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from codec import fastjson
from codec.constants import ResponseCode
from codec.java_numbers import quoted, read_json_integer
from codec.message import stored_properties
from codec.properties import RETRY_TOPIC, find_property
from codec.topics import RETRY_PREFIX, group_of_retry_topic
from gateway.broker.filters.filter_cache import ExpressionTooLong, FilterCache, subscription_refusal
from gateway.broker.filters.message_filter import EVERYTHING, SQL92, MessageFilter, MessageTest, is_tag_type
from gateway.broker.filters.sql92 import SqlError
from gateway.config.limits import BrokerLimits
from gateway.runtime.config_file import ChangingTable, ConfigFile
from gateway.runtime.saved_tables import load_table, parse_entries, parse_name
from remoting.bodies.heartbeat import SubscriptionData
from remoting.errors import RequestError
from storage.clock import Clock

log = logging.getLogger(__name__)

DEAD_FILTER_RETENTION_MS: Final = 24 * 3600 * 1000
"""Time for which a filter outlives its group. Source: BrokerConfig.filterDataCleanTimeSpan."""
RESTORED_FILTER_AGE_MS: Final = 30 * 1000
"""A restored filter without a saved time of death counts as having died this long ago.

Source: ConsumerFilterManager.decode.
"""
ENCODED_PER_SLICE: Final = 64
"""Largest number of filters encoded for the file before other tasks get their turn: one takes about 20 us."""
_RETRY_TOPIC: Final = RETRY_TOPIC.encode()
_FILTER_BYTES: Final = 1024
"""Memory of a filter beside its names and its expression."""


class ConsumerFilter:
    """One group's filter in one topic. Source: ConsumerFilterData, 5.4.0.

    ``is_invalid`` is set when a pull found that the expression cannot be compiled; in the official broker such a filter
    does not exist. ``is_restored`` is set when the filter was read from the file: an invalid expression then lets every
    message pass, as in the official broker.
    """

    __slots__ = (
        "born_ms", "dead_ms", "expression", "group", "is_invalid", "is_restored", "topic", "version",
    )  # fmt: skip

    def __init__(self, topic: str, group: str, expression: str, version: int, born_ms: int) -> None:
        self.topic = topic
        self.group = group
        self.expression = expression
        self.version = version
        self.born_ms = born_ms
        self.dead_ms = 0
        self.is_invalid = False
        self.is_restored = False

    @property
    def is_dead(self) -> bool:
        """True when no member of the group subscribes with it any more."""
        return self.dead_ms >= self.born_ms

    @property
    def size_bytes(self) -> int:
        """Memory of the filter, and of its copy while it is encoded for the file."""
        return _FILTER_BYTES + 2 * (len(self.topic) + len(self.group) + len(self.expression))

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
    """Filters by topic and group. Source: ConsumerFilterManager, 5.4.0.

    Deviation: the table has a limit (``maxConsumerFilterBytes``). At the limit those dead longest make room for new
    ones; without dead ones a new filter is not recorded, and the pulls that need it are refused with the reason.
    """

    def __init__(self, file: ConfigFile, clock: Clock, cache: FilterCache, limits: BrokerLimits) -> None:
        super().__init__(file)
        self.limits = limits
        self._clock = clock
        self._cache = cache
        self.size_bytes = 0
        self._was_full = False
        self._by_topic: dict[str, dict[str, ConsumerFilter]] = {}
        self._by_group: dict[str, dict[str, ConsumerFilter]] = {}
        # Filters of groups that left, the one that is dead longest first.
        self._dead: OrderedDict[ConsumerFilter, None] = OrderedDict()
        for data in sorted(file.load(self._parse_file) or (), key=lambda data: data.dead_ms):
            self._add_filter(data)

    def __len__(self) -> int:
        return sum(map(len, self._by_topic.values()))

    # -- registering ----------------------------------------------------------------------------------------

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Store the filters of a heartbeat. The group's filters in other topics become dead.

        An expression that cannot be used registers nothing, and pulls get the refusal that the official broker sends.
        """
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                self._register_filter(group, subscription)
        for data in self.of_group(group):
            if data.topic not in topics:
                self._mark_dead(data)

    def _register_filter(self, group: str, subscription: SubscriptionData) -> None:
        topic, version = subscription.topic, subscription.sub_version
        old = self.get(topic, group)
        if old is None or (version > old.version and not old.matches_subscription(subscription)):
            self._replace_filter(group, subscription)
        elif version > old.version or (version == old.version and old.is_dead):
            old.version, old.dead_ms = version, 0
            self._dead.pop(old, None)
            self._dirty = True

    def _replace_filter(self, group: str, subscription: SubscriptionData) -> None:
        """Register a new expression, or remove the old one when the new one cannot be used."""
        topic, now_ms = subscription.topic, self._clock.now_ms()
        data = ConsumerFilter(topic, group, subscription.sub_string, subscription.sub_version, now_ms)
        self._remove_filter(topic, group)
        reason = self._reason_not_to_store(data, subscription)
        if reason:
            log.error(
                "consumer filter not registered", extra={"group": group, "topic": topic, "reason": reason}
            )
            return
        if not self._make_room(data.size_bytes):
            return
        self._add_filter(data)
        self._dirty = True
        log.info("consumer filter registered", extra={"group": group, "topic": topic})

    def _reason_not_to_store(self, data: ConsumerFilter, subscription: SubscriptionData) -> str:
        if subscription.expression_type != SQL92:
            return "unknown expression type"
        try:
            self._cache.check_size(data.expression)
        except ExpressionTooLong as error:
            return str(error)
        return ""

    def _make_room(self, size_bytes: int) -> bool:
        """Remove dead filters until there is room; return False when there is none."""
        max_bytes = self.limits.max_consumer_filter_bytes - size_bytes
        while self._dead and self.size_bytes > max_bytes:
            oldest = next(iter(self._dead))
            self._remove_filter(oldest.topic, oldest.group)
        has_room = self.size_bytes <= max_bytes
        if not has_room and not self._was_full:
            log.error("consumer filters are not registered", extra={"reason": self._full_remark()})
        self._was_full = not has_room
        return has_room

    def _full_remark(self) -> str:
        limit = self.limits.max_consumer_filter_bytes
        return (
            f"the table of filters is full (maxConsumerFilterBytes={limit}): raise it, or stop unused groups"
        )

    def _add_filter(self, data: ConsumerFilter) -> None:
        self._by_topic.setdefault(data.topic, {})[data.group] = data
        self._by_group.setdefault(data.group, {})[data.topic] = data
        self.size_bytes += data.size_bytes
        if data.is_dead:
            self._dead[data] = None

    def _remove_filter(self, topic: str, group: str) -> None:
        data = self.get(topic, group)
        if data is None:
            return
        for table, key, inner in ((self._by_topic, topic, group), (self._by_group, group, topic)):
            del table[key][inner]
            if not table[key]:
                del table[key]
        self.size_bytes -= data.size_bytes
        self._dead.pop(data, None)
        self._dirty = True

    def unregister(self, group: str) -> None:
        """Mark the filters of a group as dead after its last member left."""
        for data in self.of_group(group):
            self._mark_dead(data)

    def _mark_dead(self, data: ConsumerFilter) -> None:
        if not data.is_dead:
            data.dead_ms = self._clock.now_ms()
            self._dead[data] = None
            self._dirty = True

    def merge(self, content: bytes) -> None:
        """Add the newer filters of this broker's master, from its consumerFilter.json. Raises ValueError.

        Consumers also send their filters to a slave: those of connected groups stay.
        """
        for data in self._parse_file(content):
            old = self.get(data.topic, data.group)
            if old is not None and (not old.is_dead or data.version <= old.version):
                continue
            self._remove_filter(data.topic, data.group)
            if self._make_room(data.size_bytes):
                self._add_filter(data)
                self._dirty = True

    # -- reading --------------------------------------------------------------------------------------------

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return the filter of a group in a topic."""
        groups = self._by_topic.get(topic)
        return None if groups is None else groups.get(group)

    def of_group(self, group: str) -> list[ConsumerFilter]:
        """Return all filters of a group."""
        return list(self._by_group.get(group, {}).values())

    def require_latest(self, topic: str, group: str, version: int) -> ConsumerFilter:
        """Return the filter of a group whose version is at least that of its subscription. Raises RequestError.

        Source: PullMessageProcessor.processRequest, 5.4.0.
        """
        data = self.get(topic, group)
        if data is None or data.is_invalid:
            raise self._not_exist(data)
        if data.version < version:
            remark = "the consumer's consumer filter data not latest"
            raise RequestError(ResponseCode.FILTER_DATA_NOT_LATEST, remark)
        return data

    def _not_exist(self, data: ConsumerFilter | None) -> RequestError:
        remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
        if data is None and self._was_full:
            remark += f" Or {self._full_remark()}"
        return RequestError(ResponseCode.FILTER_DATA_NOT_EXIST, remark)

    def message_filter(self, data: ConsumerFilter, *, retried: bool) -> MessageFilter:
        """Return the compiled filter. Raises RequestError for an invalid expression.

        With ``retried``, messages of a retry topic pass the filter of the topic that they were first sent to.
        Source: ExpressionForRetryMessageFilter, 5.4.0.
        """
        if retried and data.topic.startswith(RETRY_PREFIX):
            return MessageFilter(message=self._retried_message_test(group_of_retry_topic(data.topic)))
        compiled = self._compile(data)
        if compiled is None:
            raise self._not_exist(data)
        return compiled

    def _compile(self, data: ConsumerFilter) -> MessageFilter | None:
        """Return the filter of an expression; None for an invalid one. Raises RequestError for one that is too long,
        which can happen after the limit was lowered.
        """
        try:
            return self._cache.sql_filter(SQL92, data.expression)
        except ExpressionTooLong as error:
            raise subscription_refusal(error) from error
        except SqlError as error:
            if data.is_restored:
                return EVERYTHING
            if not data.is_invalid:
                data.is_invalid = True
                self._dirty = True
                extra = {"group": data.group, "topic": data.topic, "reason": str(error)}
                log.error("subscription expression is invalid", extra=extra)
            return None

    def _retried_message_test(self, group: str) -> MessageTest:
        def matches(message: memoryview) -> bool:
            topic = find_property(stored_properties(message), _RETRY_TOPIC)
            data = None if topic is None else self.get(str(topic, "utf-8", "replace"), group)
            compiled = None if data is None else self._compile(data)
            return compiled is None or compiled.message is None or compiled.message(message)

        return matches

    # -- the file -------------------------------------------------------------------------------------------

    def _parse_file(self, content: bytes) -> list[ConsumerFilter]:
        """Parse the saved filters, which all count as dead until their groups connect again.

        A filter that cannot be read is left out. Raises ValueError.
        """
        saved = load_table(content)
        if "filterDataByTopic" not in saved:
            raise ValueError("no table of filters")
        by_topic = parse_entries("consumerFilter.json", saved["filterDataByTopic"], self._parse_topic)
        return [data for filters in by_topic.values() for data in filters]

    def _parse_topic(self, key: object, value: dict[str, Any]) -> tuple[str, list[ConsumerFilter]]:
        topic = parse_name(key)

        def parse_filter(group: object, saved: dict[str, Any]) -> tuple[object, ConsumerFilter]:
            return group, self._restore_filter(topic, saved)

        filters = parse_entries(f"filters of {quoted(topic)}", value["groupFilterData"], parse_filter)
        return topic, list(filters.values())

    def _restore_filter(self, topic: str, saved: dict[str, Any]) -> ConsumerFilter:
        now_ms = self._clock.now_ms()
        version, born_ms = read_json_integer(saved["clientVersion"]), read_json_integer(saved["bornTime"])
        group, expression = parse_name(saved["consumerGroup"]), parse_name(saved["expression"])
        data = ConsumerFilter(topic, group, expression, version, min(born_ms, now_ms))
        dead_ms = read_json_integer(saved["deadTime"]) or now_ms - RESTORED_FILTER_AGE_MS
        data.dead_ms = min(max(dead_ms, data.born_ms), now_ms)
        data.is_restored = True
        return data

    def prepare_save(self) -> None:
        """Remove filters whose groups left more than `DEAD_FILTER_RETENTION_MS` ago."""
        oldest_ms = self._clock.now_ms() - DEAD_FILTER_RETENTION_MS
        while self._dead and (data := next(iter(self._dead))).dead_ms <= oldest_ms:
            self._remove_filter(data.topic, data.group)

    def encode_slices(self) -> Iterator[bytes]:
        """Yield the content of consumerFilter.json, without filters that are known to be invalid."""
        parts, opening = [b'{"filterDataByTopic":{'], b""
        for topic in list(self._by_topic):
            filters = [data for data in self._by_topic.get(topic, {}).values() if not data.is_invalid]
            if not filters:
                continue
            name = fastjson.dumps(topic)
            parts.append(b'%b%b:{"groupFilterData":{' % (opening, name))
            for number, data in enumerate(filters):
                parts.append(b"," * (number > 0) + fastjson.dumps({data.group: data.to_value()})[1:-1])
                if len(parts) >= ENCODED_PER_SLICE:
                    yield b"".join(parts)
                    parts = []
            parts.append(b'},"topic":%b}' % name)
            opening = b","
        parts.append(b"}}")
        yield b"".join(parts)


# -- Bloom filter bits ------------------------------------------------------------------------------------------
#
# The file records bits for each filter. This broker never tests them, but an official broker drops the whole file
# unless the bits are the ones it would compute. Source: BloomFilter and BloomFilterData, 5.4.0, with
# expectConsumerNumUseFilter 32 and maxErrorRateOfBloomFilter 20.

BITS: Final = 112
HASHES: Final = 3

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
Pair = tuple[int, int]


def bit_positions(name: str) -> list[int]:
    """Return the positions of the bits for a filter's name, ``group#topic``."""
    hashed = murmur3(name.encode("utf-8", "replace"))
    low, high = hashed & 0xFFFFFFFF, hashed >> 32
    positions = []
    for number in range(1, HASHES + 1):
        combined = (low + number * high) & 0xFFFFFFFF
        positions.append((combined ^ 0xFFFFFFFF if combined >> 31 else combined) % BITS)
    return positions


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of MurmurHash3 x64 128 with seed 0, unsigned."""
    h1 = h2 = 0
    whole = len(data) - len(data) % 16
    for start in range(0, whole, 16):
        left, right = _split_block(data[start : start + 16])
        h1 = ((_rotate_left(h1 ^ _mix_first_word(left), 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 = ((_rotate_left(h2 ^ _mix_second_word(right), 31) + h1) * 5 + 0x38495AB5) & _MASK
    left, right = _split_block(data[whole:])
    h1, h2 = h1 ^ _mix_first_word(left) ^ len(data), h2 ^ _mix_second_word(right) ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_final_mix(h1) + _final_mix(h2)) & _MASK


def _split_block(block: bytes) -> Pair:
    return int.from_bytes(block[:8], "little"), int.from_bytes(block[8:], "little")


def _rotate_left(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _mix_first_word(word: int) -> int:
    return _rotate_left(word * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_second_word(word: int) -> int:
    return _rotate_left(word * _C2 & _MASK, 33) * _C1 & _MASK


def _final_mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
