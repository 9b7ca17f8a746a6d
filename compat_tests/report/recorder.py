"""Records a run as a snapshot: what failed is run again on a new server before it is written.

Cases with real JVMs are late at times on a busy machine. A case that fails in every run is recorded as failed.
"""

from collections.abc import Sequence
from typing import Final

import click

from compat_tests.report.runs import SuiteRun
from compat_tests.results_file import Results

DEFAULT_REPEATS: Final = 3
_FAILED: Final = "failed"


def run_with_repeats(run: SuiteRun, places: Sequence[str], repeats: int) -> Results:
    """Run the cases, or those with the ids ``places``; then what failed, up to ``repeats`` times more.

    The last outcome of a case counts. Ends early when a repetition lets none of them pass.
    """
    results = run.run(places)
    for number in range(1, repeats + 1):
        failed = failed_cases(results)
        if not failed:
            break
        click.echo(f"{len(failed)} cases failed; repetition {number} of {repeats}", err=True)
        again = run.run(failed)
        results |= {case_id: line for case_id, line in again.items() if case_id in results}
        if len(failed_cases(results)) == len(failed):
            break
    return results


def failed_cases(results: Results) -> list[str]:
    """Return the ids of the cases that failed."""
    return sorted(case_id for case_id, line in results.items() if line["outcome"] == _FAILED)
