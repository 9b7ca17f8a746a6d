"""Keep pyspark's garbage collection after every task from dominating small tasks."""

import gc
import os
from typing import Final

KEEP_COLLECTING_VARIABLE: Final = "ROCKETMQ_SPARK_KEEP_COLLECTING"
"""Environment variable that turns `freeze_loaded_objects` off; set by the benchmark for comparison."""
_MAX_FREEZES: Final = 3
_freeze_count = 0


def freeze_loaded_objects() -> None:
    """Exclude all objects loaded so far from garbage collection, in the first tasks of a Spark Python worker.

    Spark's worker collects garbage after each task, which takes 25 ms with all modules loaded: most of a small task's
    time. Tasks load further modules, so the first three tasks freeze; to freeze in every task would leak the objects in
    cycles.
    """
    global _freeze_count
    if _freeze_count < _MAX_FREEZES and not os.environ.get(KEEP_COLLECTING_VARIABLE):
        _freeze_count += 1
        gc.collect()
        gc.freeze()
