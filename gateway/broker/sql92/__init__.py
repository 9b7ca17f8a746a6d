"""SQL92 subscription expressions: text to a test of stored messages. Not responsible for who subscribed.

Source: SqlFilter and the expression classes of rocketmq-filter, 5.4.0, whose every oddity is kept: consumers
were written against them. `gateway/broker/sql92/tests/sql92.json` holds the proof.
"""

from typing import TYPE_CHECKING

from gateway.broker.sql92.errors import SqlError

if TYPE_CHECKING:
    from gateway.broker.sql92.compiler import SqlFilter
    from gateway.broker.sql92.selector import Selector

__all__ = ["Selector", "SqlError", "SqlFilter", "compile_sql"]


def compile_sql(text: str) -> "SqlFilter":
    """The filter an expression stands for. Raises SqlError. Most brokers never see one: the compiler comes then."""
    from gateway.broker.sql92 import compiler

    return compiler.compile_sql(text)
