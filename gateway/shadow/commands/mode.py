"""The command `rmq-gateway shadow mode`: it asks a running gateway's console."""

from typing import Final

import click

from gateway.shadow.console.client import console_from_options, console_options


@click.command()
@click.argument("topic", required=False)
@click.argument("mode", required=False)
@click.option("--reset", is_flag=True, help="Give TOPIC the mode of its rule again.")
@console_options
def mode(topic: str | None, mode: str | None, reset: bool, file: str | None, address: str | None) -> None:
    """Switch how TOPIC is mirrored, until it is switched again.

    MODE is off, async, sync-best-effort, strict-dual or target-primary. With [mirroring] state_file the mode outlives
    the gateway, and goes before that of the topic's rule. Without both it shows the topics whose mode was set, and what
    their rules say.
    """
    if bool(topic) != (bool(mode) or reset) or (mode and reset):
        raise click.UsageError("TOPIC MODE, TOPIC --reset or nothing must be given")
    console = console_from_options(file, address)
    if topic:
        console.post("/mirror/mode", {"topic": topic, "mode": mode or ""})
    known = console.get("/mirror")
    modes, rules, moved = known["modes"], known.get("rules", {}), known.get("moved", ())
    for name, set_mode in sorted(modes.items()):
        why = ", moved" if name in moved else ""
        click.echo(f"{name}: {set_mode}{why} (its rule: {rules.get(name) or 'none'})")
    if not modes:
        click.echo("every topic has the mode of its rule")


COMMANDS: Final = (mode,)
