"""Warnings that strangers can cause: each once a minute, and a bounded number of each kind."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

PERIOD_S: Final = 60.0
MAX_PER_MESSAGE: Final = 50


class LimitedLog:
    """Writes warnings to a logger. ``now`` returns seconds of a monotonic clock."""

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        self._started_s = now()
        self._written: set[tuple[str, object]] = set()
        self._counts: Counter[str] = Counter()

    def warning(self, message: str, **data: object) -> None:
        """Write a warning unless an equal one, or MAX_PER_MESSAGE with this message, were written in this period."""
        now_s = self._now()
        if now_s - self._started_s >= PERIOD_S:
            self._started_s = now_s
            self._written.clear()
            self._counts.clear()
        event = (message, tuple(data.items()))
        if event in self._written or self._counts[message] > MAX_PER_MESSAGE:
            return
        self._counts[message] += 1
        if self._counts[message] > MAX_PER_MESSAGE:
            self._log.warning(
                "further warnings of a kind are not written for a minute", extra={"kind": message}
            )
            return
        self._written.add(event)
        self._log.warning(message, extra=data)
