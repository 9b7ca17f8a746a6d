"""Conditions: both metrics of a ratio, scopes, comparisons, mistakes."""

import math

import pytest

from toolkit.conditions import parse_condition

VALUES = {
    ("missing", None): 2,
    ("primary", None): 100,
    ("missing", "A-1"): 1,
    ("primary", "A-1"): 4,
    ("p99.ms", None): 7,
}


def value_of(text):
    return parse_condition(text).value(lambda metric, scope: VALUES.get((metric, scope), 0))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("missing>0", 2),
        ("missing[A-1] >= 1", 1),
        ("missing/primary>0.001", 0.02),
        (" missing/primary[A-1]<=2e-3 ", 0.25),
        ("missing/primary[nowhere]==0", 0),
        ("p99.ms!=-1", 7),
    ],
)
def test_values(text, value):
    assert value_of(text) == value


@pytest.mark.parametrize(
    ("text", "below", "equal", "above"),
    [
        ("a>1", False, False, True),
        ("a>=1", False, True, True),
        ("a<1", True, False, False),
        ("a<=1", True, True, False),
        ("a==1", False, True, False),
        ("a!=1", True, False, True),
    ],
)
def test_comparisons(text, below, equal, above):
    condition = parse_condition(text)
    assert [condition.holds(value) for value in (0, 1, 2)] == [below, equal, above]
    assert condition.holds(math.nan) == (condition.comparison == "!=")


def test_a_condition_is_written_as_it_was_given():
    condition = parse_condition(" late/primary[Orders]>0.5")
    assert str(condition) == " late/primary[Orders]>0.5"
    assert condition.name == "late/primary[Orders]"


@pytest.mark.parametrize(
    "text", ["", "a", ">1", "a>x", "a=1", "a>1 or b>1", "a[b]/c>0", "__import__('os')>1"]
)
def test_mistakes_are_refused_with_examples(text):
    with pytest.raises(ValueError, match=r"is not a condition: .*late/primary>0\.001"):
        parse_condition(text)


def test_unknown_metrics_are_named_with_the_nearest():
    with pytest.raises(ValueError, match='unknown metric "mising"; did you mean "missing"'):
        parse_condition("primary/mising>0").check_names(("missing", "primary"))
