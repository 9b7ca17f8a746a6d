"""The table of rules in the C sources, and fingerprints of the Python functions that it names.

`python -m gateway.tests.native_sends.rules` records the present fingerprints in ``rules.toml``, after somebody has
compared what changed with the C code.
"""

import ast
import hashlib
import inspect
import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[3]
RECORD: Final = Path(__file__).with_name("rules.toml")
FINGERPRINT_CHARS: Final = 16
_RULE: Final = re.compile(r"^ \* rule: (.+?)\s{2,}(\S+:\S+)$", re.MULTILINE)


class Rule(NamedTuple):
    """One line of the table: what is repeated, the Python function that has it, and the C file."""

    text: str
    name: str
    source: str


def named_rules() -> list[Rule]:
    """Return the rules that the C sources name."""
    paths = sorted((ROOT / "native").glob("*.c"))
    return [
        Rule(text, name, str(path.relative_to(ROOT)))
        for path in paths
        for text, name in _RULE.findall(path.read_text("utf-8"))
    ]


def resolve(name: str) -> Any:
    """Return what "module:qualified name" stands for. Raises ImportError, AttributeError."""
    module, _, path = name.partition(":")
    value: Any = import_module(module)
    for part in path.split("."):
        value = inspect.getattr_static(value, part) if inspect.isclass(value) else getattr(value, part)
    return value


def fingerprint(value: Any) -> str:
    """Return a text that changes with the code of a function or class, and not with its comments or layout."""
    value = getattr(value, "fget", value)
    return fingerprint_of_text(textwrap.dedent(inspect.getsource(inspect.unwrap(value))))


def fingerprint_of_text(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:FINGERPRINT_CHARS]


def render_record() -> str:
    """Return the text of ``rules.toml`` for the present code."""
    lines = ["# Fingerprints of the functions that native/ repeats; see rules.py before you record new ones."]
    # Two C files may repeat the same function.
    names = sorted({rule.name for rule in named_rules()})
    lines += [f'"{name}" = "{fingerprint(resolve(name))}"' for name in names]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    RECORD.write_text(render_record(), "utf-8")
