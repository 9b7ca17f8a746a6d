"""Runs seeds of the simulation: `python -m gateway.controller.tests.simulation --seeds 10000`."""

import sys
from collections.abc import Sequence

from gateway.controller.tests.simulation.story import Outcome, run_seed
from gateway.tests.seeds import run_from_command_line


def summarize(outcomes: Sequence[Outcome]) -> str:
    """Return the sums of all seeds in words."""
    return (
        f"{sum(outcome.terms for outcome in outcomes)} terms of controllers, "
        f"{sum(outcome.elections for outcome in outcomes)} masters elected, "
        f"{sum(outcome.unclean_elections for outcome in outcomes)} of them unclean, "
        f"{sum(outcome.lost_masters for outcome in outcomes)} masters lost, "
        f"{sum(outcome.accepted_sets for outcome in outcomes)} changes of replicas in sync, "
        f"{sum(outcome.acknowledgements for outcome in outcomes)} messages acknowledged"
    )


if __name__ == "__main__":
    sys.exit(run_from_command_line("Run stories of controllers, etcd and replicas.", run_seed, summarize))
