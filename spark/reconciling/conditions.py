"""Conditions on what was found, as `missing>0`, `late/primary>0.001`, `changed[Orders]>=1`.

Not responsible for what happens when one holds.
"""

import difflib
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark.options import Reader, names

_FORM: Final = re.compile(r"(\w+)(?:/(\w+))?(?:\[([^\]]+)\])?\s*(>=|<=|>|<)\s*(\d+(?:\.\d+)?)")
_HOLDS: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Condition:
    """One figure, or the share of one in another, of all topics or of one, against a limit."""

    text: str
    figure: str
    of: str | None
    topic: str | None
    sign: str
    limit: float

    def __str__(self) -> str:
        return self.text

    def holds(self, totals: Mapping[str, int], topics: Mapping[str, Mapping[str, int]]) -> bool:
        """Whether it does; a topic that was not found has nothing of anything."""
        return bool(_HOLDS[self.sign](self.value(totals, topics), self.limit))

    def value(self, totals: Mapping[str, int], topics: Mapping[str, Mapping[str, int]]) -> float:
        """The figure; a share of nothing is 0."""
        counts = totals if self.topic is None else topics.get(self.topic, {})
        value = counts.get(self.figure, 0)
        if self.of is None:
            return value
        whole = counts.get(self.of, 0)
        return value / whole if whole else 0.0


def conditions(known: tuple[str, ...]) -> Reader:
    """A reader of an option: conditions between commas, on these figures."""

    def read(value: str) -> tuple[Condition, ...]:
        return tuple(_condition(each, known) for each in names(value))

    return read


def _condition(said: str, known: tuple[str, ...]) -> Condition:
    match = _FORM.fullmatch(said.strip())
    if match is None:
        raise ValueError(f"{said!r} is not like missing>0, late/primary>0.001 or changed[Orders]>=1")
    figure, of, topic, sign, limit = match.groups()
    for name in filter(None, (figure, of)):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            raise ValueError(
                f"there is no figure {name}"
                + (f"; did you mean {near[0]}?" if near else f": {', '.join(known)}")
            )
    return Condition(said.strip(), figure, of, topic, sign, float(limit))
