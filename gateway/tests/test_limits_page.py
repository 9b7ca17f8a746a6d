"""The page of limits names every declared limit with its default."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from gateway.config.keys import keys_of
from gateway.config.limits import BrokerLimits, NamesrvLimits
from gateway.config.process import ListenerLimits
from gateway.shadow.config import ShadowConfig
from toolkit.settings import settings_of

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "limits.md").read_text()
DEFAULTS = {
    section.split("\n", 1)[0]: {
        name.strip("` "): default.strip()
        for names, shown in re.findall(r"^\| (`.*?`) \| ([^|]*) \|", section, re.MULTILINE)
        for name, default in zip(names.split(","), re.split(r", (?=\d)", shown), strict=True)
    }
    for section in PAGE.split("\n## ")[1:]
}
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
NOT_LISTED = {"shutdownWaitTimeSeconds", "serverSocketBacklog"}
"""Settings of listeners that bound nothing that strangers cause."""


def number(text):
    digits, _, unit = text.replace(",", "").partition(" ")
    return int(digits) * UNITS.get(unit, 1)


@pytest.mark.parametrize(
    ("section", "table"),
    [("Every listener", ListenerLimits), ("Broker", BrokerLimits), ("Namesrv", NamesrvLimits)],
)
def test_every_key_is_listed_with_its_default(section, table):
    declared = {name: each.setting.default for name, each in keys_of(table).items() if name not in NOT_LISTED}
    assert {name: number(shown) for name, shown in DEFAULTS[section].items()} == declared


def test_settings_of_the_shadow_gateway_exist_with_these_defaults():
    tables = {field.name: field for field in fields(ShadowConfig)}
    for name, shown in DEFAULTS["Shadow gateway"].items():
        table, _, setting = name.partition(".")
        assert table in tables
        kind = settings_of(ShadowConfig)[table].default
        assert settings_of(kind)[setting].default == number(shown), name
