"""Rules that every conformance case must follow."""

import ast
from pathlib import Path

import pytest

from compat_tests import marks

CASES = sorted((Path(marks.__file__).parent / "cases").glob("test_*.py"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_case_says_what_it_is_about(path: Path) -> None:
    tree = ast.parse(path.read_text())
    tests = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert tests
    for test in tests:
        names = [ast.unparse(decorator).partition("(")[0] for decorator in test.decorator_list]
        # client_cases marks the case of each of several clients.
        assert {"case", "client_cases"} & set(names), f"{path.name}: {test.name} has no @case"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_case_runs_against_any_endpoint(path: Path) -> None:
    text = path.read_text()
    assert "ours_only" not in text, "a case that starts our own processes belongs in acceptance/"
    assert "both_servers" not in text, "a case about two servers belongs in acceptance/"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_no_case_sleeps(path: Path) -> None:
    assert "time.sleep(" not in path.read_text(), "wait with eventually()"


def test_an_unknown_area_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown area"):
        marks.case("weather", "rain")
