"""conf/ and the reference table agree with the declared keys."""

import re
from pathlib import Path

import pytest

from gateway.config.docs import environment_of, example_file, reference
from gateway.config.keys import keys_of
from gateway.config.process import TABLES
from gateway.config.properties_file import parse_properties
from gateway.config.sources import load_config, resolve_key, values_of_environment
from toolkit.values import plain_value

CONF = Path(__file__).parents[3] / "conf"


@pytest.mark.parametrize("table", ["broker", "namesrv"])
def test_conf_is_what_the_keys_say(table: str) -> None:
    """`rmq-gateway config --example` writes it anew."""
    assert (CONF / f"{table}.conf").read_text() == example_file(table)


def test_examples_as_they_are_change_nothing() -> None:
    files = [str(CONF / "broker.conf"), str(CONF / "namesrv.conf")]
    assert load_config("serve", files) == load_config("serve")


@pytest.mark.parametrize("table", ["broker", "namesrv"])
def test_every_example_line_is_the_default(table: str) -> None:
    lines = re.sub(r"^#(?=\S+=)", "", example_file(table), flags=re.M)
    entries = parse_properties(lines)
    tables = (table, "listener", "tls", "auth", "process")
    declared = {name: each for part in tables for name, each in keys_of(TABLES[part]).items()}
    assert [each.key for each in entries] == list(declared)
    assert all(
        declared[each.key].setting.parse(each.value, each.key) == declared[each.key].setting.default_value
        for each in entries
    )


def test_the_reference_has_every_key_and_its_variable() -> None:
    text = reference()
    for table, kind in TABLES.items():
        for each in keys_of(kind).values():
            assert f"| `{each.name}` |" in text
            assert f"`{environment_of(table, each)}`" in text
    assert all(line.count("|") == 6 for line in text.splitlines() if line.startswith("|"))


def test_the_variables_of_the_reference_are_read() -> None:
    for table, kind in TABLES.items():
        for each in keys_of(kind).values():
            variables = {environment_of(table, each): plain_value(each.setting.default)}
            (given,) = values_of_environment(variables, "serve")
            assert resolve_key(given.name, given.scope) == (table, each)
