"""The command line: `python -m tools.fuzz --seed 1 --frames 100000 --against broker`."""

import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from compat_tests.endpoints import exit_on_sigterm
from tools.fuzz.campaign import BUSY_MACHINE, QUIET_MACHINE, Bounds, Campaign, CampaignResult
from tools.fuzz.driver import MAX_OUTSTANDING
from tools.fuzz.findings import Recording
from tools.fuzz.minimise import DEFAULT_TRIALS, minimise_recording, repeats_finding

TARGETS = ("namesrv", "broker", "shadow", "grpc")
FRAME_SHARES = {"grpc": 0.1}
"""Share of the frames that a target gets: against the gRPC port each walk has a connection, and floods count as one."""
_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--seed", type=int, multiple=True, default=(1,), show_default=True, help="Seed; repeatable.")
@click.option(
    "--frames", type=click.IntRange(1), default=20_000, show_default=True, help="Frames against each server."
)
@click.option(
    "--against",
    type=click.Choice([*TARGETS, "all"]),
    default="all",
    show_default=True,
    help="Server to attack.",
)
@click.option("--busy", is_flag=True, help="Use limits for a machine that does other work as well.")
@click.option(
    "--one-at-a-time",
    is_flag=True,
    help="Wait for each answer before the next request, and list the requests that took longest.",
)
@click.option(
    "--findings",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".build/fuzz"),
    show_default=True,
    help="Folder for the files that repeat findings.",
)
@click.option("--replay", type=_file, help="Send the walks of a finding's file again.")
@click.option(
    "--minimise", type=_file, help="Find few walks that repeat a finding, and write them to its file."
)
@click.option("--trials", type=int, default=DEFAULT_TRIALS, show_default=True, help="Trials of --minimise.")
def main(
    seed: tuple[int, ...],
    frames: int,
    against: str,
    busy: bool,
    one_at_a_time: bool,
    findings: Path,
    replay: Path | None,
    minimise: Path | None,
    trials: int,
) -> None:
    """Attack a server with mutated requests, and report what an honest client would have noticed."""
    exit_on_sigterm()
    bounds = BUSY_MACHINE if busy else QUIET_MACHINE
    if minimise is not None:
        _minimise(minimise, bounds, trials)
        return
    save = partial(save_recording, findings)
    if replay is not None:
        recording = Recording.load(replay)
        result = Campaign(recording.against, recording.seed, bounds, save, with_corpus=False).run(
            recording.walks
        )
        click.echo(str(result))
        sys.exit(1 if len(result.findings) else 0)
    targets = TARGETS if against == "all" else (against,)
    window = 1 if one_at_a_time else MAX_OUTSTANDING
    results = [
        _run_campaign(target, one_seed, bounds, save, window, frames)
        for target in targets
        for one_seed in seed
    ]
    sys.exit(1 if any(len(result.findings) for result in results) else 0)


def _run_campaign(
    against: str, seed: int, bounds: Bounds, save: Callable[[Recording], None], window: int, frames: int
) -> CampaignResult:
    result = Campaign(against, seed, bounds, save, window).run(
        itertools.count(), int(frames * FRAME_SHARES.get(against, 1.0))
    )
    click.echo(str(result))
    if window == 1:
        click.echo(result.slow_requests())
    return result


def _minimise(path: Path, bounds: Bounds, trials: int) -> None:
    recording = Recording.load(path)
    smallest = minimise_recording(recording, lambda candidate: repeats_finding(candidate, bounds), trials)
    if smallest is None:
        sys.exit(f"the finding does not repeat: {recording.title}")
    smallest.save(path)
    click.echo(f"{len(recording.walks)} walks → {len(smallest.walks)}: {smallest.walks[:20]}, in {path}")


def save_recording(directory: Path, recording: Recording) -> None:
    """Print a finding, and write the file that repeats it."""
    number = len(list(directory.glob("*.json"))) + 1
    path = directory / f"{recording.against}-{recording.seed}-{number}.json"
    recording.save(path)
    click.echo(f"FINDING {recording.title}\n{recording.detail}\n  --replay {path}\n")
