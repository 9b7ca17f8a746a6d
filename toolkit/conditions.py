"""Conditions on metrics that make a command fail: `diff_rate>0.001`, `late/primary>0.001`, `changed[Orders]>=1`.

A condition compares one metric, or the ratio of two, with a number. It applies to everything or to one scope (a topic,
a client):

    condition  = metric ["/" metric] ["[" scope "]"] comparison number
    comparison = ">=" | "<=" | "==" | "!=" | ">" | "<"

Callers look up the metrics and choose the exit code.
"""

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from toolkit.suggestions import suggest_name

_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_METRIC: Final = r"[A-Za-z_][\w.]*"
_CONDITION: Final = re.compile(
    rf"({_METRIC})(?:/({_METRIC}))?(?:\[([^\]]+)\])?\s*(>=|<=|==|!=|>|<)\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
)

Lookup = Callable[[str, str | None], float]
"""Returns the value of a metric for a scope (None: for everything)."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One parsed condition. `text` is the user's own; `divisor` is the second metric of a ratio."""

    text: str
    metric: str
    divisor: str | None
    scope: str | None
    comparison: str
    limit: float

    def __str__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        """The left side as it is written: `late/primary[Orders]`."""
        ratio = f"{self.metric}/{self.divisor}" if self.divisor else self.metric
        return f"{ratio}[{self.scope}]" if self.scope else ratio

    def value(self, lookup: Lookup) -> float:
        """Return the metric, or the ratio of two; the ratio is 0 if the divisor is 0."""
        value = lookup(self.metric, self.scope)
        if self.divisor is None:
            return value
        whole = lookup(self.divisor, self.scope)
        return value / whole if whole else 0.0

    def holds(self, value: float) -> bool:
        """Tell whether the comparison is true of a value."""
        return _COMPARISONS[self.comparison](value, self.limit)

    def check_names(self, known_names: Iterable[str]) -> None:
        """Raise ValueError for an unknown metric. The text suggests the nearest known name."""
        names = list(known_names)
        for metric in filter(None, (self.metric, self.divisor)):
            if metric not in names:
                raise ValueError(f'unknown metric "{metric}"{suggest_name(metric, names)}')


def parse_condition(text: str) -> Condition:
    """Parse a condition. Raises ValueError, with examples."""
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f'"{text}" is not a condition: expected a metric, one of {" ".join(_COMPARISONS)} and a number, '
            "as in missing>0, late/primary>0.001 or changed[Orders]>=1"
        )
    metric, divisor, scope, comparison, limit = match.groups()
    return Condition(text, metric, divisor, scope, comparison, float(limit))
