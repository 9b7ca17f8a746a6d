"""Text of strangers: nothing that controls a terminal is left, and pipes get it as it is."""

import json
import sys

import pytest

from toolkit.printable import echo, echo_json, printable, printable_bytes, printable_json, printable_value

HOSTILE = "\x1b]0;x\x07\x00\x7f\x9b2J\u202e"


def is_safe(text: str) -> bool:
    return all(character.isprintable() or character in "\n\t" for character in text)


def test_controls_are_escaped() -> None:
    assert printable(HOSTILE) == "\\x1b]0;x\\x07\\x00\\x7f\\x9b2J\\u202e"
    assert printable("grün 漢字") == "grün 漢字"
    assert printable("a\nb\tc\r", "\n\t") == "a\nb\tc\\r"


def test_bodies_keep_their_lines() -> None:
    assert printable_bytes(b"a\n\x1b[2J\xff\xc2\x9b") == b"a\n\\x1b[2J\\xff\\x9b"


@pytest.mark.parametrize("text", [HOSTILE, "\ud800", "\U000e0001", "grün\n"])
def test_json_means_the_same(text: str) -> None:
    shown = printable_json(json.dumps({text: text}, ensure_ascii=False, indent=1))
    assert json.loads(shown) == {text: text}
    assert is_safe(shown)


def test_values_and_keys() -> None:
    assert printable_value({"\x1b": ["\x07", 1, None]}) == {"\\x1b": ["\\x07", 1, None]}


@pytest.mark.parametrize("on_terminal", [True, False])
def test_only_a_terminal_gets_escapes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, on_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    echo("topic\x9b2J")
    echo_json(b'"\xc2\x9b"')
    expected = 'topic\\x9b2J\n"\\u009b"\n' if on_terminal else 'topic\x9b2J\n"\x9b"\n'
    assert capsys.readouterr().out == expected
