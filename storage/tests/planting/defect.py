"""One planted defect: a change of the source text, and the tests that must fail then."""

import enum
from dataclasses import dataclass
from pathlib import Path


class TextChanged(Exception):
    """The source no longer holds the text that a defect replaces, or holds it more than once."""


class Law(enum.StrEnum):
    """The laws of the store, as docs/explanation/store-laws.md calls them."""

    ACKNOWLEDGED = "Acknowledged is readable"
    NOTHING_INVENTED = "Nothing invented"
    DELETED = "Deleted stays deleted"
    DENSE_OFFSETS = "Queue offsets without holes"
    COMMITTED_OFFSETS = "Committed offsets within the queue"
    KEYS = "Keys complete"
    TIME_SEARCH = "Time search complete"
    TIMERS = "Timers complete"
    HALF_MESSAGES = "Half messages complete"
    POPS = "Pops complete"
    STAGED_BATCHES = "Staged batches whole"
    TABLES = "Tables complete"
    RETENTION = "Retention takes the expired only"
    BOUNDED_RECOVERY = "Recovery is bounded"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replacement of a text that stands exactly once in a file; ``path`` is relative to the root of the tree."""

    path: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return the file's text with the replacement. Raises TextChanged."""
        if (count := text.count(self.old)) != 1:
            raise TextChanged(f"{self.path} holds {count} times: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect by name.

    ``law`` is the law of the store, or the area of the protocol, that it breaks; ``tests`` are the pytest arguments
    that should catch it.
    """

    name: str
    law: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]

    def changed_files(self, root: Path) -> dict[Path, str]:
        """Return the new text of every file that the defect changes. Raises TextChanged."""
        texts: dict[Path, str] = {}
        for edit in self.edits:
            path = root / edit.path
            texts[path] = edit.apply(texts.get(path) or path.read_text("utf-8"))
        return texts


def change(path: str, old: str, new: str) -> tuple[Edit, ...]:
    """Return the edits of a defect with a single one."""
    return (Edit(path, old, new),)
