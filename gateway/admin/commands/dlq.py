"""The command `rmq-gateway dlq`: lists dead letters, looks at them, and sends them again."""

import sys
from typing import Any

import click

from gateway.admin.commands.options import (
    ClusterGroup,
    ConnectionFlags,
    Function,
    cluster_options,
    complete_names,
    confirm,
    confirm_option,
    output_options,
    queues_option,
)
from toolkit.exit_codes import ExitCode
from toolkit.option_types import PastTimeType
from toolkit.printable import echo


@click.group(cls=ClusterGroup)
def dlq() -> None:
    """List dead letters, look at them, and send them again."""


@dlq.command("list")
@click.argument("pattern", default="*")
@output_options("name")
@cluster_options
def list_command(connection: ConnectionFlags, pattern: str, output: str) -> None:
    """List groups that have dead letters."""
    from gateway.admin.dead_letters import list_dead_letters
    from gateway.admin.output import TableColumn, print_rows
    from toolkit.times import format_time

    with connection.open() as client:
        rows = list_dead_letters(client, pattern)
    if output != "json":
        rows = [{**row, "lastStored": format_time(row["lastStoredMs"])} for row in rows]
    columns = [
        TableColumn("group", "group"),
        TableColumn("messages", "dead letters"),
        TableColumn("lastStored", "last stored"),
    ]
    print_rows(rows, columns, output, empty="No group has dead letters.")


def _selection_options(function: Function) -> Function:
    """Add --from, --queue and --id, which choose dead letters."""
    with_ids = click.option(
        "--id", "ids", multiple=True, metavar="ID", help="Only the message with this id; repeatable."
    )(function)
    return click.option(
        "--from",
        "start_ms",
        type=PastTimeType(),
        metavar="TIME",
        help="Stored at this time or later; or 15m ago.",
    )(queues_option(with_ids))


@dlq.command()
@click.argument("group", shell_complete=complete_names("group"))
@_selection_options
@click.option(
    "-n", "--count", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="At most N."
)
@output_options()
@cluster_options
def peek(
    connection: ConnectionFlags,
    group: str,
    start_ms: int | None,
    queues: tuple[int, ...],
    ids: tuple[str, ...],
    count: int,
    output: str,
) -> None:
    """Show dead letters of GROUP; nothing changes.

    Ends with 4 if there are none.
    """
    from gateway.admin.consuming import ReadOptions
    from gateway.admin.dead_letters import open_dead_letters, select_dead_letters
    from gateway.admin.formats import print_messages, to_json_value
    from gateway.admin.output import TableColumn

    with connection.open() as client:
        options = ReadOptions(start_ms=start_ms, queues=queues)
        with open_dead_letters(client, group, options) as reader:
            letters = list(select_dead_letters(reader, ids=ids, count=count))
    rows = [
        {**to_json_value(letter.message, letter.broker), "originTopic": letter.origin_topic}
        for letter in letters
    ]
    origin = TableColumn("originTopic", "from topic")
    print_messages(rows, output, empty="No dead letter fits.", extra_columns=(origin,))
    if not rows:
        raise SystemExit(ExitCode.NOTHING)


@dlq.command()
@click.argument("group", shell_complete=complete_names("group"))
@_selection_options
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="At most N; all without it.")
@click.option(
    "--to",
    type=click.Choice(["group", "origin"]),
    default="group",
    show_default=True,
    help="group: only this group receives them; origin: back to their topic, to all its groups.",
)
@click.option("--dry-run", is_flag=True, help="Count and list what would be sent.")
@confirm_option
@output_options()
@cluster_options
def resend(
    connection: ConnectionFlags,
    group: str,
    start_ms: int | None,
    queues: tuple[int, ...],
    ids: tuple[str, ...],
    count: int | None,
    to: str,
    dry_run: bool,
    yes: bool,
    output: str,
) -> None:
    """Send dead letters of GROUP again, with their keys, tag and properties.

    The dead letters themselves stay until the broker deletes them by age: sending the same ones twice delivers them
    twice. Choose with --from, --id or -n.
    """
    from gateway.admin.consuming import ReadOptions
    from gateway.admin.dead_letters import Resender, open_dead_letters, select_dead_letters
    from gateway.admin.output import print_json

    counts: dict[str, int] = {}
    result = {"group": group, "sent": 0, "selected": 0, "topics": counts, "dryRun": dry_run}
    with connection.open() as client:
        resender = Resender(client, group, to)
        with open_dead_letters(client, group, ReadOptions(start_ms=start_ms, queues=queues)) as reader:
            letters = list(select_dead_letters(reader, ids=ids, count=count))
        for letter in letters:
            resender.check(letter)
            topic = resender.target_topic(letter)
            counts[topic] = counts.get(topic, 0) + 1
        result["selected"] = len(letters)
        summary = ", ".join(f"{number:,} to {topic}" for topic, number in sorted(counts.items()))
        if letters and not dry_run:
            confirm(f"Send {len(letters):,} dead letter(s) of {group} again ({summary})?", yes)
            result["sent"] = _send_all(resender, letters)
    if output == "json":
        print_json(result)
    elif not letters:
        echo("No dead letter fits.", err=True)
    else:
        echo(f"{'Would send' if dry_run else 'Sent'} {len(letters):,} dead letter(s): {summary}.")
    if not letters:
        raise SystemExit(ExitCode.NOTHING)


def _send_all(resender: Any, letters: list[Any]) -> int:
    """Send the dead letters and return their number; after a failure or Ctrl-C, print where it stopped."""
    from gateway.admin.errors import AdminError
    from toolkit.progress import show_progress

    sent = 0
    try:
        with show_progress("sending", lambda: len(letters)) as done:
            for letter in letters:
                resender.send(letter)
                sent += 1
                done(1)
    except (AdminError, KeyboardInterrupt) as error:
        next_message = letters[sent].message
        print(
            f"{sent:,} of {len(letters):,} were sent; go on with {next_message.unique_key or next_message.msg_id} "
            f"(queue {next_message.queue_id}, offset {next_message.queue_offset}).",
            file=sys.stderr,
        )
        if isinstance(error, KeyboardInterrupt):
            raise SystemExit(ExitCode.INTERRUPTED) from None
        raise
    return sent
