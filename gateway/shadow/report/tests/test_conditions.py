import math

import click
import pytest
from click.testing import CliRunner

from gateway.shadow.report.conditions import RENAMED_METRICS, exit_if, fail_if_option, failed_conditions
from toolkit.conditions import parse_condition

FIGURES = {
    "diff_rate": 0.002,
    "diff_rate[A-1]": 0,
    "mirror_dropped": 3,
    "p99_added_ms": math.nan,
    "parity.missing": 0,
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("diff_rate>0.001", ["diff_rate>0.001: diff_rate is 0.002"]),
        (" diff_rate <= 2e-3 ", [" diff_rate <= 2e-3 : diff_rate is 0.002"]),
        ("diff_rate>0.002", []),
        ("diff_rate[A-1]>0", []),
        ("mirror_dropped!=3", []),
        ("mirror_dropped==3", ["mirror_dropped==3: mirror_dropped is 3"]),
        ("mirror_dropped>=4", []),
        ("mirror_dropped<-1", []),
        ("parity.missing>0", []),
        ("p99_added_ms>5", ["p99_added_ms>5: p99_added_ms has no value yet"]),
    ],
)
def test_a_condition_holds_or_not(text, said):
    assert failed_conditions([parse_condition(text)], FIGURES) == said


@pytest.mark.parametrize(
    "text", ["", "diff_rate", ">1", "diff_rate>x", "diff_rate=1", "a>1 or b>1", "__import__('os')>1"]
)
def test_nothing_else_is_understood(text):
    with pytest.raises(ValueError, match="is not a condition"):
        parse_condition(text)


def test_an_unknown_name_is_an_error_with_the_nearest():
    with pytest.raises(ValueError, match='did you mean "diff_rate"'):
        failed_conditions([parse_condition("dif_rate>1")], FIGURES)
    with pytest.raises(
        ValueError, match=r"known names: diff_rate, mirror_dropped, p99_added_ms, parity\.missing"
    ):
        failed_conditions([parse_condition("zzz>1")], FIGURES)


def test_exit_codes_of_a_command():
    @click.command()
    @fail_if_option
    def check(conditions):
        exit_if(conditions, FIGURES)
        click.echo("fine")

    run = CliRunner().invoke
    assert (run(check, []).exit_code, run(check, ["--fail-if", "mirror_dropped>3"]).output) == (0, "fine\n")
    failed = run(
        check, ["--fail-if", "mirror_dropped>2", "--fail-if", "diff_rate>0", "--fail-if", "diff_rate>1"]
    )
    assert failed.exit_code == 3
    assert failed.output.count("failed:") == 2
    assert run(check, ["--fail-if", "dropped"]).exit_code == 2
    unknown = run(check, ["--fail-if", "mirror_droped>2"])
    assert unknown.exit_code == 2
    assert '"mirror_dropped"' in unknown.output


def test_a_parity_condition_without_a_parity_check_says_what_to_pass():
    """The guide's line for CI failed with "unknown metric"."""
    with pytest.raises(
        ValueError, match=r'"parity\.missing" needs the result of a parity check: pass --parity FILE'
    ):
        failed_conditions([parse_condition("parity.missing>0")], {"sends": 1.0})


@pytest.mark.parametrize("old", RENAMED_METRICS)
def test_an_old_metric_name_is_accepted_with_one_warning(old):
    new = RENAMED_METRICS[old]

    @click.command()
    @fail_if_option
    def check(conditions):
        exit_if(conditions, {new: 2.0, "sends": 4.0})

    passed = CliRunner().invoke(check, ["--fail-if", f"{old}>2"])
    assert passed.exit_code == 0
    assert passed.output.count(f"metric {old} has been renamed to {new}") == 1
    failed = CliRunner().invoke(check, ["--fail-if", f"sends/{old}>=2"])
    assert failed.exit_code == 3
    assert f"sends/{new} is 2" in failed.output
