"""The findings of a check: each names a file, a byte in it, and the problem."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Part(StrEnum):
    """The part of a store that a finding concerns; `repair` mends each in its own way."""

    LOG = "log"
    QUEUE = "queue"
    INDEX = "index"
    TABLE = "table"
    CHECKPOINT = "checkpoint"


class Severity(StrEnum):
    """DAMAGE: bytes contradict the format or each other. NOTE: worth knowing, but allowed."""

    DAMAGE = "damage"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """One problem at byte ``offset`` of ``file``. ``bytes`` is the length of the damaged part, 0 if it has none.

    ``topic``, ``queue_id`` and ``queue_offset`` name the message concerned; None if it is not a single one.
    """

    severity: Severity
    part: Part
    file: str
    offset: int
    reason: str
    bytes: int = 0
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None

    @property
    def is_damage(self) -> bool:
        return self.severity is Severity.DAMAGE

    def to_value(self) -> dict[str, Any]:
        """Return the fields that are set, for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def damage(part: Part, file: str, offset: int, reason: str, **details: Any) -> StoreFinding:
    """Build a finding of damage."""
    return StoreFinding(Severity.DAMAGE, part, file, offset, reason, **details)


def note(part: Part, file: str, offset: int, reason: str, **details: Any) -> StoreFinding:
    """Build a finding of severity NOTE."""
    return StoreFinding(Severity.NOTE, part, file, offset, reason, **details)
