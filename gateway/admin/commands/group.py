"""The command `rmq-gateway group`: lists, describes, creates, changes, moves and deletes consumer groups."""

from collections.abc import Mapping
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
    parse_place,
    placement_options,
    queues_option,
)
from toolkit.printable import echo


@click.group(cls=ClusterGroup)
def group() -> None:
    """List, describe, create, change, move and delete consumer groups."""


@group.command("list")
@click.argument("pattern", default="*")
@click.option("-a", "--all", "all_kinds", is_flag=True, help="Also groups of the system and its tools.")
@output_options("name")
@cluster_options
def list_command(connection: ConnectionFlags, pattern: str, all_kinds: bool, output: str) -> None:
    """List groups whose names match PATTERN, with their members and lag."""
    from gateway.admin.groups import group_names, list_groups
    from gateway.admin.output import TableColumn, print_rows

    with connection.open() as client:
        if output == "name":
            from fnmatch import fnmatchcase

            names = group_names(client, all_kinds=all_kinds)
            rows = [{"group": name} for name in names if fnmatchcase(name, pattern)]
        else:
            rows = list_groups(client, pattern, all_kinds=all_kinds)
    columns = [
        TableColumn("group", "group"),
        TableColumn("members", "members"),
        TableColumn("lag", "lag", style=lambda row: "bold red" if row["lag"] and not row["members"] else ""),
        TableColumn("topics", "topics"),
        TableColumn("model", "model", wide=True),
        TableColumn("consumedPerSecond", "consumed/s", wide=True),
        TableColumn("deadLetters", "dead letters", style=_highlight_dead_letters),
        TableColumn("brokers", "brokers", wide=True),
    ]
    print_rows(rows, columns, output, empty="No groups. --all also lists those of the system.")


def _highlight_dead_letters(row: Mapping[str, Any]) -> str:
    return "yellow" if row["deadLetters"] else ""


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_names("group"))
@output_options()
@cluster_options
def describe(connection: ConnectionFlags, name: str, output: str) -> None:
    """Show members, subscriptions, and the lag of each queue of a group.

    Members that subscribe to different messages are named in red: they overwrite each other's subscription in the
    broker, and messages are skipped silently.
    """
    from gateway.admin.groups import describe_group
    from gateway.admin.output import print_json

    with connection.open() as client:
        description = describe_group(client, name)
    if output == "json":
        print_json(description)
    else:
        _print_group(description, output)


def _print_group(description: dict[str, Any], output: str) -> None:
    from gateway.admin.groups import describe_inconsistency
    from gateway.admin.output import TableColumn, print_facts, print_table, print_warning
    from toolkit.times import format_time

    print_facts(
        [
            ("group", description["group"]),
            ("state", description["state"]),
            ("consumes", " ".join(filter(None, (description["consumeType"], description["messageModel"])))),
            ("starts at", description["consumeFrom"]),
            ("lag", description["lag"]),
            ("in flight", description["inFlight"]),
            ("dead letters", description["deadLetters"]),
        ]
    )
    if description["inconsistentSubscriptions"]:
        echo()
        print_warning(
            "Inconsistent subscriptions: messages are skipped. Give all members the same subscription:"
        )
        for inconsistency in description["inconsistentSubscriptions"]:
            print_warning(f"  {describe_inconsistency(inconsistency)}")
    if description["members"]:
        echo()
        columns = [
            TableColumn("client", "member"),
            TableColumn("address", "address"),
            TableColumn("protocol", "protocol"),
            TableColumn("language", "language"),
            TableColumn("version", "version"),
            TableColumn("queues", "queues"),
            TableColumn("subscriptions", "subscriptions"),
        ]
        print_table(description["members"], columns)
    elif description["subscriptions"]:
        echo()
        print_table(
            description["subscriptions"],
            [TableColumn("topic", "topic"), TableColumn("expression", "expression")],
        )
    if not description["queues"]:
        echo("\nThe group has committed no offset.")
        return
    echo()
    rows = [
        {**queue, "lastConsumed": format_time(queue["lastConsumedMs"])} for queue in description["queues"]
    ]
    columns = [
        TableColumn("topic", "topic"),
        TableColumn("broker", "broker"),
        TableColumn("queue", "queue"),
        TableColumn("consumerOffset", "offset"),
        TableColumn("maxOffset", "max offset"),
        TableColumn("lag", "lag"),
        TableColumn("inFlight", "in flight", wide=True),
        TableColumn("lastConsumed", "last consumed", wide=True),
        TableColumn("client", "member"),
    ]
    print_table(rows, [column for column in columns if output == "wide" or not column.wide])


def _setting_options(function: Function) -> Function:
    """Add the options that set what a broker does for a group."""
    options: list[Any] = [
        click.option(
            "--orderly/--not-orderly",
            default=None,
            help="Whether gRPC clients (5.x) consume in order (consumeMessageOrderly).",
        ),
        click.option(
            "--retries",
            type=click.IntRange(0),
            metavar="N",
            help="Retries before a message becomes a dead letter (retryMaxTimes; 16 for a new group).",
        ),
        click.option("--consume/--no-consume", default=None, help="Whether it may consume (consumeEnable)."),
        click.option(
            "--broadcast/--no-broadcast",
            default=None,
            help="Whether it may consume as broadcast (consumeBroadcastEnable).",
        ),
        placement_options,
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _changes(
    orderly: bool | None, retries: int | None, consume: bool | None, broadcast: bool | None
) -> dict[str, Any]:
    flags = {
        "consume_message_orderly": orderly,
        "retry_max_times": retries,
        "consume_enable": consume,
        "consume_broadcast_enable": broadcast,
    }
    return {name: value for name, value in flags.items() if value is not None}


@group.command()
@click.argument("name", metavar="GROUP")
@_setting_options
@output_options()
@cluster_options
def create(
    connection: ConnectionFlags,
    name: str,
    orderly: bool | None,
    retries: int | None,
    consume: bool | None,
    broadcast: bool | None,
    brokers: tuple[str, ...],
    cluster: str | None,
    output: str,
) -> None:
    """Create a group on all brokers, or on those that are chosen."""
    from codec.topics import NAME_PATTERN, NAME_PATTERN_TEXT
    from gateway.admin.groups import create_group
    from gateway.admin.output import print_json
    from remoting.bodies.groups import SubscriptionGroupConfig

    if not NAME_PATTERN.fullmatch(name):
        raise click.UsageError(f'GROUP "{name}": expected characters that match {NAME_PATTERN_TEXT}')
    config = SubscriptionGroupConfig(group_name=name, **_changes(orderly, retries, consume, broadcast))
    with connection.open() as client:
        chosen = client.choose_brokers(brokers, cluster)
        create_group(client, config, chosen)
    if output == "json":
        print_json({"group": name, "brokers": list(chosen)})
    else:
        echo(f"Created {name} on {', '.join(chosen)}.")


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_names("group"))
@_setting_options
@output_options()
@cluster_options
def alter(
    connection: ConnectionFlags,
    name: str,
    orderly: bool | None,
    retries: int | None,
    consume: bool | None,
    broadcast: bool | None,
    brokers: tuple[str, ...],
    cluster: str | None,
    output: str,
) -> None:
    """Change settings of a group; those that are not named stay."""
    from gateway.admin.groups import alter_group
    from gateway.admin.output import TableColumn, print_rows

    changes = _changes(orderly, retries, consume, broadcast)
    if not changes:
        raise click.UsageError("Nothing to change: pass --orderly, --retries or another setting.")
    with connection.open() as client:
        rows = alter_group(client, name, client.choose_brokers(brokers, cluster), changes)
    columns = [
        TableColumn("broker", "broker"),
        TableColumn("setting", "setting"),
        TableColumn("before", "before"),
        TableColumn("now", "now"),
    ]
    print_rows(rows, columns, output, empty="Nothing changed: the group had these settings already.")


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_names("group"))
@click.option("-t", "--topic", required=True, metavar="TOPIC", help="Topic whose offsets are moved.")
@click.option(
    "--to",
    "destination",
    metavar="PLACE",
    help="earliest, latest, a time (2026-01-31T12:00:00Z, ms) or 15m ago.",
)
@click.option(
    "--to-offset", type=click.IntRange(0), metavar="N", help="Offset, in each queue or in those of --queue."
)
@queues_option
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@confirm_option
@output_options()
@cluster_options
def seek(
    connection: ConnectionFlags,
    name: str,
    topic: str,
    destination: str | None,
    to_offset: int | None,
    queues: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    output: str,
) -> None:
    """Move the offsets of a group in one topic.

    Shows the plan first, and asks. The broker notifies members that are online; they continue at the new offsets within
    seconds.
    """
    from gateway.admin.groups import online_members
    from gateway.admin.output import TableColumn, print_rows
    from gateway.admin.seek import SeekTarget, apply_seek, check_seek, plan_seek

    if (destination is None) == (to_offset is None):
        raise click.UsageError("Pass either --to or --to-offset.")
    target = (
        SeekTarget(offset=to_offset) if destination is None else SeekTarget(*parse_place("--to", destination))
    )
    with connection.open() as client:
        moves = plan_seek(client, name, topic, target, queues)
        members = online_members(client, name)
        check_seek(target, members, queues)
        columns = [
            TableColumn("broker", "broker"),
            TableColumn("queue", "queue"),
            TableColumn("before", "offset"),
            TableColumn("after", "new offset"),
            TableColumn("change", "change"),
            TableColumn("lag", "new lag"),
        ]
        print_rows([move.to_row() for move in moves], columns, output)
        if dry_run:
            return
        online = f" It has {len(members)} member(s), which the broker notifies." if members else ""
        confirm(f"Move {name} in {len(moves)} queue(s) of {topic}?{online}", yes)
        apply_seek(client, name, moves, target, is_online=bool(members))
    echo(f"Moved {name} in {len(moves)} queue(s) of {topic}.", err=output == "json")


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_names("group"))
@click.option("--with-dead-letters", "dead_letters", is_flag=True, help="Delete its dead letters, too.")
@click.option("--force", is_flag=True, help="Delete it although it has members.")
@confirm_option
@cluster_options
def delete(connection: ConnectionFlags, name: str, dead_letters: bool, force: bool, yes: bool) -> None:
    """Delete a group with its offsets and its retry topic; dead letters stay unless they are asked for."""
    from gateway.admin.groups import check_group_exists, delete_group

    with connection.open() as client:
        check_group_exists(client, name)
        confirm(f"Delete group {name} with its offsets{' and dead letters' if dead_letters else ''}?", yes)
        topics = delete_group(client, name, client.choose_brokers(), dead_letters=dead_letters, force=force)
    echo(f"Deleted {name}" + (f", and the topics {', '.join(topics)}." if topics else "."))
