"""The command line: runs the suite against both servers, and compares.

It ends with 1 if a test passes at the official server and not at ours.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from compat_tests.clients.typed import connect
from compat_tests.endpoints import Unavailable, exit_on_sigterm
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.endpoints.proxy import OfficialProxy
from compat_tests.server import eventually
from remoting.requests.namesrv import GetBrokerClusterInfo
from tools.foreign_suite.suite import (
    CaseOutcome,
    CaseResult,
    SuiteFailed,
    compile_suite,
    fetch_jars,
    fetch_suite,
    run_suite,
)

OURS, OFFICIAL = "ours", "official 5.4.0"
ROUTE_TIMEOUT_S: Final = 60


def start_server(side: str, stack: ExitStack) -> tuple[str, str]:
    """Start a server, which the stack ends; return the addresses of its namesrv and of its gRPC port."""
    if side == OURS:
        ours = stack.enter_context(OursEndpoint(serves_grpc=True))
        assert ours.grpc is not None
        return ours.namesrv, ours.grpc
    official = stack.enter_context(OfficialEndpoint())
    proxy = stack.enter_context(OfficialProxy(official.namesrv))
    return official.namesrv, proxy.address


def await_broker(namesrv: str) -> None:
    """Wait until a namesrv knows a broker."""
    with connect(namesrv) as client:
        eventually(lambda: client.ask(GetBrokerClusterInfo()).data.broker_addr_table, ROUTE_TIMEOUT_S)


def show_differences(outcomes: Mapping[str, Mapping[str, CaseOutcome]]) -> int:
    """Print every test that does not pass everywhere; return how many fail at ours, and officially not."""
    ours_only = 0
    names = sorted({name for of_side in outcomes.values() for name in of_side})
    for name in names:
        ends = {
            side: of_side.get(name, CaseOutcome(CaseResult.SKIPPED)) for side, of_side in outcomes.items()
        }
        if all(end.result is CaseResult.PASSED for end in ends.values()):
            continue
        click.echo(f"{name}: " + ", ".join(f"{side} {end.result.value}" for side, end in ends.items()))
        for side, end in ends.items():
            if end.reason:
                click.echo(f"    {side}: {end.reason[:300]}")
        failed_officially = OFFICIAL in ends and ends[OFFICIAL].result is not CaseResult.PASSED
        ours_only += ends[OURS].result is CaseResult.FAILED and not failed_officially
    return ours_only


@click.command()
@click.option(
    "--checkout", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Checkout of apache/rocketmq-e2e; it is cloned without this.",
)  # fmt: skip
@click.option(
    "--side", "sides", multiple=True, type=click.Choice([OURS, OFFICIAL]), default=(OURS, OFFICIAL),
    show_default=True, help="Servers to run against; repeatable.",
)  # fmt: skip
@click.option(
    "--classes", "pattern", default=".*Test", show_default=True, help="Regular expression of class names."
)
@click.option(
    "--output", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Existing folder in which reports and logs stay.",
)  # fmt: skip
def main(checkout: Path | None, sides: tuple[str, ...], pattern: str, output: Path | None) -> None:
    """Run the gRPC tests of apache/rocketmq-e2e against servers that it starts, and compare the results."""
    exit_on_sigterm()
    outcomes: dict[str, dict[str, CaseOutcome]] = {}
    with ExitStack() as files:
        folder = output or Path(files.enter_context(tempfile.TemporaryDirectory(prefix="foreign-suite-")))
        try:
            tests, jars = fetch_suite(checkout), fetch_jars()
            compile_suite(tests, jars, folder / "classes")
            for number, side in enumerate(sides):
                with ExitStack() as stack:
                    namesrv, grpc = start_server(side, stack)
                    await_broker(namesrv)
                    run_folder = folder / f"{number}-{side.replace(' ', '-')}"
                    run_folder.mkdir()
                    outcomes[side] = run_suite(
                        tests,
                        jars,
                        folder / "classes",
                        run_folder,
                        namesrv=namesrv,
                        grpc=grpc,
                        pattern=pattern,
                    )
        except (Unavailable, SuiteFailed) as error:
            raise click.ClickException(str(error)) from error
    ours_only = show_differences(outcomes) if OURS in outcomes else 0
    for side, of_side in outcomes.items():
        counts = Counter(end.result for end in of_side.values())
        click.echo(f"{side}: " + ", ".join(f"{counts[result]} {result.value}" for result in CaseResult))
    if ours_only:
        raise click.ClickException(f"{ours_only} tests fail at our server alone")
