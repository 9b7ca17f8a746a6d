"""Finds a small set of walks that still leads to a finding, by delta debugging over the walks of a recording.

Every trial is a whole campaign with servers of its own, which takes about two seconds; so the search is bounded by a
number of trials, and keeps the smallest set it has seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from compat_tests.fuzz.campaign import Bounds, Campaign
from compat_tests.fuzz.findings import Recording

DEFAULT_TRIALS: Final = 60


def repeats_finding(recording: Recording, bounds: Bounds) -> bool:
    """Send the walks of a recording to new servers; return whether the same finding is made."""
    result = Campaign(recording.against, recording.seed, bounds).run(recording.walks)
    return any(finding.title == recording.title for finding in result.findings.items())


def minimise_recording(
    recording: Recording,
    repeats: Callable[[Recording], bool],
    max_trials: int = DEFAULT_TRIALS,
) -> Recording:
    """Return the recording with as few walks as at most ``max_trials`` trials can find.

    The walks nearest to the finding are tried first, since most findings need only these.
    """
    best, trials = list(recording.walks), 0
    parts = 2
    while len(best) > 1 and trials < max_trials:
        smaller = None
        for candidate in _candidates(best, parts):
            if trials >= max_trials:
                break
            trials += 1
            if repeats(replace(recording, walks=candidate)):
                smaller = candidate
                break
        if smaller is not None:
            best, parts = smaller, 2
        elif parts >= len(best):
            break
        else:
            parts = min(2 * parts, len(best))
    return replace(recording, walks=best)


def _candidates(walks: Sequence[int], parts: int) -> list[list[int]]:
    """Return the parts of a list, the last first, and then the list without each of them."""
    size = -(-len(walks) // parts)
    cuts = [list(walks[at : at + size]) for at in range(0, len(walks), size)][::-1]
    rests = [[walk for walk in walks if walk not in set(part)] for part in cuts] if parts > 2 else []
    return [each for each in (*cuts, *rests) if each]
