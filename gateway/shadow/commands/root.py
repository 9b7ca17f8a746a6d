"""The command `rmq-gateway shadow`: runs the gateway, or one of its subcommands.

The two short subcommands `mode` and `console-user` are here, the others in modules of their own.
"""

import sys

import click

from gateway.http_server.password_hash import MIN_PASSWORD_CHARS, PasswordHash
from gateway.http_server.settings import OPERATOR, VIEWER, ConsoleUser
from gateway.shadow.commands.backfill import backfill
from gateway.shadow.commands.cutover import COMMANDS as CUTOVER_COMMANDS
from gateway.shadow.commands.parity import COMMANDS as COMPARE_COMMANDS
from gateway.shadow.commands.read_config import read_config
from gateway.shadow.commands.report import COMMANDS as REPORT_COMMANDS
from gateway.shadow.console.client import console_from_options, console_options
from toolkit.command_group import SuggestingGroup
from toolkit.printable import echo
from toolkit.toml_tables import load_table


@click.command()
@click.argument("topic", required=False)
@click.argument("mode", required=False)
@click.option("--reset", is_flag=True, help="Clear the override: TOPIC has the mode of its rule again.")
@console_options
def mode(topic: str | None, mode: str | None, reset: bool, file: str | None, address: str | None) -> None:
    """Set the mirror mode of TOPIC, until it is set again.

    MODE is off, async, sync-best-effort, strict-dual or target-primary, and overrides the mode of the topic's rule.
    With [mirroring] state_file it survives a restart of the gateway. Without TOPIC and MODE the command lists the
    overrides and the modes of their rules.
    """
    if bool(topic) != (bool(mode) or reset) or (mode and reset):
        raise click.UsageError(
            "Pass TOPIC and MODE to set a mode, TOPIC --reset to clear it, or no argument to list overrides."
        )
    console = console_from_options(file, address)
    if topic:
        console.post("/mirror/mode", {"topic": topic, "mode": mode or ""})
    mirror_state = console.get("/mirror")
    modes, rules, moved = mirror_state["modes"], mirror_state.get("rules", {}), mirror_state.get("moved", ())
    for name, set_mode in sorted(modes.items()):
        why = ", moved" if name in moved else ""
        echo(f"{name}: {set_mode}{why} (its rule: {rules.get(name) or 'none'})")
    if not modes:
        echo("No overrides: every topic uses the mode set by its mirror rule.")


@click.command("console-user")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice([VIEWER, OPERATOR]),
    default=VIEWER,
    show_default=True,
    help="viewer: look only; operator: change modes, move topics.",
)
def console_user(name: str, role: str) -> None:
    """Print the settings of a console user NAME for shadow.toml.

    The command prompts for the password, or reads it from standard input if that is not a terminal. Only its hash is
    printed.
    """
    try:
        hashed = str(PasswordHash.create(_read_password(name)))
        load_table(ConsoleUser, {"name": name, "role": role, "password_hash": hashed}, "console.users")
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    echo(f'[[console.users]]\nname = "{name}"\nrole = "{role}"\npassword_hash = "{hashed}"')


def _read_password(name: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    text = f"Password of {name} (at least {MIN_PASSWORD_CHARS} characters)"
    password: str = click.prompt(text, hide_input=True, confirmation_prompt=True, err=True)
    return password


@click.group(cls=SuggestingGroup, invoke_without_command=True)
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

    echo(example_file(), nl=False)


for _command in (
    *COMPARE_COMMANDS,
    *CUTOVER_COMMANDS,
    *REPORT_COMMANDS,
    backfill,
    console_user,
    mode,
):
    shadow.add_command(_command)
