"""`python -m compat_tests.bench.faults`: what a target that fails takes from the primary's clients.

One client sends by several gateways in front of the same official broker in turn, some messages at a time, so that what
else the machine does falls on all alike. Not responsible for what becomes of what is mirrored: cases look at that.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from compat_tests.bench.faulty_target import FAULTS
from compat_tests.bench.loads import Figures, LoadFailed, own
from compat_tests.bench.shadow import Side, gateway
from compat_tests.endpoints import Unavailable, exit_on_sigterm
from compat_tests.endpoints.official import FULL_SPEED, Official
from compat_tests.endpoints.ours import python_path, wait_ready
from compat_tests.endpoints.process import Child

OFF = "mirroring off"
BLOCK = 64
"""So many sends by one gateway, before it is the next one's turn."""
PAUSE_MS = 40
"""Before that, so that what one gateway still does for its mirror is not counted as the next one's."""
MOST_LOST = 0.05
"""Of throughput and p99."""


def target(fault: str, directory: Path, stack: ExitStack) -> str:
    """Starts a target that fails so; its namesrv."""
    log = directory / f"target-{fault}.log"
    child = Child(
        fault, [sys.executable, "-m", "compat_tests.bench.faulty_target", fault], log, python_path()
    )
    stack.callback(child.kill)
    return str(wait_ready(log, 0, 30.0, lambda: None)["namesrv"])


def sides(stack: ExitStack) -> list[Side]:
    """A gateway that mirrors nothing, and one for each fault; all else is the same."""
    primary = stack.enter_context(Official(jvm=FULL_SPEED))
    found = []
    for fault in (OFF, *FAULTS):
        namesrv = target("stalled" if fault == OFF else fault, primary.directory, stack)
        tables = {"target.namesrv": [namesrv], "target.kind": "any"}
        rules = ['mirror=[{mode = "off"}]'] if fault == OFF else []
        found.append(gateway(fault, primary, primary.directory, tables, stack, rules))
    return found


def measure(found: Sequence[Side], rounds: int, count: int, threads: int) -> None:
    """Fills the samples of all sides. Each round begins with the next one, since whom one follows matters as well."""
    options: dict[str, object] = {"topic": f"Faults{threads}", "size": 128, "count": count, "block": BLOCK}
    options |= {"warm_up": 2000, "threads": threads, "pause_ms": PAUSE_MS}
    for number in range(rounds):
        first = number % len(found)
        order = [*found[first:], *found[:first]]
        options["namesrvs"] = ",".join(side.namesrv for side in order)
        figures = own(found[0], "senders", *(f"{key}={value}" for key, value in options.items()))
        for place, side in enumerate(order):
            side.samples.append({name: figures[f"{name}_{place}"] for name in ("rate", "p50_ms", "p99_ms")})
        click.echo(json.dumps({side.name: side.samples[-1] for side in found}), err=True)


def ratios(side: Side, off: Side) -> Figures:
    """Medians over rounds of what a side has for one of the gateway that mirrors nothing."""
    pairs = list(zip(side.samples, off.samples, strict=True))
    return {
        name: statistics.median(one[name] / other[name] for one, other in pairs) for name in off.samples[0]
    }


def markdown(found: Sequence[Side]) -> list[str]:
    """A row for each side; ratios to the first one."""
    lines = [
        "| target | messages/s | p50 ms | p99 ms | throughput | p50 | p99 | met |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for side in found:
        cells = [f"{side.median(name) or 0:,.4g}" for name in ("rate", "p50_ms", "p99_ms")]
        ratio = ratios(side, found[0])
        met = ratio["rate"] >= 1 - MOST_LOST and ratio["p99_ms"] <= 1 + MOST_LOST
        cells += [f"{each:.3f}" for each in ratio.values()]
        cells.append("yes" if met else "**no**")
        lines.append(f"| {side.name} | " + " | ".join(cells) + " |")
    return lines


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=len(FAULTS) + 1, show_default=True)
@click.option(
    "--count", type=click.IntRange(BLOCK), default=3200, show_default=True, help="Sends per side and round."
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads that send.")
@click.option(
    "--markdown", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the table to a file."
)
def main(rounds: int, count: int, threads: int, file: Path | None) -> None:
    """What a failing target takes from the primary's clients; at most a twentieth is allowed."""
    exit_on_sigterm()
    try:
        with ExitStack() as stack:
            found = sides(stack)
            measure(found, rounds, count - count % BLOCK, threads)
    except (Unavailable, LoadFailed) as error:
        raise click.ClickException(f"cannot measure on this machine: {error}") from error
    notes = f"Medians of {rounds} round(s), {threads} thread(s), {count:,} sends by each; ratios to the first line."
    text = "\n".join([*markdown(found), "", notes])
    click.echo(text)
    if file:
        file.write_text(text + "\n")


if __name__ == "__main__":
    main()
