"""The command line: `python -m gateway.tests.native_sends --frames 10000000`."""

import argparse
import sys
import time

from codec.native import native_module
from gateway.tests.native_sends.rounds import run_rounds

REPORT_FRAMES = 1_000_000
MIN_TAKEN_SHARE = 0.3
"""Least share of the frames that must be taken natively. With fewer, the comparison proves little."""


def main() -> int:
    """Run rounds and print what was compared. The exit status is 1 if the two differ, 2 without the extension."""
    parser = argparse.ArgumentParser(
        description="Feed the same frames to brokers with and without native sends."
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=100_000, help="number of frames (default: %(default)s)")
    arguments = parser.parse_args()
    if native_module() is None:
        print("the extension rocketmq_native is not built: python setup.py build_ext --inplace")
        return 2
    began_s, reported = time.process_time(), 0

    def report(frames: int, taken: int) -> None:
        nonlocal reported
        if frames - reported >= REPORT_FRAMES or frames == arguments.frames:
            reported = frames
            rate = frames / (time.process_time() - began_s)
            print(f"{frames:,} frames are equal, {taken:,} taken natively, {rate:,.0f} a second", flush=True)

    taken = run_rounds(arguments.seed, arguments.frames, report)
    if taken < MIN_TAKEN_SHARE * arguments.frames:
        print(f"only {taken:,} of {arguments.frames:,} frames were taken natively")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
