"""The command `rmq-gateway store dump`: stored messages as JSON lines."""

import sys
from typing import Any

import click

from gateway.store_commands.options import open_reader, store_options
from gateway.store_commands.verify import print_json
from toolkit.exit_codes import ExitCode
from toolkit.option_types import TimeType


@click.command()
@store_options
@click.option(
    "-t", "--topic", default="", metavar="TOPIC", help="Only this topic; its queues are read in turn."
)
@click.option("-q", "--queue", "queue_id", type=click.IntRange(0), help="Only this queue id.")
@click.option("--from-offset", type=click.IntRange(0), default=0, help="First queue offset.")
@click.option("--until-offset", type=click.IntRange(0), help="Queue offset before which to stop.")
@click.option(
    "--from", "from_ms", type=TimeType(), default=0, metavar="TIME", help="Stored at this time or later."
)
@click.option("--until", "until_ms", type=TimeType(), metavar="TIME", help="Stored before this time.")
@click.option("-k", "--key", default="", metavar="KEY", help="Only messages with this key or unique key.")
@click.option(
    "--body",
    type=click.Choice(["text", "base64", "none"]),
    default="text",
    help="How to print bodies; text: base64 for those that are no UTF-8 (default: text).",
)
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
def dump(
    directory: str, files: tuple[str, ...], sets: tuple[str, ...], body: str, limit: int | None, **given: Any
) -> None:
    """Print the messages in DIR as JSON lines: in the order of the log, or queue by queue with --topic.

    Times are in ms since 1970 or such as 2026-01-31T12:00:00Z. Compressed bodies are inflated. Without --topic also
    messages of deleted topics, and half messages, are printed. Never writes; a broker may have the store open.

    Exit code 0: all could be read; 3: damage was passed over, and is reported on standard error; 1: the store cannot
    be read.
    """
    from storage.tools.dump import DumpFilter, dump_messages, message_value
    from storage.tools.findings import StoreFinding

    printed = 0
    is_damaged = False
    with open_reader(directory, files, sets) as reader:
        for found in dump_messages(reader, DumpFilter(**given)):
            if isinstance(found, StoreFinding):
                is_damaged = True
                click.echo(f"{found.file} at byte {found.offset}: {found.reason}", err=True)
                continue
            print_json(message_value(found, body))
            printed += 1
            if printed == limit:
                break
    sys.exit(ExitCode.REFUSED if is_damaged else ExitCode.DONE)
