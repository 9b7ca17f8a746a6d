"""Result of a comparison, as the JSON that people and `readiness` read, and the conditions under which it fails.

The option `failIf` lists conditions on the counts, such as `missing>0` or `changed[Orders]>=1`. Their grammar is that
of `toolkit.conditions`; scopes are topics.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from spark.options import Reader, names
from spark.reconciling.counts import COUNTED
from spark.reconciling.pairs import KINDS
from toolkit.conditions import Condition, parse_condition

KIND: Final = "reconcile"
VERSION: Final = 1

TopicCounts = dict[str, int]


@dataclass(slots=True)
class ReconcileResult:
    """Counts by topic, hours with findings, and samples. Times are ms since 1970, None where nothing was compared."""

    made_ms: int
    as_of_ms: int
    until_ms: int
    from_ms: int | None
    offsets_preserved: bool
    late_after_ms: int | None
    topics: dict[str, TopicCounts] = field(default_factory=dict)
    times: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    hours: Sequence[Mapping[str, Any]] = ()
    samples: Sequence[Mapping[str, Any]] = ()
    failed: Sequence[str] = ()

    @property
    def count_totals(self) -> TopicCounts:
        """Sums over all topics."""
        return {name: sum(counts[name] for counts in self.topics.values()) for name in COUNTED}

    def apply_conditions(self, conditions: Iterable[Condition]) -> None:
        """Set `failed` to the conditions that hold, each with its present value."""
        totals = self.count_totals
        values = [(condition, condition_value(condition, totals, self.topics)) for condition in conditions]
        self.failed = [
            f"{condition} (it is {value:g})" for condition, value in values if condition.holds(value)
        ]

    @property
    def finding_count(self) -> int:
        """Number of findings."""
        return sum(count for name, count in self.count_totals.items() if name in KINDS)

    def to_value(self) -> dict[str, Any]:
        """Return the JSON value."""
        return {
            "kind": KIND,
            "version": VERSION,
            "made": iso_time(self.made_ms),
            "asOf": iso_time(self.as_of_ms),
            "from": iso_time(self.from_ms),
            "until": iso_time(self.until_ms),
            "offsetsPreserved": self.offsets_preserved,
            "lateAfterMs": self.late_after_ms,
            "totals": self.count_totals,
            "topics": {
                topic: {
                    **counts,
                    "first": iso_time(self.times[topic][0]),
                    "last": iso_time(self.times[topic][1]),
                }
                for topic, counts in sorted(self.topics.items())
            },
            "hours": [_json_row(row) for row in self.hours],
            "samples": [_json_row(row) for row in self.samples],
            "failed": list(self.failed),
        }


def iso_time(at_ms: int | None) -> str | None:
    """Format a time for JSON, in UTC to the ms."""
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def unix_ms(moment: datetime) -> int:
    """Convert to ms since 1970. Spark's times have no zone, and are local to the machine."""
    return round(moment.timestamp() * 1000)


def _json_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: iso_time(unix_ms(value)) if isinstance(value, datetime) else value
        for name, value in row.items()
        if value is not None
    }


def conditions_parser(count_names: tuple[str, ...]) -> Reader:
    """Return the parser of an option: conditions on these counts, separated by commas."""

    def parse(value: str) -> tuple[Condition, ...]:
        return tuple(_parse_count_condition(part, count_names) for part in names(value))

    return parse


def _parse_count_condition(text: str, count_names: tuple[str, ...]) -> Condition:
    condition = parse_condition(text)
    condition.check_names(count_names)
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
