"""Tables and facts: on a terminal, in a pipe, and with characters that could control a terminal."""

import io
import re

import pytest

from gateway.admin.output import (
    TableColumn,
    format_value,
    print_facts,
    print_rows,
    print_warning,
)
from toolkit.printable import printable

COLUMNS = [
    TableColumn("name", "name"),
    TableColumn("count", "count", style=lambda row: "red" if row["count"] > 1000 else ""),
    TableColumn("more", "more", wide=True),
]
ROWS = [{"name": "a", "count": 1, "more": "x"}, {"name": "b" * 300, "count": 1234, "more": None}]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard output a terminal with colours and 80 columns; pytest replaces it before each test."""
    found = Terminal()
    monkeypatch.setattr("sys.stdout", found)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_in_a_pipe_a_row_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, COLUMNS, "table")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["NAME", "COUNT"], ["a", "1"], ["b" * 300, "1,234"]]
    assert not any(line.endswith(" ") for line in lines)


def test_more_columns_names_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, COLUMNS, "wide")
    assert "MORE" in capsys.readouterr().out
    print_rows(ROWS, COLUMNS, "name")
    assert capsys.readouterr().out == f"a\n{'b' * 300}\n"
    print_rows(ROWS[:1], COLUMNS, "json")
    assert '"more": "x"' in capsys.readouterr().out


def test_on_a_terminal_long_cells_are_folded_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    print_rows(ROWS, COLUMNS, "table")
    text = terminal.getvalue()
    assert text.count("b") >= 300
    assert "…" not in text
    assert "\x1b[31m1,234" in text


def test_an_id_stays_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [TableColumn("id", "id", whole=True), TableColumn("value", "value"), TableColumn("tag", "tag")]
    rows = [{"id": "7F" * 16, "value": "v" * 200, "tag": "new"}, {"id": "8F" * 16, "value": "w", "tag": None}]
    terminal = use_terminal(monkeypatch)
    print_rows(rows, columns, "table")
    assert f"\n{'7F' * 16}  vvv" in terminal.getvalue()

    terminal = use_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "50")
    print_rows(rows, columns, "table")
    shown = re.sub("\x1b\\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert f"id:    {'7F' * 16}" in shown
    assert shown[-3:] == ["", f"id:    {'8F' * 16}", "value: w"]


def test_a_warning_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    print_warning("members disagree")
    assert terminal.getvalue().startswith("\x1b[1;31mmembers disagree")


def test_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], COLUMNS, "table", empty="Nothing.")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "Nothing.\n")
    print_rows([], COLUMNS, "json")
    assert capsys.readouterr().out == "[]\n"


def test_facts(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts([("name", "a"), ("nothing", None), ("longer name", [1, 2])])
    assert capsys.readouterr().out == "name:        a\nlonger name: 1, 2\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), ("", "-"), (True, "yes"), (False, "no"), (1234567, "1,234,567"), (0.25, "0.2"),
        ([], "-"), (["a", "b"], "a, b"), ({"a": 1}, "a=1"), ({}, "-"),
    ],
)  # fmt: skip
def test_values(value: object, text: str) -> None:
    assert format_value(value) == text


def test_control_characters_of_servers_are_shown_as_escapes() -> None:
    assert printable("a\x1b[31mb\n\u009b") == "a\\x1b[31mb\\n\\x9b"
    assert printable("grün 漢字") == "grün 漢字"
    assert "\x1b" not in format_value(["\x1b[2J"])


def test_names_of_properties_and_rows_cannot_control_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = {"name": "a\x9b2J", "more": {"p\x1b[2J": "\x07"}}
    print_rows([hostile], [TableColumn("name", "name"), TableColumn("more", "more", wide=True)], "wide")
    assert capsys.readouterr().out.split() == ["NAME", "MORE", "a\\x9b2J", "p\\x1b[2J=\\x07"]
    print_facts([("properties\x1b", hostile["more"])])
    assert capsys.readouterr().out == "properties\\x1b: p\\x1b[2J=\\x07\n"
    # A script that reads names from a pipe gets them as they are.
    print_rows([hostile], [TableColumn("name", "name")], "name")
    assert capsys.readouterr().out == "a\x9b2J\n"
    for output in ("name", "json"):
        terminal = use_terminal(monkeypatch)
        print_rows([hostile], [TableColumn("name", "name")], output)
        assert not any(control in terminal.getvalue() for control in "\x1b\x9b\x07")
