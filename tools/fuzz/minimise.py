"""Finds a small set of walks that still leads to a finding, by delta debugging over the walks of a recording.

Every trial is a whole campaign with servers of its own, which takes about two seconds; so the search is bounded by a
number of trials, and keeps the smallest set it has seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tools.fuzz.campaign import Bounds, Campaign
from tools.fuzz.findings import Recording

DEFAULT_TRIALS: Final = 60
LAST_WALKS: Final = (1, 8, 64, 512)
"""Numbers of walks, counted from the end, that are tried first: most findings need no more."""


def repeats_finding(recording: Recording, bounds: Bounds) -> bool:
    """Send the walks of a recording to new servers; return whether the same finding is made."""
    campaign = Campaign(recording.against, recording.seed, bounds, with_corpus=False)
    result = campaign.run(recording.walks)
    return any(finding.title == recording.title for finding in result.findings.items())


def minimise_recording(
    recording: Recording,
    repeats: Callable[[Recording], bool],
    max_trials: int = DEFAULT_TRIALS,
) -> Recording | None:
    """Return the recording with as few walks as about ``max_trials`` trials can find; None if it does not repeat."""
    search = _FrameSearch(recording, repeats, max_trials)
    best = next(filter(search.repeats, (recording.walks[-count:] for count in LAST_WALKS)), None)
    if best is None:
        best = recording.walks
        if not repeats(recording):
            return None
    parts = 2
    while len(best) > 1 and search.trials_left:
        smaller = next(filter(search.repeats, _candidates(best, parts)), None)
        if smaller is not None:
            best, parts = smaller, 2
        elif parts >= len(best):
            break
        else:
            parts = min(2 * parts, len(best))
    return replace(recording, walks=best)


class _FrameSearch:
    """Tries sets of walks while there are trials left."""

    def __init__(self, recording: Recording, repeats: Callable[[Recording], bool], max_trials: int) -> None:
        self._recording = recording
        self._repeats = repeats
        self.trials_left = max_trials

    def repeats(self, walks: list[int]) -> bool:
        """Return whether these walks lead to the finding; False when no trial is left."""
        if not self.trials_left:
            return False
        self.trials_left -= 1
        return self._repeats(replace(self._recording, walks=walks))


def _candidates(walks: Sequence[int], parts: int) -> list[list[int]]:
    """Return the parts of a list, the last first, and then the list without each of them."""
    size = -(-len(walks) // parts)
    cuts = [list(walks[at : at + size]) for at in range(0, len(walks), size)][::-1]
    rests = [[walk for walk in walks if walk not in set(part)] for part in cuts] if parts > 2 else []
    return [candidate for candidate in (*cuts, *rests) if candidate]
