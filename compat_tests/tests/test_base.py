"""The base class of local endpoints, with small scripts in place of servers."""

import sys
from pathlib import Path

import pytest

from compat_tests.endpoints import base
from compat_tests.endpoints.base import LocalEndpoint
from compat_tests.endpoints.process import ChildProcess


class Scripted(LocalEndpoint):
    script = "import time; time.sleep(600)"

    def start_children(self) -> None:
        for name in ("first", "second"):
            self.children.append(
                ChildProcess(name, [sys.executable, "-c", self.script], self.directory / f"{name}.log")
            )


@pytest.fixture(autouse=True)
def route(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(namesrv: str, port: int | None, timeout_s: float, check: object, tls: object) -> str:
        for _ in range(1_000_000):
            check()  # type: ignore[operator]
        raise AssertionError("the child should have ended")

    def at_once(namesrv: str, port: int | None, timeout_s: float, check: object, tls: object) -> str:
        return "127.0.0.1:2"

    monkeypatch.setattr(base, "wait_for_route", at_once)
    monkeypatch.setattr(Scripted, "never", never, raising=False)


def test_ends_its_processes_and_deletes_its_own_directory() -> None:
    with Scripted((1, 2), {"a": "b"}, None) as endpoint:
        children = list(endpoint.children)
        assert endpoint.pids() == [child.pid for child in children]
        assert (endpoint.namesrv, endpoint.broker) == ("127.0.0.1:1", "127.0.0.1:2")
    assert all(child.exit_code() is not None for child in children)
    assert not endpoint.directory.exists()


def test_keeps_a_directory_it_was_given(tmp_path: Path) -> None:
    with Scripted((1, 2), None, tmp_path):
        pass
    assert (tmp_path / "first.log").exists()


def test_starts_again_after_stop_and_crash(tmp_path: Path) -> None:
    with Scripted((1, 2), None, tmp_path) as endpoint:
        before = endpoint.pids()
        endpoint.crash()
        assert endpoint.pids() == []
        endpoint.start()
        endpoint.stop()
        endpoint.start()
        assert len(endpoint.pids()) == 2
        assert not set(before) & set(endpoint.pids())


def test_a_second_start_is_refused(tmp_path: Path) -> None:
    with Scripted((1, 2), None, tmp_path) as endpoint, pytest.raises(RuntimeError, match="started already"):
        endpoint.start()


def test_a_server_that_ends_at_start_is_told_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "wait_for_route", Scripted.never)  # type: ignore[attr-defined]
    endpoint = Scripted((1, 2), None, tmp_path)
    endpoint.script = "raise SystemExit('port taken')"
    with pytest.raises(RuntimeError, match="port taken"):
        endpoint.start()
    assert endpoint.children == []
