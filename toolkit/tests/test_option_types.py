import click
import pytest

from toolkit.option_types import PastTimeType, TimeType


def test_a_time() -> None:
    assert TimeType().convert("2023-11-14T22:13:20Z", None, None) == 1_700_000_000_000
    assert TimeType().convert(5, None, None) == 5
    for text in ("soon", "15m"):
        with pytest.raises(click.BadParameter, match="neither ms since 1970"):
            TimeType().convert(text, None, None)


def test_a_duration_before_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    assert PastTimeType().convert("10s", None, None) == 990_000
    assert PastTimeType().convert("5000s", None, None) == 0
    assert PastTimeType().convert("7", None, None) == 7
