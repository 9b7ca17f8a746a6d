"""Count what makes the source hard to read, and fail when a count is above its limit.

    python scripts/readability.py             # counts of the whole tree; exit status 1 above a limit
    python scripts/readability.py -v PATH…    # every finding below these paths

Counted: docstrings that open with a question word, docstrings that say what a module is "Not responsible for",
one-word function names, class names that two modules share, values named by a participle or a pronoun, and the
comments of the modules where the hard steps are. Room pairs and import circles are checked by
`gateway/tests/test_rooms.py`, dead links by `scripts/check_links.py`.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "codec",
    "remoting",
    "storage",
    "gateway",
    "spark",
    "compat_tests",
    "acceptance",
    "tools",
    "toolkit",
    "scripts",
)
TEST_FOLDERS = {"tests", "cases", "acceptance"}
QUESTION_OPENING = re.compile(r"(What|Who|Whose|Whether|How|Where|When|So many|The other way)\b")
MAX_ONE_WORD_PERCENT = {"gateway/shadow": 45, "spark": 45}
"""Share of function names of one word, by folder. trio has 51 %, h11 37 %."""
SHARED_CLASS_NAMES: dict[str, str] = {}
"""Class names that may stand in two modules, each with its reason (see docs/glossary.md)."""

VAGUE_NAMES = frozenset(
    {
        "asked",
        "each",
        "found",
        "given",
        "gone",
        "kept",
        "known",
        "lacking",
        "left",
        "made",
        "one",
        "others",
        "ours",
        "place",
        "put",
        "said",
        "seen",
        "taken",
        "theirs",
        "told",
        "wanted",
    }
)
"""Names of variables, parameters and attributes that do not say what the value is; h11, trio and mitmproxy have almost
none. ``left`` is fine beside ``right``."""
MAX_VAGUE_NAMES_PER_1000_LINES = 2.0
HARD_MODULES: tuple[str, ...] = (
    "storage/recovery.py",
    "storage/queue_read.py",
    "storage/log_scan.py",
    "remoting/frame_connection.py",
    "remoting/reactor.py",
    "gateway/broker/transactions/transaction_checks.py",
    "gateway/broker/pop/reviver.py",
    "gateway/broker/delayed/timer_delivery.py",
    "gateway/broker/messages/answer_gate.py",
    "gateway/broker/messages/group_commit.py",
    "gateway/shadow/proxy/session.py",
    "gateway/shadow/mirror/mirror.py",
    "gateway/admin/groups.py",
)
"""Modules whose steps need their reasons beside them."""
MIN_COMMENTS_PER_100_LINES = 3.0


class Finding(NamedTuple):
    """One place that a reader would stumble over."""

    kind: str
    location: str
    text: str


def source_files() -> list[Path]:
    """Return every Python file of the packages, tests included."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [*paths, *sorted(ROOT.glob("*.py"))]


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
    locations_by_name: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        if not is_test(path):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    locations_by_name[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    for name, locations in sorted(locations_by_name.items()):
        if len(locations) > 1 and name not in SHARED_CLASS_NAMES:
            yield Finding("shared class names", locations[0], f"{name}: also {', '.join(locations[1:])}")


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the name and line of every variable, parameter and attribute that a tree binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id.strip("_"), node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg.strip("_"), node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr.strip("_"), node.lineno


def vague_names(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Yield the bindings of a module whose names do not say what the value is."""
    bound = list(bound_names(tree))
    has_right = any(name == "right" for name, _ in bound)
    for name, line in bound:
        if name in VAGUE_NAMES and not (name == "left" and has_right):
            yield Finding("vague names", f"{path.relative_to(ROOT)}:{line}", name)


def count_comments(text: str) -> int:
    """Return the number of comments in a module, tools' directives (``# type: ignore``, ``# noqa``) left out."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(
        token.type == tokenize.COMMENT and not re.match(r"# (type: ignore|noqa)", token.string)
        for token in tokens
    )


def comments_per_100_lines(path: Path) -> float:
    """Return the density of comments in a module."""
    text = path.read_text("utf-8")
    return 100 * count_comments(text) / max(text.count("\n"), 1)


def collect_findings() -> tuple[list[Finding], dict[str, tuple[int, int]]]:
    """Return all findings, and per limited folder how many of its function names are one word, and of how many."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in source_files()}
    findings = [finding for path, tree in trees.items() for finding in docstring_findings(path, tree)]
    findings += shared_class_names(trees)
    for path, tree in trees.items():
        if not is_test(path):
            findings += vague_names(path, tree)
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
        count = sum(finding.kind == kind for finding in findings)
        failed |= count > 0
        print(f"{kind}: {count} (limit 0)")
    for folder, (single, total) in words.items():
        percent = 100 * single / max(total, 1)
        failed |= percent >= MAX_ONE_WORD_PERCENT[folder]
        print(f"one-word names in {folder}: {percent:.1f} % (limit {MAX_ONE_WORD_PERCENT[folder]} %)")
    lines = sum(path.read_text("utf-8").count("\n") for path in source_files() if not is_test(path))
    vague = 1000 * sum(finding.kind == "vague names" for finding in findings) / lines
    failed |= vague > MAX_VAGUE_NAMES_PER_1000_LINES
    print(f"vague names: {vague:.1f} per 1,000 lines (limit {MAX_VAGUE_NAMES_PER_1000_LINES})")
    for name in HARD_MODULES:
        density = comments_per_100_lines(ROOT / name)
        failed |= density < MIN_COMMENTS_PER_100_LINES
        print(f"comments in {name}: {density:.1f} per 100 lines (at least {MIN_COMMENTS_PER_100_LINES})")
    if arguments.verbose is not None:
        for finding in findings:
            if not arguments.verbose or finding.location.startswith(tuple(arguments.verbose)):
                print(f"{finding.location}: {finding.kind}: {finding.text}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
