import io

import pytest

from toolkit.progress import show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with show_progress("sending", lambda: 10) as done:
        done(10)
    assert "sending" in terminal.getvalue()


def test_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    with show_progress("sending", lambda: pytest.fail("needless")) as done:
        done(10)
    assert pipe.getvalue() == ""
