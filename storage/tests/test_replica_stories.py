"""Random stories of a master and its slave: the slave's log is a prefix, and its queues become the master's.

`LAWS_SEEDS` is the number of stories; the number of a story that fails is its seed.
"""

import os

import pytest

from storage.tests.replica_pair import ReplicaPair

STORIES = int(os.environ.get("LAWS_SEEDS", "150"))
STEPS = 40
WEIGHTS = {
    "append": 8,
    "copy": 10,
    "dispatch": 6,
    "work_at_one": 5,
    "delete_topic": 1,
    "copy_notes": 2,
    "expire": 1,
    "crash": 3,
    "change_roles": 1,
}


@pytest.mark.parametrize("seed", range(STORIES))
def test_a_slave_becomes_equal_to_its_master_whatever_happens(seed: int) -> None:
    pair = ReplicaPair(seed)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    for _ in range(STEPS):
        step = pair.randomness.choices(names, weights)[0]
        getattr(pair, step)()
        pair.check_prefix()
    pair.check_equal()
