"""Compiled filters of subscriptions, within a limit of bytes.

Problem: a filter takes up to a hundred times the memory of its expression, clients choose the expressions, and waiting
requests need their filters for minutes.

1. Filters are compiled when a request first needs them, never by heartbeats.
2. A filter, and also the refusal of an expression, is kept with an estimate of its memory. Above the limit those not
   used lately are dropped, and compiled again when they are needed again.
3. A waiting request holds its filter (`hold`), which is then not dropped. When held filters fill the cache, `hold`
   returns False and the request must not wait.

Invariant: all filters that outlive a request are in the cache, so their memory is within ``maxFilterCacheBytes``.
"""

import sys
from collections import OrderedDict
from typing import Final

from codec.constants import ResponseCode
from codec.hashing import tags_code
from gateway.broker.filters.message_filter import (
    EVERYTHING,
    SQL92,
    SUBSCRIBE_ALL,
    FilterKey,
    MessageFilter,
    split_tags,
)
from gateway.broker.filters.sql92 import SqlError, compile_sql
from gateway.config.limits import BrokerLimits
from remoting.bodies.heartbeat import SubscriptionData
from remoting.errors import RequestError

PARSE_FAILED: Final = "parse the consumer's subscription failed"
_TAGS: Final = ""
# Bytes of a filter, its entry and its key beside the expression, and of one hash code.
_ENTRY_BYTES: Final = 1024
_CODE_BYTES: Final = 32


class ExpressionTooLong(ValueError):
    """An expression with more bytes than ``maxFilterExpressionBytes``."""


class _Entry:
    """A filter, or the refusal of its expression.

    ``holders`` counts the waiting requests that need it. ``was_used`` is set by each use but the first, and cleared
    instead of dropping the entry once. Marking a use is much faster than moving the entry to the end of a list.
    """

    __slots__ = ("filter", "holders", "refusal", "size_bytes", "was_used")

    def __init__(self, message_filter: MessageFilter | None, refusal: str, size_bytes: int) -> None:
        self.filter = message_filter
        self.refusal = refusal
        self.size_bytes = size_bytes
        self.holders = 0
        self.was_used = False


class FilterCache:
    """Compiles filters on first use and keeps them within ``maxFilterCacheBytes``."""

    def __init__(self, limits: BrokerLimits) -> None:
        self.limits = limits
        self._entries: dict[str, dict[str, _Entry]] = {_TAGS: {}, SQL92: {}}
        # The entries that may be dropped, the next one first.
        self._idle: OrderedDict[FilterKey, _Entry] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    # -- finding ---------------------------------------------------------------------------------------------

    def tag_filter(self, expression: str | None) -> MessageFilter:
        """Return the filter of a list of tags. Raises ValueError for one without a tag, such as ``||``."""
        if not expression or expression == SUBSCRIBE_ALL:
            return EVERYTHING
        entry = self._find_or_add_entry((_TAGS, expression))
        if entry.filter is None:
            raise ValueError(entry.refusal)
        return entry.filter

    def sql_filter(self, expression_type: str | None, expression: str | None) -> MessageFilter:
        """Return the filter of an expression of another type than tags. Raises SqlError, ExpressionTooLong."""
        if expression_type != SQL92:
            raise SqlError(f"The broker does not support consumer to filter message by {expression_type}")
        if not expression:
            raise SqlError(f"Expression can't be null! {expression_type}")
        entry = self._find_or_add_entry((SQL92, expression))
        if entry.filter is None:
            raise SqlError(entry.refusal)
        return entry.filter

    def check_size(self, expression: str | None) -> None:
        """Raise ExpressionTooLong for an expression that has too many bytes."""
        limit = self.limits.max_expression_bytes
        if expression is None or 4 * len(expression) <= limit:
            return
        size = len(expression.encode("utf-8", "surrogatepass"))
        if size > limit:
            raise ExpressionTooLong(
                f"the expression has {size} bytes, more than maxFilterExpressionBytes ({limit}): shorten it or raise "
                "the limit"
            )

    def check_subscription(self, subscription: SubscriptionData) -> None:
        """Raise ExpressionTooLong for a subscription that a heartbeat must not bring: the group's table holds the
        expression, its tags and their hash codes.
        """
        self.check_size(subscription.sub_string)
        tags, codes, limit = subscription.tags_set, subscription.code_set, self.limits.max_expression_bytes
        if sum(map(len, tags)) + len(tags) > limit or len(codes) > limit:
            raise ExpressionTooLong(f"tagsSet or codeSet has more than maxFilterExpressionBytes ({limit})")

    def _find_or_add_entry(self, key: FilterKey) -> _Entry:
        kind, expression = key
        entry = self._entries[kind].get(expression)
        if entry is None:
            return self._add_entry(key)
        entry.was_used = True
        return entry

    def _add_entry(self, key: FilterKey) -> _Entry:
        """Compile an expression, and keep the result if it fits beside the held ones."""
        entry = self._compile(key)
        max_bytes = self.limits.max_filter_cache_bytes - entry.size_bytes
        if max_bytes >= 0:
            self._drop_idle(max_bytes)
        if self.size_bytes <= max_bytes:
            kind, expression = key
            self._entries[kind][expression] = self._idle[key] = entry
            self.size_bytes += entry.size_bytes
        return entry

    def _drop_idle(self, max_bytes: int) -> None:
        while self.size_bytes > max_bytes and self._idle:
            key, entry = self._idle.popitem(last=False)
            if entry.was_used:
                entry.was_used = False
                self._idle[key] = entry
                continue
            kind, expression = key
            del self._entries[kind][expression]
            self.size_bytes -= entry.size_bytes

    def _compile(self, key: FilterKey) -> _Entry:
        kind, expression = key
        self.check_size(expression)
        size = _ENTRY_BYTES + sys.getsizeof(expression)
        if kind == _TAGS:
            codes = frozenset(map(tags_code, split_tags(expression)))
            if not codes:
                return _Entry(None, "subscription expression without a tag", size)
            size += sys.getsizeof(codes) + len(codes) * _CODE_BYTES
            return _Entry(MessageFilter(tag_codes=codes, key=key), "", size)
        try:
            compiled = compile_sql(expression)
        except SqlError as error:
            return _Entry(None, str(error), size + sys.getsizeof(str(error)))
        return _Entry(MessageFilter.from_sql(compiled, key), "", size + compiled.size_bytes)

    # -- holding ---------------------------------------------------------------------------------------------

    def hold(self, message_filter: MessageFilter) -> bool:
        """Keep a filter until `release`; return False when the cache has no room for it.

        A filter that belongs to no cache takes no room.
        """
        key = message_filter.key
        if key is None:
            return True
        kind, expression = key
        entry = self._entries[kind].get(expression)
        if entry is None or entry.filter is not message_filter:
            return False
        if not entry.holders:
            del self._idle[key]
        entry.holders += 1
        return True

    def release(self, message_filter: MessageFilter) -> None:
        """End a successful `hold`."""
        key = message_filter.key
        if key is None:
            return
        kind, expression = key
        entry = self._entries[kind][expression]
        entry.holders -= 1
        if not entry.holders:
            self._idle[key] = entry


def subscription_refusal(error: ValueError, *, explained: bool = False) -> RequestError:
    """Return the refusal of a pull or pop with an invalid expression. It names a limit that was exceeded.

    If ``explained``, it says what is wrong, which the official remark does not: for requests that the official broker
    does not refuse.
    """
    explained = explained or isinstance(error, ExpressionTooLong)
    remark = f"{PARSE_FAILED}: {error}" if explained else PARSE_FAILED
    return RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
