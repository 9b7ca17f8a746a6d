"""Count what makes the source hard to read, and fail when a count is above its limit.

    python scripts/readability.py             # counts of the whole tree; exit status 1 above a limit
    python scripts/readability.py -v PATH…    # every finding below these paths

Counted: docstrings that open with a question word, docstrings that say what a module is "Not responsible for",
one-word function names, and class names that two modules share. Room pairs and import circles are checked by
`gateway/tests/test_rooms.py`, dead links by `scripts/check_links.py`.
"""

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("codec", "remoting", "storage", "gateway", "spark", "compat_tests", "toolkit", "scripts")
TEST_FOLDERS = {"tests", "cases"}
QUESTION_OPENING = re.compile(r"(What|Who|Whose|Whether|How|Where|When|So many|The other way)\b")
MAX_ONE_WORD_PERCENT = {"gateway/shadow": 45, "spark": 45}
"""Share of function names of one word, by folder. trio has 51 %, h11 37 %."""
SHARED_CLASS_NAMES: dict[str, str] = {}
"""Class names that may stand in two modules, each with its reason (see docs/glossary.md)."""


class Finding(NamedTuple):
    """One place that a reader would stumble over."""

    kind: str
    place: str
    text: str


def source_files() -> list[Path]:
    """Return every Python file of the packages, tests included."""
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [*found, *sorted(ROOT.glob("*.py"))]


def is_test(path: Path) -> bool:
    """Tell whether a file is a test or a helper of tests."""
    return bool(TEST_FOLDERS & set(path.relative_to(ROOT).parts))


def docstring_findings(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Yield docstrings that open with a question word, and "Not responsible for" anywhere in a docstring."""
    name = path.relative_to(ROOT)
    for node in ast.walk(tree):
        # Strings below constants and fields are read as their documentation, so every bare string counts.
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        text = node.value.value
        if not isinstance(text, str):
            continue
        first = text.strip().split("\n")[0]
        if QUESTION_OPENING.match(first):
            yield Finding("question openings", f"{name}:{node.lineno}", first)
        if path != Path(__file__).resolve() and "ot responsible for" in text:
            yield Finding("not responsible for", f"{name}:{node.lineno}", first)


def function_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the name and line of every function and method, special methods left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            yield node.name, node.lineno


def is_one_word(name: str) -> bool:
    """Tell whether a name is a single word, in snake case or camel case."""
    return "_" not in name.strip("_") and name == name.lower()


def folder_of(path: Path) -> str:
    """Return the folder whose share of one-word names a file counts for, "" if it has no limit."""
    name = path.relative_to(ROOT).as_posix()
    return next((folder for folder in MAX_ONE_WORD_PERCENT if name.startswith(folder + "/")), "")


def shared_class_names(trees: dict[Path, ast.Module]) -> Iterator[Finding]:
    """Yield public and private class names that two modules define, tests left out."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        if not is_test(path):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    for name, found in sorted(places.items()):
        if len(found) > 1 and name not in SHARED_CLASS_NAMES:
            yield Finding("shared class names", found[0], f"{name}: also {', '.join(found[1:])}")


def collect_findings() -> tuple[list[Finding], dict[str, tuple[int, int]]]:
    """Return all findings, and per limited folder how many of its function names are one word, and of how many."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in source_files()}
    findings = [each for path, tree in trees.items() for each in docstring_findings(path, tree)]
    findings += shared_class_names(trees)
    words = {folder: (0, 0) for folder in MAX_ONE_WORD_PERCENT}
    for path, tree in trees.items():
        folder = folder_of(path)
        if folder and not is_test(path):
            for name, line in function_names(tree):
                single = is_one_word(name)
                words[folder] = (words[folder][0] + single, words[folder][1] + 1)
                if single:
                    findings.append(Finding("one-word names", f"{path.relative_to(ROOT)}:{line}", name))
    return findings, words


def main() -> int:
    """Print the counts, or every finding below the given paths with ``-v``; return the exit status."""
    parser = argparse.ArgumentParser(description="Count what makes the source hard to read.")
    parser.add_argument("-v", "--verbose", nargs="*", metavar="PATH", help="print every finding below PATH")
    arguments = parser.parse_args()
    findings, words = collect_findings()
    failed = False
    for kind in ("question openings", "not responsible for", "shared class names"):
        count = sum(each.kind == kind for each in findings)
        failed |= count > 0
        print(f"{kind}: {count} (limit 0)")
    for folder, (single, total) in words.items():
        percent = 100 * single / max(total, 1)
        failed |= percent >= MAX_ONE_WORD_PERCENT[folder]
        print(f"one-word names in {folder}: {percent:.1f} % (limit {MAX_ONE_WORD_PERCENT[folder]} %)")
    if arguments.verbose is not None:
        for each in findings:
            if not arguments.verbose or each.place.startswith(tuple(arguments.verbose)):
                print(f"{each.place}: {each.kind}: {each.text}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
