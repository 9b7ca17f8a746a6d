"""Spark's filters on a batch, translated to bounds on queues, offsets and times.

A filter is either handled completely, so that Spark does not apply it again, or left to Spark, even if it narrowed the
bounds.
"""

import datetime
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from spark.cluster import Queue

_ROLES: Final = {
    "rocketmq": {
        "topic": "topic",
        "brokerName": "broker",
        "queueId": "queue_id",
        "queueOffset": "offset",
        "storeTimestamp": "time",
        "tags": "tags",
    },
    "kafka": {"topic": "topic", "partition": "queue_id", "offset": "offset", "timestamp": "time"},
}
_UNBOUNDED: Final = (1 << 63) - 1
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(slots=True)
class Interval:
    """Half-open interval of whole numbers."""

    low: int = 0
    high: int = _UNBOUNDED

    def narrow_to(self, low: int, high: int) -> None:
        """Intersect with [low, high)."""
        self.low, self.high = max(self.low, low), min(self.high, high)


@dataclass(slots=True)
class PushedFilters:
    """Restrictions collected from filters. None means no restriction; times are in ms since 1970."""

    schema: str = "rocketmq"
    names: dict[str, set[Any]] = field(default_factory=dict)
    queue_ids: Interval = field(default_factory=Interval)
    offsets: Interval = field(default_factory=Interval)
    times_ms: Interval = field(default_factory=Interval)
    tags: tuple[str, ...] | None = None

    def apply_filter(self, condition: Filter) -> bool:
        """Narrow the restrictions by a filter; return whether that handles it completely."""
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        role = _ROLES[self.schema].get(attribute[0]) if len(attribute) == 1 else None
        if role is None:
            return False
        if isinstance(condition, IsNotNull):
            return role != "tags"  # all other columns are never null
        if role == "tags":
            self._apply_tags(condition)
            return False
        if role == "time":
            self._apply_time(condition)
            return False  # a broker's clock may step back, so Spark filters the messages again
        return (
            self._apply_text(condition, role)
            if role in ("topic", "broker")
            else self._apply_number(condition, role)
        )

    def includes_queue(self, queue: Queue) -> bool:
        """Tell whether any message of a queue may pass the filters."""
        attributes = {"topic": queue.topic, "broker": queue.broker, "queue_id": queue.queue_id}
        names_match = all(attributes[role] in allowed for role, allowed in self.names.items())
        return names_match and self.queue_ids.low <= queue.queue_id < self.queue_ids.high

    def tag_expression(self) -> str | None:
        """Return the tags as a filter expression for the broker, or None without a restriction."""
        return None if self.tags is None else " || ".join(self.tags)

    def _apply_text(self, condition: Filter, role: str) -> bool:
        values = _equal_values(condition)
        if values is None or not all(isinstance(value, str) for value in values):
            return False
        self._restrict_names(role, values)
        return True

    def _restrict_names(self, role: str, values: list[Any]) -> None:
        self.names[role] = self.names.get(role, set(values)) & set(values)

    def _apply_number(self, condition: Filter, role: str) -> bool:
        interval = self.queue_ids if role == "queue_id" else self.offsets
        values = _equal_values(condition)
        if values is not None and all(_is_number(value) for value in values):
            interval.narrow_to(min(values, default=0), max(values, default=-1) + 1)
            if role == "queue_id":
                self._restrict_names(role, values)
            return role == "queue_id" or len(values) == 1
        value = getattr(condition, "value", None)
        bounds = (
            _interval_bounds(condition, value, value)
            if isinstance(value, int) and _is_number(value)
            else None
        )
        if bounds is not None:
            interval.narrow_to(*bounds)
        return bounds is not None

    def _apply_time(self, condition: Filter) -> None:
        value = getattr(condition, "value", None)
        if not isinstance(value, datetime.datetime) or value.tzinfo is None:
            return
        micros = (value - _EPOCH) // datetime.timedelta(microseconds=1)
        floor, ceiling = micros // 1000, -(-micros // 1000)
        if isinstance(condition, EqualTo | EqualNullSafe):
            self.times_ms.narrow_to(ceiling, floor + 1)
        elif (bounds := _interval_bounds(condition, floor, ceiling)) is not None:
            self.times_ms.narrow_to(*bounds)

    def _apply_tags(self, condition: Filter) -> None:
        values = _equal_values(condition)
        if values and all(_is_tag(value) for value in values):
            before = self.tags or tuple(values)
            self.tags = tuple(tag for tag in before if tag in values) or self.tags


def _equal_values(condition: Filter) -> list[Any] | None:
    """Return the values one of which the column must equal, or None for another kind of filter."""
    if isinstance(condition, EqualTo | EqualNullSafe):
        return [condition.value]
    return list(condition.value) if isinstance(condition, In) else None


def _interval_bounds(condition: Filter, floor: int, ceiling: int) -> tuple[int, int] | None:
    """Return the whole numbers that pass a comparison with a value between `floor` and `ceiling`."""
    if isinstance(condition, GreaterThan):
        return floor + 1, _UNBOUNDED
    if isinstance(condition, GreaterThanOrEqual):
        return ceiling, _UNBOUNDED
    if isinstance(condition, LessThan):
        return 0, ceiling
    return (0, floor + 1) if isinstance(condition, LessThanOrEqual) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_tag(value: Any) -> bool:
    return (
        isinstance(value, str)
        and value != "*"
        and bool(value)
        and value.strip() == value
        and "|" not in value
    )
