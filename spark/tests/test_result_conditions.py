"""Conditions on counts."""

import pytest

from spark.reconciling.result import condition_value, conditions_parser
from toolkit.conditions import Condition

TOPICS = {"a": {"missing": 2, "primary": 10}, "b": {"missing": 0, "primary": 90}}
TOTALS = {"missing": 2, "primary": 100}
read = conditions_parser(("missing", "primary"))


def holds(text: str) -> bool:
    (condition,) = read(text)
    assert isinstance(condition, Condition)
    return condition.holds(condition_value(condition, TOTALS, TOPICS))


@pytest.mark.parametrize(
    "text",
    [
        "missing>0",
        "missing>=2",
        "primary<101",
        "primary <= 100",
        "missing/primary>0.019",
        "missing/primary[a]>=0.2",
        "missing[nowhere]<1",
    ],
)
def test_those_that_hold(text: str) -> None:
    assert holds(text)


@pytest.mark.parametrize(
    "text", ["missing>2", "missing[b]>0", "missing/primary>0.02", "missing/primary[nowhere]>0"]
)
def test_those_that_do_not(text: str) -> None:
    assert not holds(text)


def test_several_stand_between_commas() -> None:
    assert [str(each) for each in read("missing>0, primary<1")] == ["missing>0", "primary<1"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mising>0", 'unknown metric "mising"; did you mean "missing"?'),
        ("missing>-1", "is not a condition on counts"),
        ("missing", "is not a condition"),
        ("missing[a]/primary>0", "is not a condition"),
        ("missing/whole>0", 'unknown metric "whole"'),
    ],
)
def test_mistakes_are_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(text)
