"""Errors for invalid expressions, with the official texts."""


class SqlError(ValueError):
    """An invalid expression. Its text is the remark of the official broker."""

    def __init__(self, kind: str, detail: str | None = None) -> None:
        super().__init__(kind if detail is None else f"{kind}: {detail}")


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
