"""Reads chosen header fields as a plain tuple, for the handlers of sends and pulls: no header object is built.

A reader refuses exactly what `Header.from_ext` of the same class refuses, also in fields that it does not return. It is
compiled from the declaration, as that function is. It expects the usual header: required fields are present, and
numbers are digits that fit their type. A header that lacks a required field is left to `Header.from_ext`, any other
number to `parse_integer`.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, get_origin

from codec.java_numbers import JavaInteger
from remoting.declare import Header, integer_expression, parse_integer, without_optional
from remoting.fields import MISSING, Field, compile_function

SMALL_NUMBERS: Final = {str(number): number for number in range(256)}
"""Queue ids, flags and counts as they arrive. A look-up takes half the time of a conversion with its checks."""
_WIDE_NUMBER: Final = 1 << 31
_PREFIX: Final = "_"
"""Before the names of fields in compiled code, which has names of its own."""

Reader = Callable[[Mapping[str, str]], tuple[Any, ...]]


def compile_header_reader(header: type[Header], *names: str) -> Reader:
    """Return a function that returns the values of the fields ``names`` from a command's ``ext``.

    It raises RequestError as `Header.from_ext` does.
    """
    scope: dict[str, Any] = {
        "parse_integer": parse_integer,
        "read_carefully": lambda ext: _read_carefully(header, names, ext),
        "small": SMALL_NUMBERS.get,
    }
    lines = ["def read(ext):", "    try:"]
    for item in header.WIRE_FIELDS:
        if item.default is MISSING:
            lines += _required_lines(item, scope)
    lines += ["    except KeyError:", "        return read_carefully(ext)", "    get = ext.get"]
    for item in header.WIRE_FIELDS:
        if item.default is not MISSING and (item.name in names or _limits(item) is not None):
            lines += _optional_lines(item, scope)
    values = ", ".join(f"{_PREFIX}{name}" for name in names)
    return compile_function("read", [*lines, f"    return {values},"], scope)


def _read_carefully(header: type[Header], names: tuple[str, ...], ext: Mapping[str, str]) -> tuple[Any, ...]:
    parsed = header.from_ext(ext)
    return tuple(getattr(parsed, name) for name in names)


def _required_lines(item: Field, scope: dict[str, Any]) -> list[str]:
    """Return the statements that assign a required field to its name."""
    name, text = _PREFIX + item.name, f"ext[{item.wire!r}]"
    limits = _limits(item)
    if limits is None:
        return [f"        {name} = {_convert_expression(item, text)}"]
    number = integer_expression(item, limits, scope)
    if limits.high >= _WIDE_NUMBER:
        return [f"        v = {text}", f"        {name} = {number}"]
    return [f"        {name} = small(v := {text})", f"        if {name} is None: {name} = {number}"]


def _optional_lines(item: Field, scope: dict[str, Any]) -> list[str]:
    """Return the statements that assign a field with a default to its name."""
    name, limits = _PREFIX + item.name, _limits(item)
    scope[f"default{name}"] = item.default
    expression = _convert_expression(item, "v") if limits is None else integer_expression(item, limits, scope)
    if expression == "v" and item.default is None:
        return [f"    {name} = get({item.wire!r})"]
    return [f"    v = get({item.wire!r})", f"    {name} = default{name} if v is None else {expression}"]


def _convert_expression(item: Field, text: str) -> str:
    kind, _ = without_optional(item.type)
    if kind is str:
        return text
    if kind is bool:
        return f"{text} == 'true' or {text} != 'false' and {text}.lower() == 'true'"
    raise TypeError(f"{item.name}: a reader does not convert {kind}")


def _limits(item: Field) -> JavaInteger | None:
    """Return the range of a number; None for a field of another type."""
    kind, _ = without_optional(item.type)
    if get_origin(kind) is not Annotated:
        return None
    limits: JavaInteger = kind.__metadata__[0]
    return limits
