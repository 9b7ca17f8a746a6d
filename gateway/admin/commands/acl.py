"""The command `rmq-gateway acl`: lists, creates, changes and deletes access rules, and explains decisions."""

from typing import TYPE_CHECKING, Final

import click

from gateway.admin.commands.options import (
    ClusterGroup,
    ConnectionFlags,
    Function,
    cluster_options,
    confirm,
    confirm_option,
    output_options,
    placement_options,
)
from gateway.auth.commands import explain
from toolkit.printable import echo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.auth.resources import Resource
    from remoting.bodies.auth import PolicyEntryInfo

RESOURCE_FORM: Final = "Topic:NAME, Group:NAME or Cluster:NAME (NAME may end with *), or * for everything"


@click.group(cls=ClusterGroup)
def acl() -> None:
    """List, create, change and delete access rules of users, and explain decisions."""


acl.add_command(explain)


def _policy_option(function: Function) -> Function:
    return click.option(
        "--policy",
        type=click.Choice(["Custom", "Default"], case_sensitive=False),
        default="Custom",
        show_default=True,
        help="Policy of the rules. Rules of Default decide only where no Custom rule matches.",
    )(function)


def _rule_options(function: Function) -> Function:
    """Add the parts of a rule: resources, actions, decision, source addresses and policy."""
    options = (
        click.option(
            "-r",
            "--resource",
            "resources",
            multiple=True,
            required=True,
            metavar="RESOURCE",
            help="Topic:NAME, Group:PREFIX*, Cluster:* or *; repeatable.",
        ),
        click.option(
            "-a",
            "--action",
            "actions",
            multiple=True,
            required=True,
            metavar="ACTION",
            help="Pub, Sub, Create, Update, Delete, Get, List or All; repeatable, or separated by commas.",
        ),
        click.option("--deny", is_flag=True, help="Deny the actions instead of allowing them."),
        click.option(
            "--source",
            "sources",
            multiple=True,
            metavar="ADDRESS",
            help="Only for requests from this address or range (10.0.0.0/8); repeatable.",
        ),
        _policy_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


@acl.command("list")
@click.argument("pattern", metavar="[USER]", default="*")
@click.option(
    "-r", "--resource", default="", metavar="TEXT", help="Only rules whose resource contains this text."
)
@placement_options
@output_options()
@cluster_options
def list_command(
    connection: ConnectionFlags,
    pattern: str,
    resource: str,
    brokers: tuple[str, ...],
    cluster: str | None,
    output: str,
) -> None:
    """List the rules of users whose names match USER (shell pattern)."""
    from gateway.admin.accounts import list_rules
    from gateway.admin.output import TableColumn, print_rows

    with connection.open() as client:
        rows = list_rules(client, client.choose_brokers(brokers, cluster), pattern, resource)
    columns = [
        TableColumn("user", "user"),
        TableColumn("resource", "resource"),
        TableColumn("decision", "decision"),
        TableColumn("actions", "actions"),
        TableColumn("sources", "sources"),
        TableColumn("policy", "policy"),
        TableColumn("brokers", "brokers"),
    ]
    print_rows(rows, columns, output, empty="No rules.")


@acl.command()
@click.argument("name", metavar="USER")
@_rule_options
@placement_options
@output_options()
@cluster_options
def create(
    connection: ConnectionFlags,
    name: str,
    resources: tuple[str, ...],
    actions: tuple[str, ...],
    deny: bool,
    sources: tuple[str, ...],
    policy: str,
    brokers: tuple[str, ...],
    cluster: str | None,
    output: str,
) -> None:
    """Give USER a rule for each resource, on all brokers that have the user, or on those that are chosen.

    The most specific rule decides about a request. A request that no rule matches is denied.
    """
    from gateway.admin.accounts import create_rules

    entries = _parse_rules(resources, actions, sources, deny=deny)
    with connection.open() as client:
        changed = create_rules(client, client.choose_brokers(brokers, cluster), name, policy, entries)
    _print_changed("Created", name, entries, changed, output)


@acl.command()
@click.argument("name", metavar="USER")
@_rule_options
@placement_options
@output_options()
@cluster_options
def alter(
    connection: ConnectionFlags,
    name: str,
    resources: tuple[str, ...],
    actions: tuple[str, ...],
    deny: bool,
    sources: tuple[str, ...],
    policy: str,
    brokers: tuple[str, ...],
    cluster: str | None,
    output: str,
) -> None:
    """Replace the rules that USER has for these resources."""
    from gateway.admin.accounts import replace_rules

    entries = _parse_rules(resources, actions, sources, deny=deny)
    with connection.open() as client:
        changed = replace_rules(client, client.choose_brokers(brokers, cluster), name, policy, entries)
    _print_changed("Changed", name, entries, changed, output)


@acl.command()
@click.argument("name", metavar="USER")
@click.option(
    "-r",
    "--resource",
    "resources",
    multiple=True,
    metavar="RESOURCE",
    help="Delete the rule for this resource; repeatable.",
)
@click.option("--all", "all_rules", is_flag=True, help="Delete all rules of the user, of both policies.")
@_policy_option
@placement_options
@confirm_option
@cluster_options
def delete(
    connection: ConnectionFlags,
    name: str,
    resources: tuple[str, ...],
    all_rules: bool,
    policy: str,
    brokers: tuple[str, ...],
    cluster: str | None,
    yes: bool,
) -> None:
    """Delete the rules that USER has for these resources, or all rules of USER."""
    from gateway.admin.accounts import delete_all_rules, delete_rules

    if bool(resources) == all_rules:
        raise click.UsageError("Pass either --resource or --all.")
    keys = [str(_parse_resource(text)) for text in resources]
    with connection.open() as client:
        chosen = client.choose_brokers(brokers, cluster)
        rules = "all rules" if all_rules else f"the rules for {', '.join(keys)}"
        confirm(f"Delete {rules} of {name} on {', '.join(chosen)}?", yes)
        changed = (
            delete_all_rules(client, chosen, name)
            if all_rules
            else delete_rules(client, chosen, name, policy, keys)
        )
    echo(f"Deleted {rules} of {name} on {', '.join(changed)}.")


def _parse_rules(
    resources: "Sequence[str]", actions: "Sequence[str]", sources: "Sequence[str]", *, deny: bool
) -> "list[PolicyEntryInfo]":
    """Return a rule for each resource. Raises UsageError for what a broker would refuse or ignore."""
    from gateway.auth.policies import InvalidPolicy, parse_entry
    from gateway.auth.resources import Action, find_named
    from remoting.bodies.auth import PolicyEntryInfo
    from toolkit.suggestions import suggest_name

    names = []
    for text in [part.strip() for option in actions for part in option.split(",")]:
        action = find_named(Action, text)
        if action is None:
            raise click.UsageError(
                f'--action "{text}"{suggest_name(text, [member.value for member in Action])}'
            )
        names.append(action.value)
    entries = [
        PolicyEntryInfo(
            resource=str(_parse_resource(text)),
            actions=names,
            source_ips=list(sources),
            decision="Deny" if deny else "Allow",
        )
        for text in resources
    ]
    for entry in entries:
        try:
            parse_entry(entry)
        except InvalidPolicy:  # the only part of a rule that is not checked above
            raise click.UsageError(
                f"--source {', '.join(sources)}: expected an address, or a range such as 10.0.0.0/8"
            ) from None
    return entries


def _parse_resource(text: str) -> "Resource":
    from gateway.auth.resources import parse_resource

    resource = parse_resource(text)
    if resource is None or str(resource).endswith(":"):
        raise click.UsageError(f'--resource "{text}": expected {RESOURCE_FORM}')
    return resource


def _print_changed(
    verb: str, user: str, entries: "Sequence[PolicyEntryInfo]", brokers: "Sequence[str]", output: str
) -> None:
    from gateway.admin.output import print_json

    resources = [entry.resource for entry in entries]
    if output == "json":
        print_json({"user": user, "resources": resources, "brokers": list(brokers)})
    else:
        rules = "the rule" if len(resources) == 1 else "rules"
        echo(f"{verb} {rules} of {user} for {', '.join(map(str, resources))} on {', '.join(brokers)}.")
