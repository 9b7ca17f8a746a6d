"""The command `rmq-gateway store repair`: mends what `verify` reports, and keeps every byte that it cuts."""

import sys
from typing import TYPE_CHECKING

import click

from gateway.store_commands.options import open_reader, report_store_errors, store_options
from gateway.store_commands.verify import print_finding, verify_store
from toolkit.exit_codes import ExitCode
from toolkit.progress import show_progress

if TYPE_CHECKING:
    from storage.tools.repair import RepairPlan


@click.command()
@store_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask before writing.")
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
def repair(directory: str, files: tuple[str, ...], sets: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    """Repair DIR, which no broker may have open: verify it, print the steps, ask, carry them out, verify again.

    Damaged bytes of the log become fillers, which readers skip; queues and index are built again from the log. What
    is cut, replaced or moved is kept in the folder "damaged" of the store.

    Exit code 0: the store is whole; 3: damage is left, or with --dry-run, there is something to repair; 1: the store
    is open or cannot be repaired, or you did not agree.
    """
    from gateway.runtime.logs import set_up_logging
    from storage.tools.repair import carry_out

    set_up_logging("error")
    plan = _plan(directory, files, sets)
    if plan.is_empty:
        click.echo("Nothing to repair.")
        return
    steps = [f"  {number}. {step}" for number, step in enumerate(plan.describe(), 1)]
    click.echo("\n".join(["Steps:", *steps]))
    if dry_run:
        sys.exit(ExitCode.REFUSED)
    if not yes:
        click.confirm("Write to the store?", abort=True)
    with report_store_errors():
        carry_out(plan)
    click.echo("Repaired; verifying again:")
    code = verify_store(directory, files, sets, as_json=False)
    sys.exit(code)


def _plan(directory: str, files: tuple[str, ...], sets: tuple[str, ...]) -> "RepairPlan":
    """Verify the store, print the findings, and return the plan."""
    from storage.tools.repair import plan_repair
    from storage.tools.verify import bytes_to_read

    with (
        open_reader(directory, files, sets) as reader,
        show_progress("verifying", lambda: bytes_to_read(reader)) as progress,
    ):
        return plan_repair(
            reader,
            progress,
            lambda found: print_finding(found, as_json=False),
            index_sizes_known=bool(files or sets),
        )
