"""The command `compat`: what it runs, compares and writes."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from compat_tests.report import commands, comparison
from compat_tests.report.commands import compat
from compat_tests.report.tests.test_comparison import results


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Results by endpoint, in place of runs of the cases; the folder of snapshots is empty."""
    runs: dict[str, Any] = {}
    asked: list[tuple[str, list[str]]] = []

    def run_cases(endpoint, options, junit):
        asked.append((endpoint, options))
        return runs[endpoint]

    monkeypatch.setattr(commands, "_run_cases", run_cases)
    for module in (commands, comparison):
        monkeypatch.setattr(module, "SNAPSHOTS", tmp_path)
    runs["asked"] = asked
    return runs


def invoke(*arguments):
    return CliRunner().invoke(compat, arguments)


def record(world, **outcomes):
    world["official"] = results(**outcomes)
    assert invoke("--official", "--record", "5.4.0").exit_code == 0


def test_an_endpoint_is_compared_with_the_recorded_version(world, tmp_path):
    record(world, a="passed", b="passed")
    world["10.0.0.5:9876"] = results(a="passed", b="failed")
    shown = invoke(
        "--namesrv", "10.0.0.5:9876", "--json", str(tmp_path / "x.json"), "--html", str(tmp_path / "x.html")
    )
    assert shown.exit_code == 3
    assert "deviates: b (b): why b" in shown.output
    assert "1 of 2 cases behave as on official 5.4.0, 1 deviate." in shown.output
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["counts"] == {"same": 1, "deviates": 1}
    assert "why b" in (tmp_path / "x.html").read_text()


def test_nothing_deviates(world):
    record(world, a="passed")
    world["ours"] = results(a="passed")
    shown = invoke()
    assert shown.exit_code == 0
    assert shown.output == "1 of 1 cases behave as on official 5.4.0, none deviates.\n"


def test_a_selection_is_compared_with_the_same_cases(world):
    record(world, a="passed", b="passed")
    world["ours"] = results(a="passed")
    shown = invoke("--area", "pull", "-k", "a")
    assert shown.output == "1 of 1 cases behave as on official 5.4.0, none deviates.\n"
    assert world["asked"][-1] == ("ours", ["--area=pull", "-k", "a"])


def test_nothing_selected_is_no_verdict(world):
    record(world, a="passed")
    world["ours"] = {}
    assert invoke("-k", "nothing").exit_code == 4


def test_a_second_endpoint(world):
    world["ours"], world["image:5.3.3"] = results(a="passed"), results(a="passed")
    shown = invoke("--against", "image:5.3.3")
    assert shown.output == "1 of 1 cases behave as on image:5.3.3, none deviates.\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--namesrv", "x:1", "--official"), "exclude each other"),
        (("--against", "ours", "--snapshot", "5.4.0"), "give one reference"),
        (("--record", "5.4.0"), "only official servers are recorded"),
        (("--snapshot", "1.0.0"), "--snapshot 1.0.0 is not recorded; recorded are 5.4.0"),
    ],
)
def test_flags_that_contradict_each_other(world, arguments, text):
    record(world, a="passed")
    refused = invoke(*arguments)
    assert refused.exit_code == 2
    assert text in refused.output


def test_without_a_snapshot_a_reference_is_needed(world):
    refused = invoke()
    assert refused.exit_code == 1
    assert "use --against ENDPOINT" in refused.output


def test_only_the_cases_of_an_area_are_run_and_the_endpoint_is_really_tested(tmp_path: Path):
    lines = commands._run_cases("ours", ["--area=pull", "-k", "test_empty_queue"], tmp_path / "junit.xml")
    assert lines
    assert {each["area"] for each in lines.values()} == {"pull"}
    assert {each["outcome"] for each in lines.values()} == {"passed"}
    assert "testsuite" in (tmp_path / "junit.xml").read_text()
