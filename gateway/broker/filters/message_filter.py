"""Message filters: the tests that a subscription's expression applies to queue entries and messages.

Expressions are compiled, and their filters kept, in `filter_cache.py`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.broker.filters.sql92 import Selector, SqlFilter

SUBSCRIBE_ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"

FilterKey = tuple[str, str]
"""The type and the text of an expression; the type of tags is empty."""
TagTest = Callable[[int], bool]
MessageTest = Callable[[memoryview], bool]


class MessageFilter:
    """Tests of queue entries' tag hashes and of stored messages. None lets everything pass.

    ``tag_codes`` are the hashes that pass ``tags``. ``sql_selector`` gives the same answers as ``message`` for many
    messages at once, faster. ``key`` identifies the filter in its cache; None for one that is in no cache.
    """

    __slots__ = ("key", "message", "sql_selector", "tag_codes", "tags")

    def __init__(
        self,
        *,
        tag_codes: frozenset[int] | None = None,
        message: MessageTest | None = None,
        sql_selector: "Selector | None" = None,
        key: FilterKey | None = None,
    ) -> None:
        self.tag_codes = tag_codes
        self.tags: TagTest | None = None if tag_codes is None else tag_codes.__contains__
        self.message = message
        self.sql_selector = sql_selector
        self.key = key

    @classmethod
    def from_sql(cls, compiled: "SqlFilter", key: FilterKey | None = None) -> "MessageFilter":
        """Return the filter of a compiled expression."""
        return cls(message=compiled.selector.matches, sql_selector=compiled.selector, key=key)


EVERYTHING: Final = MessageFilter()
"""The filter that lets every message pass."""


def is_tag_type(expression_type: str | None) -> bool:
    """Tell whether an expression is a list of tags, which is also the default.

    Source: ExpressionType.isTagType, 5.4.0.
    """
    return not expression_type or expression_type == TAG


def split_tags(expression: str) -> list[str]:
    """Return the tags of ``A || B``, trimmed, without empty ones. Source: FilterAPI.buildSubscriptionData, 5.4.0."""
    return [tag for tag in (part.strip() for part in expression.split("||")) if tag]
