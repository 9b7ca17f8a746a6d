"""The command `rmq-gateway produce`: sends messages from arguments, a file or standard input."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from gateway.admin.commands.options import (
    ClusterCommand,
    ConnectionFlags,
    cluster_options,
    complete_names,
    parse_pairs,
)
from toolkit.exit_codes import ExitCode
from toolkit.option_types import TimeType
from toolkit.printable import echo

if TYPE_CHECKING:
    from gateway.admin.producing import ProducedMessage

_STANDARD_INPUT: Final = (None, "-")
"""Values of --file."""


@click.command(cls=ClusterCommand)
@click.argument("topic", shell_complete=complete_names("topic"))
@click.argument("values", metavar="[VALUE]...", nargs=-1)
@click.option(
    "-f", "--file", metavar="FILE", help="Read messages from FILE, one a line; - is standard input."
)
@click.option("--whole", is_flag=True, help="The whole input is the value of one message.")
@click.option(
    "-D",
    "--delimiter",
    default="\\n",
    show_default=True,
    metavar="TEXT",
    help="Text between messages of the input; \\n, \\t, \\0 and \\xNN are understood.",
)
@click.option(
    "-K", "--key-delimiter", metavar="TEXT", help="Text between the keys and the value of each message."
)
@click.option(
    "--json-lines", is_flag=True, help="Each line is a JSON object: value, keys, tag, properties, …"
)
@click.option("-k", "--key", "keys", multiple=True, metavar="KEY", help="Key of the messages; repeatable.")
@click.option("-g", "--tag", default="", metavar="TAG", help="Tag of the messages.")
@click.option(
    "-p", "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Property; repeatable."
)
@click.option(
    "--delay", metavar="DURATION", help="Deliver after this time, such as 30s (servers of 5.0 and later)."
)
@click.option(
    "--delay-level", type=click.IntRange(1, 18), metavar="N", help="Deliver after the delay of this level."
)
@click.option(
    "--deliver-at", type=TimeType(), metavar="TIME", help="Deliver at this time (servers of 5.0 and later)."
)
@click.option(
    "--sharding-key", default="", metavar="TEXT", help="All messages with this text go to one queue."
)
@click.option(
    "--queue", type=click.IntRange(0), metavar="N", help="Send to this queue (default: all in turn)."
)
@click.option("--broker", default="", metavar="NAME", help="Send to queues of this broker.")
@click.option("--repeat", type=click.IntRange(1), default=1, metavar="N", help="Send everything N times.")
@click.option("--json", "as_json", is_flag=True, help="Print the place of each message as a JSON line.")
@cluster_options
def produce(
    connection: ConnectionFlags,
    topic: str,
    values: tuple[str, ...],
    file: str | None,
    whole: bool,
    json_lines: bool,
    repeat: int,
    as_json: bool,
    **message_flags: Any,
) -> None:
    """Send messages to TOPIC: each VALUE, or without any the lines of a file or of standard input.

    \b
    rmq-gateway produce orders '{"id": 1}' -k 1 -g created
    rmq-gateway produce orders -f orders.csv -K ,
    rmq-gateway consume old --json | rmq-gateway produce new --json-lines
    """
    from gateway.admin.output import print_json_line
    from gateway.admin.producing import TopicSender

    if values and (file or whole or json_lines):
        raise click.UsageError("Pass either VALUEs or an input (--file, --whole, --json-lines).")
    if repeat > 1 and not values and file in _STANDARD_INPUT:
        raise click.UsageError("--repeat: standard input can be read once only; pass VALUEs or --file.")
    template = _build_template(message_flags)
    delimiters = _parse_delimiters(message_flags["delimiter"], message_flags["key_delimiter"])
    sent = 0
    try:
        with connection.open() as client:
            sender = TopicSender(client, topic)
            for _ in range(repeat):
                if values:
                    messages = _of_values(values, template)
                else:
                    messages = _of_input(file, whole, json_lines, *delimiters, template)
                for sent_message in sender.send(messages):
                    sent += 1
                    if as_json:
                        print_json_line(sent_message.to_dict())
    except KeyboardInterrupt:
        echo(f"Interrupted; {sent:,} message(s) were sent to {topic}.", err=True)
        raise SystemExit(ExitCode.INTERRUPTED) from None
    except click.ClickException:
        if sent:
            echo(f"{sent:,} message(s) were sent to {topic} before this failure:", err=True)
        raise
    echo(f"Sent {sent:,} message(s) to {topic}.", err=True)


def _build_template(flags: dict[str, Any]) -> "ProducedMessage":
    """Return the message whose fields come from the flags. Raises UsageError."""
    from gateway.admin.producing import ProducedMessage

    if sum(flags[name] is not None for name in ("delay", "delay_level", "deliver_at")) > 1:
        raise click.UsageError("Pass only one of --delay, --delay-level and --deliver-at.")
    return ProducedMessage(
        b"",
        flags["keys"],
        flags["tag"],
        parse_pairs("--property", flags["properties"], "NAME=VALUE"),
        _parse_delay(flags["delay"]),
        flags["delay_level"] or 0,
        flags["deliver_at"] or 0,
        flags["sharding_key"],
        flags["queue"],
        flags["broker"],
    )


def _parse_delimiters(delimiter: str, key_delimiter: str | None) -> tuple[bytes, bytes | None]:
    from gateway.admin.formats import parse_delimiter

    try:
        return parse_delimiter(delimiter), None if key_delimiter is None else parse_delimiter(key_delimiter)
    except ValueError as error:
        raise click.UsageError(f"--delimiter, --key-delimiter: {error}") from None


def _parse_delay(text: str | None) -> int:
    from toolkit.times import parse_duration_ms

    try:
        return 0 if text is None else parse_duration_ms(text)
    except ValueError as error:
        raise click.UsageError(f"--delay: {error}") from None


def _of_values(values: tuple[str, ...], template: "ProducedMessage") -> "Iterator[ProducedMessage]":
    from dataclasses import replace

    for value in values:
        yield replace(template, value=value.encode("utf-8", "surrogateescape"))


def _of_input(
    file: str | None,
    whole: bool,
    json_lines: bool,
    delimiter: bytes,
    key_delimiter: bytes | None,
    template: "ProducedMessage",
) -> "Iterator[ProducedMessage]":
    from gateway.admin.producing import parse_json_line, parse_line, read_records
    from toolkit.progress import show_progress

    with _open_input(file) as (stream, size), show_progress("sending", lambda: size) as done:
        if whole:
            yield parse_line(stream.read(), template, key_delimiter)
            return
        for number, record in enumerate(read_records(stream, delimiter), 1):
            done(len(record) + len(delimiter))
            if not json_lines:
                yield parse_line(record, template, key_delimiter)
            elif record.strip():
                yield parse_json_line(record, template, number)


def _open_input(file: str | None) -> Any:
    """Return a context manager of the input, and its size if it is a file."""
    import contextlib
    import os

    @contextlib.contextmanager
    def opened() -> Iterator[tuple[BinaryIO, int]]:
        if file in _STANDARD_INPUT:
            yield sys.stdin.buffer, 0
            return
        assert file is not None
        try:
            stream = open(file, "rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise click.UsageError(f"--file {file}: {error.strerror}") from None
        with stream:
            yield stream, os.fstat(stream.fileno()).st_size

    return opened()
