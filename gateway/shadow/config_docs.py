"""The example file conf/shadow.toml, from what the parts declare; a test holds the file to what is printed here."""

import dataclasses
import json
import textwrap
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.shadow.config import ShadowConfig

WIDTH = 110
HEAD = (
    "The shadow gateway: rmq-gateway shadow -c FILE",
    "Every line that is commented out shows a default, or an example where there is none.",
    "Single keys: --set table.key=value",
)


def example_file() -> str:
    """All tables with all keys."""
    lines = [f"# {line}" for line in HEAD]
    lines += _table_lines(ShadowConfig, "")
    return "\n".join(lines) + "\n"


def _table_lines(kind: Any, name: str) -> Iterator[str]:
    """The keys of a table, then the tables in it."""
    hints = typing.get_type_hints(kind)
    tables = []
    for field in dataclasses.fields(kind):
        if _tables_in(hints[field.name]) is None:
            yield from _key_lines(field, hints[field.name])
        else:
            tables.append(field)
    for field in tables:
        path = f"{name}.{field.name}" if name else field.name
        kind, many = typing.cast(tuple[Any, bool], _tables_in(hints[field.name]))
        yield ""
        yield from _comment(field.metadata.get("meaning", ""))
        if many:  # As many as there are, none by default.
            yield f"#[[{path}]]"
        else:
            yield f"[{path}]"
        yield from _table_lines(kind, path)


def _tables_in(hint: Any) -> tuple[Any, bool] | None:
    """The settings class of a key that is a table, or a list of tables, and which of both; None for other keys."""
    for each in (hint, *typing.get_args(hint)):
        if dataclasses.is_dataclass(each):
            return each, typing.get_origin(hint) is list
    return None


def _key_lines(field: "dataclasses.Field[Any]", hint: Any) -> Iterator[str]:
    yield from _comment(f"{field.metadata.get('meaning', '')}{_range(field.metadata)}")
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    yield f"{'' if required else '#'}{field.name} = {toml_value(_shown(field))}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH - 2)]


def _range(metadata: Mapping[str, Any]) -> str:
    if metadata.get("choices"):
        return f" ({' or '.join(map(str, metadata['choices']))})"
    low, high = metadata.get("low"), metadata.get("high")
    if low is None and high is None:
        return ""
    return f" ({'' if low is None else low}..{'' if high is None else high})"


def _shown(field: "dataclasses.Field[Any]") -> Any:
    """The default; the example where there is none, or one that says nothing."""
    example = field.metadata.get("example")
    if example is not None:
        return example
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return "" if field.default in (dataclasses.MISSING, None) else field.default


def toml_value(value: Any) -> str:
    """A value as TOML has it, on one line."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_value(str(key))} = {toml_value(each)}" for key, each in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
