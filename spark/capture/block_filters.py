"""Translate Spark's filters to a filter of capture blocks, so that blocks that cannot match are skipped.

Spark applies every filter again to each row. So the translation need not be exact, but it must never be too narrow.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from spark.capture.options import CaptureFilter

_TIME: Final = ("time",)
_NOTHING_MS: Final = 1 << 62


def combine_filters(filters: Iterable[Any]) -> CaptureFilter:
    """Return what a row must satisfy to pass all these filters (objects of pyspark.sql.datasource)."""
    found = CaptureFilter()
    for each in filters:
        found = found.intersect_with(_translate_filter(each))
    return found


def _translate_filter(each: Any) -> CaptureFilter:
    kind = type(each).__name__
    if each.attribute == _TIME if hasattr(each, "attribute") else False:
        return _translate_time(kind, each)
    values = _equal_values(kind, each)
    if values is None:
        return CaptureFilter()
    if each.attribute == ("topic",):
        return CaptureFilter(topics=frozenset(value for value in values if isinstance(value, str)))
    if each.attribute == ("code",):
        return CaptureFilter(codes=frozenset(value for value in values if isinstance(value, int)))
    return CaptureFilter()


def _equal_values(kind: str, each: Any) -> tuple[Any, ...] | None:
    if kind in ("EqualTo", "EqualNullSafe"):
        return None if each.value is None else (each.value,)
    return tuple(each.value) if kind == "In" else None


def _translate_time(kind: str, each: Any) -> CaptureFilter:
    """Translate a filter on time. Records have whole ms, so bounds in between are widened."""
    if kind == "In":
        times = [_floor_ms(value) for value in each.value if isinstance(value, datetime)]
        return CaptureFilter(min(times), max(times) + 1) if times else CaptureFilter(_NOTHING_MS)
    if not hasattr(each, "value") or not isinstance(each.value, datetime):
        return CaptureFilter()
    at_ms = _floor_ms(each.value)
    if kind in ("EqualTo", "EqualNullSafe"):
        return CaptureFilter(at_ms, at_ms + 1)
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return CaptureFilter(from_ms=at_ms)
    return CaptureFilter(until_ms=at_ms + 1) if kind in ("LessThan", "LessThanOrEqual") else CaptureFilter()


def _floor_ms(moment: datetime) -> int:
    """Round down to ms. Spark passes times in UTC."""
    known = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (known - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND


_MILLISECOND: Final = datetime(1970, 1, 1, 0, 0, 0, 1000) - datetime(1970, 1, 1)
