"""The example file conf/shadow.toml, generated from the declared settings; a test compares the two."""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from gateway.shadow.config import ShadowConfig
from toolkit.settings import REQUIRED, Setting, settings_of
from toolkit.settings_docs import choices_of, comment, range_of, toml_value

HEAD = (
    "The shadow gateway: rmq-gateway shadow -c FILE",
    "Every line that is commented out shows a default, or an example where there is none.",
    "To override one setting: --set table.key=value",
)


def example_file() -> str:
    """Return the text of conf/shadow.toml: all tables with all settings."""
    lines = [f"# {line}" for line in HEAD]
    lines += _table_lines(ShadowConfig, "")
    return "\n".join(lines) + "\n"


def _table_lines(kind: Any, name: str) -> Iterator[str]:
    """Yield the settings of a table, then the tables in it."""
    hints = typing.get_type_hints(kind)
    declared = settings_of(kind)
    tables = []
    for field, setting in declared.items():
        table = _table_of(hints[field])
        if table is None:
            yield from _setting_lines(setting)
        else:
            tables.append((setting, *table))
    for setting, below, is_list in tables:
        path = f"{name}.{setting.name}" if name else setting.name
        yield ""
        yield from comment(setting.description)
        # Tables of a list are commented out: there is none by default.
        yield f"#[[{path}]]" if is_list else f"[{path}]"
        yield from _table_lines(below, path)


def _table_of(hint: Any) -> tuple[Any, bool] | None:
    """Return the settings class of a table or list of tables, and whether it is a list; None for other settings."""
    for part in (hint, *typing.get_args(hint)):
        if dataclasses.is_dataclass(part):
            return part, typing.get_origin(hint) is list
    return None


def _setting_lines(setting: Setting) -> Iterator[str]:
    bounds = choices_of(setting) or range_of(setting)
    yield from comment(setting.description + (f" ({bounds})" if bounds else ""))
    yield f"{'' if setting.default is REQUIRED else '#'}{setting.name} = {toml_value(_shown_value(setting))}"


def _shown_value(setting: Setting) -> Any:
    """Return the example where there is one, else the default."""
    if setting.example is not None:
        return setting.example
    if callable(setting.default):
        return setting.default()
    return "" if setting.default in (REQUIRED, None) else setting.default
