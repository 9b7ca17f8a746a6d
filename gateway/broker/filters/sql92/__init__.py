"""SQL92 subscription expressions, compiled to tests of stored messages.

Text becomes tokens (`lexer.py`), tokens become nodes (`parser.py` with `lookahead.py`), and nodes become functions
over a message's stored properties (`compiler.py`). `selector.py` applies them to many messages at once, and
`candidates.py` finds the few that are worth a test.

Source: SqlFilter and the expression classes of rocketmq-filter, 5.4.0. Every oddity of these is reproduced, because
consumers were written against them. `tests/sql92.json` holds the recorded answers of the official classes.
"""

from typing import TYPE_CHECKING

from gateway.broker.filters.sql92.errors import SqlError

if TYPE_CHECKING:
    from gateway.broker.filters.sql92.compiler import SqlFilter
    from gateway.broker.filters.sql92.selector import Selector

__all__ = ["Selector", "SqlError", "SqlFilter", "compile_sql"]


def compile_sql(text: str) -> "SqlFilter":
    """Return the filter of an expression.

    Raises SqlError. The compiler is imported on first use, because most brokers never need it.
    """
    from gateway.broker.filters.sql92 import compiler

    return compiler.compile_sql(text)
