"""Replaces the references of older servers and clients, ``{"$ref":"$.a.b"}``, by their targets.

A referenced value is shared, not copied, so 1 kB of references to lists of references stands for billions of values
once somebody walks it. Therefore the values of the document are counted as a walk would meet them, each shared one as
often as it is referenced, before the document is handed out; references into a value's own ancestors have no end and
are refused.

Source: JSONPath of fastjson 1.2 and fastjson2 2.0.43, which resolve references after the document was read.
"""

import re
from typing import Any, Final

from codec.errors import JsonError, JsonSizeError
from codec.lenient_json import MAX_DEPTH

_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]{1,9})\]|\[['\"]([^'\"]*)['\"]\]")
_NAME: Final = "$ref"


def resolve_references(document: Any, max_values: int) -> Any:
    """Return the document with its references replaced, in place; a path that leads nowhere becomes None.

    Paths start at the document (``$``). Raises JsonError for other paths, for a reference to an ancestor or to another
    reference, and for more than ``max_values`` values or too much nesting after the replacement.
    """
    _replace(document, document, 0)
    _CountingWalk(max_values).count(document, 0)
    return document


def _replace(value: Any, document: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise JsonError("nested too deeply")
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return
    for key, item in items:
        if isinstance(item, dict) and len(item) == 1 and isinstance(path := item.get(_NAME), str):
            value[key] = _target(path, document)
        elif isinstance(item, dict | list):
            _replace(item, document, depth + 1)


def _target(path: str, document: Any) -> Any:
    if not path.startswith("$"):
        # "@" and ".." are the value that holds the reference, and the one around it.
        raise JsonError(f"a reference to its own ancestors, or an unknown one: {path[:80]!r}")
    target, at = document, 1
    while at < len(path):
        step = _STEP.match(path, at)
        if not step:
            raise JsonError(f"unknown reference {path[:80]!r}")
        target, at = _step(target, step), step.end()
    if isinstance(target, dict) and _NAME in target:
        raise JsonError(f"a reference to another reference: {path[:80]!r}")
    return target


def _step(value: Any, step: re.Match[str]) -> Any:
    name, number, quoted = step.groups()
    if isinstance(value, list):
        return value[int(number)] if number is not None and int(number) < len(value) else None
    if not isinstance(value, dict):
        return None
    name = name if name is not None else number if number is not None else quoted
    if name in value or not (name.isdecimal() and len(name) < 20):
        return value.get(name)
    return value.get(int(name))


class _CountingWalk:
    """Counts the values of a document with shared parts, and how deeply they nest, looking at each part once."""

    def __init__(self, max_values: int) -> None:
        self._max_values = max_values
        self._sizes: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()

    def count(self, value: Any, depth: int) -> tuple[int, int]:
        """Return the number of values and the height of a value. Raises JsonError at the limits."""
        if not isinstance(value, dict | list):
            return 1, 0
        number = id(value)
        size_and_height = self._sizes.get(number)
        if size_and_height is None:
            if number in self._open:
                raise JsonError("a reference to its own ancestors")
            # An ancestor that is met again while its parts are counted would never be finished.
            self._open.add(number)
            total, height = 1, 0
            for item in value.values() if isinstance(value, dict) else value:
                if isinstance(item, dict | list):
                    if depth > MAX_DEPTH:
                        raise JsonError("nested too deeply")
                    size, below = self.count(item, depth + 1)
                    total += size
                    height = max(height, below + 1)
                else:
                    total += 1
            self._open.discard(number)
            size_and_height = self._sizes[number] = total, height
        # Checked for each use of a shared value, because it counts each time, and may lie deeper than at the first.
        if size_and_height[0] > self._max_values:
            raise JsonSizeError(f"more than {self._max_values} values once its references are replaced")
        if depth + size_and_height[1] > MAX_DEPTH:
            raise JsonError("nested too deeply once its references are replaced")
        return size_and_height
