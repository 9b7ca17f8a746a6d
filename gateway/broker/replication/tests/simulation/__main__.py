"""Runs seeds of the simulation: `python -m gateway.broker.replication.tests.simulation --seeds 10000`."""

import sys
from collections.abc import Sequence

from gateway.broker.replication.tests.simulation.story import Outcome, run_seed
from gateway.tests.seeds import run_from_command_line


def summarize(outcomes: Sequence[Outcome]) -> str:
    """Return the sums of all seeds in words."""
    return (
        f"{sum(sum(outcome.statuses.values()) for outcome in outcomes)} answers to sends, "
        f"{sum(outcome.cuts for outcome in outcomes)} logs cut, "
        f"{sum(outcome.changes for outcome in outcomes)} ends or changes of masters, "
        f"{sum(outcome.waiting for outcome in outcomes)} messages waited, "
        f"{sum(outcome.twice for outcome in outcomes)} of them came twice, "
        f"{sum(outcome.redeliveries for outcome in outcomes)} popped messages came again after their ack"
    )


if __name__ == "__main__":
    sys.exit(
        run_from_command_line("Run stories of a master, its slaves and their clients.", run_seed, summarize)
    )
