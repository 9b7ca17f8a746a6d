"""`rmq-gateway docs`, and the declarations that put the documents into the wheel."""

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.commands import docs as docs_command
from gateway.commands.docs import DocumentsMissing, docs, find_documents, list_pages

ROOT = Path(__file__).resolve().parents[3]


def run(*words):
    return CliRunner().invoke(docs, words)


def test_pages_are_listed_with_their_titles():
    assert "how-to/serve" in list_pages(ROOT / "docs")
    listed = run().output
    assert "how-to/serve " in listed
    assert "Run the server" in listed


@pytest.mark.parametrize("name", ["how-to/serve", "how-to/serve.md", "serve"])
def test_page_is_printed(name):
    assert run(name).output.startswith("# Run the server")


def test_unknown_page_is_an_error():
    done = run("no-such-page")
    assert done.exit_code == 2
    assert "no document 'no-such-page'" in done.output
    assert run("index").output.startswith("# rocketmq-gateway")  # not one of the several below


def test_folder_has_documents_and_examples():
    folder = Path(run("--folder").output.strip())
    assert (folder / "docs" / "index.md").is_file()
    assert (folder / "deploy" / "compose.yaml").is_file()


def test_missing_documents_are_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(docs_command, "__file__", str(tmp_path / "gateway" / "commands" / "docs.py"))
    monkeypatch.setattr(docs_command, "DISTRIBUTION", "no-such-distribution")
    with pytest.raises(DocumentsMissing, match="from its wheel"):
        find_documents()


def test_wheel_has_all_documents_and_examples():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    installed = {
        (folder, path.relative_to(ROOT).as_posix())
        for folder, patterns in declared.items()
        for pattern in patterns
        for path in ROOT.glob(pattern)
    }
    wanted = [
        *(ROOT / "docs").rglob("*.md"),
        *(each for folder in ("conf", "deploy") for each in (ROOT / folder).rglob("*") if each.is_file()),
    ]
    expected = {
        (f"share/doc/rocketmq-gateway/{path.parent.relative_to(ROOT)}", path.relative_to(ROOT).as_posix())
        for path in wanted
    }
    assert installed == expected
