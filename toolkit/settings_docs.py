"""Documentation made from declared settings: Markdown tables, commented example files, values as text.

Tests compare the generated text with the files in `conf/` and `docs/`, so declaration and documentation cannot
disagree.
"""

import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.settings import Setting
from toolkit.values import Choice, Number, WholeNumber

EXAMPLE_WIDTH_CHARS = 110


def markdown_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; bars within cells are escaped."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code_cell(text: str) -> str:
    """Return a text as code in a Markdown cell; empty text stays empty."""
    return f"`{text}`" if text else ""


def description_of(setting: Setting) -> str:
    """Return the description with the setting's aliases and tags."""
    text = setting.description
    if setting.aliases:
        text += f" Also: {', '.join(map(code_cell, setting.aliases))}."
    return f"{text} ({', '.join(setting.tags)})" if setting.tags else text


def choices_of(setting: Setting) -> str:
    """Return the words a setting accepts, as `any or ours`; empty for other settings."""
    return " or ".join(setting.value_type.words) if isinstance(setting.value_type, Choice) else ""


def range_of(setting: Setting) -> str:
    """Return the bounds of a number, as `1..10`; empty for other settings."""
    bounded = setting.value_type
    if not isinstance(bounded, WholeNumber | Number) or (bounded.low is None and bounded.high is None):
        return ""
    return bounded.summary


def toml_value(value: Any) -> str:
    """Return a value as TOML has it, on one line."""
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_value(str(key))} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


def comment(text: str, width_chars: int = EXAMPLE_WIDTH_CHARS) -> list[str]:
    """Return a text as comment lines of an example file, wrapped; 0 keeps the text's own lines."""
    lines = text.strip().splitlines() if not width_chars else textwrap.wrap(text, width_chars - 2)
    return [f"# {line}".rstrip() for line in lines]
