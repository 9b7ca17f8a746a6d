"""Recorded runs: their files, and that they have exactly the cases of the suite."""

from functools import cache

import pytest

from compat_tests.report import snapshots
from compat_tests.report.runs import ABOUT_THE_ENDPOINT
from compat_tests.report.snapshots import (
    OURS,
    PROXIES,
    PROXY_AREA,
    default_version,
    read_snapshot,
    snapshot_versions,
    write_snapshot,
)
from compat_tests.report.tests.test_comparison import results
from compat_tests.suite import collect_cases


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshots, "SNAPSHOTS", tmp_path)
    return tmp_path


def test_versions_are_ordered_by_their_numbers(folder):
    for version in ("5.10.0", "5.4.0", "4.9.8"):
        write_snapshot(version, {}, "2026-01-02")
    assert snapshot_versions() == ["4.9.8", "5.4.0", "5.10.0"]


def test_the_version_of_the_marks_is_the_reference_unless_it_is_not_recorded(folder):
    assert default_version() is None
    write_snapshot("5.3.3", {}, "2026-01-02")
    write_snapshot("4.9.7", {}, "2026-01-02")
    assert default_version() == "5.3.3"
    write_snapshot("5.4.0", {}, "2026-01-02")
    write_snapshot("5.5.0", {}, "2026-01-02")
    assert default_version() == "5.4.0"


def test_a_recording_is_read_back_by_either_name_of_its_version(folder):
    found = results(b="passed", a="failed")
    write_snapshot("5.4", found, "2026-01-02")
    snapshot = read_snapshot("5.4.0")
    assert (snapshot.endpoint, snapshot.day, snapshot.results) == ("official 5.4.0", "2026-01-02", found)
    assert list(snapshot.results) == ["a", "b"]


collected = cache(collect_cases)

RECORDED = [OURS, *snapshot_versions()]


@pytest.mark.parametrize("name", PROXIES)
def test_a_proxy_has_a_recording_of_its_own(folder, name):
    cases = results(a="passed")
    path = write_snapshot(name, cases, "2026-01-02")
    assert path.name == {"proxy": "proxy-official.jsonl", "proxy:ours": "proxy-ours.jsonl"}[name]
    snapshot = read_snapshot(name)
    assert (snapshot.endpoint, snapshot.results) == (PROXIES[name], cases)
    assert snapshot_versions() == []


@pytest.mark.parametrize("name", PROXIES)
def test_the_recorded_cases_of_a_proxy_are_those_of_5x_clients(name):
    recording = read_snapshot(OURS).results
    cases = {case_id for case_id, line in recording.items() if line["area"] == PROXY_AREA}
    proxy_cases = read_snapshot(name).results.keys()
    assert len(cases) > 100
    assert sorted(cases ^ proxy_cases) == [], f"record with: python -m compat_tests record {name}"


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_cases_are_those_of_the_suite(name):
    cases = collected(ABOUT_THE_ENDPOINT)
    recorded = read_snapshot(name).results.keys()
    assert len(cases) > 800
    command = "--ours" if name == OURS else f"--official {name}"
    hint = f"record with: rmq-gateway compat {command} --record --missing"
    assert sorted(cases - recorded) == [], f"not recorded; {hint}"
    assert sorted(recorded - cases) == [], f"recorded, and no longer there; {hint}"
