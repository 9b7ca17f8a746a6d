"""The markdown document rendered from results files."""

import json
from pathlib import Path

from compat_tests.results_table import render_table, render_tables


def write(path: Path, endpoint: str, outcomes: dict[str, str]) -> Path:
    lines = [
        {
            "id": f"test_pull.py::{name}",
            "area": "pull",
            "feature": name.partition("[")[0],
            "endpoint": endpoint,
            "outcome": outcome,
            "reason": "" if outcome == "passed" else f"why {name}",
        }
        for name, outcome in outcomes.items()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_each_endpoint_is_a_column_and_each_feature_a_line(tmp_path: Path) -> None:
    ours = write(tmp_path / "a", "ours", {"long poll": "passed", "filter": "failed"})
    official = write(tmp_path / "b", "official", {"long poll": "differs", "filter": "passed"})
    text = render_table([ours, official])
    assert "| feature | ours | official |" in text
    assert "| long poll | yes | differs |" in text
    assert "| filter | **no** | yes |" in text


def test_totals(tmp_path: Path) -> None:
    outcomes = {"a": "passed", "b": "passed", "c": "failed", "d": "differs", "e": "missing", "f": "skipped"}
    outcomes |= {"g": "not served"}
    assert "| ours | 7 | 2 | 1 | 1 | 1 | 1 | 1 |" in render_table([write(tmp_path / "a", "ours", outcomes)])


def test_the_worst_outcome_of_a_feature_counts(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a", "ours", {"filter[1]": "passed", "filter[2]": "failed", "filter[3]": "passed"}
    )
    assert "| filter | **no** (1 of 3) |" in render_table([path])


def test_a_feature_one_endpoint_never_ran_is_not_called_good(tmp_path: Path) -> None:
    ours = write(tmp_path / "a", "ours", {"filter": "passed"})
    official = write(tmp_path / "b", "official", {"other": "passed"})
    assert "| filter | yes | not run |" in render_table([ours, official])


def test_an_endpoint_of_one_area_is_a_column_there_only() -> None:
    def results(area: str, feature: str) -> dict[str, dict[str, str]]:
        return {feature: {"id": feature, "area": area, "feature": feature, "outcome": "passed", "reason": ""}}

    column = ("ours", results("pull", "long poll") | results("grpc", "push"))
    text = "\n".join(render_tables([column], {"grpc": [("proxy", results("grpc", "push"))]}))
    assert "| proxy | 1 | 1 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "| feature | ours |\n|---|---|\n| long poll | yes |" in text
    assert "| feature | ours | proxy |\n|---|---|---|\n| push | yes | yes |" in text
    assert "| area | ours |\n" in text


def test_what_did_not_pass_is_listed_with_its_reason(tmp_path: Path) -> None:
    text = render_table([write(tmp_path / "a", "ours", {"good": "passed", "bad": "failed"})])
    assert "- failed: `test_pull.py::bad`: why bad" in text
    assert "::good" not in text


def test_a_line_break_or_bar_does_not_break_the_table(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "ours", {"a | b": "passed"})
    assert r"| a \| b | yes |" in render_table([path])


def test_each_area_at_a_glance_links_to_its_table(tmp_path: Path) -> None:
    ours = write(tmp_path / "a", "ours", {"a": "passed", "b": "failed", "c": "skipped"})
    official = write(tmp_path / "b", "official", {"a": "passed", "b": "passed"})
    text = render_table([ours, official])
    assert "| [Pulling](#pulling) | 1 of 3, 1 **no**, 1 not run | 2 of 2 |" in text
    assert "## Pulling" in text


def test_what_stock_clients_show_comes_first(tmp_path: Path) -> None:
    text = render_table(
        [write(tmp_path / "a", "ours", {"Java: z": "passed", "a": "passed", "Go: y": "passed"})]
    )
    assert text.index("| Go: y") < text.index("| Java: z") < text.index("| a |")
