"""A pipeline's configuration: a TOML file with tables of declared options, `--set`, and the table `[spark]` for Spark.

Values become texts and are parsed like the options of a data source, so a key means the same in a file as in
`.option(…)`. Commented example files are made from the declarations.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spark.errors import OptionError
from spark.options import REDACTED, Option, read_options, redact, text
from toolkit.settings_docs import comment, toml_value
from toolkit.suggestions import nearest_name
from toolkit.toml_tables import parse_toml
from toolkit.values import plain_value

Tables = Mapping[str, tuple[Option, ...]]
"""Declared tables. A name ending in `.*` stands for any number of tables, as `[bodies.orders]` for `bodies.*`."""

SPARK_OPTIONS: Final = (
    Option("master", text, None, "Spark master: `local[*]`, `spark://host:7077`, `yarn`, `k8s://…`."),
    Option("remote", text, None, "Spark Connect server, `sc://host:15002`, instead of a master."),
    Option("appName", text, None, "Name of the application. Default: the pipeline's name."),
)
"""Options of `[spark]` besides Spark's own configuration, such as `executor.memory = "2g"`."""

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Config:
    """A loaded configuration, by the full names of tables. `values` are typed; `texts` are as a data source takes them.

    `texts` has only the keys that the user set. It contains secrets: print `redacted_texts` instead.
    """

    values: Mapping[str, dict[str, Any]]
    texts: Mapping[str, dict[str, str]] = field(repr=False)
    spark: Mapping[str, str] = field(repr=False)
    declared: Mapping[str, tuple[Option, ...]] = field(repr=False)

    def redacted_texts(self) -> dict[str, dict[str, str]]:
        """Return `texts` with secrets replaced."""
        return {name: redact(texts, self.declared[name]) for name, texts in self.texts.items()}

    def tables_below(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Return the typed tables of `prefix.*` by the part of their names after the prefix."""
        start = f"{prefix}."
        return {
            name.removeprefix(start): values for name, values in self.values.items() if name.startswith(start)
        }

    def redact_secrets(self, message: str) -> str:
        """Return a message with all configured secrets replaced."""
        for table, texts in self.texts.items():
            for name, value in redact(texts, self.declared[table]).items():
                if value == REDACTED and texts[name]:
                    message = message.replace(texts[name], REDACTED)
        return message


def load_config(tables: Tables, file: str | None, sets: Sequence[str] = ()) -> Config:
    """Load the configuration of a pipeline with these tables. `sets` are `table.key=value` and override the file.

    Raises OptionError, which names file, table and key, and the most similar name.
    """
    texts = _read_file(tables, file) if file else {}
    for assignment in sets:
        table, key, value = _split_set(tables, assignment)
        _set_key(
            texts.setdefault(table, {}),
            key,
            _expand_variables(value, f"--set {assignment.partition('=')[0]}"),
        )
    spark = texts.pop("spark", {})
    declared = {name: options for name, options in tables.items() if not name.endswith(".*")}
    declared |= {name: _options_of(tables, name) for name in texts}
    values = {name: read_options(texts.get(name, {}), declared[name], f"[{name}]") for name in declared}
    return Config(values, {name: texts.get(name, {}) for name in declared}, spark, declared)


# -- files --------------------------------------------------------------------------------------------------------


def _read_file(tables: Tables, file: str) -> dict[str, dict[str, str]]:
    try:
        parsed = parse_toml(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{file}: {error}") from error
    texts: dict[str, dict[str, str]] = {}
    for name, content in parsed.items():
        if not isinstance(content, dict):
            raise OptionError(f"{file}: {name} is outside of any table; tables: {_list_tables(tables)}")
        for table, keys in _split_named_tables(tables, name, content, file).items():
            texts[table] = _option_texts(keys, _options_of(tables, table), f"{file}: [{table}]")
    return texts


def _split_named_tables(
    tables: Tables, name: str, content: dict[str, Any], file: str
) -> dict[str, dict[str, Any]]:
    """Return the tables of one top-level table: itself, or the tables below it if users choose their names."""
    if name == "spark" or name in tables:
        return {name: content}
    if f"{name}.*" not in tables:
        raise OptionError(f"{file}: {_unknown_table_text(tables, name)}")
    for key, below in content.items():
        if not isinstance(below, dict):
            raise OptionError(f"{file}: {key} is in [{name}], but belongs in a table [{name}.<name>]")
    return {f"{name}.{key}": below for key, below in content.items()}


def _option_texts(
    keys: Mapping[str, Any], options: tuple[Option, ...], where: str, prefix: str = ""
) -> dict[str, str]:
    """Return TOML values as texts. Nested tables become keys with dots, or JSON if a key of that name is declared."""
    names = {name.lower() for option in options for name in option.names}
    texts: dict[str, str] = {}
    for key, value in keys.items():
        name = prefix + key
        if isinstance(value, dict) and name.lower() not in names:
            texts |= _option_texts(value, options, where, f"{name}.")
        else:
            texts[name] = _expand_variables(_value_text(value, f"{where} {name}"), f"{where} {name}")
    return texts


def _value_text(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, list):
        return ",".join(_value_text(element, where) for element in value)
    if isinstance(value, str | int | float):
        return str(value)
    isoformat = getattr(value, "isoformat", None)
    if isoformat is None:
        raise OptionError(f"{where}: expected a text, number, boolean, list or table")
    return str(isoformat())


def _expand_variables(value: str, where: str) -> str:
    """Replace `${NAME}` by the value of the environment variable, so that files need not contain secrets."""

    def look_up(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise OptionError(f"{where}: environment variable {match[1]} is not set")
        return os.environ[match[1]]

    return _VARIABLE.sub(look_up, value)


# -- names --------------------------------------------------------------------------------------------------------


def _set_key(table: dict[str, str], key: str, value: str) -> None:
    """Set a key, replacing the same key in another case."""
    for name in [name for name in table if name.lower() == key.lower()]:
        del table[name]
    table[key] = value


def _split_set(tables: Tables, assignment: str) -> tuple[str, str, str]:
    path, equals, value = assignment.partition("=")
    name, dot, key = path.strip().partition(".")
    if f"{name}.*" in tables and name not in tables:
        below, dot, key = key.partition(".")
        name = f"{name}.{below}"
    if not equals or not dot or not key:
        raise OptionError(f"--set {assignment}: expected table.key=value")
    if name != "spark":
        try:
            _options_of(tables, name)
        except KeyError:
            raise OptionError(f"--set {path}: {_unknown_table_text(tables, name)}") from None
    return name, key, value


def _options_of(tables: Tables, name: str) -> tuple[Option, ...]:
    if name == "spark":
        return SPARK_OPTIONS
    return tables[name] if name in tables else tables[f"{name.partition('.')[0]}.*"]


def _unknown_table_text(tables: Tables, name: str) -> str:
    table_names = [*(table.removesuffix(".*") for table in tables), "spark"]
    near = nearest_name(name, table_names)
    return f"there is no table [{name}]" + (
        f"; did you mean [{near}]?" if near else f"; tables: {_list_tables(tables)}"
    )


def _list_tables(tables: Tables) -> str:
    return ", ".join(f"[{name.replace('*', '<name>')}]" for name in (*tables, "spark"))


# -- Spark's own --------------------------------------------------------------------------------------------------


def spark_settings(config: Config) -> tuple[dict[str, str], dict[str, str]]:
    """Split `[spark]` into the options of SPARK_OPTIONS and Spark's configuration under full names."""
    own = {option.name.lower(): option.name for option in SPARK_OPTIONS}
    settings = {own[key.lower()]: value for key, value in config.spark.items() if key.lower() in own}
    conf = {
        key if key.startswith("spark.") else f"spark.{key}": value
        for key, value in config.spark.items()
        if key.lower() not in own
    }
    return settings, conf


# -- examples -----------------------------------------------------------------------------------------------------


def example_file(tables: Tables, head: str) -> str:
    """Return a commented TOML file with every key and its default."""
    parts = [_toml_comment(head)]
    for name, options in tables.items():
        parts.append(f"[{name.replace('*', 'name')}]")
        parts.extend(_example_option(option) for option in options)
    parts += ["[spark]", *(_example_option(option) for option in SPARK_OPTIONS)]
    parts.append(_toml_comment("Any Spark configuration key, with or without the prefix `spark.`.\n"))
    parts.append('# "executor.memory" = "2g"\n')
    return "\n".join(parts)


def _example_option(option: Option) -> str:
    description = option.description
    if option.secret:
        description += ' "${NAME}" reads it from the environment.'
    return f"{_toml_comment(description)}\n# {option.name} = {_toml_default(option.default)}\n"


def _toml_comment(content: str) -> str:
    return "\n".join(comment(content, width_chars=0))


def _toml_default(default: Any) -> str:
    is_plain = isinstance(default, bool | int | float)
    return toml_value(default if is_plain else plain_value(default))
