"""Errors for invalid expressions, with the official texts."""

from typing import Final

MAX_REMARK_CHARS: Final = 4096
"""Longer texts are cut: a remark may quote the whole expression, and the remarks of refusals are cached."""


class SqlError(ValueError):
    """An invalid expression. Its text is the remark of the official broker."""

    def __init__(self, kind: str, detail: str | None = None) -> None:
        text = kind if detail is None else f"{kind}: {detail}"
        super().__init__(text if len(text) <= MAX_REMARK_CHARS else f"{text[:MAX_REMARK_CHARS]}…")


def syntax_error(detail: str) -> SqlError:
    """Return the error for text that is not an expression, or for an operand of the wrong type."""
    return SqlError("org.apache.rocketmq.filter.parser.ParseException", detail)


def lexical_error(detail: str) -> SqlError:
    """Return the error for text that is not a token."""
    return SqlError("org.apache.rocketmq.filter.parser.TokenMgrError", detail)


def illegal_operands(detail: str) -> SqlError:
    """Return the error for operands that can never be compared."""
    return SqlError("java.lang.RuntimeException", detail)


def too_deep() -> SqlError:
    """Return the error for an expression that is nested too deeply."""
    return SqlError("java.lang.StackOverflowError")


def too_long(detail: str) -> SqlError:
    """Return the error for an expression that would take too long to compile."""
    return SqlError("java.lang.IllegalArgumentException", detail)
