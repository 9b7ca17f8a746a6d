"""Decides when a broker process that ended is started again; no clock, no processes."""

import signal
from dataclasses import dataclass
from typing import Final

from toolkit.exit_codes import ExitCode
from toolkit.settings import SettingsError

MIN_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 60.0
SETTLED_S: Final = 60.0
"""A process that was ready for at least this long is started again after `MIN_BACKOFF_S`."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a process: its exit status, negative for a signal, and the errors that it printed."""

    status: int
    errors: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.status >= 0:
            return f"exit status {self.status}"
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"


class BrokerStartError(OSError):
    """A broker process ended before it was ready for the first time, for the reason in the text."""


class RestartPolicy:
    """The history of one broker's processes. Times are seconds of any one monotonic clock."""

    def __init__(self, broker_name: str) -> None:
        self._broker_name = broker_name
        self._was_ready = False
        self._ready_at_s: float | None = None
        self._ends_in_a_row = 0

    def record_ready(self, now_s: float) -> None:
        """Note that the present process is ready."""
        self._was_ready = True
        self._ready_at_s = now_s

    def delay_after(self, end: ProcessEnd, now_s: float) -> float:
        """Return the seconds to wait before the next start: 1, doubled with each end in a row, at most 60.

        Raises BrokerStartError when no process of this broker was ever ready: starting it again would not help; or
        SettingsError, if its status says that the settings are wrong.
        """
        if not self._was_ready:
            reason = "; ".join(end.errors) or f"{self._broker_name} ended before it was ready: {end}"
            raise SettingsError(reason) if end.status == ExitCode.USAGE else BrokerStartError(reason)
        if self._ready_at_s is not None and now_s - self._ready_at_s >= SETTLED_S:
            self._ends_in_a_row = 0
        self._ready_at_s = None
        delay_s = min(MIN_BACKOFF_S * float(1 << min(self._ends_in_a_row, 16)), MAX_BACKOFF_S)
        self._ends_in_a_row += 1
        return delay_s
