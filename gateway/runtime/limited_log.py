"""Log lines that strangers can cause: a bounded number of each kind, and each warning once a minute."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 60.0
MAX_PER_MESSAGE: Final = 100


class LimitedLog:
    """Writes to a logger. ``now`` returns seconds of a monotonic clock."""

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        self._started_s = now()
        self._warnings: set[tuple[str, object]] = set()
        self._counts: Counter[str] = Counter()

    def info(self, message: str, **data: object) -> None:
        """Write a line, unless MAX_PER_MESSAGE with this message were written in this period."""
        self._begin_period()
        self._write(logging.INFO, message, data)

    def warning(self, message: str, **data: object) -> None:
        """Write a warning, unless an equal one, or MAX_PER_MESSAGE with this message, were written in this period."""
        self._begin_period()
        warning = (message, tuple(data.items()))
        if warning not in self._warnings and self._write(logging.WARNING, message, data):
            self._warnings.add(warning)

    def _begin_period(self) -> None:
        now_s = self._now()
        if now_s - self._started_s >= PERIOD_S:
            self._started_s = now_s
            self._warnings.clear()
            self._counts.clear()

    def _write(self, level: int, message: str, data: dict[str, object]) -> bool:
        count = self._counts[message] = self._counts[message] + 1
        if count <= MAX_PER_MESSAGE:
            self._log.log(level, message, extra=data)
        elif count == MAX_PER_MESSAGE + 1:
            self._log.log(
                level, "further lines of a kind are not written for a minute", extra={"kind": message}
            )
        return count <= MAX_PER_MESSAGE
