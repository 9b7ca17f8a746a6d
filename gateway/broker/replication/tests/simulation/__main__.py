"""Runs seeds of the simulation: `python -m gateway.broker.replication.tests.simulation --seeds 10000`."""

import argparse
import logging
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from gateway.broker.replication.tests.simulation.story import Outcome, run_seed


def run_quietly(seed: int, *, trace: bool = False) -> Outcome | str:
    """Run one seed; return what failed, as text, if it does."""
    # What the brokers log is the same thing that the trace of the story says, in more words.
    logging.disable(logging.CRITICAL)
    try:
        return run_seed(seed, print if trace else None)
    except BaseException:  # noqa: BLE001 - reported with its seed
        return traceback.format_exc()
    finally:
        logging.disable(logging.NOTSET)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run stories of a master, its slaves and their clients.")
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--trace", action="store_true", help="print the events of each seed")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1, help="seeds at a time")
    arguments = parser.parse_args()
    seeds = (
        [arguments.seed]
        if arguments.seed is not None
        else list(range(arguments.first, arguments.first + arguments.seeds))
    )
    began_s, failed, cuts, sends, changes, waiting, twice, redeliveries = (
        time.monotonic(),
        [],
        0,
        0,
        0,
        0,
        0,
        0,
    )
    with ProcessPoolExecutor(1 if arguments.trace else arguments.jobs) as pool:
        run = partial(run_quietly, trace=arguments.trace)
        for seed, outcome in zip(seeds, pool.map(run, seeds, chunksize=8), strict=True):
            if isinstance(outcome, str):
                failed.append(seed)
                print(f"seed {seed} failed; replay it with --seed {seed} --trace\n{outcome}", flush=True)
            else:
                cuts += outcome.cuts
                sends += sum(outcome.statuses.values())
                changes += outcome.changes
                waiting += outcome.waiting
                twice += outcome.twice
                redeliveries += outcome.redeliveries
    print(
        f"{len(seeds)} seeds in {time.monotonic() - began_s:.0f} s: {sends} answers to sends, {cuts} logs cut, "
        f"{changes} ends or changes of masters, {waiting} messages waited, {twice} of them came twice, "
        f"{redeliveries} popped messages came again after their ack, "
        f"{len(failed)} seeds failed {failed[:20] or ''}".rstrip()
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
