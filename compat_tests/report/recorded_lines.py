"""Decides what a recording keeps of a result, so that it says what the version does and not what one run met.

Three things change a result on its way into a recording:

- A failure that means that the version does not have the feature becomes "not served": it refused the request with code
  3, or the whole area is younger than the version. What was observed stays in the reason.
- A case whose outcome changes from run to run is recorded as not run.
- Names, times, ports and ids of a run are left out of reasons, because no two runs share them.
"""

import re
from typing import Any, Final

NOT_SERVED: Final = "not served"
UNSERVED_AREAS: Final = {
    "4": {
        "pop": "4.x has no POP consumption",
        "timer": "4.x has no timer messages, and delivers them at once",
        "grpc": "4.x has no Proxy, so no gRPC",
    }
}
"""Areas that are younger than a major version of the official server, each with the reason."""

UNSTEADY: Final = {
    (
        "4.9.7",
        f"test_ordered.py::test_dead_letter[{client}]",
    ): "dead letters came within 60 s in some runs only"
    for client in ("4.9.8", "5.4.0")
}
"""Cases that pass in some runs of a version and fail in others; a recording has them as not run, with the reason."""

_REFUSED_CODE: Final = re.compile(
    r"request type \d+ not supported|assert \(3, ' request\.\.\.ot supported'\) =="
)
"""The server's words, in full or as pytest shortens them on the left side of a comparison, where the answer is."""
_OF_ONE_RUN: Final = (
    (re.compile(r"compat_[0-9a-f]{10}_\d+_"), "compat_…_"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d{4,5}"), "…"),
    (re.compile(r"\b(?=[0-9A-F]*\d)[0-9A-F]{7,}\b"), "…"),
    (re.compile(r"(?<=\.\.\.)[0-9A-F]{4,}\b"), "…"),
)
"""Names of topics and groups; ports; times in milliseconds and ids of messages, by their length; ends of ids that
pytest has shortened."""


def recorded_line(version: str, line: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a case as a recording of ``version`` ("4.9.7", or "ours") has it."""
    if (unsteady := UNSTEADY.get((version, line["id"]))) is not None:
        return {**line, "outcome": "skipped", "reason": unsteady}
    reason = _without_the_run(str(line["reason"]))
    unserved = _why_unserved(version, line)
    if unserved is None:
        return {**line, "reason": reason}
    observed = f": {reason}" if line["outcome"] == "failed" else ""
    return {**line, "outcome": NOT_SERVED, "reason": f"{unserved}{observed}"}


def _why_unserved(version: str, line: dict[str, Any]) -> str | None:
    """Return why a version does not serve a case; None if it does, or did otherwise than a version that does."""
    outcome, area = line["outcome"], line["area"]
    of_area = UNSERVED_AREAS.get(version.partition(".")[0], {}).get(area)
    if of_area is not None and (outcome == "failed" or (area == "grpc" and outcome == "skipped")):
        return of_area
    refused = _REFUSED_CODE.search(line["reason"]) if outcome == "failed" else None
    if refused is None:
        return None
    return "refused with code 3"


def _without_the_run(reason: str) -> str:
    for pattern, replacement in _OF_ONE_RUN:
        reason = pattern.sub(replacement, reason)
    return reason
