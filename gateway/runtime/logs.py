"""Log lines on standard error: `time level logger message key=value …`, or one JSON object per line.

The message names the event and is always the same; data is passed as `extra`. Events that happen again and again are
counted (`repeated_events.py`).
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, TextIO

from codec.hosts import format_host
from gateway.runtime.repeated_events import ALWAYS_WRITTEN, RepeatedEvents
from toolkit.printable import LINES_AND_TABS, printable, printable_json

MAX_VALUE_CHARS: Final = 500
"""Longer values are shortened: many come from clients, which could otherwise fill the disk with log lines."""
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "message",
    "asctime",
    "taskName",
    ALWAYS_WRITTEN,
}
_JSON_FIELDS: Final = frozenset({"time", "level", "logger", "event", "traceback"})
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/@%+,;$[]-")


class WholeText(str):
    """Text of the server itself that is never shortened, for programs that read log lines."""

    __slots__ = ()


class KeyValueFormatter(logging.Formatter):
    """Formats a record on one line (plus its traceback), in UTC with milliseconds.

    ``broker_name`` is added as ``broker=``, except to records that have a broker of their own.
    """

    def __init__(self, broker_name: str = "") -> None:
        super().__init__()
        self._broker_name = broker_name

    def format(self, record: logging.LogRecord) -> str:
        head = f"{_format_time(record)} {record.levelname:<7} {record.name} {_line(record.getMessage())}"
        shown = _data_of(record, self._broker_name)
        data = [f"{_line(name)}={render(value)}" for name, value in shown if value is not None]
        text = " ".join([head, *data])
        if record.exc_info and record.exc_info[0] is not None:
            text += "\n" + printable(self.formatException(record.exc_info), LINES_AND_TABS)
        return text


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object with `time`, `level`, `logger`, `event`, its data and its `traceback`.

    Numbers and booleans keep their type; all other data is text. A `_` is appended to the name of data that has the
    name of one of the fields above. ``broker_name`` is added as in `KeyValueFormatter`.
    """

    def __init__(self, broker_name: str = "") -> None:
        super().__init__()
        self._broker_name = broker_name

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, Any] = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in _data_of(record, self._broker_name):
            plain = value if value is None or isinstance(value, bool | int | float) else _as_text(value)
            shown[name + "_" if name in _JSON_FIELDS else name] = plain
        if record.exc_info and record.exc_info[0] is not None:
            shown["traceback"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(shown, ensure_ascii=False))


def _format_time(record: logging.LogRecord) -> str:
    """Return the time of a record in UTC with milliseconds."""
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{when}.{int(record.msecs):03d}Z"


def _data_of(record: logging.LogRecord, broker_name: str) -> Iterator[tuple[str, object]]:
    """Yield name and value of everything that was passed as `extra`, the broker of the process first."""
    if broker_name and not hasattr(record, "broker"):
        yield "broker", broker_name
    for name, value in vars(record).items():
        if name not in _STANDARD:
            yield name, value


def _as_text(value: object) -> str:
    """Return a value as a person would write it, shortened to MAX_VALUE_CHARS characters unless it is `WholeText`.

    Addresses become ``host:port``, other collections their items with commas in between.
    """
    text = _plain(value)
    if len(text) > MAX_VALUE_CHARS and not isinstance(value, WholeText):
        text = f"{text[:MAX_VALUE_CHARS]}… ({len(text)} characters)"
    return text


def _plain(value: object) -> str:
    if (
        isinstance(value, tuple)
        and len(value) in (2, 4)
        and isinstance(value[0], str)
        and isinstance(value[1], int)
    ):
        return format_host((value[0], value[1]))
    if isinstance(value, Mapping):
        return ",".join(f"{_plain(name)}:{_plain(item)}" for name, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(_plain(item) for item in value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, Enum):
        return value.name.lower()
    return str(value).lower() if isinstance(value, bool) else str(value)


def render(value: object) -> str:
    """Return a value as one word, quoted if it contains anything but letters, digits and common signs; shortened."""
    text = _as_text(value)
    if text and _PLAIN.issuperset(text):
        return text
    return '"' + _line(text).replace('"', '\\"') + '"'


def _line(text: str) -> str:
    return printable(text.replace("\\", "\\\\"))


class CountingHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream, except those that `RepeatedEvents` holds back and counts.

    ``now`` returns seconds of a monotonic clock. The counts are written when a period ends (by a timer's thread if no
    record comes), and when the handler is closed, which `logging` does at the end of the process.
    """

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._repeated = RepeatedEvents(_shown_data, now)
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        # `logging` calls this with the handler's lock held.
        if self._repeated.remaining_s <= 0:
            self._write_counts()
        if self._repeated.admit(record):
            super().emit(record)
        elif self._timer is None:
            self._timer = threading.Timer(max(0.0, self._repeated.remaining_s), self._end_period)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Write the counts so far."""
        self._end_period()
        super().close()

    def _end_period(self) -> None:
        self.acquire()
        try:
            self._write_counts()
        finally:
            self.release()

    def _write_counts(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for record in self._repeated.end_period():
            super().emit(record)


def _shown_data(record: logging.LogRecord) -> dict[str, str]:
    return {name: _as_text(value) for name, value in _data_of(record, "")}


def set_up_logging(
    level: str, stream: TextIO | None = None, broker_name: str = "", *, log_format: str = "text"
) -> None:
    """Send the records of all loggers from ``level`` (debug … error) up to ``stream`` (standard error).

    ``log_format`` is text or json. ``broker_name`` is for a process that runs a single broker: it is in every line.
    """
    handler = CountingHandler(stream or sys.stderr)
    handler.setFormatter((JsonFormatter if log_format == "json" else KeyValueFormatter)(broker_name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
