"""The option `failIf`: conditions on the counts of a comparison, such as `missing>0` or `changed[Orders]>=1`.

The grammar is that of `toolkit.conditions`; scopes are topics. `result.py` reports the conditions that hold.
"""

from collections.abc import Mapping

from spark.options import Reader, names
from toolkit.conditions import Condition, parse_condition


def conditions_parser(known: tuple[str, ...]) -> Reader:
    """Return the parser of an option: conditions on these counts, separated by commas."""

    def parse(value: str) -> tuple[Condition, ...]:
        return tuple(_parse_known(each, known) for each in names(value))

    return parse


def _parse_known(text: str, known: tuple[str, ...]) -> Condition:
    condition = parse_condition(text)
    condition.check_names(known)
    if condition.limit < 0:
        raise ValueError(f'"{text}" is not a condition on counts: they are never below 0')
    return condition


def condition_value(
    condition: Condition, totals: Mapping[str, int], topics: Mapping[str, Mapping[str, int]]
) -> float:
    """Return a condition's count or ratio; the counts of a topic that was not found are 0."""

    def look_up(metric: str, topic: str | None) -> float:
        counts = totals if topic is None else topics.get(topic, {})
        return counts.get(metric, 0)

    return condition.value(look_up)
