"""Measure how long the servers of a test take to start, to forget everything, and to move their time.

python -m gateway.testing.benchmark             # 20 rounds
python -m gateway.testing.benchmark --rounds 100
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

DEFAULT_ROUNDS: Final = 20


def measure(rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds that each step took, by its name; the import is measured once."""
    took: defaultdict[str, list[float]] = defaultdict(list)

    def timed(name: str, work: Callable[[], object]) -> None:
        started_s = time.perf_counter()
        work()
        took[name].append((time.perf_counter() - started_s) * 1000)

    started_s = time.perf_counter()
    from gateway.testing.double import RocketMQ

    took["import"].append((time.perf_counter() - started_s) * 1000)
    for _ in range(rounds):
        rocketmq = RocketMQ()
        timed("start", rocketmq.start)
        timed("create a topic", lambda: rocketmq.create_topic("orders"))  # noqa: B023 - called at once
        timed("advance", lambda: rocketmq.advance(3600))  # noqa: B023
        timed("reset", rocketmq.reset)
        timed("close", rocketmq.close)
    return dict(took)


def main(words: Sequence[str]) -> None:
    """Print a table of medians and worst values."""
    parser = argparse.ArgumentParser(description="Measure the servers of tests.")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="number of rounds (default: 20)")
    took = measure(parser.parse_args(words).rounds)
    print(f"{'milliseconds':<16}{'median':>8}{'worst':>8}")
    for name, values in took.items():
        print(f"{name:<16}{statistics.median(values):>8.1f}{max(values):>8.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
