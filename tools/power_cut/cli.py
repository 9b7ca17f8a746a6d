"""The command line: `python -m tools.power_cut --rounds 10 --target ours`."""

import sys
from collections.abc import Sequence

import click

from compat_tests.endpoints import Unavailable, exit_on_sigterm
from tools.power_cut.file_system import NotPossibleHere, enter_namespaces
from tools.power_cut.rounds import TARGETS, Round, Target, run_rounds

EXIT_NOT_POSSIBLE = 2
_HEADINGS = ("target", "round", "boot", "traffic", "acknowledged", "lost", "after the cut", "lost", "start")


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Power cuts per server.")
@click.option(
    "--target",
    "names",
    type=click.Choice(list(TARGETS)),
    multiple=True,
    default=tuple(TARGETS),
    help="Server to cut off; repeatable. Default: all.",
)
@click.option("--senders", type=click.IntRange(1, 64), default=8, show_default=True, help="Sending clients.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the moments of the cuts.")
def main(rounds: int, names: tuple[str, ...], senders: int, seed: int) -> None:
    """Stop the file system under a broker that is sent messages, and look for what was lost.

    Exit status 1: our server broke a law of the store, or the control lost nothing, so that the method proves
    nothing. Exit status 2: this machine cannot stop a file system.
    """
    exit_on_sigterm()
    try:
        enter_namespaces()
        click.echo(_line(_HEADINGS))
        passed = [_run_target(TARGETS[name], rounds, senders, seed) for name in names]
    except NotPossibleHere as error:
        click.echo(f"not possible here: {error}", err=True)
        sys.exit(EXIT_NOT_POSSIBLE)
    sys.exit(0 if all(passed) else 1)


def _run_target(target: Target, rounds: int, senders: int, seed: int) -> bool:
    """Run the rounds of one server and print them; return False if it broke what is expected of it."""
    results: list[Round] = []
    try:
        for result in run_rounds(target, rounds, senders, seed):
            results.append(result)
            click.echo(_line(_cells(result)))
            for offence in result.verdict.offences:
                click.echo(f"  {offence}")
    except Unavailable as error:
        click.echo(f"{target.name}: skipped, {error}")
        return True
    problems = find_problems(target, results)
    for problem in problems:
        click.echo(f"FAILED {target.name}: {problem}")
    return not problems


def find_problems(target: Target, results: Sequence[Round]) -> list[str]:
    """Return what a server did that it must not do, in words."""
    lost = sum(result.verdict.lost + result.verdict.lost_after for result in results)
    acknowledged = sum(result.verdict.acknowledged for result in results)
    problems = []
    if not acknowledged:
        problems.append("no message was acknowledged")
    if target.must_keep and lost:
        problems.append(f"{lost} acknowledged messages are lost")
    if target.must_lose and not lost:
        problems.append("the control lost nothing: the method does not see losses here")
    if target.must_keep or target.must_lose:
        problems += [offence for result in results for offence in result.verdict.offences]
    return problems


def _cells(result: Round) -> Sequence[str]:
    verdict = result.verdict
    return (
        result.target,
        str(result.number + 1),
        "same" if result.same_boot else "other",
        f"{result.traffic_s:.1f} s",
        f"{verdict.acknowledged:,}",
        f"{verdict.lost:,}",
        f"{verdict.acknowledged_after:,}",
        f"{verdict.lost_after:,}",
        f"{result.recovery_s:.1f} s",
    )


def _line(cells: Sequence[str]) -> str:
    first, *values = cells
    return f"{first:15}" + "".join(f"{cell:>14}" for cell in values)
