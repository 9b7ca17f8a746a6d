"""Renders results files as one markdown document: totals, one table per area, and the reasons of failures."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from compat_tests.areas import AREAS
from compat_tests.results_file import Results, read_results

Column = tuple[str, Results]
"""The name of an endpoint and its results."""

# The outcome of a feature with several cases is the first of these that occurs.
_WORST_FIRST = ("failed", "missing", "not served", "skipped", "differs", "passed")
_WORDS = {
    "passed": "yes",
    "failed": "**no**",
    "missing": "not yet",
    "not served": "not served",
    "skipped": "not run",
    "differs": "differs",
}
_NOT_RUN = "not run"
_STOCK_CLIENT_PREFIXES = ("Java", "Go", "mqadmin")
"""Prefixes of features that a stock client demonstrates; our typed client demonstrates the others."""


def render_table(paths: Sequence[Path]) -> str:
    """Return the markdown text: totals, an overview, a table per area, and every case that did not pass."""
    columns = [read_results(path) for path in paths]
    return "\n".join(["# Compatibility", "", *render_tables(columns), *render_failures(columns)]) + "\n"


def render_tables(
    columns: Sequence[Column], columns_of_area: Mapping[str, Sequence[Column]] = MappingProxyType({})
) -> list[str]:
    """Return the lines of the totals, an overview of the areas, and a table for each area.

    ``columns_of_area`` has further columns of single areas, for endpoints that serve nothing else.
    """
    area_only_columns = [column for area_columns in columns_of_area.values() for column in area_columns]
    lines = [*_totals([*columns, *area_only_columns]), *_area_overview(columns)]
    for area in AREAS:
        lines += _area_table(area, [*columns, *columns_of_area.get(area, ())])
    return lines


def _totals(columns: Sequence[Column]) -> list[str]:
    lines = [
        "| endpoint | cases | passed | failed | differs on purpose | not yet | not served | not run |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, results in columns:
        count = Counter(line["outcome"] for line in results.values())
        numbers = [len(results), count["passed"], count["failed"], count["differs"]]
        numbers += [count["missing"], count["not served"], count["skipped"]]
        lines.append(f"| {name} | " + " | ".join(map(str, numbers)) + " |")
    return lines


def _area_overview(columns: Sequence[Column]) -> list[str]:
    """Return one row per area, linked to the area's table, with its number of passed cases."""
    lines = [
        "",
        "| area | " + " | ".join(name for name, _ in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for area, title in AREAS.items():
        cells = [
            _pass_summary([line for line in results.values() if line["area"] == area])
            for _, results in columns
        ]
        if any(cells):
            lines.append(f"| [{title}](#{_anchor(title)}) | " + " | ".join(cells) + " |")
    return lines


def _pass_summary(lines: Sequence[dict[str, Any]]) -> str:
    """Return "12 of 12" followed by the other outcomes; "" if there are no cases."""
    count = Counter(line["outcome"] for line in lines)
    other_outcomes = [
        f"{count[outcome]} {_WORDS[outcome]}" for outcome in _WORST_FIRST[:-1] if count[outcome]
    ]
    return ", ".join([f"{count['passed']} of {len(lines)}", *other_outcomes]) if lines else ""


def _anchor(title: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    anchor_text = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return anchor_text.replace(" ", "-")


def _area_table(area: str, columns: Sequence[Column]) -> list[str]:
    features = sorted(
        {line["feature"] for _, results in columns for line in results.values() if line["area"] == area},
        key=_stock_clients_first,
    )
    if not features:
        return []
    lines = ["", f"## {AREAS[area]}", "", "| feature | " + " | ".join(name for name, _ in columns) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    for feature in features:
        cells = [_outcome_cell(_feature_lines(results, area, feature)) for _, results in columns]
        lines.append(f"| {_escaped(feature)} | " + " | ".join(cells) + " |")
    return lines


def _stock_clients_first(feature: str) -> tuple[bool, str]:
    return not feature.startswith(_STOCK_CLIENT_PREFIXES), feature


def _feature_lines(results: Results, area: str, feature: str) -> list[dict[str, Any]]:
    return [line for line in results.values() if (line["area"], line["feature"]) == (area, feature)]


def _outcome_cell(lines: Sequence[dict[str, Any]]) -> str:
    outcomes = Counter(line["outcome"] for line in lines)
    for outcome in _WORST_FIRST:
        if outcomes[outcome]:
            part = f" ({outcomes[outcome]} of {len(lines)})" if outcomes[outcome] < len(lines) else ""
            return _WORDS[outcome] + part
    return _NOT_RUN


def render_failures(columns: Sequence[Column]) -> list[str]:
    """Return the lines with every case that did not pass, and why, for each endpoint."""
    lines: list[str] = []
    for name, results in columns:
        failures = [line for line in results.values() if line["outcome"] != "passed"]
        if failures:
            lines += ["", f"## Not passed on {name}", "", *_reason_lines(failures)]
    return lines


def _reason_lines(result_lines: Iterable[dict[str, Any]]) -> list[str]:
    ordered = sorted(result_lines, key=lambda line: (_WORST_FIRST.index(line["outcome"]), line["id"]))
    return [f"- {line['outcome']}: `{line['id']}`: {line['reason']}" for line in ordered]


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")
