"""The command `rmq-gateway shadow backfill`: copies history to the target, with a progress bar."""

import re
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from gateway.shadow.commands.run_async import run_async
from toolkit.exit_codes import ConfigurationError, ExitCode
from toolkit.printable import echo

if TYPE_CHECKING:
    from gateway.shadow.cutover.backfill import Backfill

SIZE_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
REFRESH_INTERVAL_S: Final = 0.2


def parse_size(context: click.Context | None, parameter: click.Parameter | None, text: str) -> float:
    """Return the bytes of a number with a suffix K, M or G. Raises BadParameter."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)B?", text.strip().upper())
    if match is None:
        raise click.BadParameter(f"{text!r} is not a number of bytes such as 500K or 10M")
    return float(match[1]) * SIZE_UNITS[match[2]]


@click.command()
@click.option(
    "-c", "--config", "file", metavar="FILE", help="Configuration file, if it was not given to `shadow`."
)
@click.option("-t", "--topics", required=True, metavar="NAME[,NAME]", help="Topics whose history is copied.")
@click.option(
    "--rate",
    type=click.FloatRange(0),
    default=5_000.0,
    help="Maximum messages per second; 0: no limit (default: 5000).",
)
@click.option(
    "--bytes-rate",
    callback=parse_size,
    default="0",
    help="Maximum bytes per second, such as 10M; 0: no limit (default: 0).",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 1_000),
    default=8,
    help="Number of queues copied in parallel (default: 8).",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not show progress.")
@click.pass_context
def backfill(context: click.Context, /, file: str | None, topics: str, quiet: bool, **limits: Any) -> None:
    """Copy the history of topics from the primary to the target, at the primary's offsets.

    It can be interrupted at any time: the same command continues where it stopped.
    """
    from gateway.shadow.commands.read_config import read_config

    outer = context.obj or {}
    config = read_config(file or outer.get("file"), outer.get("sets", ()))
    if not config.target.namesrv:
        raise ConfigurationError("target.namesrv must be set")
    names = {name.strip() for name in topics.split(",") if name.strip()}
    problems = run_async(_run_backfill, config, names, limits, quiet)
    for problem in problems:
        echo(problem, err=True)
    if problems:
        sys.exit(ExitCode.FAILED)


async def _run_backfill(config: Any, topics: set[str], limits: dict[str, Any], quiet: bool) -> list[str]:
    """Copy the topics; return the reasons for incomplete queues. Raises the errors of `Backfill` in groups."""
    import trio

    from gateway.shadow.clusters.cluster_pair import find_counterpart
    from gateway.shadow.clusters.endpoints import make_cluster
    from gateway.shadow.clusters.target_check import refuse_same_cluster
    from gateway.shadow.cutover.backfill import Backfill
    from gateway.shadow.replication.queue_copier import PullOptions

    primary, target = make_cluster(config.primary, "primary"), make_cluster(config.target, "target")

    def target_of(broker: str) -> str:
        return find_counterpart(broker, target.brokers, config.target.brokers)

    reader = PullOptions(config.replication.reader_group, config.replication.batch_messages)
    async with trio.open_nursery() as nursery:
        await nursery.start(primary.run)
        await nursery.start(target.run)
        job = Backfill(primary, target, target_of, kind=config.target.kind, reader=reader, **limits)
        await refuse_same_cluster(primary, target)
        await job.find_queues(topics)
        await _run_with_progress(job, quiet)
        nursery.cancel_scope.cancel()
    return list(job.describe_problems())


async def _run_with_progress(job: "Backfill", quiet: bool) -> None:
    """Run the backfill below a progress bar on standard error."""
    import trio

    copied_before = job.copied_messages
    with click.progressbar(length=job.total_messages, label="messages", file=sys.stderr, hidden=quiet) as bar:
        bar.update(copied_before)
        async with trio.open_nursery() as nursery:

            async def follow() -> None:
                while True:
                    await trio.sleep(REFRESH_INTERVAL_S)
                    bar.update(job.copied_messages - bar.pos)

            nursery.start_soon(follow)
            await job.run()
            nursery.cancel_scope.cancel()
        bar.update(job.copied_messages - bar.pos)
    if not quiet:
        copied, total = job.copied_messages - copied_before, job.total_messages
        echo(f"{copied} messages copied; the target has {job.copied_messages} of {total}", err=True)
