"""Spark's filters as what is wanted of capture files: blocks that cannot have it are skipped.

Every filter is handed back to Spark as well, which looks at each row: here it need not be exact, only never too narrow.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from spark.capture.options import Wanted

_TIME: Final = ("time",)
_NOTHING_MS: Final = 1 << 62


def narrowing(filters: Iterable[Any]) -> Wanted:
    """What a row must at least be so that it passes all these filters (objects of pyspark.sql.datasource)."""
    found = Wanted()
    for each in filters:
        found = found.narrowed(_one(each))
    return found


def _one(each: Any) -> Wanted:
    kind = type(each).__name__
    if each.attribute == _TIME if hasattr(each, "attribute") else False:
        return _of_time(kind, each)
    values = _values(kind, each)
    if values is None:
        return Wanted()
    if each.attribute == ("topic",):
        return Wanted(topics=frozenset(value for value in values if isinstance(value, str)))
    if each.attribute == ("code",):
        return Wanted(codes=frozenset(value for value in values if isinstance(value, int)))
    return Wanted()


def _values(kind: str, each: Any) -> tuple[Any, ...] | None:
    if kind in ("EqualTo", "EqualNullSafe"):
        return None if each.value is None else (each.value,)
    return tuple(each.value) if kind == "In" else None


def _of_time(kind: str, each: Any) -> Wanted:
    """Times of records are whole ms; a bound in between is widened."""
    if kind == "In":
        times = [_ms(value) for value in each.value if isinstance(value, datetime)]
        return Wanted(min(times), max(times) + 1) if times else Wanted(_NOTHING_MS)
    if not hasattr(each, "value") or not isinstance(each.value, datetime):
        return Wanted()
    at_ms = _ms(each.value)
    if kind in ("EqualTo", "EqualNullSafe"):
        return Wanted(at_ms, at_ms + 1)
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return Wanted(from_ms=at_ms)
    return Wanted(until_ms=at_ms + 1) if kind in ("LessThan", "LessThanOrEqual") else Wanted()


def _ms(moment: datetime) -> int:
    """Rounded down. Spark hands over times in UTC."""
    known = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (known - datetime(1970, 1, 1, tzinfo=UTC)) // _MS


_MS: Final = datetime(1970, 1, 1, 0, 0, 0, 1000) - datetime(1970, 1, 1)
