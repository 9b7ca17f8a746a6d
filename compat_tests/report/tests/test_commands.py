"""The command `compat`: what it runs, compares and writes."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from compat_tests.report import commands, snapshots
from compat_tests.report.commands import compat
from compat_tests.report.runs import Selection, SuiteRun
from compat_tests.report.snapshots import read_snapshot
from compat_tests.report.tests.test_comparison import results


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Results by endpoint, in place of runs of the cases; the folder of snapshots is empty."""
    runs: dict[str, Any] = {"asked": [], "proxies": [], "checked": []}

    def run(self, places=()):
        runs["asked"].append((self.endpoint, self.selection.options(), list(places)))
        runs["proxies"].append(self.proxy)
        found = runs[self.endpoint]
        return found.pop(0) if isinstance(found, list) else found

    monkeypatch.setattr(SuiteRun, "run", run)
    monkeypatch.setattr(SuiteRun, "check", lambda self: runs["checked"].append(self.endpoint))
    for module in (commands, snapshots):
        monkeypatch.setattr(module, "SNAPSHOTS", tmp_path)
    return runs


def invoke(*arguments):
    return CliRunner().invoke(compat, arguments)


def record(world, **outcomes):
    world["official:5.4.0"] = results(**outcomes)
    assert invoke("--official", "--record").exit_code == 0


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


def test_with_another_endpoint_the_official_version_is_the_reference(world):
    record(world, a="passed")
    world["official:4.9"] = results(a="failed")
    assert invoke("--official", "4.9", "--record").exit_code == 0
    for options in (("--namesrv", "10.0.0.5:9876"), ("--image", "apache/rocketmq:5.4.0"), ("--ours",)):
        endpoint = options[-1] if options[0] == "--namesrv" else f"image:{options[-1]}"
        world["ours" if options == ("--ours",) else endpoint] = results(a="passed")
        assert "behave as on official 4.9.7, 1 better" in invoke(*options, "--official", "4.9").output


def test_a_selection_is_compared_with_the_same_cases(world):
    record(world, a="passed", b="passed")
    world["ours"] = results(a="passed")
    shown = invoke("--area", "pull", "-k", "a")
    assert shown.output == "1 of 1 cases behave as on official 5.4.0, none deviates.\n"
    assert world["asked"][-1] == ("ours", ["--area=pull", "-k", "a"], [])


def test_the_grpc_address_goes_to_the_endpoint_alone(world):
    world["10.0.0.5:9876"], world["official"] = results(a="passed"), results(a="passed")
    invoke("--namesrv", "10.0.0.5:9876", "--proxy", "10.0.0.6:8081", "--against", "official")
    assert world["proxies"] == ["10.0.0.6:8081", None]


def test_nothing_selected_is_no_verdict(world):
    record(world, a="passed")
    world["ours"] = {}
    assert invoke("-k", "nothing").exit_code == 4


def test_a_second_endpoint(world):
    world["ours"], world["image:5.3.3"] = results(a="passed"), results(a="passed")
    shown = invoke("--against", "image:5.3.3")
    assert shown.output == "1 of 1 cases behave as on image:5.3.3, none deviates.\n"
    assert world["checked"] == ["ours", "image:5.3.3"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--namesrv", "x:1", "--ours"), "exclude each other: give one endpoint"),
        (("--against", "ours", "--snapshot", "5.4.0"), "give one reference"),
        (("--namesrv", "x:1", "--official", "--snapshot", "5.4.0"), "both name a recorded version"),
        (("--missing",), "give it with --record"),
        (("--json", "/no/such/folder/x.json"), "--json: the folder /no/such/folder does not exist"),
        (("--record", "--image", "mine/rocketmq:5.4.0"), "image:mine/rocketmq:5.4.0 is no official version"),
        (("--image", "apache/rocketmq"), "--image: the image 'apache/rocketmq' has no tag"),
        (("--namesrv", "x:1", "--official", "5.4.1"), "official 5.4.1 is not recorded: give one of 5.4.0"),
        (("--record", "--namesrv", "x:1"), "--record is for --ours, --official and --image"),
        (("--record", "--against", "ours"), "needs no reference"),
        (("--official", "5"), "'5' is no version of the official server: give one of 4.9, 5.3"),
        (("--snapshot", "1.0.0"), "official 1.0.0 is not recorded: give one of 5.4.0"),
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


def test_a_case_that_is_not_recorded_is_not_counted_as_a_pass(world):
    record(world, a="passed")
    world["ours"] = results(a="passed", b="passed")
    shown = invoke()
    assert shown.exit_code == 0
    assert "none deviates; 1 are not recorded of official 5.4.0." in shown.output
    world["ours"] = results(b="passed")
    assert invoke("-k", "b").exit_code == 4


def test_each_version_is_a_recording_of_its_own(world):
    world["official:5.3"] = results(a="failed")
    world["ours"] = results(a="passed")
    assert invoke("--official", "5.3", "--record").exit_code == 0
    assert "0 of 1 cases behave as on official 5.3.3, 1 better" in invoke("--snapshot", "5.3").output


def test_what_fails_is_repeated_before_it_is_recorded(world):
    world["official:5.4.0"] = [
        results(a="passed", b="failed", c="failed"),
        results(b="failed", c="passed"),
        results(b="failed"),
    ]
    shown = invoke("--official", "--record")
    assert [places for _, _, places in world["asked"]] == [[], ["b", "c"], ["b"]]
    outcomes = {name: line["outcome"] for name, line in read_snapshot("5.4.0").results.items()}
    assert outcomes == {"a": "passed", "b": "failed", "c": "passed"}
    assert "failed: b: why b" in shown.output


def test_repeats_can_be_left_out(world):
    world["official:5.4.0"] = [results(a="failed")]
    assert invoke("--official", "--record", "--repeats", "0").exit_code == 0


def test_recording_a_selection_keeps_the_other_cases(world):
    record(world, a="passed", b="failed")
    world["official:5.4.0"] = results(b="passed")
    assert invoke("--official", "--record", "-k", "b").exit_code == 0
    outcomes = {name: line["outcome"] for name, line in read_snapshot("5.4.0").results.items()}
    assert outcomes == {"a": "passed", "b": "passed"}


def test_a_selection_can_be_the_first_recording(world):
    world["official:4.9"] = results(a="passed")
    assert invoke("--official", "4.9", "--record", "-k", "a").exit_code == 0
    assert list(read_snapshot("4.9").results) == ["a"]


def test_what_a_recording_lacks_can_be_recorded_alone(world, monkeypatch):
    record(world, a="failed", gone="passed")
    monkeypatch.setattr(commands, "collect_cases", lambda marks: {"a", "new"})
    world["official:5.4.0"] = results(new="passed")
    assert invoke("--official", "--record", "--missing").exit_code == 0
    assert world["asked"][-1][2] == ["new"]
    outcomes = {name: line["outcome"] for name, line in read_snapshot("5.4.0").results.items()}
    assert outcomes == {"a": "failed", "new": "passed"}
    assert invoke("--official", "--record", "--missing").exit_code == 0
    assert world["asked"][-1][2] == ["new"]


def test_our_server_is_recorded_too(world):
    world["ours"] = results(a="passed")
    assert invoke("--ours", "--record").exit_code == 0
    assert read_snapshot("ours").endpoint == "ours"


@pytest.mark.parametrize("workers", [1, 2])
def test_only_the_cases_of_an_area_are_run_and_the_endpoint_is_really_tested(tmp_path: Path, workers: int):
    junit = tmp_path / "junit.xml"
    lines = SuiteRun("ours", Selection(("pull",), "test_empty_queue"), workers, junit=junit).run()
    assert lines
    assert {each["area"] for each in lines.values()} == {"pull"}
    assert {each["outcome"] for each in lines.values()} == {"passed"}
    assert "testsuite" in junit.read_text()


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("127.0.0.1:1", "127.0.0.1:1 cannot be tested: nothing listens at 127.0.0.1:1: check host and port"),
        ("image:5.3.3", "image:5.3.3 cannot be tested: no Docker engine answers"),
        ("official:4.9.8", "official:4.9.8 cannot be tested: java is not on PATH"),
    ],
)
def test_an_endpoint_that_cannot_be_tested_is_named_with_the_reason(
    monkeypatch, tmp_path: Path, endpoint: str, text: str
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    monkeypatch.setenv("ROCKETMQ_COMPAT_CACHE", str(tmp_path))
    with pytest.raises(click.ClickException, match=text):
        SuiteRun(endpoint, Selection()).run()


def test_an_endpoint_that_is_none():
    with pytest.raises(click.UsageError, match="unknown endpoint 'nowhere'"):
        SuiteRun("nowhere", Selection()).run()
