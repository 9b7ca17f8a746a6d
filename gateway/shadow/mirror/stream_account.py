"""How many exchanges a mirror saw and what became of them. Not responsible for deciding that."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.runtime.metrics import Figure, counters
from gateway.shadow.traffic.outcome import Fate

_MEANINGS: Final = {
    "observed": "Exchanges a mirror was told of.",
    "mirrored": "Exchanges the target took.",
    "skipped": "Exchanges left out on purpose: by rule, mode or policy.",
    "refused": "Exchanges the target refused.",
    "dropped": "Exchanges that found no room, or that the target failed with every time.",
    "oneway": "Sends without answer, a part of those mirrored, skipped or dropped.",
    "resumed": "Exchanges that an earlier process left on disk, a part of those observed.",
    "repeated": "Exchanges tried again after a failure, once for each time.",
    "found": "Messages that the target had taken although its answer was lost; not sent again.",
    "late": "Messages that went on after later ones of their queue.",
}


@dataclass(slots=True)
class StreamCounts:
    """observed = mirrored + skipped + refused + dropped + what is still queued, at any moment."""

    observed: int = 0
    mirrored: int = 0
    skipped: int = 0
    refused: int = 0
    dropped: int = 0
    oneway: int = 0
    resumed: int = 0
    repeated: int = 0
    found: int = 0
    late: int = 0

    def count_fate(self, fate: Fate, count: int = 1) -> None:
        """Counts a fate."""
        name = fate._value_  # `value` is looked up anew each time.
        setattr(self, name, getattr(self, name) + count)

    @property
    def decided(self) -> int:
        """Exchanges whose fate is known."""
        return self.mirrored + self.skipped + self.refused + self.dropped

    def figures(self, **labels: str) -> Iterator[Figure]:
        """All of them as counters."""
        return counters(self, "mirror", _MEANINGS, labels)
