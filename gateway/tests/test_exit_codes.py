"""One table of exit codes: documented, used by every command, and by nothing but `toolkit.exit_codes`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.commands import cli
from toolkit.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parents[2]
TARGET_MISSING = ("shadow", "--set", "primary.namesrv=['127.0.0.1:1']")


def run(*arguments: str) -> int:
    return CliRunner().invoke(cli.main, arguments).exit_code


def test_the_document_lists_every_code() -> None:
    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    documented = re.findall(r"^\| (\d) \| (\w+)", text, re.MULTILINE)
    assert [int(code) for code, _ in documented] == list(ExitCode)


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--port", "http"),
        ("namesrv", "--set", "listenPort=http"),
        ("broker", "-c", "no-such-file.conf"),
        ("shadow",),
        ("shadow", "-c", "no-such-file.toml"),
        (*TARGET_MISSING, "parity"),
        (*TARGET_MISSING, "backfill", "-t", "Orders"),
        ("shadow", "status", "-c", "no-such-file.toml"),
        ("shadow", "report", "--console", "127.0.0.1:1"),
        ("replay", "no-such-file"),
        ("spark", "peek", "--set", "source.no-such-option=1"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_or_configuration(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == ExitCode.USAGE


@pytest.mark.parametrize(
    "arguments",
    [
        ("shadow", "status", "--console", "127.0.0.1:1"),
        ("shadow", "watch", "--console", "127.0.0.1:1"),
        ("capture", "info", "no-such-file"),
        ("replay", "no-such-file", "--dry-run"),
    ],
    ids=" ".join,
)
def test_work_that_cannot_be_done(arguments: tuple[str, ...]) -> None:
    assert run(*arguments) == ExitCode.FAILED


def test_no_other_module_declares_exit_codes() -> None:
    sources = [path for folder in ("gateway", "spark") for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources
        if "tests" not in path.parts and "bench" not in path.parts
        for line in _literal_exit_codes(ast.parse(path.read_text()))
    ]
    assert found == []


def _literal_exit_codes(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that exit with a number, or give one to a click exception."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sys.exit", "click.exceptions.Exit"):
            numbers = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
            if any(isinstance(each.value, int) for each in numbers):
                yield node.lineno
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [ast.unparse(each) for each in targets]
            if isinstance(node.value.value, int) and any("exit" in name.lower() for name in names):
                yield node.lineno
