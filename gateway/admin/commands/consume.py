"""The command `rmq-gateway consume`: prints messages of a topic."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from gateway.admin.commands.options import (
    ClusterCommand,
    ConnectionFlags,
    brokers_option,
    cluster_options,
    complete_names,
    parse_place,
    queues_option,
)

if TYPE_CHECKING:
    from codec.message import Message
    from gateway.admin.consuming import ReadOptions


@click.command(cls=ClusterCommand)
@click.argument("topic", shell_complete=complete_names("topic"))
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="PLACE",
    help="Begin at earliest, latest, a time (2026-01-31T12:00:00Z, ms) or a duration ago (15m).",
)
@click.option("--offset", type=click.IntRange(0), metavar="N", help="Begin at this offset of each queue.")
@queues_option
@brokers_option("Only queues of this broker; repeatable.")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after N messages.")
@click.option("-F", "--follow", is_flag=True, help="Wait for new messages instead of stopping at the end.")
@click.option(
    "--tag", "tags", default="*", metavar="TAGS", help='Only messages with these tags, such as "a || b".'
)
@click.option("--sql", default="", metavar="EXPRESSION", help="Only messages that fit this SQL92 expression.")
@click.option(
    "--group", default="", metavar="NAME", help="Begin at the offsets of this group, and commit to them."
)
@click.option("-f", "--format", "format_text", metavar="FORMAT", help="Format of each message; see below.")
@click.option("--json", "as_json", is_flag=True, help="Print each message as a JSON line.")
@cluster_options
def consume(
    connection: ConnectionFlags,
    topic: str,
    count: int | None,
    format_text: str | None,
    as_json: bool,
    **read_flags: Any,
) -> None:
    """Print messages of TOPIC, up to the end as it is now, or with --follow until Ctrl-C.

    Nothing changes in the cluster unless --group is given.

    Parts of a format: %s value, %S its length, %t topic, %b broker, %p queue, %o offset, %k keys, %g tag,
    %i id, %I offset id, %h properties, %T store time in ms, %D store time, %r failed deliveries, %% a percent
    sign; \\n, \\t, \\0 and \\xNN as usual. The default is "%s\\n".

    \b
    rmq-gateway consume orders -n 10 -f '%p %o %k %s\\n'
    rmq-gateway consume orders --from 15m --follow --json
    """
    from gateway.admin.consuming import TopicReader
    from toolkit.deferred_interrupt import DeferredInterrupt
    from toolkit.progress import show_progress

    render = _choose_renderer(format_text, as_json, for_terminal=sys.stdout.isatty())
    options = _build_options(read_flags)
    out = sys.stdout.buffer
    printed = 0
    # Messages on the same terminal would break the bar, and while messages are followed it has no end.
    shows_bar = not options.follow and not sys.stdout.isatty()
    with connection.open() as client, TopicReader(client, topic, options) as reader:
        total = min(reader.total, count or reader.total)
        bar = show_progress("reading", lambda: total) if shows_bar else nullcontext(lambda number: None)
        try:
            with bar as done, DeferredInterrupt() as interrupt:
                for message, broker in reader.read():
                    with interrupt.step():  # A message that was printed is committed, and comes once.
                        out.write(render(message, broker))
                        if options.follow:
                            out.flush()
                        reader.finish_current()
                    done(1)
                    printed += 1
                    if printed == count:
                        break
        except KeyboardInterrupt:
            pass
        out.flush()
        reader.commit()


def _choose_renderer(
    format_text: str | None, as_json: bool, *, for_terminal: bool
) -> "Callable[[Message, str], bytes]":
    import orjson

    from gateway.admin.formats import DEFAULT_FORMAT, parse_format, to_json_value
    from toolkit.printable import printable_json

    if as_json and format_text:
        raise click.UsageError("Pass either --json or --format.")
    if as_json:

        def to_line(message: "Message", broker: str) -> bytes:
            line = orjson.dumps(to_json_value(message, broker), option=orjson.OPT_APPEND_NEWLINE)
            return printable_json(line.decode()).encode() if for_terminal else line

        return to_line
    try:
        return parse_format(format_text or DEFAULT_FORMAT, for_terminal=for_terminal)
    except ValueError as error:
        raise click.UsageError(f"--format: {error}") from None


def _build_options(flags: dict[str, Any]) -> "ReadOptions":
    from gateway.admin.consuming import ReadOptions

    if flags["tags"] != "*" and flags["sql"]:
        raise click.UsageError("Pass either --tag or --sql.")
    start, start_ms = parse_place("--from", flags.pop("start"))
    return ReadOptions(start=start, start_ms=start_ms, start_offset=flags.pop("offset"), **flags)
