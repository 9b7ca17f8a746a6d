"""Message filters: the tests that a subscription's expression applies to queue entries and messages."""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from codec.hashing import tags_code
from gateway.broker.sql92 import SqlError, compile_sql

if TYPE_CHECKING:
    from gateway.broker.sql92 import Selector, SqlFilter

SUBSCRIBE_ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"

TagTest = Callable[[int], bool]
MessageTest = Callable[[memoryview], bool]


class MessageFilter(NamedTuple):
    """Tests of queue entries' tag hashes and of stored messages. None lets everything pass.

    ``sql_selector`` gives the same answers as ``message`` for many messages at once, faster.
    """

    tags: TagTest | None
    message: MessageTest | None
    sql_selector: "Selector | None" = None

    @classmethod
    def from_sql(cls, compiled: "SqlFilter") -> "MessageFilter":
        """Return the filter of a compiled expression."""
        return cls(None, compiled.selector.matches, compiled.selector)


def is_tag_type(expression_type: str | None) -> bool:
    """Tell whether an expression is a list of tags, which is also the default.

    Source: ExpressionType.isTagType, 5.4.0.
    """
    return not expression_type or expression_type == TAG


def split_tags(expression: str) -> list[str]:
    """Return the tags of ``A || B``, trimmed, without empty ones. Source: FilterAPI.buildSubscriptionData, 5.4.0."""
    return [tag for tag in (part.strip() for part in expression.split("||")) if tag]


@lru_cache(maxsize=4096)
def compile_tag_test(expression: str | None) -> TagTest | None:
    """Return a test of tag hashes for an expression; None lets everything pass.

    Raises ValueError for an expression without a tag, such as ``||``.
    """
    if not expression or expression == SUBSCRIBE_ALL:
        return None
    codes = frozenset(map(tags_code, split_tags(expression)))
    if not codes:
        raise ValueError("subscription expression without a tag")
    return codes.__contains__


@lru_cache(maxsize=4096)
def tag_message_filter(expression: str | None) -> MessageFilter:
    """Return the filter of a tag expression. Raises ValueError as `compile_tag_test` does."""
    return MessageFilter(compile_tag_test(expression), None)


@lru_cache(maxsize=1024)
def sql_message_filter(expression_type: str | None, expression: str | None) -> MessageFilter:
    """Return the filter of an expression of another type than tags. Raises SqlError."""
    if expression_type != SQL92:
        raise SqlError(f"The broker does not support consumer to filter message by {expression_type}")
    if not expression:
        raise SqlError(f"Expression can't be null! {expression_type}")
    return MessageFilter.from_sql(compile_sql(expression))
