"""The search for a small set of walks."""

from tools.fuzz.findings import Recording
from tools.fuzz.minimise import minimise_recording


def minimise(needed: set[int], count: int = 500, max_trials: int = 200) -> tuple[list[int], int]:
    trials = []

    def repeats(recording: Recording) -> bool:
        trials.append(recording.walks)
        return needed <= set(recording.walks)

    smallest = minimise_recording(Recording("broker", 1, list(range(count))), repeats, max_trials)
    return smallest.walks if smallest else [], len(trials)


def test_one_walk_is_found_in_a_few_trials():
    walks, trials = minimise({499})
    assert walks == [499]
    assert trials == 1


def test_walks_far_from_each_other_are_found():
    assert minimise({3, 250, 498})[0] == [3, 250, 498]


def test_the_number_of_trials_is_bounded():
    walks, trials = minimise({3, 250, 498}, max_trials=8)
    assert trials == 8
    assert {3, 250, 498} <= set(walks)


def test_a_finding_that_does_not_repeat_has_no_smallest_set():
    assert minimise({1000}, count=8)[0] == []
