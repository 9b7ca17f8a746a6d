"""The same event in a burst is written once and then counted; nothing is lost silently."""

import io
import json
import logging
import time

import pytest

from gateway.runtime.logs import CountingHandler, JsonFormatter, KeyValueFormatter
from gateway.runtime.repeated_events import MAX_KINDS, MAX_PER_EVENT, MAX_PER_HOST, PERIOD_S


class Log:
    """A logger with a counting handler of its own, on a clock that the test moves."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self.seconds = 0.0
        self.stream = io.StringIO()
        self.handler = CountingHandler(self.stream, lambda: self.seconds)
        self.handler.setFormatter(formatter)
        self._logger = logging.Logger("remoting.x", logging.DEBUG)
        self._logger.addHandler(self.handler)

    def __call__(self, event: str, level: int = logging.WARNING, **data: object) -> None:
        self._logger.log(level, event, extra=data)

    def fail(self, event: str, error: Exception) -> None:
        self._logger.error(event, exc_info=error)

    @property
    def lines(self) -> list[str]:
        """The lines without their time, level and logger."""
        return [line.partition("remoting.x ")[2] for line in self.stream.getvalue().splitlines()]

    @property
    def objects(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def log():
    log = Log(KeyValueFormatter())
    yield log
    log.handler.close()


def test_equal_warnings_are_counted_until_the_period_ends(log: Log) -> None:
    for port in range(313):
        log("bad frame", remote=("10.0.0.1", port), reason="too long")
    log("bad frame", remote=("10.0.0.2", 1), reason="too long")
    assert log.lines == [
        'bad frame remote=10.0.0.1:0 reason="too long"',
        'bad frame remote=10.0.0.2:1 reason="too long"',
    ]
    log.seconds += PERIOD_S
    log("other")
    assert log.lines[2:] == ['bad frame remote=10.0.0.1:1 reason="too long" more=312 within_s=60', "other"]
    log("bad frame", remote=("10.0.0.1", 99), reason="too long")
    assert log.lines[-1] == 'bad frame remote=10.0.0.1:99 reason="too long"', "a new period begins"


def test_json_lines_have_the_count_as_a_number() -> None:
    log = Log(JsonFormatter())
    for _ in range(3):
        log("refused", broker="a")
    log.seconds += 7.2
    log.handler.close()
    first, count = log.objects
    assert (first["event"], "more" in first) == ("refused", False)
    shown = {name: count[name] for name in ("event", "level", "logger", "broker", "more", "within_s")}
    assert shown == {
        "event": "refused", "level": "warning", "logger": "remoting.x", "broker": "a", "more": 2, "within_s": 7,
    }  # fmt: skip


def test_a_host_that_varies_its_data_is_counted_as_a_whole(log: Log) -> None:
    for number in range(1000):
        log("bad frame", remote=("10.0.0.1", 5), reason=number)
    log("bad frame", remote=("10.0.0.2", 5), reason="other")
    assert len(log.lines) == MAX_PER_HOST + 1
    log.handler.close()
    assert log.lines[-1] == f"bad frame remote=10.0.0.1 more={1000 - MAX_PER_HOST} within_s=1"


@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
def test_a_flood_of_one_event_does_not_hide_another(log: Log, level: int) -> None:
    for number in range(10_000):
        log("registered", level, broker=number)
    log("expired", level, broker="a")
    assert len(log.lines) == MAX_PER_EVENT + 1
    assert log.lines[-1] == "expired broker=a"
    log.handler.close()
    assert log.lines[-1] == f"registered more={10_000 - MAX_PER_EVENT} within_s=1"


def test_equal_lines_of_level_info_are_each_written(log: Log) -> None:
    for _ in range(3):
        log("topic stored", logging.INFO, topic="t")
    assert log.lines == ["topic stored topic=t"] * 3


def test_lines_that_must_not_be_left_out_are_all_written(log: Log) -> None:
    for _ in range(2 * MAX_PER_EVENT):
        log("changed", logging.INFO, by="root", always_written=True)
    assert log.lines == ["changed by=root"] * 2 * MAX_PER_EVENT


def test_debug_lines_are_all_written(log: Log) -> None:
    for _ in range(2 * MAX_PER_EVENT):
        log("seen", logging.DEBUG)
    assert len(log.lines) == 2 * MAX_PER_EVENT


def test_other_defects_of_the_same_event_have_their_own_trace(log: Log) -> None:
    def fail_at(place: int) -> None:
        try:
            if place:
                raise ValueError("x")
            raise ValueError("x")
        except ValueError as error:
            log.fail("request failed", error)

    for place in (0, 0, 1, 1, 0):
        fail_at(place)
    assert log.stream.getvalue().count("Traceback") == 2
    log.handler.close()
    assert [line for line in log.lines if "more=" in line] == [
        "request failed more=2 within_s=1",
        "request failed more=1 within_s=1",
    ]


def test_the_memory_of_a_period_is_bounded(log: Log) -> None:
    for number in range(MAX_KINDS + 50):
        log(f"event {number}")
    assert len(log.handler._repeated._tallies) == MAX_KINDS
    assert len(log.lines) == MAX_KINDS + 50


def test_the_count_is_written_without_a_further_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.runtime.repeated_events.PERIOD_S", 0.05)
    log = Log(KeyValueFormatter())
    log("refused")
    log("refused")
    deadline_s = time.monotonic() + 10
    while len(log.lines) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert log.lines == ["refused", "refused more=1 within_s=1"]
    assert log.handler._timer is None
