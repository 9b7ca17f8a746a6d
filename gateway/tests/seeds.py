"""Runs stories on virtual time in which everything random comes from a seed, so that a failing one replays exactly."""

import argparse
import gc
import logging
import os
import random
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import trio
from trio._core import _run as trio_scheduler
from trio.testing import MockClock

Outcome = TypeVar("Outcome")
Show = Callable[[str], None]
"""Takes a line for each event of a story."""
RunSeed = Callable[[int, Show | None], Outcome]
Fault = Callable[[], Awaitable[None]]


def run_seeded(seed: int, story: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """Run a story to its end."""
    # trio mixes the order of tasks by chance, to find code that relies on it: here by the seed's chance.
    scheduler: Any = trio_scheduler
    before, state = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()
    shared_state = random.getstate()
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.seed(seed)
    random.seed(seed)
    # A seed takes a second, and its garbage little memory.
    gc.disable()
    try:
        return trio.run(story, clock=MockClock(autojump_threshold=0))
    finally:
        gc.enable()
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before
        scheduler._r.setstate(state)
        random.setstate(shared_state)


async def start_faults(
    nursery: trio.Nursery,
    randomness: random.Random,
    faults: Mapping[Fault, int],
    until_s: float,
    pause_s: float,
) -> None:
    """Start faults by chance, by their weights, about every ``pause_s`` until a time; some go on at the same time."""
    while trio.current_time() < until_s:
        await trio.sleep(pause_s * randomness.uniform(0.1, 1.9))
        nursery.start_soon(randomness.choices(list(faults), list(faults.values()))[0])


@contextmanager
def quiet_servers() -> Iterator[None]:
    """Keep the servers' logs away: the trace of a story says the same, in fewer words."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def run_seeds(run: RunSeed[Any], seeds: range, module: str) -> None:
    """Run seeds in a test. The seed that fails is the last one printed; the command of ``module`` replays it."""
    with quiet_servers():
        for seed in seeds:
            print(f"python -m {module} --trace --seed {seed}")
            run(seed, None)


def trace_seed(run: RunSeed[Outcome], seed: int) -> tuple[Outcome, list[str]]:
    """Run one seed; return its outcome and the events of its story."""
    events: list[str] = []
    with quiet_servers():
        return run(seed, events.append), events


def run_quietly(run: RunSeed[Outcome], seed: int, *, trace: bool = False) -> Outcome | str:
    """Run one seed; return what failed, as text, if it does."""
    try:
        with quiet_servers():
            return run(seed, print if trace else None)
    except BaseException:  # noqa: BLE001 - reported with its seed
        return traceback.format_exc()


def run_from_command_line(
    description: str, run: RunSeed[Outcome], summarize: Callable[[Sequence[Outcome]], str]
) -> int:
    """Run the seeds that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--trace", action="store_true", help="print the events of each seed")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="seeds at a time")
    arguments = parser.parse_args()
    first, seeds = arguments.first, arguments.seeds
    numbers = [arguments.seed] if arguments.seed is not None else list(range(first, first + seeds))
    began_s, outcomes, failed = time.monotonic(), [], []
    with ProcessPoolExecutor(1 if arguments.trace else arguments.jobs) as pool:
        work = partial(run_quietly, run, trace=arguments.trace)
        for seed, outcome in zip(numbers, pool.map(work, numbers, chunksize=8), strict=True):
            if isinstance(outcome, str):
                failed.append(seed)
                print(f"seed {seed} failed; replay it with --seed {seed} --trace\n{outcome}", flush=True)
            else:
                outcomes.append(outcome)
    print(
        f"{len(numbers)} seeds in {time.monotonic() - began_s:.0f} s: {summarize(outcomes)}, "
        f"{len(failed)} seeds failed {failed[:20] or ''}".rstrip()
    )
    return int(bool(failed))
