"""Runs seeds: `python -m gateway.broker.replication.tests.controlled_simulation --seeds 10000`."""

import sys
from collections.abc import Sequence

from gateway.broker.replication.tests.controlled_simulation.story import ControlledOutcome, run_seed
from gateway.broker.replication.tests.simulation.__main__ import summarize as summarize_brokers
from gateway.tests.seeds import run_from_command_line


def summarize(outcomes: Sequence[ControlledOutcome]) -> str:
    """Return the sums of all seeds in words."""
    return (
        f"{sum(outcome.terms for outcome in outcomes)} terms of controllers, "
        f"{sum(outcome.elections for outcome in outcomes)} masters elected, "
        f"{sum(outcome.lost_masters for outcome in outcomes)} masters lost, "
        f"{sum(outcome.losses for outcome in outcomes)} messages lost as the mode allows, "
        f"up to {max((outcome.longest_lag_s for outcome in outcomes), default=0):.1f} s old, "
        f"{summarize_brokers([outcome.of_brokers for outcome in outcomes])}"
    )


if __name__ == "__main__":
    sys.exit(
        run_from_command_line("Run stories of brokers, their controllers and clients.", run_seed, summarize)
    )
