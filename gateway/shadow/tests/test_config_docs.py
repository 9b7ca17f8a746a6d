"""conf/shadow.toml matches the declared settings and holds their defaults."""

import re
import tomllib
from pathlib import Path

from gateway.shadow.config import ShadowConfig, load_config
from gateway.shadow.config_docs import example_file
from toolkit.settings_docs import toml_value
from toolkit.toml_tables import load_table

CONF = Path(__file__).parents[3] / "conf" / "shadow.toml"
NEEDED = {"primary": {"namesrv": ["10.0.0.1:9876"]}}


def test_file_matches_the_declarations():
    """To regenerate the file: `rmq-gateway shadow example > conf/shadow.toml`."""
    assert CONF.read_text() == example_file()


def test_file_has_only_defaults():
    assert load_config(str(CONF)) == load_table(ShadowConfig, NEEDED, "test")


def test_every_line_of_the_file_is_valid():
    text = re.sub(r"^#(?=[a-z_\[]+.*(=|\]$))", "", example_file(), flags=re.M)
    config = load_table(ShadowConfig, tomllib.loads(text), "test")
    assert config.primary == load_table(ShadowConfig, NEEDED, "test").primary


def test_toml_values():
    value = {"a": [1, True, 0.5, 'x\n"'], "b:1": {}}
    assert tomllib.loads(f"x = {toml_value(value)}")["x"] == value
