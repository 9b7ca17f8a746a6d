"""Policy for missing and damaged messages: fail the task, or log a warning and continue (`failOnDataLoss`)."""

import logging

from spark.errors import CorruptMessageError, DataLossError
from spark.pull.read_spec import OffsetRange

log = logging.getLogger(__name__)


class LossReporter:
    """Fails or logs losses of one task, and counts the messages it skipped."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self.messages = 0

    def report_missing(self, offsets: OffsetRange, start: int, end: int, reason: str) -> None:
        """Report that offsets [start, end) cannot be read. Raises DataLossError if losses are errors."""
        text = f"{describe_queue(offsets)}: offsets {start} to {end - 1} cannot be read: {reason}"
        if self._fail:
            raise DataLossError(f"{text} (failOnDataLoss=false skips them)")
        self.messages += end - start
        log.warning("skipped: %s", text)

    def report_corrupt(self, offsets: OffsetRange, offset: int, reason: str) -> None:
        """Report that the message at this offset is damaged. Raises CorruptMessageError if losses are errors."""
        text = f"{describe_queue(offsets)}: the message at offset {offset} is damaged: {reason}"
        if self._fail:
            raise CorruptMessageError(f"{text} (failOnDataLoss=false skips it)")
        self.messages += 1
        log.warning("skipped: %s", text)


def describe_queue(offsets: OffsetRange) -> str:
    """Return a queue's topic, broker and number as text."""
    return f"topic {offsets.topic}, broker {offsets.broker}, queue {offsets.queue_id}"
