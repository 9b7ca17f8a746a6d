"""Recorded runs: one file for each official version, and one for our server (`compat_tests/snapshots`).

A file begins with a line that names the endpoint and the day of the recording. Every other line is the result of a case
without its duration, ordered by case, so that a new recording changes only what changed.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compat_tests.endpoints import MARKED_VERSION, OFFICIAL_VERSIONS
from compat_tests.report.recorded_lines import recorded_line
from compat_tests.results_file import Results, parse_lines

SNAPSHOTS: Final = Path(__file__).parents[1] / "snapshots"
"""`official-5.4.0.jsonl` and others, `ours.jsonl`, and `proxy-ours.jsonl` and `proxy-official.jsonl`."""
OURS: Final = "ours"
PROXIES: Final = {
    "proxy:ours": "proxy before ours",
    "proxy": f"proxy before official {MARKED_VERSION}",
}
"""Names of the columns for `rmq-gateway proxy`, by the endpoints. Only the cases of `PROXY_AREA` are recorded there."""
PROXY_AREA: Final = "grpc"
_RECORDED_FIELDS: Final = ("id", "area", "feature", "outcome", "reason")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A recorded run. ``day`` is that of the recording ("2026-11-25")."""

    endpoint: str
    day: str
    results: Results


def snapshot_versions() -> list[str]:
    """Return the official versions whose results are recorded, the newest last."""
    names = [path.stem.removeprefix("official-") for path in SNAPSHOTS.glob("official-*.jsonl")]
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


def default_version() -> str | None:
    """Return the version to compare with unless another one is asked for: the one that the cases' marks are about."""
    versions = snapshot_versions()
    return MARKED_VERSION if MARKED_VERSION in versions else versions[-1] if versions else None


def is_recorded(name: str) -> bool:
    """Return True if there is a recorded run of that name, as `read_snapshot` takes it."""
    return _path_of(name).exists()


def read_snapshot(name: str) -> Snapshot:
    """Return a recorded run: of "ours", of an official version ("5.4" or "5.4.0"), or of one of `PROXIES`.

    Raises FileNotFoundError for one that is not recorded.
    """
    head, *lines = parse_lines(_path_of(name).read_text())
    return Snapshot(head["endpoint"], head["recorded"], {line["id"]: line for line in lines})


def write_snapshot(name: str, results: Results, day: str) -> Path:
    """Write a recorded run and return the path of its file; ``name`` is as for `read_snapshot`."""
    path = _path_of(name)
    own_name = name if name == OURS else PROXIES.get(name)
    endpoint = own_name or f"official {OFFICIAL_VERSIONS.get(name, name)}"
    lines = [{"endpoint": endpoint, "recorded": day}]
    version = OFFICIAL_VERSIONS.get(name, name)
    ordered = sorted(
        (recorded_line(version, line) for line in results.values()), key=lambda line: str(line["id"])
    )
    lines += [{field: line[field] for field in _RECORDED_FIELDS} for line in ordered]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _path_of(name: str) -> Path:
    if name == OURS:
        return SNAPSHOTS / f"{OURS}.jsonl"
    if name in PROXIES:
        kind, _, cluster = name.partition(":")
        return SNAPSHOTS / f"{kind}-{cluster or 'official'}.jsonl"
    return SNAPSHOTS / f"official-{OFFICIAL_VERSIONS.get(name, name)}.jsonl"
