"""Times on command lines and in tables: ms since 1970, ISO 8601 and durations before now."""

import re
from datetime import UTC, datetime
from math import floor
from typing import Final

_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
MAX_TIME_MS: Final = 2**53
"""Beyond this no calendar has a date, and JSON readers lose digits."""


def format_time(time_ms: int | None) -> str:
    """Return a time in UTC with milliseconds; "-" for 0 and None."""
    if time_ms is None or time_ms <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def is_duration(text: str) -> bool:
    """Tell whether a text is a number with a unit, such as 15m."""
    return _DURATION.fullmatch(text) is not None


def parse_duration_ms(text: str) -> int:
    """Return the ms of a duration such as 500ms, 15m or 1.5h. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 30s, 15m, 2h or 1d")
    return round(float(match[1]) * _SECONDS[match[2]] * 1000)


def parse_time_ms(text: str) -> int:
    """Return ms since 1970 of a number of ms or an ISO 8601 text, which is UTC without a zone. Raises ValueError."""
    if text.isdecimal() and text.isascii():
        if (number := int(text)) > MAX_TIME_MS:
            raise ValueError(f"{text} ms is beyond all dates")
        return number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither ms since 1970 nor a time such as 2026-01-31T12:00:00Z"
        ) from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)


def elapsed_in_month_ms(now_ms: int) -> int:
    """Return the ms since the month began in the local time zone: the time in the unique keys of messages."""
    month = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return now_ms - floor(month.timestamp() * 1000)
