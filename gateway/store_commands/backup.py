"""The command `rmq-gateway store backup`: a consistent copy of a store, also while a broker writes to it."""

from dataclasses import asdict

import click

from gateway.store_commands.options import json_option, open_reader, store_options
from gateway.store_commands.verify import print_json
from toolkit.progress import show_progress


@click.command()
@store_options
@click.argument("target", metavar="TARGET", type=click.Path())
@json_option
def backup(directory: str, files: tuple[str, ...], sets: tuple[str, ...], target: str, as_json: bool) -> None:
    """Copy the store in DIR to TARGET, a folder that does not exist yet. A broker may have the store open.

    The copy holds every message that was acknowledged before the command began, and opens in this broker and in an
    official one. It is made in TARGET.partial and renamed when it is complete and on the disk. To restore it, copy
    TARGET to the place of a store: `cp -r --sparse=always TARGET STORE`.

    Exit code 0: the copy is complete; 1: there is none, because it does not fit, TARGET exists, or DIR is damaged.
    """
    from storage.tools.backup import allocated_bytes, back_up

    with (
        open_reader(directory, files, sets) as reader,
        show_progress("copying", lambda: allocated_bytes(reader)) as progress,
    ):
        result = back_up(reader, target, progress)
    if as_json:
        print_json({"kind": "backup", **asdict(result)})
        return
    click.echo(
        f"{result.target}: log from {result.first_offset:,} to {result.end_offset:,}, {result.bytes:,} bytes copied"
    )
    if result.needs_recovery:
        click.echo("The broker that opens it will add missing queue entries, as after a crash.")
    if result.left_out:
        click.echo(f"Not copied, because no broker needs them: {', '.join(result.left_out)}")
