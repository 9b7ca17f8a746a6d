"""Log lines: one line a record, data as words."""

import io
import logging
import sys

import pytest

from gateway.runtime.logs import KeyValueFormatter, render, set_up_logging


def formatted(
    message: str, *args: object, formatter: KeyValueFormatter | None = None, **extra: object
) -> str:
    record = logging.LogRecord("x.y", logging.WARNING, "", 0, message, args, None)
    record.created, record.msecs = 86_400.25, 250.0
    vars(record).update(extra)
    return (formatter or KeyValueFormatter()).format(record)


def test_time_level_logger_message_and_data() -> None:
    line = formatted("frame %s", "bad", size=5, remote=("1.2.3.4", 80))
    assert line == "1970-01-02T00:00:00.250Z WARNING x.y frame bad size=5 remote=1.2.3.4:80"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ('say "x"', '"say \\"x\\""'),
        ("", '""'),
        ("a\nb", '"a\\nb"'),
        (("::1", 80, 0, 0), "[::1]:80"),
        (None, "None"),
        (1.5, "1.5"),
    ],
)
def test_values_stay_on_one_line(value: object, text: str) -> None:
    assert render(value) == text


def test_a_message_cannot_forge_a_line() -> None:
    assert "\n" not in formatted("a\nb\rc", data="d\ne")


def test_tracebacks_follow() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    assert KeyValueFormatter().format(record).endswith("ValueError: boom")


def test_a_process_with_one_broker_names_it_in_every_line() -> None:
    formatter = KeyValueFormatter("broker-b")
    assert formatted("opened", formatter=formatter, size=5).endswith(" opened broker=broker-b size=5")
    assert formatted("seen", formatter=formatter, broker="other").endswith(" seen broker=other")


@pytest.fixture
def _root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("_root_logger")
def test_the_level_is_kept() -> None:
    stream = io.StringIO()
    set_up_logging("warning", stream)
    logging.getLogger("a").info("no")
    logging.getLogger("a").warning("yes", extra={"k": 1})
    assert stream.getvalue().endswith("WARNING a yes k=1\n")
    assert "no" not in stream.getvalue()


def test_a_long_text_of_a_client_does_not_fill_the_log() -> None:
    line = render("x" * 1_000_000)
    assert len(line) < 600
    assert line.endswith('… (1000000 characters)"')
