"""The log of a server under test: what counts as a failure, and which failures are the same."""

from pathlib import Path

import pytest

from tools.fuzz.servers_under_test import WatchedLog

TRACE = """2026-01-01T00:00:00.000Z ERROR   remoting.connection request failed code={code}
Traceback (most recent call last):
  File "/somewhere/gateway/broker/{module}.py", line {line}, in handle
    value = table[key]
KeyError: '{key}'
"""
REFUSAL = '2026-01-01T00:00:00.000Z WARNING remoting.connection connection closed: bad frame reason="x"\n'


def trace(code: int = 34, module: str = "offsets", line: int = 10, key: str = "a") -> str:
    return TRACE.format(code=code, module=module, line=line, key=key)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text('{"event": "ready"}\n')
    return path


def signatures(log: Path) -> list[str]:
    return [problem.signature for problem in WatchedLog("server", log).new_problems()]


def test_refusals_and_errors_of_clients_are_no_failures(log: Path):
    log.write_text(log.read_text() + REFUSAL + "2026-01-01T00:00:00.000Z ERROR   a.b expression is invalid\n")
    assert signatures(log) == []


def test_a_failure_keeps_its_trace_and_its_place(log: Path):
    log.write_text(log.read_text() + REFUSAL + trace() + REFUSAL)
    (problem,) = WatchedLog("server", log).new_problems()
    assert problem.text == trace().rstrip()
    assert problem.signature.endswith("request failed code=N | gateway/broker/offsets.py handle | KeyError")


def test_failures_of_one_place_are_the_same(log: Path):
    log.write_text(trace(code=1, line=3, key="x") + trace(code=2, line=4, key="y"))
    assert len(set(signatures(log))) == 1
    log.write_text(trace(module="offsets") + trace(module="topics"))
    assert len(set(signatures(log))) == 2


def test_a_trace_that_no_logger_wrote_is_found(log: Path):
    log.write_text("Exception ignored in: <function f>\nTraceback (most recent call last):\nValueError: x\n")
    assert len(signatures(log)) == 1


def test_only_new_records_are_read(log: Path):
    watched = WatchedLog("server", log)
    with log.open("a") as text:
        text.write(trace())
        text.flush()
        assert len(list(watched.new_problems())) == 1
        assert list(watched.new_problems()) == []
        text.write(trace())
        text.flush()
        assert len(list(watched.new_problems())) == 1
