"""`--fail-if "diff_rate>0.001"`: a named figure, a comparison and a number, for exit codes in CI.

Not responsible for where the figures come from.
"""

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

FAILED_EXIT: Final = 3
"""Exit code when a condition holds, or cannot be judged because its figure has no value."""
_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM: Final = re.compile(
    r"\s*([A-Za-z_][\w.]*(?:\[[^\]]+\])?)\s*(>=|<=|==|!=|>|<)\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)\s*"
)


@dataclass(frozen=True, slots=True)
class Condition:
    """One of them; `text` as it was given."""

    text: str
    name: str
    comparison: str
    number: float

    def holds(self, value: float) -> bool:
        """Whether it is so for a value."""
        return _COMPARISONS[self.comparison](value, self.number)


def parse(text: str) -> Condition:
    """Raises ValueError, with an example, for what is no condition."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is no condition: a figure, one of {' '.join(_COMPARISONS)} and a number are expected, "
            "as in diff_rate>0.001 or sends[TopicA]<1"
        )
    return Condition(text, found[1], found[2], float(found[3]))


def failures(conditions: Iterable[Condition], figures: Mapping[str, float]) -> list[str]:
    """A sentence for each condition that holds, or whose figure has no value (NaN). Raises ValueError for a name that
    no figure has, with the nearest one that does."""
    found = []
    for condition in conditions:
        if condition.name not in figures:
            raise ValueError(f"no figure is called {condition.name!r}{_nearest(condition.name, figures)}")
        value = figures[condition.name]
        if math.isnan(value):
            found.append(f"{condition.text}: {condition.name} has no value yet")
        elif condition.holds(value):
            found.append(f"{condition.text}: {condition.name} is {value:g}")
    return found


def _nearest(name: str, figures: Mapping[str, float]) -> str:
    close = difflib.get_close_matches(name, figures, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(sorted(each for each in figures if '[' not in each))}"


def _parsed(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> list[Condition]:
    try:
        return [parse(text) for text in given]
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def fail_if_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The repeatable option `--fail-if`; the command gets a list of `Condition` as `conditions`."""
    return click.option(
        "--fail-if",
        "conditions",
        multiple=True,
        callback=_parsed,
        metavar="CONDITION",
        help=f'Exit with {FAILED_EXIT} when this holds, e.g. "diff_rate>0.001"; repeatable.',
    )(function)


def exit_if(conditions: Iterable[Condition], figures: Mapping[str, float]) -> None:
    """Says which conditions hold and ends the command with `FAILED_EXIT` if any does. Raises UsageError (exit code 2)
    for an unknown name."""
    try:
        found = failures(conditions, figures)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for line in found:
        click.echo(f"failed: {line}", err=True)
    if found:
        raise click.exceptions.Exit(FAILED_EXIT)
