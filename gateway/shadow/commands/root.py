"""The command `rmq-gateway shadow`: runs the gateway, or one of the subcommands that are added to it here."""

import sys

import click

from gateway.shadow.commands.backfill import backfill
from gateway.shadow.commands.console_user import console_user
from gateway.shadow.commands.cutover import COMMANDS as CUTOVER_COMMANDS
from gateway.shadow.commands.mode import COMMANDS as MIRROR_COMMANDS
from gateway.shadow.commands.parity import COMMANDS as COMPARE_COMMANDS
from gateway.shadow.commands.read_config import read_config
from gateway.shadow.commands.report import COMMANDS as REPORT_COMMANDS


@click.group(invoke_without_command=True)
@click.option("-c", "--config", "file", metavar="FILE", help="Configuration file; see conf/shadow.toml.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Override one setting of the file; repeatable.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Form of log lines: text, or one JSON object per line.",
)
@click.option("--ready-file", metavar="PATH", default="", help="Also write the ready line to this file.")
@click.pass_context
def shadow(
    context: click.Context,
    file: str | None,
    sets: tuple[str, ...],
    log_level: str,
    log_format: str,
    ready_file: str,
) -> None:
    """Run a gateway between clients and a cluster, which prepares the move to another cluster."""
    context.obj = {"file": file, "sets": sets}
    if context.invoked_subcommand is None:
        _run_gateway(file, sets, log_level, log_format, ready_file)


def _run_gateway(
    file: str | None, sets: tuple[str, ...], log_level: str, log_format: str, ready_file: str
) -> None:
    from gateway.runtime.logs import set_up_logging
    from gateway.shadow.config import log_old_name
    from gateway.shadow.server import run

    set_up_logging(log_level, log_format=log_format)
    sys.exit(run(read_config(file, sets, log_old_name), ready_file))


@shadow.command()
def example() -> None:
    """Print a commented configuration file with every setting."""
    from gateway.shadow.config_docs import example_file

    click.echo(example_file(), nl=False)


for _command in (
    *COMPARE_COMMANDS,
    *CUTOVER_COMMANDS,
    *MIRROR_COMMANDS,
    *REPORT_COMMANDS,
    backfill,
    console_user,
):
    shadow.add_command(_command)
