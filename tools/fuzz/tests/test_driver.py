"""The driver notices requests without an answer, connections that stay open, and answers that show a defect."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import orjson
import pytest

from tools.fuzz.corpus import build_case
from tools.fuzz.driver import Driver
from tools.fuzz.findings import FindingList
from tools.fuzz.walks import Port
from tools.fuzz.world import FuzzWorld

Behaviour = Callable[[socket.socket, bytes], None]


@contextmanager
def served(behave: Behaviour) -> Iterator[str]:
    """Run a server that does with each chunk it reads what ``behave`` says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, behave), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _serve(listener: socket.socket, behave: Behaviour) -> None:
    with suppress(OSError):
        while True:
            peer, _ = listener.accept()
            threading.Thread(target=_serve_peer, args=(peer, behave), daemon=True).start()


def _serve_peer(peer: socket.socket, behave: Behaviour) -> None:
    with peer, suppress(OSError):
        while data := peer.recv(65536):
            behave(peer, data)


def answer(peer: socket.socket, opaque: int, code: int = 0, remark: str = "") -> None:
    header = orjson.dumps({"code": code, "flag": 1, "opaque": opaque, "remark": remark})
    peer.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)


def titles(behave: Behaviour, *frames: dict[str, object]) -> list[str]:
    """Send the frames to a server that behaves like this, and return the titles of the findings."""
    findings = FindingList()
    with served(behave) as address:
        driver = Driver({Port.BROKER: address}, FuzzWorld(), findings, 1, patience_s=0.3)
        walk = build_case({"what": "test", "frames": frames}, -1)
        driver.send_walk(walk)
        driver.drain(lambda: None)
    return [finding.title for finding in findings.items()]


def test_an_answer_is_all_that_is_wanted():
    assert titles(lambda peer, data: answer(peer, 100), {"code": 30}) == []


def test_a_closed_connection_is_an_answer():
    assert titles(lambda peer, data: peer.close(), {"code": 30}) == []


def test_a_missing_answer_is_found():
    assert titles(lambda peer, data: None, {"code": 30}) == ["no answer: code 30"]


def test_an_answer_to_another_request_does_not_count():
    assert titles(lambda peer, data: answer(peer, 101), {"code": 30}) == ["no answer: code 30"]


def test_pulls_that_may_wait_are_waited_for_only_as_long_as_others():
    waiting = {"code": 11, "ext": {"sysFlag": "2", "suspendTimeoutMillis": "100000"}}
    assert titles(lambda peer, data: answer(peer, 101), waiting, {"code": 30}) == []


@pytest.mark.parametrize("flag", [1, 2])
def test_oneway_requests_and_answers_get_none(flag: int):
    assert titles(lambda peer, data: None, {"code": 30, "flag": flag}) == []


def test_an_exception_of_python_in_an_answer_is_found():
    remark = "KeyError: 'topic_17'"
    found = titles(lambda peer, data: answer(peer, 100, 1, remark), {"code": 30})
    assert found == ["unexpected exception: code 30: KeyError: 'topic_N'"]


def test_an_official_remark_is_none():
    remark = "java.lang.NumberFormatException: For input string"
    assert titles(lambda peer, data: answer(peer, 100, 1, remark), {"code": 30}) == []


def test_a_connection_that_stays_open_after_its_end_is_found():
    def ignore_end(peer: socket.socket, data: bytes) -> None:
        """Read nothing more, so that the end of the stream is not seen either."""
        threading.Event().wait(5)

    assert titles(ignore_end, {"hex": "00000001"}) == ["connection not closed: test, code 0"]


@pytest.mark.parametrize("closes", [True, False])
def test_a_fuzzer_that_was_held_up_reads_before_it_judges(closes: bool, monkeypatch: pytest.MonkeyPatch):
    released = threading.Event()
    findings = FindingList()
    with served(lambda peer, data: None if closes else released.wait(30)) as address:
        driver = Driver({Port.BROKER: address}, FuzzWorld(), findings, 1, patience_s=5)
        driver.send_walk(build_case({"what": "test", "frames": [{"hex": "00000001"}]}, -1))
        (connection,) = driver.connections()
        while connection.half_closed_s is None:
            driver.turn(0.01)
        if closes:
            connection.socket.setblocking(True)
            assert connection.socket.recv(1, socket.MSG_PEEK) == b"", "the end has come, unread"
            connection.socket.setblocking(False)
        later_s = time.monotonic() + 10
        monkeypatch.setattr("tools.fuzz.driver.time", SimpleNamespace(monotonic=lambda: later_s))
        driver.check_patience()
        assert findings.items() == []
        driver.check_patience()
        assert len(findings.items()) == (0 if closes else 1)
        released.set()
        driver.close()
