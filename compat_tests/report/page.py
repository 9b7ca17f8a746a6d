"""Writes `docs/reference/compatibility.md` from the recorded runs: `python -m compat_tests page`."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any, Final

from compat_tests.endpoints import MARKED_VERSION
from compat_tests.malformed import recording as malformed
from compat_tests.mqadmin import recording as mqadmin
from compat_tests.report.snapshots import (
    OURS,
    PROXIES,
    PROXY_AREA,
    Snapshot,
    read_snapshot,
    snapshot_versions,
)
from compat_tests.results_table import render_failures, render_tables

HEAD: Final = Path(__file__).with_name("compatibility_head.txt")
PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md"
LISTING: Final = Path(__file__).parents[1] / "cases" / "config_listing.toml"


def render_compatibility() -> str:
    """Return the page. Raises FileNotFoundError unless our server and official `MARKED_VERSION` are recorded."""
    marked = read_snapshot(MARKED_VERSION)
    other_snapshots = [read_snapshot(version) for version in snapshot_versions() if version != MARKED_VERSION]
    snapshots = [read_snapshot(OURS), marked, *other_snapshots]
    proxy_snapshots = [read_snapshot(name) for name in PROXIES]
    columns = [(snapshot.endpoint, snapshot.results) for snapshot in snapshots]
    proxies = [(snapshot.endpoint, snapshot.results) for snapshot in proxy_snapshots]
    head = Template(HEAD.read_text()).substitute(
        recordings="\n".join(map(_describe, [*snapshots, *proxy_snapshots])), version=MARKED_VERSION
    )
    lines = render_tables(columns, {PROXY_AREA: proxies})
    # Other versions lack whole features; the cells of the tables say it once for each.
    lines += [*render_failures([*columns[:2], *proxies]), *_known_deviations()]
    return head + "\n".join(lines) + "\n"


def _describe(snapshot: Snapshot) -> str:
    return f"- {snapshot.endpoint}: {len(snapshot.results)} cases, recorded on {snapshot.day}"


def _known_deviations() -> Iterator[str]:
    """Yield the section with every answer of ours that deviates from a recording, by reason.

    Deviations of whole cases are marks of these (`not_served`, `not_yet`), which the section before lists.
    """
    yield from (
        "",
        "## Known deviations",
        "",
        f"Answers of this server that differ from the recorded ones of official {MARKED_VERSION}, with the reasons. An",
        "entry that no longer differs makes its case fail. Whole cases that this server does not pass are listed under",
        "[Not passed on ours](#not-passed-on-ours).",
    )
    groups = tomllib.loads(malformed.DEVIATIONS.read_text())["deviation"]
    recorded = sum(map(len, malformed.read_recording().values()))
    count = sum(len(variants) for group in groups for variants in group["cases"].values())
    yield from (
        "",
        f"### Malformed requests: {count} of {recorded} (`compat_tests/malformed/deviations.toml`)",
        "",
    )
    yield from (_malformed_line(group) for group in groups)
    groups = tomllib.loads(mqadmin.DEVIATIONS.read_text())["deviation"]
    count, recorded = sum(len(group["commands"]) for group in groups), len(mqadmin.read_recording())
    yield from (
        "",
        f"### Output of mqadmin: {count} of {recorded} (`compat_tests/mqadmin/deviations.toml`)",
        "",
    )
    yield from (f"- {group['reason']} {_listed(group['commands'])}" for group in groups)
    listing = tomllib.loads(LISTING.read_text())
    yield from ("", "### Configuration listings (`compat_tests/cases/config_listing.toml`)", "")
    for server, keys in listing["different"].items():
        yield from (f"- another value at the {server}: {reason} `{key}`" for key, reason in keys.items())
    for group in listing["only_ours"]:
        yield f"- only ours ({' and '.join(group['servers'])}): {group['reason']} Keys: {len(group['keys'])}"


def _malformed_line(group: dict[str, Any]) -> str:
    count = sum(map(len, group["cases"].values()))
    times = "once" if count == 1 else f"{count} times"
    return f"- answered {group['ours']!r} {times}: {group['reason']} {_listed(group['cases'])}"


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)
