"""What becomes of messages that are not there, or not what they should be: the task fails, or goes on without them.

Not responsible for noticing it.
"""

import logging

from spark.errors import CorruptMessageError, DataLossError
from spark.pull.read_spec import OffsetRange

log = logging.getLogger(__name__)


class LossReporter:
    """Judges losses of one task as `failOnDataLoss` says, and counts what it lets pass."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self.messages = 0

    def report_missing(self, offsets: OffsetRange, start: int, end: int, reason: str) -> None:
        """Offsets [start, end) are not there. Raises DataLossError if that is to fail."""
        text = f"{describe_queue(offsets)}: offsets {start} to {end - 1} cannot be read: {reason}"
        if self._fail:
            raise DataLossError(f"{text} (failOnDataLoss=false passes over them)")
        self.messages += end - start
        log.warning("%s; passed over", text)

    def report_corrupt(self, offsets: OffsetRange, offset: int, reason: str) -> None:
        """The message at this offset cannot be used. Raises CorruptMessageError if that is to fail."""
        text = f"{describe_queue(offsets)}: the message at offset {offset} is damaged: {reason}"
        if self._fail:
            raise CorruptMessageError(f"{text} (failOnDataLoss=false passes over it)")
        self.messages += 1
        log.warning("%s; passed over", text)


def describe_queue(offsets: OffsetRange) -> str:
    """A queue in words."""
    return f"topic {offsets.topic}, broker {offsets.broker}, queue {offsets.queue_id}"
