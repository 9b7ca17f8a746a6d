"""What a subscription expression selects: the tags or messages that pass. Not responsible for who subscribed."""

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
    """Tests of queue entries' tag hashes and of stored messages; None lets everything pass.

    ``many`` gives the same answers as ``message`` for many messages, more quickly.
    """

    tags: TagTest | None
    message: MessageTest | None
    sql_selector: "Selector | None" = None

    @classmethod
    def from_sql(cls, compiled: "SqlFilter") -> "MessageFilter":
        """What a compiled expression lets pass."""
        return cls(None, compiled.selector.matches, compiled.selector)


def is_tag_type(expression_type: str | None) -> bool:
    """Whether an expression is one of tags; a missing type is. Source: ExpressionType.isTagType, 5.4.0."""
    return not expression_type or expression_type == TAG


def split_tags(expression: str) -> list[str]:
    """The tags of ``A || B``, trimmed, empty ones left out. Source: FilterAPI.buildSubscriptionData, 5.4.0."""
    return [tag for tag in (part.strip() for part in expression.split("||")) if tag]


@lru_cache(maxsize=4096)
def compile_tag_test(expression: str | None) -> TagTest | None:
    """A test of queue entries' tag hashes; None lets everything pass.

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
    """What an expression of tags lets pass. Raises ValueError as `tag_filter`."""
    return MessageFilter(compile_tag_test(expression), None)


@lru_cache(maxsize=1024)
def sql_message_filter(expression_type: str | None, expression: str | None) -> MessageFilter:
    """What an expression of another type than tags lets pass. Raises SqlError."""
    if expression_type != SQL92:
        raise SqlError(f"The broker does not support consumer to filter message by {expression_type}")
    if not expression:
        raise SqlError(f"Expression can't be null! {expression_type}")
    return MessageFilter.from_sql(compile_sql(expression))
