"""Decides which log records are written when the same event happens again and again, and counts the others.

Strangers can cause log lines: a peer that sends malformed frames, a producer that retries a refused request, a broker
that registers in a loop. Without a bound they fill the disk and hide everything else. So within a period of PERIOD_S

- a warning or error whose data is the same, but for the port of its ``remote``, is written once;
- at most MAX_PER_HOST warnings and errors of one event are written for one ``remote`` host;
- at most MAX_PER_EVENT records of one event are written, whatever their data and level.

At the end of the period, one record for each kind says how many more there were (``more=312 within_s=60``), so that
nothing is lost silently. Records of level debug and records with ALWAYS_WRITTEN among their data are always written.

The event is the message of a record, which is constant; its data is passed as `extra`.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

PERIOD_S: Final = 60.0
MAX_PER_HOST: Final = 20
MAX_PER_EVENT: Final = 100
MAX_KINDS: Final = 10_000
"""Maximum number of kinds of records that are counted in one period; further kinds are always written."""

ALWAYS_WRITTEN: Final = "always_written"
"""Attribute of a record that must not be left out, such as one of the audit log: True. It is not written."""

Kind = tuple[str, ...]
ShowData = Callable[[logging.LogRecord], dict[str, str]]
"""Returns the data of a record as text."""


@dataclass(slots=True)
class _Tally:
    written: int = 0
    suppressed: int = 0
    template: logging.LogRecord | None = None
    """The record that stands for the suppressed ones in the count."""


class RepeatedEvents:
    """The records of one period. ``now`` returns seconds of a monotonic clock."""

    def __init__(self, show_data: ShowData, now: Callable[[], float]) -> None:
        self._show_data = show_data
        self._now = now
        self._started_s = now()
        self._tallies: dict[Kind, _Tally] = {}
        self.has_suppressed = False

    @property
    def remaining_s(self) -> float:
        """Seconds until the period ends; 0 or less when it is over."""
        return self._started_s + PERIOD_S - self._now()

    def admit(self, record: logging.LogRecord) -> bool:
        """Return True if a record is to be written; otherwise count it. Call `end_period` first if it is over."""
        if record.levelno < logging.INFO or getattr(record, ALWAYS_WRITTEN, False):
            return True
        if not self._tallies:
            self._started_s = self._now()
        event = (record.name, record.getMessage())
        limits: list[tuple[Kind, int, logging.LogRecord]] = []
        if record.levelno >= logging.WARNING:
            data = self._show_data(record)
            host = _host_of(data)
            same = (*event, *_place_of_exception(record), *(f"{name}={text}" for name, text in data.items()))
            limits.append((same, 1, record))
            if host:
                limits.append(((*event, "from", host), MAX_PER_HOST, _without_data(record, remote=host)))
        limits.append((event, MAX_PER_EVENT, _without_data(record)))
        for kind, limit, template in limits:
            tally = self._tallies.get(kind)
            if tally is not None and tally.written >= limit:
                tally.suppressed += 1
                tally.template = tally.template or template
                self.has_suppressed = True
                return False
        for kind, _, _ in limits:
            if kind in self._tallies or len(self._tallies) < MAX_KINDS:
                self._tallies.setdefault(kind, _Tally()).written += 1
        return True

    def end_period(self) -> Iterator[logging.LogRecord]:
        """Begin a new period; yield a record for each kind that had suppressed records in the last one."""
        elapsed_s = min(self._now() - self._started_s, PERIOD_S)
        tallies, self._tallies, self.has_suppressed = self._tallies, {}, False
        self._started_s = self._now()
        for tally in tallies.values():
            if tally.template is not None:
                yield _counting(tally.template, tally.suppressed, elapsed_s)


def _host_of(data: dict[str, str]) -> str:
    """Return the host of a record's ``remote``, and remove the port there; "" without one."""
    remote = data.get("remote", "")
    host, _, port = remote.rpartition(":")
    if host and port.isdecimal():
        data["remote"] = host
        return host
    return remote


def _place_of_exception(record: logging.LogRecord) -> tuple[str, ...]:
    """Return type and line of a record's exception, because one defect must not hide another."""
    if not record.exc_info or record.exc_info[0] is None:
        return ()
    trace, line = record.exc_info[2], 0
    while trace is not None:
        line, trace = trace.tb_lineno, trace.tb_next
    return record.exc_info[0].__name__, str(line)


def _without_data(record: logging.LogRecord, **extra: object) -> logging.LogRecord:
    bare = logging.LogRecord(record.name, record.levelno, "", 0, record.getMessage(), (), None)
    vars(bare).update(extra)
    return bare


def _counting(template: logging.LogRecord, count: int, elapsed_s: float) -> logging.LogRecord:
    """Return a copy of the template with the present time and the number of suppressed records."""
    counting = logging.LogRecord(template.name, template.levelno, "", 0, template.getMessage(), (), None)
    created = {name: vars(counting)[name] for name in ("created", "msecs", "relativeCreated")}
    vars(counting).update({**vars(template), **created, "exc_info": None, "exc_text": None})
    vars(counting).update({"more": count, "within_s": max(1, round(elapsed_s))})
    return counting
