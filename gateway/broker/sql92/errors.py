"""What is wrong with an expression, in the official words. Not responsible for finding it."""


class SqlError(ValueError):
    """An expression that is refused; its text is what the official broker answers as remark."""

    def __init__(self, kind: str, detail: str | None = None) -> None:
        super().__init__(kind if detail is None else f"{kind}: {detail}")


def syntax_error(detail: str) -> SqlError:
    """Text that is no expression, or an operand of the wrong sort."""
    return SqlError("org.apache.rocketmq.filter.parser.ParseException", detail)


def lexical_error(detail: str) -> SqlError:
    """Text that is no token."""
    return SqlError("org.apache.rocketmq.filter.parser.TokenMgrError", detail)


def illegal_operands(detail: str) -> SqlError:
    """Operands that can never be compared."""
    return SqlError("java.lang.RuntimeException", detail)


def too_deep() -> SqlError:
    """Return an expression nested too deeply."""
    return SqlError("java.lang.StackOverflowError")
