"""The command `rmq-gateway topic`: lists, describes, creates, changes and deletes topics."""

from collections.abc import Iterable
from typing import Final

import click

from gateway.admin.commands.options import (
    ClusterGroup,
    ConnectionFlags,
    cluster_options,
    complete_names,
    confirm,
    confirm_option,
    output_options,
    parse_pairs,
    placement_options,
)
from toolkit.printable import echo

TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED", "UNSPECIFIED")


@click.group(cls=ClusterGroup)
def topic() -> None:
    """List, describe, create, change and delete topics."""


@topic.command("list")
@click.argument("pattern", default="*")
@click.option(
    "-a", "--all", "all_kinds", is_flag=True, help="Also system topics, retry topics and dead letters."
)
@output_options("name")
@cluster_options
def list_command(connection: ConnectionFlags, pattern: str, all_kinds: bool, output: str) -> None:
    """List topics whose names match PATTERN (shell pattern, such as "orders*")."""
    from gateway.admin.output import TableColumn, print_rows
    from gateway.admin.topics import list_topics

    with connection.open() as client:
        rows = list_topics(client, pattern, all_kinds=all_kinds)
    columns = [
        TableColumn("topic", "topic"),
        TableColumn("kind", "kind", wide=not all_kinds),
        TableColumn("type", "type"),
        TableColumn("writeQueues", "queues"),
        TableColumn("readQueues", "read queues", wide=True),
        TableColumn("permission", "perm"),
        TableColumn("brokers", "brokers"),
        TableColumn("ordered", "ordered", wide=True),
        TableColumn("attributes", "attributes", wide=True),
    ]
    print_rows(rows, columns, output, empty="No topics. --all also lists those of the system.")


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_names("topic"))
@output_options()
@cluster_options
def describe(connection: ConnectionFlags, name: str, output: str) -> None:
    """Show route, settings, offsets of all queues, and groups of a topic."""
    from gateway.admin.output import TableColumn, print_facts, print_json, print_table
    from gateway.admin.topics import describe_topic
    from toolkit.times import format_time

    with connection.open() as client:
        description = describe_topic(client, name)
    if output == "json":
        print_json(description)
        return
    print_facts(
        [
            ("topic", name),
            ("kind", description["kind"]),
            ("type", description["type"]),
            ("attributes", description["attributes"]),
            ("ordered", description["ordered"]),
            ("messages", description["messages"]),
            ("groups", description["groups"] or "none"),
        ]
    )
    echo()
    print_table(
        description["brokers"],
        [
            TableColumn("broker", "broker"),
            TableColumn("addresses", "addresses by id"),
            TableColumn("writeQueues", "write queues"),
            TableColumn("readQueues", "read queues"),
            TableColumn("permission", "perm"),
        ],
    )
    echo()
    rows = [{**queue, "lastStored": format_time(queue["lastStoredMs"])} for queue in description["queues"]]
    columns = [
        TableColumn("broker", "broker"),
        TableColumn("queue", "queue"),
        TableColumn("minOffset", "min offset"),
        TableColumn("maxOffset", "max offset"),
        TableColumn("messages", "messages"),
        TableColumn("lastStored", "last stored"),
    ]
    print_table(rows, columns)


def _split_attributes(attributes: tuple[str, ...]) -> dict[str, str]:
    form = "KEY=VALUE without commas"
    for text in attributes:
        if "," in text:
            raise click.UsageError(f'--attribute "{text}": expected {form}')
    return parse_pairs("--attribute", attributes, form)


@topic.command()
@click.argument("name", metavar="TOPIC")
@click.option(
    "-q",
    "--queues",
    type=click.IntRange(1, 65535),
    default=8,
    show_default=True,
    metavar="N",
    help="Queues on each broker.",
)
@click.option("--read-queues", type=click.IntRange(1, 65535), metavar="N", help="Readable queues, if others.")
@click.option(
    "--type", "message_type", type=click.Choice(TYPES), metavar="TYPE", help="NORMAL, FIFO, DELAY, …"
)
@click.option("--perm", type=click.Choice(["rw", "r", "w", "none"]), default="rw", show_default=True)
@click.option(
    "--ordered", is_flag=True, help="Keep the number of queues in the namesrv for ordered consumers."
)
@click.option(
    "--attribute", "attributes", multiple=True, metavar="KEY=VALUE", help="Further attribute; repeatable."
)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists; nothing is changed then.")
@placement_options
@output_options()
@cluster_options
def create(
    connection: ConnectionFlags,
    name: str,
    queues: int,
    read_queues: int | None,
    message_type: str | None,
    perm: str,
    ordered: bool,
    attributes: tuple[str, ...],
    if_not_exists: bool,
    brokers: tuple[str, ...],
    cluster: str | None,
    output: str,
) -> None:
    """Create a topic on all brokers, or on those that are chosen, and wait until clients can find it."""
    from codec.topics import MAX_TOPIC_CHARS, NAME_PATTERN, NAME_PATTERN_TEXT
    from gateway.admin.topics import (
        MESSAGE_TYPE,
        PERMISSIONS,
        brokers_with_topic,
        create_topic,
        wait_for_route,
    )
    from remoting.bodies.topics import TopicConfig

    if not NAME_PATTERN.fullmatch(name) or len(name) > MAX_TOPIC_CHARS:
        raise click.UsageError(
            f'TOPIC "{name}": expected at most {MAX_TOPIC_CHARS} characters that match {NAME_PATTERN_TEXT}'
        )
    pairs = _split_attributes(attributes)
    if message_type is not None:
        pairs[MESSAGE_TYPE] = message_type
    config = TopicConfig(
        topic_name=name,
        read_queue_nums=read_queues or queues,
        write_queue_nums=queues,
        perm=PERMISSIONS[perm],
        order=ordered,
    )
    with connection.open() as client:
        chosen = client.choose_brokers(brokers, cluster)
        if if_not_exists and (present := brokers_with_topic(client, name, chosen)):
            _print_created(name, present, output, is_new=False)
            return
        create_topic(client, config, pairs, chosen)
        is_known = wait_for_route(client, name, chosen, client.timeout_s)
    _print_created(name, chosen, output, is_new=True)
    if not is_known:
        echo("The namesrv does not have its route yet; brokers report it within 30 s.", err=True)


def _print_created(name: str, brokers: Iterable[str], output: str, *, is_new: bool) -> None:
    from gateway.admin.output import print_json

    if output == "json":
        print_json({"topic": name, "brokers": list(brokers), "created": is_new})
    else:
        echo(f"{f'Created {name}' if is_new else f'{name} exists'} on {', '.join(brokers)}.")


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_names("topic"))
@click.option("-q", "--queues", type=click.IntRange(1, 65535), metavar="N", help="Queues on each broker.")
@click.option(
    "--read-queues", type=click.IntRange(1, 65535), metavar="N", help="Readable queues on each broker."
)
@click.option(
    "--write-queues", type=click.IntRange(1, 65535), metavar="N", help="Writable queues on each broker."
)
@click.option(
    "--type", "message_type", type=click.Choice(TYPES), metavar="TYPE", help="NORMAL, FIFO, DELAY, …"
)
@click.option("--perm", type=click.Choice(["rw", "r", "w", "none"]))
@click.option("--ordered/--not-ordered", default=None)
@click.option(
    "--attribute", "attributes", multiple=True, metavar="KEY=VALUE", help="Set an attribute; repeatable."
)
@click.option(
    "--remove-attribute", "removed", multiple=True, metavar="KEY", help="Remove an attribute; repeatable."
)
@placement_options
@output_options()
@cluster_options
def alter(
    connection: ConnectionFlags,
    name: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    message_type: str | None,
    perm: str | None,
    ordered: bool | None,
    attributes: tuple[str, ...],
    removed: tuple[str, ...],
    brokers: tuple[str, ...],
    cluster: str | None,
    output: str,
) -> None:
    """Change settings of a topic; those that are not named stay.

    To remove queues without losing messages, reduce --write-queues first, and --read-queues when all groups have
    consumed the rest.
    """
    from codec.topics import permission_text
    from gateway.admin.output import TableColumn, print_rows
    from gateway.admin.topics import MESSAGE_TYPE, PERMISSIONS, alter_topic

    flags = {
        "read_queue_nums": read_queues or queues,
        "write_queue_nums": write_queues or queues,
        "perm": PERMISSIONS[perm] if perm is not None else None,
        "order": ordered,
    }
    changes = {key: value for key, value in flags.items() if value is not None}
    pairs = _split_attributes(attributes)
    if message_type is not None:
        pairs[MESSAGE_TYPE] = message_type
    if not changes and not pairs and not removed:
        raise click.UsageError("Nothing to change: pass --queues, --perm, --type or another setting.")
    with connection.open() as client:
        rows = alter_topic(client, name, client.choose_brokers(brokers, cluster), changes, pairs, removed)
    columns = [
        TableColumn("broker", "broker"),
        TableColumn("setting", "setting"),
        TableColumn("before", "before"),
        TableColumn("now", "now"),
    ]
    if output != "json":
        for row in rows:
            if row["setting"] == "perm":
                row |= {key: permission_text(row[key]) for key in ("before", "now")}
    print_rows(rows, columns, output, empty="Nothing changed: the topic had these settings already.")


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_names("topic"))
@placement_options
@confirm_option
@cluster_options
def delete(
    connection: ConnectionFlags, name: str, brokers: tuple[str, ...], cluster: str | None, yes: bool
) -> None:
    """Delete a topic with all its messages."""
    from gateway.admin.topics import delete_topic

    with connection.open() as client:
        chosen = client.choose_brokers(brokers, cluster)
        if not yes:
            client.route(name)  # reports a misspelt name before the question
        confirm(f"Delete topic {name} with all its messages on {', '.join(chosen)}?", yes)
        had = delete_topic(client, name, chosen)
    echo(f"Deleted {name}" + (f" on {', '.join(had)}." if had else " from the namesrvs; no broker had it."))
