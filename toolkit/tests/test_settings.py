"""Declared settings: errors, secrets, and settings as fields of dataclasses."""

from dataclasses import dataclass

import pytest

from toolkit.settings import REDACTED, REQUIRED, Setting, SettingsError, redact, setting, settings_of
from toolkit.values import Choice, Text, WholeNumber

ROWS = Setting("rows", WholeNumber(1), 3, "Number of rows.", ("lines",))
KEY = Setting("secretKey", Text("[a-z]+", "letters"), None, "The secret.", secret=True)


@dataclass(frozen=True)
class Part:
    mode: str = setting(description="Mode of operation.", choices=("on", "off"))
    wait_ms: int = setting(5, "Longest wait.", low=1)
    place: str = setting("~/x", "A directory.", is_path=True)
    limit_s: float | None = setting(None, "Limit.")
    token: str = setting("", "Token.", secret=True)
    plain: int = 0


@pytest.fixture(autouse=True)
def _nowhere_at_home(monkeypatch):
    """Let no test depend on what a home folder holds."""
    monkeypatch.setenv("HOME", "/nowhere")


def test_an_error_names_setting_value_and_expectation():
    with pytest.raises(SettingsError) as error:
        ROWS.parse("0", "[job] rows")
    assert str(error.value) == '[job] rows: invalid value "0" (expected a whole number, at least 1)'
    with pytest.raises(SettingsError, match=r"rows: invalid value 0 \(expected"):
        ROWS.check(0, "rows")


def test_a_secret_is_never_shown():
    with pytest.raises(SettingsError) as error:
        KEY.parse("4711", "secretKey")
    assert str(error.value) == f"secretKey: invalid value {REDACTED} (expected letters)"
    assert redact({"SECRETKEY": "s", "rows": "1"}, [ROWS, KEY]) == {"SECRETKEY": REDACTED, "rows": "1"}
    assert "hidden" not in repr(Part(mode="on", token="hidden"))


def test_a_plain_function_parses_text_only():
    custom = Setting("x", int, 0, "")
    assert custom.parse("7", "x") == 7
    with pytest.raises(TypeError):
        custom.check(7, "x")


def test_types_and_units_of_fields_come_from_hints_and_names():
    declared = settings_of(Part)
    assert list(declared) == ["mode", "wait_ms", "place", "limit_s", "token"]
    assert declared["wait_ms"].value_type == WholeNumber(1, None, "milliseconds")
    assert declared["mode"].value_type == Choice(("on", "off"))
    assert declared["mode"].default is REQUIRED
    with pytest.raises(TypeError):
        Part()


def test_a_default_in_the_home_directory_is_computed_when_it_is_used(monkeypatch):
    for home in ("/a", "/b"):
        monkeypatch.setenv("HOME", home)
        assert Part(mode="on").place == f"{home}/x"
        assert settings_of(Part)["place"].default_value == f"{home}/x"
