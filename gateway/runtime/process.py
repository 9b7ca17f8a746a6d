"""The common frame of every server process: limits, garbage collector, ready line, and errors at the start."""

import errno
import faulthandler
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from codec.hosts import format_host
from gateway.runtime.allocator import give_back_large_blocks
from gateway.runtime.file_limit import raise_file_limit
from storage.errors import StoreError
from toolkit.exit_codes import ExitCode
from toolkit.settings import SettingsError

# Requests make no reference cycles: after start-up the collector finds little and should rarely run.
_GC_THRESHOLDS: Final = (50_000, 20, 100)


class Runnable(Protocol):
    """A composition root: built when limits are raised, run until it ends."""

    async def run(self) -> None: ...


class ListenError(OSError):
    """A port cannot be opened. The text names the address, the setting and the remedy."""

    def __init__(self, host: str, port: int, setting: str, reason: OSError | OverflowError) -> None:
        detail = (getattr(reason, "strerror", None) or str(reason)).lower()
        if getattr(reason, "errno", None) == errno.EADDRINUSE:
            detail = "address already in use"
        super().__init__(
            f"cannot listen on {format_host((host, port))} ({setting}): {detail}. "
            "Use another port, or 0 for a free one."
        )


def run_process(build: Callable[[], Runnable]) -> int:
    """Build the servers, run them, and return the process's exit status.

    Each error that prevents the start or ends the servers is printed as one line, without a traceback.
    """
    # A page of a mapped file that the disk cannot read ends the process: print the place in the code before.
    faulthandler.enable()
    raise_file_limit()
    give_back_large_blocks()
    try:
        trio.run(build().run)
    except* (OSError, StoreError, ValueError) as problems:
        causes = list(leaves(problems))
        for cause in causes:
            print(f"Error: {cause}", file=sys.stderr, flush=True)
        is_usage = all(isinstance(cause, SettingsError) for cause in causes)
        return_code = ExitCode.USAGE if is_usage else ExitCode.FAILED
    else:
        return_code = ExitCode.DONE
    return return_code


def leaves(problem: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions within nested groups."""
    if isinstance(problem, BaseExceptionGroup):
        for nested in problem.exceptions:
            yield from leaves(nested)
    else:
        yield problem


def tune_garbage_collector() -> None:
    """Tune the garbage collector after start-up: objects made so far are never examined again."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.enable()


def announce_ready(facts: dict[str, Any], ready_file: str) -> None:
    """Print the ready line, one JSON object, and write it to the ready file, if any, in one step."""
    line = json.dumps({"event": "ready", "pid": os.getpid(), **facts})
    if ready_file:
        target = Path(ready_file)
        partial = target.with_name(target.name + ".part")
        partial.write_text(line + "\n")
        partial.replace(target)
    print(line, flush=True)
