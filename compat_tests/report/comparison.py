"""Compares the results of an endpoint with those of another one, or with a recorded run of an official version."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from compat_tests.results_file import Results

SAME, DEVIATES, BETTER, NOT_RUN, NOT_RECORDED = "same", "deviates", "better", "not run", "not recorded"
_SKIPPED: Final = "skipped"


@dataclass(frozen=True, slots=True)
class ComparedCase:
    """One case: its outcomes on the endpoint and on the reference, and what that means.

    ``verdict`` is SAME, DEVIATES (the reference passes and the endpoint does not), BETTER (the endpoint passes and the
    reference does not), NOT_RUN on either side, or NOT_RECORDED: the reference knows no such case. ``reason`` is the
    endpoint's, where it did not pass.
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
        return Counter(case.verdict for case in self.cases)

    @property
    def deviations(self) -> list[ComparedCase]:
        """Cases that the reference passes and the endpoint does not."""
        return [case for case in self.cases if case.verdict == DEVIATES]

    @property
    def compared(self) -> int:
        """Number of cases that were run on the endpoint and that the reference has an outcome of."""
        return len(self.cases) - self.counts[NOT_RUN] - self.counts[NOT_RECORDED]

    def features(self, area: str) -> Iterator[tuple[str, list[ComparedCase]]]:
        """Yield the features of an area in order, each with its cases."""
        of_area = [case for case in self.cases if case.area == area]
        for feature in sorted({case.feature for case in of_area}):
            yield feature, [case for case in of_area if case.feature == feature]


def compare(endpoint: tuple[str, Results], reference: tuple[str, Results]) -> EndpointComparison:
    """Compare results by case. Cases that only the reference has are NOT_RUN: they were not selected."""
    name, results = endpoint
    other, expected = reference
    cases = []
    for case_id in sorted(results.keys() | expected.keys()):
        line = results.get(case_id) or expected[case_id]
        outcome = results[case_id]["outcome"] if case_id in results else _SKIPPED
        reference_outcome = expected[case_id]["outcome"] if case_id in expected else None
        cases.append(
            ComparedCase(
                case_id,
                line["area"],
                line["feature"],
                outcome,
                reference_outcome or NOT_RECORDED,
                judge(outcome, reference_outcome),
                str(results.get(case_id, {}).get("reason", "")),
            )
        )
    return EndpointComparison(name, other, tuple(cases))


def judge(outcome: str, expected: str | None) -> str:
    """Return the verdict on a case. ``expected`` is the outcome on the reference, None for a case it does not know."""
    if outcome == _SKIPPED or expected == _SKIPPED:
        return NOT_RUN
    if expected is None:
        return NOT_RECORDED
    if outcome == expected:
        return SAME
    if expected == "passed":
        return DEVIATES
    return BETTER if outcome == "passed" else SAME
