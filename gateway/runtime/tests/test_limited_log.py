"""Warnings of strangers' making do not fill the log."""

import logging

import pytest

from gateway.runtime.limited_log import MAX_PER_MESSAGE, PERIOD_S, LimitedLog


def test_equal_warnings_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    seconds = 0.0
    log = LimitedLog(logging.getLogger("test"), lambda: seconds)
    for _ in range(3):
        log.warning("refused", broker="a")
        log.warning("refused", broker="b")
        log.warning("expired", broker="a")
    assert [(each.message, each.broker) for each in caplog.records] == [  # type: ignore[attr-defined]
        ("refused", "a"), ("refused", "b"), ("expired", "a"),
    ]  # fmt: skip
    seconds += PERIOD_S
    log.warning("refused", broker="a")
    assert len(caplog.records) == 4


def test_a_flood_of_one_kind_does_not_hide_another(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(logging.getLogger("test"), lambda: 0.0)
    for number in range(10_000):
        log.warning("refused", broker=number)
    log.warning("expired", broker="a")
    texts = [each.message for each in caplog.records]
    assert texts.count("refused") == MAX_PER_MESSAGE
    assert texts[MAX_PER_MESSAGE:] == ["further lines of a kind are not written for a minute", "expired"]


def test_events_are_written_each_time_within_the_bound(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "test")
    seconds = 0.0
    log = LimitedLog(logging.getLogger("test"), lambda: seconds)
    for _ in range(10_000):
        log.info("registered", broker="a")
    assert len(caplog.records) == MAX_PER_MESSAGE + 1
    seconds += PERIOD_S
    log.info("registered", broker="a")
    assert len(caplog.records) == MAX_PER_MESSAGE + 2
