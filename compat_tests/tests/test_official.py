"""The official server's configuration; the cases show that it runs."""

from pathlib import Path
from typing import Any

import pytest

from compat_tests.endpoints import official
from compat_tests.endpoints.official import OfficialEndpoint


@pytest.fixture(autouse=True)
def no_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "fetch_jars", lambda profile: None)


def test_settings_win_over_defaults(tmp_path: Path) -> None:
    lines = OfficialEndpoint({"brokerName": "other", "x": "y"}, tmp_path).broker_lines()
    assert (lines["brokerName"], lines["x"], lines["brokerRole"]) == ("other", "y", "ASYNC_MASTER")


def test_the_broker_registers_with_a_given_namesrv(tmp_path: Path) -> None:
    endpoint = OfficialEndpoint(directory=tmp_path, namesrv="127.0.0.1:4")
    assert endpoint.namesrv == "127.0.0.1:4"
    assert endpoint.broker_lines()["namesrvAddr"] == "127.0.0.1:4"


def test_everything_it_writes_is_below_its_directory(tmp_path: Path) -> None:
    lines = OfficialEndpoint(directory=tmp_path).broker_lines()
    places = [value for key, value in lines.items() if key.startswith("storePath")]
    assert len(places) == 2
    assert all(place.startswith(str(tmp_path)) for place in places)


def test_what_is_measured_is_a_broker_as_it_comes(tmp_path: Path) -> None:
    for jvm, tests_only in ((official.QUICK_START, True), (official.FULL_SPEED, False)):
        assert (
            "timerFlushIntervalMs" in OfficialEndpoint(directory=tmp_path, jvm=jvm).broker_lines()
        ) is tests_only
        assert ("tls.server.mode" in jvm) is tests_only


def test_what_is_measured_does_not_depend_on_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def record(*_: object, **options: Any) -> list[str]:
        asked.append(options["mapped"])
        return []

    monkeypatch.setattr(official, "java_command", record)
    monkeypatch.setattr(official, "ChildProcess", lambda *_: None)
    for jvm in (official.QUICK_START, official.FULL_SPEED):
        OfficialEndpoint(directory=tmp_path, jvm=jvm, namesrv="127.0.0.1:4").start_children()
    assert asked == [True, False]
