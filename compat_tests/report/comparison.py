"""Compares the results of an endpoint with those of another one, or with a recorded run of an official version."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compat_tests.results_table import Results, read_results

SNAPSHOTS: Final = Path(__file__).parents[1] / "snapshots"
"""Recorded results of official versions, one file each: `official-5.4.0.jsonl`."""

SAME, DEVIATES, BETTER, NOT_RUN = "same", "deviates", "better", "not run"
_NOT_RUN_OUTCOMES: Final = ("skipped", "")


@dataclass(frozen=True, slots=True)
class ComparedCase:
    """One case: its outcomes on the endpoint and on the reference, and what that means.

    ``verdict`` is SAME, DEVIATES (the reference passes and the endpoint does not), BETTER (the endpoint passes and the
    reference does not), or NOT_RUN on either side. ``reason`` is the endpoint's, where it did not pass.
    """

    id: str
    area: str
    feature: str
    outcome: str
    expected: str
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class EndpointComparison:
    """All cases of an endpoint against those of a reference, by their names."""

    endpoint: str
    reference: str
    cases: tuple[ComparedCase, ...] = field(default=())

    @property
    def counts(self) -> Counter[str]:
        """Number of cases by verdict."""
        return Counter(each.verdict for each in self.cases)

    @property
    def deviations(self) -> list[ComparedCase]:
        """Cases that the reference passes and the endpoint does not."""
        return [each for each in self.cases if each.verdict == DEVIATES]

    def features(self, area: str) -> Iterator[tuple[str, list[ComparedCase]]]:
        """Yield the features of an area in order, each with its cases."""
        of_area = [each for each in self.cases if each.area == area]
        for feature in sorted({each.feature for each in of_area}):
            yield feature, [each for each in of_area if each.feature == feature]


def compare(endpoint: tuple[str, Results], reference: tuple[str, Results]) -> EndpointComparison:
    """Compare results by case. Cases that only the reference has are NOT_RUN: they were not selected."""
    name, found = endpoint
    other, expected = reference
    cases = []
    for case_id in sorted(found.keys() | expected.keys()):
        line = found.get(case_id) or expected[case_id]
        outcome = found[case_id]["outcome"] if case_id in found else ""
        reference_outcome = expected[case_id]["outcome"] if case_id in expected else ""
        cases.append(
            ComparedCase(
                case_id,
                line["area"],
                line["feature"],
                outcome,
                reference_outcome,
                _judge(outcome, reference_outcome),
                str(found.get(case_id, {}).get("reason", "")),
            )
        )
    return EndpointComparison(name, other, tuple(cases))


def _judge(outcome: str, expected: str) -> str:
    if outcome in _NOT_RUN_OUTCOMES or expected in _NOT_RUN_OUTCOMES:
        return NOT_RUN
    if outcome == expected:
        return SAME
    if expected == "passed":
        return DEVIATES
    return BETTER if outcome == "passed" else SAME


def snapshot_versions() -> list[str]:
    """Return the official versions whose results are recorded, the newest last."""
    names = [path.stem.removeprefix("official-") for path in SNAPSHOTS.glob("official-*.jsonl")]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def read_snapshot(version: str) -> tuple[str, Results]:
    """Return the recorded results of an official version. Raises FileNotFoundError for one that is not recorded."""
    path = SNAPSHOTS / f"official-{version}.jsonl"
    _, results = read_results(path)
    return f"official {version}", results
