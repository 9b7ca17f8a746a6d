"""The command `rmq-gateway store verify`: reads everything and reports damage by file and offset."""

import sys
from typing import TYPE_CHECKING, Any

import click

from gateway.store_commands.options import json_option, open_reader, store_options
from toolkit.exit_codes import ExitCode
from toolkit.progress import show_progress

if TYPE_CHECKING:
    from storage.tools.findings import StoreFinding
    from storage.tools.verify import Verification


@click.command()
@store_options
@json_option
def verify(directory: str, files: tuple[str, ...], sets: tuple[str, ...], as_json: bool) -> None:
    """Read everything in DIR and report damage by file and byte. Never writes.

    Checked: every message with its CRC, every queue entry against its message, that queue offsets have no gaps, every
    index entry and slot, the tables and the checkpoint. A broker may have the store open; then messages that arrive
    during the check are left out, and the ends of queues and log are not compared.

    Exit code 0: no damage; 3: damage was found; 1: the store cannot be read.
    """
    sys.exit(verify_store(directory, files, sets, as_json))


def verify_store(directory: str, files: tuple[str, ...], sets: tuple[str, ...], as_json: bool) -> ExitCode:
    """Verify a store, print findings and totals, and return the exit code."""
    from storage.tools.verify import Verification, bytes_to_read

    with (
        open_reader(directory, files, sets) as reader,
        show_progress("verifying", lambda: bytes_to_read(reader)) as progress,
    ):
        verification = Verification(reader, progress)
        for found in verification.run():
            print_finding(found, as_json)
        print_totals(verification, reader.state.may_change, as_json)
    return ExitCode.REFUSED if verification.damage_count else ExitCode.DONE


def print_finding(found: "StoreFinding", as_json: bool) -> None:
    """Print one finding, as soon as it is made."""
    if as_json:
        print_json({"kind": "finding", **found.to_value()})
        return
    place = " ".join(
        f"{name} {value}"
        for name, value in (("topic", found.topic), ("queue", found.queue_id), ("offset", found.queue_offset))
        if value is not None
    )
    place = f" ({place})" if place else ""
    click.echo(f"{found.severity}: {found.file} at byte {found.offset}{place}: {found.reason}")


def print_totals(verification: "Verification", is_open: bool, as_json: bool) -> None:
    """Print what was read, and how much is damaged."""
    counts = {
        "messages": verification.log_check.messages,
        "queues": verification.queue_check.queues,
        "queue_entries": verification.queue_check.entries,
        "index_entries": verification.index_check.entries,
        "log_end": verification.log_check.end,
        "damage": verification.damage_count,
        "notes": verification.note_count,
        "open": is_open,
    }
    if as_json:
        print_json({"kind": "summary", **counts})
        return
    verdict = f"{counts['damage']:,} damaged places" if counts["damage"] else "no damage"
    click.echo(
        f"{counts['messages']:,} messages, {counts['queue_entries']:,} entries of {counts['queues']:,} queues and "
        f"{counts['index_entries']:,} index entries read: {verdict}"
        + (", as far as can be told while a broker has the store open" if is_open else "")
    )


def print_json(value: dict[str, Any]) -> None:
    """Print one line of JSON."""
    import orjson

    click.echo(orjson.dumps(value))
