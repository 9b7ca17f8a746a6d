"""The command `rmq-gateway message`: finds single messages."""

from typing import TYPE_CHECKING, Any

import click

from gateway.admin.commands.options import (
    ClusterGroup,
    ConnectionFlags,
    cluster_options,
    complete_names,
    output_options,
)
from toolkit.exit_codes import ExitCode
from toolkit.option_types import PastTimeType
from toolkit.printable import echo

if TYPE_CHECKING:
    from gateway.admin.messages import LocatedMessage


@click.group(cls=ClusterGroup)
def message() -> None:
    """Find messages by id, key, place or time."""


@message.command()
@click.argument("topic", shell_complete=complete_names("topic"))
@click.argument("message_id", metavar="[ID]", required=False)
@click.option("--queue", type=click.IntRange(0), metavar="N", help="With --offset: the queue.")
@click.option("--offset", type=click.IntRange(0), metavar="N", help="The message at this offset of a queue.")
@click.option("--broker", metavar="NAME", help="With --offset: the broker, if the topic has several.")
@output_options()
@cluster_options
def get(
    connection: ConnectionFlags,
    topic: str,
    message_id: str | None,
    queue: int | None,
    offset: int | None,
    broker: str | None,
    output: str,
) -> None:
    """Show one message of TOPIC in full, and which groups have consumed it.

    ID is the one that the producer assigned, or the offset message id of the broker. Ends with 4 if there is no such
    message.
    """
    from gateway.admin.messages import consumption_of, get_at_offset, get_message

    if (message_id is None) == (offset is None):
        raise click.UsageError("Pass either an ID or --offset and --queue.")
    if offset is not None and queue is None:
        raise click.UsageError("Pass --queue, too.")
    with connection.open() as client:
        if message_id is not None:
            messages = get_message(client, topic, message_id)
        else:
            assert offset is not None
            assert queue is not None
            names = [queue_data.broker_name for queue_data in client.route(topic).queue_datas]
            if broker is None and len(names) > 1:
                raise click.UsageError(f"The topic is on {', '.join(sorted(names))}: pass --broker.")
            messages = get_at_offset(client, topic, broker or names[0], queue, offset)
        groups = [consumption_of(client, message, name) for message, name in messages]
    _print_messages(messages, groups, output)


def _print_messages(
    messages: "list[LocatedMessage]", groups: list[list[dict[str, Any]]], output: str
) -> None:
    from gateway.admin.formats import to_json_value
    from gateway.admin.output import TableColumn, print_facts, print_json, print_table

    values = [
        {**to_json_value(message, name), "groups": rows}
        for (message, name), rows in zip(messages, groups, strict=True)
    ]
    if output == "json":
        print_json(values)
    elif not values:
        echo("No such message. Messages are deleted after fileReservedTime, 72 hours by default.", err=True)
    for number, value in enumerate(values if output != "json" else []):
        if number:
            echo()
        print_facts(_facts_of(value))
        if value["groups"]:
            echo()
            columns = [
                TableColumn("group", "group"),
                TableColumn("consumed", "consumed"),
                TableColumn("offset", "offset"),
            ]
            print_table(value["groups"], columns)
    if not values:
        raise SystemExit(ExitCode.NOTHING)


def _facts_of(value: dict[str, Any]) -> list[tuple[str, Any]]:
    from toolkit.times import format_time

    return [
        ("id", value["uniqueKey"]),
        ("offset id", value["messageId"]),
        ("place", f"{value['topic']}, {value['broker']}, queue {value['queue']}, offset {value['offset']}"),
        ("keys", " ".join(value["keys"])),
        ("tag", value["tag"]),
        ("properties", value["properties"]),
        ("system properties", value["systemProperties"]),
        ("born", f"{format_time(value['bornMs'])} at {value['bornHost']}"),
        ("stored", f"{format_time(value['storedMs'])} at {value['storeHost']}"),
        ("failed before", value["deliveriesBefore"] or None),
        ("value", value.get("value")),
        ("value (base 64)", value.get("valueBase64")),
    ]


@message.command()
@click.argument("topic", shell_complete=complete_names("topic"))
@click.option("-k", "--key", metavar="KEY", help="Only messages with this key.")
@click.option(
    "--from",
    "begin_ms",
    type=PastTimeType(),
    metavar="TIME",
    help="Stored at this time or later; or 15m ago.",
)
@click.option(
    "--until", "end_ms", type=PastTimeType(), metavar="TIME", help="Stored before this time; or 15m ago."
)
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, 10_000),
    default=32,
    show_default=True,
    metavar="N",
    help="At most N.",
)
@output_options()
@cluster_options
def find(
    connection: ConnectionFlags,
    topic: str,
    key: str | None,
    begin_ms: int | None,
    end_ms: int | None,
    count: int,
    output: str,
) -> None:
    """List messages of TOPIC by key or time.

    Ends with 4 if there are none.
    """
    from gateway.admin.formats import print_messages, to_json_value
    from gateway.admin.messages import find_by_key, find_by_time
    from toolkit.times import MAX_TIME_MS

    if key is None and begin_ms is None:
        raise click.UsageError("Pass --key, --from or both.")
    begin = begin_ms or 0
    with connection.open() as client:
        if key is not None:
            end = MAX_TIME_MS if end_ms is None else end_ms
            messages = find_by_key(client, topic, key, begin_ms=begin, end_ms=end, count=count)
        else:
            messages = list(find_by_time(client, topic, begin, end_ms, count))
    rows = [to_json_value(message, name) for message, name in messages]
    print_messages(rows, output, empty="No such message in this time.")
    if not rows:
        raise SystemExit(ExitCode.NOTHING)
