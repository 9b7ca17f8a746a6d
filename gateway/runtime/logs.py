"""Log lines in the form `time level logger message key=value …` on standard error; data is passed as `extra`."""

import logging
import sys
import time
from typing import Final, TextIO

from codec.hosts import format_host

MAX_VALUE_CHARS: Final = 500
"""Longer values are shortened: many of them are texts of clients, who could fill the disk with log lines."""
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "message",
    "asctime",
    "taskName",
}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/@%+,;$[]-")


class KeyValueFormatter(logging.Formatter):
    """Formats a record on one line (plus its traceback), in UTC with milliseconds.

    ``broker_name`` is added as ``broker=``, except to records that have a broker of their own.
    """

    def __init__(self, broker_name: str = "") -> None:
        super().__init__()
        self._broker_name = broker_name

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        when = f"{when}.{int(record.msecs):03d}Z"
        head = f"{when} {record.levelname:<7} {record.name} {_line(record.getMessage())}"
        data = [f"{name}={render(value)}" for name, value in vars(record).items() if name not in _STANDARD]
        if self._broker_name and not hasattr(record, "broker"):
            data.insert(0, f"broker={render(self._broker_name)}")
        text = " ".join([head, *data])
        if record.exc_info and record.exc_info[0] is not None:
            text += "\n" + self.formatException(record.exc_info)
        return text


def render(value: object) -> str:
    """Return a value as one word, quoted if it contains anything but letters, digits and common signs; shortened."""
    if isinstance(value, tuple) and len(value) >= 2 and isinstance(value[1], int):
        return format_host((str(value[0]), value[1]))
    text = str(value)
    if len(text) > MAX_VALUE_CHARS:
        text = f"{text[:MAX_VALUE_CHARS]}… ({len(text)} characters)"
    if text and _PLAIN.issuperset(text):
        return text
    return '"' + _line(text).replace('"', '\\"') + '"'


def _line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")


def set_up_logging(level: str, stream: TextIO | None = None, broker_name: str = "") -> None:
    """Send the records of all loggers from `level` (debug … error) up to `stream` (standard error).

    A process that runs one broker only gives its name, which is then in every line.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(KeyValueFormatter(broker_name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
