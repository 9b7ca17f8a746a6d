"""Types of options that commands of several packages take."""

import time
from typing import Any

import click

from toolkit.times import is_duration, parse_duration_ms, parse_time_ms


class TimeType(click.ParamType):  # type: ignore[type-arg]
    """A time in ms since 1970, or in ISO 8601; UTC without a zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        """Return ms since 1970."""
        if isinstance(value, int):
            return value
        try:
            return parse_time_ms(str(value))
        except ValueError as error:
            self.fail(str(error), param, context)


class PastTimeType(TimeType):
    """A time as TimeType reads it, or a duration before now, such as 15m."""

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        """Return ms since 1970."""
        if isinstance(value, str) and is_duration(value):
            return max(0, round(time.time() * 1000) - parse_duration_ms(value))
        return super().convert(value, param, context)
