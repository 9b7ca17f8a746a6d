"""Findings: what a campaign has to report, and the file that repeats it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

SHOWN_FRAME_BYTES: Final = 1500


@dataclass(slots=True)
class FuzzFinding:
    """One defect: its kind, a signature that is the same in a repetition, the evidence, and the walks before it."""

    kind: str
    signature: str
    detail: str
    walks: list[int] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The kind and the signature, by which a repetition recognises it."""
        return f"{self.kind}: {self.signature}"

    def __str__(self) -> str:
        return f"{self.title}\n{self.detail}".rstrip()


class FindingList:
    """The findings of one campaign, one for each title."""

    def __init__(self) -> None:
        self._by_title: dict[str, FuzzFinding] = {}

    def add(self, finding: FuzzFinding) -> None:
        """Add a finding, unless there is one like it."""
        self._by_title.setdefault(finding.title, finding)

    def items(self) -> list[FuzzFinding]:
        """Return the findings in the order in which they were made."""
        return list(self._by_title.values())

    def __len__(self) -> int:
        return len(self._by_title)


@dataclass(slots=True)
class Recording:
    """A campaign that can be sent again: its target, seed and walks, and the finding with its last frames to read."""

    against: str
    seed: int
    walks: list[int]
    title: str = ""
    detail: str = ""
    suspect: int | None = None
    """The walk whose answer showed the defect; those before it may have prepared it."""
    last_frames: dict[str, list[str]] = field(default_factory=dict)
    """The last frames of each open connection, as text."""

    def save(self, path: Path) -> None:
        """Write the file that `--replay` takes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))


def show_frame(frame: bytes) -> str:
    """Return the beginning of a frame as text, with escapes for what is not printable."""
    return frame[:SHOWN_FRAME_BYTES].decode("latin-1").encode("unicode_escape").decode()
