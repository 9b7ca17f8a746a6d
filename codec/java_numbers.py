"""Numbers as Java holds and parses them: the one place that turns text of a peer or of a file into a number.

Python's integers have no upper bound: a text of 400 digits becomes a number that no later part expects, and converting
it takes time quadratic in its length. Every number that arrives as text is therefore parsed here, with the range of
the Java type that the official server declares for it.

Source of ranges and texts: Integer.parseInt, Long.parseLong and Double.parseDouble, OpenJDK 8.
"""

import math
from typing import Final, NamedTuple

MAX_NUMBER_TEXT_CHARS: Final = 64
"""A longer text is refused unread. Java accepts leading zeros without limit; no client sends them."""
MAX_QUOTED_CHARS: Final = 80


class JavaInteger(NamedTuple):
    """The range of a Java integer type: ``low <= value <= high``."""

    low: int
    high: int

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.low <= value <= self.high


I16: Final = JavaInteger(-(1 << 15), (1 << 15) - 1)
I32: Final = JavaInteger(-(1 << 31), (1 << 31) - 1)
I64: Final = JavaInteger(-(1 << 63), (1 << 63) - 1)


class JavaNumberError(ValueError):
    """Text that Java would not parse as the number; the message is the one of Java's NumberFormatException."""


def parse_java_integer(text: str, limits: JavaInteger = I64) -> int:
    """Parse a sign and digits within the range ``limits``; no white space, underscore or fraction.

    Raises JavaNumberError, which quotes at most MAX_QUOTED_CHARS of the text.
    """
    digits = text[1:] if text[:1] in ("-", "+") else text
    if len(text) <= MAX_NUMBER_TEXT_CHARS and digits.isdecimal():
        number = int(text)
        if limits.low <= number <= limits.high:
            return number
    raise JavaNumberError(f'For input string: "{quoted(text)}"')


def parse_integer_or(text: str | None, default: int, limits: JavaInteger = I64) -> int:
    """Parse as `parse_java_integer` does; return ``default`` for None and for text that is not such a number."""
    if text is None:
        return default
    try:
        return parse_java_integer(text, limits)
    except JavaNumberError:
        return default


def read_json_integer(value: object, limits: JavaInteger = I64) -> int:
    """Return a value of a JSON document as an integer: a whole number within ``limits``, or the text of one.

    Raises JavaNumberError for anything else, also for true and for null.
    """
    if isinstance(value, str):
        return parse_java_integer(value, limits)
    if isinstance(value, int) and not isinstance(value, bool) and limits.low <= value <= limits.high:
        return value
    raise JavaNumberError(f"not an integer of the right size but {quoted(type(value).__name__)}")


def parse_java_float(text: str) -> float:
    """Parse a finite number as Double.parseDouble does, without the underscores that Python permits.

    Raises JavaNumberError. Deviation: NaN, Infinity and numbers too large for a double are refused; no field has a use
    for them, and they spoil every sum and comparison that they get into.
    """
    if len(text) <= MAX_NUMBER_TEXT_CHARS and "_" not in text:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
    raise JavaNumberError(f'For input string: "{quoted(text)}"')


def quoted(text: str) -> str:
    """Return the text for an error message, shortened to MAX_QUOTED_CHARS."""
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}… ({len(text)} characters)"
