"""The command `rmq-gateway shadow mode`: reads and sets mirror modes through a running gateway's console."""

from typing import Final

import click

from gateway.shadow.console.client import console_from_options, console_options


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
    known = console.get("/mirror")
    modes, rules, moved = known["modes"], known.get("rules", {}), known.get("moved", ())
    for name, set_mode in sorted(modes.items()):
        why = ", moved" if name in moved else ""
        click.echo(f"{name}: {set_mode}{why} (its rule: {rules.get(name) or 'none'})")
    if not modes:
        click.echo("No overrides: every topic uses the mode set by its mirror rule.")


COMMANDS: Final = (mode,)
