"""Histograms of the time that creating topics and groups takes, by outcome."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import floor
from typing import Final

from gateway.runtime.metrics import FixedHistogram
from storage.clock import Clock

BOUNDS_MS: Final = (10, 100, 1_000, 3_000, 5_000)
"""Source: BrokerMetricsManager.registerMetricsView, 5.4.0."""
SUCCESS, FAILURE = "success", "failure"
"""Values of the label `invocation_status`. Source: InvocationStatus, 5.4.0."""


class ExecutionTimes:
    """The time in ms that requests took, by outcome and by a truth value that says more about the request."""

    def __init__(self) -> None:
        self.histograms: dict[tuple[str, bool], FixedHistogram] = {}

    @contextmanager
    def measure(self, clock: Clock, is_system: bool = False) -> Iterator[None]:
        """Record the time that the block takes, whether it succeeds or raises."""
        began_s, outcome = clock.monotonic(), FAILURE
        try:
            yield
            outcome = SUCCESS
        finally:
            histogram = self.histograms.setdefault((outcome, is_system), FixedHistogram(BOUNDS_MS))
            histogram.record(floor((clock.monotonic() - began_s) * 1000))
