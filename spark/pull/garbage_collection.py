"""What is done once for each of Spark's Python workers.

Not responsible for what tasks do.
"""

import gc
import os
from typing import Final

KEEP_COLLECTING_VARIABLE: Final = "ROCKETMQ_SPARK_KEEP_COLLECTING"
"""The benchmark sets this variable for workers to show what `settle` saves."""
_MAX_FREEZES: Final = 3
_freeze_count = 0


def freeze_loaded_objects() -> None:
    """Takes what is loaded by now out of the garbage collector's sight, in the first tasks of a worker of Spark's.

    Spark's worker collects garbage after each task, which takes 25 ms with all modules loaded, and most of a small
    task's time. Later modules are loaded by the first tasks, so this is done thrice; not at each, since cycles that
    are garbage would never be freed.
    """
    global _freeze_count
    if _freeze_count < _MAX_FREEZES and not os.environ.get(KEEP_COLLECTING_VARIABLE):
        _freeze_count += 1
        gc.collect()
        gc.freeze()
