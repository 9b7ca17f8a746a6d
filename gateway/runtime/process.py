"""What every server process of ours does alike: runs until it ends, settles after start-up, tells that it is ready.

Not responsible for what is served.
"""

import gc
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from gateway.runtime.allocator import give_back_large_blocks
from gateway.runtime.file_limit import raise_file_limit
from storage.errors import StoreError

log = logging.getLogger(__name__)

EXIT_CANNOT_START: Final = 1
# Requests make no reference cycles; after start-up the collector has little to find and should seldom look.
_GC_THRESHOLDS: Final = (50_000, 20, 100)


class Runnable(Protocol):
    """A composition root: built when limits are raised, run until it ends."""

    async def run(self) -> None: ...


def run_process(build: Callable[[], Runnable]) -> int:
    """Builds what is to be run, and runs it; the process's exit status. What a machine lacks is said in one line."""
    raise_file_limit()
    give_back_large_blocks()
    status = 0
    try:
        trio.run(build().run)
    except* (OSError, StoreError, ValueError) as problems:
        status = EXIT_CANNOT_START
        for problem in problems.exceptions:
            log.error("cannot go on", extra={"reason": str(problem)})
    return status


def settle() -> None:
    """Tunes the collector for the time after start-up. What was made until now stays, and is not looked at again."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.enable()


def tell_ready(facts: dict[str, Any], ready_file: str) -> None:
    """Prints the ready line, one JSON object; a file of that name, when one is given, has it all at once."""
    line = json.dumps({"event": "ready", "pid": os.getpid(), **facts})
    if ready_file:
        target = Path(ready_file)
        partial = target.with_name(target.name + ".part")
        partial.write_text(line + "\n")
        partial.replace(target)
    print(line, flush=True)
