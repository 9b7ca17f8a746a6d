"""Attributes of topics and groups: the ``+key=value,-key`` modification language and the keys that 5.4 knows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from codec.java_numbers import parse_java_integer


@dataclass(frozen=True, slots=True)
class AttributeRule:
    """A known key: its allowed values or inclusive range, and whether it can be changed after creation."""

    changeable: bool
    values: frozenset[str] = frozenset()
    low: int = 0
    high: int = 0

    def check_value(self, value: str) -> None:
        """Raise ValueError with the official text for a value that is not allowed."""
        if self.values:
            if value not in self.values:
                raise ValueError(f"value is not in set: [{', '.join(sorted(self.values))}]")
            return
        number = parse_java_integer(value)
        if not self.low <= number <= self.high:
            raise ValueError(f"value is not in range({self.low}, {self.high})")


MESSAGE_TYPE: Final = "message.type"
QUOTAS: Final = ("send.messages", "send.bytes", "pull.messages", "pull.bytes")
TOPIC_ATTRIBUTES: Final = {
    "queue.type": AttributeRule(False, frozenset({"BatchCQ", "SimpleCQ"})),
    "cleanup.policy": AttributeRule(False, frozenset({"DELETE", "COMPACTION"})),
    MESSAGE_TYPE: AttributeRule(
        True,
        frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"}),
    ),
    "reserve.time": AttributeRule(True, low=-1, high=2**63 - 1),
    # Private to this broker: the rates per second that `quotas.py` enforces; 0 sets no limit.
    **{f"quota.{quota}": AttributeRule(True, low=0, high=2**63 - 1) for quota in QUOTAS},
}
UNSUPPORTED_ATTRIBUTES: Final = {"queue.type": "BatchCQ", "cleanup.policy": "COMPACTION"}
"""Values that the official broker acts on and this one does not."""
GROUP_ATTRIBUTES: Final = {"priority.factor": AttributeRule(True, low=0, high=100)}


def parse_modification(text: str | None) -> dict[str, str]:
    """Parse ``+a=1,-b`` into ``{"+a": "1", "-b": ""}``. Raise ValueError with the official text.

    Source: AttributeParser, 5.4.0.
    """
    changes: dict[str, str] = {}
    for part in (text or "").split(",") if text else ():
        key, equals, value = part.partition("=")
        if equals and "+" not in key:
            raise ValueError(f"add/alter attribute format is wrong: {key}")
        if not equals and "-" not in key:
            raise ValueError(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise ValueError(f"key duplication: {key}")
        changes[key] = value
    return changes


def apply_changes(
    rules: Mapping[str, AttributeRule],
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
) -> dict[str, str]:
    """Return the attributes after the changes. ``current`` None means that the topic or group is being created.

    Raises ValueError with the official text. Source: AttributeUtil.alterCurrentAttributes, 5.4.0.
    """
    result = dict(current or {})
    changed_keys: set[str] = set()
    for marked, value in changes.items():
        key = marked[1:]
        _check_key(key, changed_keys)
        if marked.startswith("+"):
            _check_changeable(rules, key, creating=current is None)
            rules[key].check_value(value)
            result[key] = value
            continue
        _check_removal(rules, current, marked)
        del result[key]
    return result


def _check_key(key: str, changed_keys: set[str]) -> None:
    if not key or "+" in key or "-" in key:
        raise ValueError("kv string format wrong.")
    if key in changed_keys:
        raise ValueError(f"alter duplication key. key: {key}")
    changed_keys.add(key)


def _check_changeable(rules: Mapping[str, AttributeRule], key: str, *, creating: bool) -> None:
    if key not in rules:
        raise ValueError(f"unsupported key: {key}")
    if not creating and not rules[key].changeable:
        raise ValueError(f"attempt to update an unchangeable attribute. key: {key}")


def _check_removal(
    rules: Mapping[str, AttributeRule], current: Mapping[str, str] | None, marked: str
) -> None:
    key = marked[1:]
    if current is None:
        raise ValueError(f"only add attribute is supported while creating topic. key: {key}")
    if not marked.startswith("-"):
        raise ValueError(f"wrong format key: {key}")
    if key not in current:
        raise ValueError(f"attempt to delete a nonexistent key: {key}")
    _check_changeable(rules, key, creating=False)
