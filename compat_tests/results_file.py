"""The results file of a run: one JSON line per case, written as the cases end, so that a run can be watched.

The first line has the number of cases that were selected (``{"endpoint": …, "cases": 912}``). Every other line is the
result of a case; a case whose clean-up fails gets a second one, which counts.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    # Commands read results and list their options where pytest is not installed.
    import pytest

Results = dict[str, dict[str, Any]]
"""The results of one endpoint by case id."""
MAX_REASON_CHARS: Final = 300


class ResultsWriter:
    """Writes the results file of one run against the endpoint ``label``."""

    def __init__(self, path: Path, label: str) -> None:
        self._file: IO[str] = path.open("w")
        self._label = label
        self._is_begun = False

    def begin(self, count: int) -> None:
        """Write the number of selected cases; further calls, one for each worker, do nothing."""
        if not self._is_begun:
            self._is_begun = True
            self._write({"cases": count})

    def add(self, report: "pytest.TestReport") -> None:
        """Write the result of a conformance case, if this report is the one that has it."""
        line = _result_of(report)
        if line is not None:
            self._write(line)

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps({"endpoint": self._label, **line}) + "\n")
        self._file.flush()


def read_results(path: Path) -> tuple[str, Results]:
    """Return the endpoint's name and its results. The last line of a case counts."""
    lines = list(parse_lines(path.read_text()))
    name = lines[0]["endpoint"] if lines else path.stem
    return name, {line["id"]: line for line in lines if "id" in line}


def parse_lines(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of complete lines."""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n") and line.strip():
            yield json.loads(line)


def _result_of(report: "pytest.TestReport") -> dict[str, Any] | None:
    """Return one result per case: that of its call, or of its set-up or clean-up if it ended there."""
    properties = dict(report.user_properties)
    if "area" not in properties or (report.when != "call" and report.outcome == "passed"):
        return None
    if report.when == "teardown" and report.outcome != "failed":
        return None
    return {
        "id": report.nodeid.rpartition("cases/")[2],
        "area": properties["area"],
        "feature": properties["feature"],
        "outcome": properties["expected"] if _failed_as_expected(report) else report.outcome,
        "reason": _reason(report),
        "seconds": round(report.duration, 3),
    }


def _failed_as_expected(report: "pytest.TestReport") -> bool:
    return hasattr(report, "wasxfail") and report.skipped


def _reason(report: "pytest.TestReport") -> str:
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail).removeprefix("reason: ") if report.skipped else ""
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        return str(crash.message if crash else report.longrepr).strip().splitlines()[0][:MAX_REASON_CHARS]
    return ""
