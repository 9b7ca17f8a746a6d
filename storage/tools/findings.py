"""The findings of a check: one place in one file, and what is wrong there."""

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
    """DAMAGE: bytes contradict the format or each other. NOTE: worth knowing, but as it may be."""

    DAMAGE = "damage"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """``offset`` is the byte in ``file``, and ``bytes`` the length of the damaged part, 0 where that means nothing.

    ``topic``, ``queue_id`` and ``queue_offset`` say which message is concerned; None where no single one is.
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
    """Build a finding that is no damage."""
    return StoreFinding(Severity.NOTE, part, file, offset, reason, **details)
