"""Java semantics of values: parsing numbers, comparing values of different types, formatting.

Source: Integer, Long and Double of the Java platform; ComparisonExpression.__compare, 5.4.0.
"""

import math
import re
from contextlib import suppress
from decimal import Decimal
from typing import Final

from codec.java_numbers import I32, I64, JavaInteger, JavaNumberError, parse_java_integer, quoted
from gateway.broker.filters.sql92.errors import SqlError, illegal_operands


class JavaLong(int):
    """A number of Java's type long. A plain int here has Java's type int."""

    __slots__ = ()


Value = str | bool | int | float | None
Number = int | float


class Incomparable(Exception):
    """Two values that cannot be compared, so that the message does not match. Its text is the Java exception."""


# No two parts of a pattern may match the same digits: trying all ways to divide them takes quadratic time.
_decimal = re.compile(
    r"([+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))[fFdD]?"
).fullmatch
_hexadecimal = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
).fullmatch
MAX_NUMBER_CHARS: Final = 1024
"""Deviation: longer text is not a number. Each comparison parses it again, in quadratic time."""
_MIN_DOUBLE: Final = 5e-324
_BLANKS: Final = "".join(map(chr, range(33)))


def parse_whole_number(text: str, limits: JavaInteger) -> int:
    """Return the number that Integer.valueOf or Long.valueOf reads. Raises Incomparable."""
    if text.isascii() or max(text) <= "\uffff":
        with suppress(JavaNumberError):
            return parse_java_integer(text, limits)
    raise _number_format_error(f'For input string: "{text}"')


def _number_format_error(reason: str) -> Incomparable:
    return Incomparable(f"java.lang.RuntimeException: java.lang.NumberFormatException: {reason}")


def parse_double(text: str) -> float:
    """Return the number that Double.valueOf reads. Raises Incomparable."""
    trimmed = text.strip(_BLANKS)
    if len(trimmed) > MAX_NUMBER_CHARS:
        raise _number_format_error(f'For input string: "{quoted(trimmed)}"')
    decimal = _decimal(trimmed)
    if decimal is not None:
        return float(decimal[1])
    hexadecimal = _hexadecimal(trimmed)
    if hexadecimal is None:
        reason = f'For input string: "{trimmed}"' if trimmed else "empty String"
        raise _number_format_error(reason)
    try:
        return float.fromhex(hexadecimal[1])
    except OverflowError:
        return math.copysign(math.inf, -1.0 if trimmed[0] == "-" else 1.0)


def parse_as_type_of(number: Number, text: str) -> Number:
    """Parse text as a number of another number's type. Raises Incomparable."""
    if isinstance(number, float):
        return parse_double(text)
    if isinstance(number, JavaLong):
        return parse_whole_number(text, I64)
    return parse_whole_number(text, I32)


def compare_numbers(left: Number, right: Number) -> int:
    """Return -1, 0 or 1 as Double.compare does: -0.0 is less than 0.0, NaN equals itself and is the greatest."""
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) - math.isnan(right)
        if left == right == 0.0:
            return math.trunc((math.copysign(1.0, left) - math.copysign(1.0, right)) / 2)
    return (left > right) - (left < right)


def compare_values(left: str | bool | Number, right: str | bool | Number) -> int:
    """Compare two values: return a number below, equal to or above 0, and -1 for types that have no order.

    Raises Incomparable for text that is not a number, and for a truth value to the left of text.
    """
    if isinstance(left, bool):
        if isinstance(right, str):
            raise Incomparable(_NO_CAST)
        return left - right if isinstance(right, bool) else -1
    if isinstance(left, str):
        return _compare_text(left, right)
    if isinstance(right, bool):
        return -1
    return compare_numbers(left, parse_as_type_of(left, right) if isinstance(right, str) else right)


def _compare_text(left: str, right: str | bool | Number) -> int:
    if isinstance(right, str):
        left_units, right_units = (
            left.encode("utf-16-be", "surrogatepass"),
            right.encode("utf-16-be", "surrogatepass"),
        )
        return (left_units > right_units) - (left_units < right_units)
    if isinstance(right, bool):
        return parse_boolean(left) - right
    return compare_numbers(parse_as_type_of(right, left), right)


_NO_CAST: Final = (
    "java.lang.ClassCastException: class java.lang.Boolean cannot be cast to class java.lang.String "
    "(java.lang.Boolean and java.lang.String are in module java.base of loader 'bootstrap')"
)


def parse_boolean(text: str) -> bool:
    """Tell whether text is "true" in any case. Source: Boolean.valueOf."""
    return len(text) == 4 and text.lower() == "true"


# -- literals and how values are written ---------------------------------------------------------------


def decimal_literal(text: str) -> int:
    """Return the value of digits with or without an L, of type int if it fits. Raises SqlError."""
    try:
        number = parse_java_integer(text.rstrip("lL"))
    except JavaNumberError as error:
        raise SqlError("java.lang.NumberFormatException", str(error)) from error
    return number if number in I32 else JavaLong(number)


def float_literal(text: str) -> float:
    """Return the value of a number with a point or exponent, neither zero nor infinite. Raises SqlError."""
    number = float(text)
    if math.isinf(number):
        raise illegal_operands(f"{text} is greater than 1.7976931348623157E308")
    if number == 0.0:
        raise illegal_operands(f"{text} is less than 4.9E-324")
    return number


def negate(value: Value) -> Number | None:
    """Return the number with its sign changed, of the same type; None for anything else."""
    if value is None or isinstance(value, str | bool):
        return None
    return JavaLong(-value) if isinstance(value, JavaLong) else -value


def java_text(value: Value) -> str:
    """Format a value as String.valueOf does."""
    if value is None or isinstance(value, bool):
        return str(value).lower() if value is not None else "null"
    return _double_text(value) if isinstance(value, float) else str(value)


def _double_text(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == _MIN_DOUBLE:
        return "4.9E-324"  # Java writes at least two digits.
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    assert isinstance(exponent, int)  # for finite numbers
    point = len(text) + exponent
    minus = "-" * sign
    if -3 < point <= 7:
        padded = text.rjust(len(text) - point + 1, "0") if point <= 0 else text.ljust(point, "0")
        whole = max(point, 1)
        return f"{minus}{padded[:whole]}.{padded[whole:] or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"
