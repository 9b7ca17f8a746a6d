"""Log lines: one line a record, data as words."""

import io
import json
import logging
import sys

import pytest

from gateway.runtime.logs import JsonFormatter, KeyValueFormatter, render, set_up_logging
from remoting.tls_acceptor import TlsMode


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
        (True, "true"),
        (["a", 1], "a,1"),
        ({"b": 2}, "b:2"),
        (b"x\xff", '"x\\\\xff"'),
        (TlsMode.DISABLED, "disabled"),
        (1.5, "1.5"),
    ],
)
def test_values_stay_on_one_line(value: object, text: str) -> None:
    assert render(value) == text


def test_a_message_cannot_forge_a_line() -> None:
    assert "\n" not in formatted("a\nb\rc", data="d\ne")


HOSTILE = "\x1b]0;x\x07\x00\x7f\x9b2J\u202e\ud800"


def test_nothing_in_a_line_controls_a_terminal() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, HOSTILE, (), sys.exc_info())
    vars(record).update({"data": HOSTILE, "all": {HOSTILE: [HOSTILE]}, HOSTILE: 1})
    for formatter in (KeyValueFormatter("b"), JsonFormatter("b")):
        line = formatter.format(record)
        assert all(text.isprintable() for text in line.split("\n"))
    assert json.loads(line)["data"] == HOSTILE
    assert render("a\x1b\x07\x00\x9b") == '"a\\x1b\\x07\\x00\\x9b"'


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


def as_json(message: str, **extra: object) -> dict[str, object]:
    record = logging.LogRecord("x.y", logging.WARNING, "", 0, message, (), None)
    record.created, record.msecs = 86_400.25, 250.0
    vars(record).update(extra)
    line = JsonFormatter("broker-b").format(record)
    assert "\n" not in line
    parsed: dict[str, object] = json.loads(line)
    return parsed


def test_json_has_one_object_a_line() -> None:
    assert as_json("frame\nbad", size=5, full=True, remote=("::1", 80), kind="ü", none=None) == {
        "time": "1970-01-02T00:00:00.250Z", "level": "warning", "logger": "x.y", "event": "frame\nbad",
        "broker": "broker-b", "size": 5, "full": True, "remote": "[::1]:80", "kind": "ü", "none": None,
    }  # fmt: skip


def test_json_data_cannot_replace_a_field_and_is_shortened() -> None:
    shown = as_json("bad", event="forged", text="x" * 1000)
    assert (shown["event"], shown["event_"]) == ("bad", "forged")
    assert shown["text"] == "x" * 500 + "… (1000 characters)"


def test_json_contains_the_traceback() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    assert json.loads(JsonFormatter().format(record))["traceback"].endswith("ValueError: boom")


def test_the_format_is_chosen_by_name() -> None:
    stream = io.StringIO()
    set_up_logging("info", stream, log_format="json")
    logging.getLogger("x").info("seen", extra={"size": 1})
    assert json.loads(stream.getvalue())["event"] == "seen"
