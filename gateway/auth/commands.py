"""The command `rmq-gateway acl explain`: shows which rule of users.json and acls.json decides about a request."""

from pathlib import Path

import click

from toolkit.exit_codes import ExitCode
from toolkit.printable import echo


@click.command()
@click.option(
    "--config-dir",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of users.json and acls.json: STORE/config, or authConfigPath.",
)
@click.option("--user", required=True, help="Name of the user.")
@click.option(
    "--action",
    "actions",
    required=True,
    multiple=True,
    help="Pub, Sub, Create, …; repeatable: any one of them suffices.",
)
@click.option("--resource", required=True, help="Topic:NAME, Group:NAME or Cluster:NAME.")
@click.option(
    "--source", default="127.0.0.1", show_default=True, help="Address from which the request comes."
)
def explain(config_dir: Path, user: str, actions: tuple[str, ...], resource: str, source: str) -> None:
    """Show if a user may do something, and which rule decides.

    The exit code is 0 if the answer is yes, and 3 if it is no.
    """
    from gateway.auth.access_control import describe_denial, explain_denial
    from gateway.auth.account_table import ACLS_FILE, USERS_FILE, PolicyTable, UserTable
    from gateway.auth.request_needs import Need
    from gateway.auth.resources import Action, ResourcePattern, find_named, parse_resource, topic_resource
    from gateway.runtime.config_file import ConfigFile
    from storage.files import DiskFiles

    files = DiskFiles()
    if not (config_dir / USERS_FILE).exists():
        raise click.ClickException(f"{config_dir} has no users.json: access control was never on there")
    try:
        users = UserTable(ConfigFile(files, str(config_dir / USERS_FILE)))
        policies = PolicyTable(ConfigFile(files, str(config_dir / ACLS_FILE)))
    except (OSError, ValueError) as problem:
        raise click.ClickException(str(problem)) from problem
    target, chosen_actions = parse_resource(resource), [find_named(Action, name) for name in actions]
    if target is None or target.pattern is not ResourcePattern.LITERAL:
        raise click.UsageError(f"--resource {resource}: expected Topic:NAME, Group:NAME or Cluster:NAME.")
    if None in chosen_actions:
        raise click.UsageError("--action is one of All, Pub, Sub, Create, Update, Delete, Get, List.")
    account = users.get(user)
    if account is None:
        raise click.ClickException(
            f"User:{user} is not found. Users: {', '.join(sorted(users.users)) or 'none'}"
        )
    if not account.is_enabled:
        echo(f"no: User:{user} is disabled.")
        raise SystemExit(ExitCode.REFUSED)
    if account.is_super:
        echo(f"yes: {user} is a super user.")
        return
    if target.type.value == "Topic":
        target = topic_resource(target.name)
    need = Need([action for action in chosen_actions if action is not None], target)
    reason = explain_denial(policies.get(user), need, source)
    if reason is not None:
        echo(f"no: {describe_denial(user, need, source, reason)}")
        raise SystemExit(ExitCode.REFUSED)
    decision = policies.get(user).decide(target, need.actions, source)
    kind = decision.policy_type.value.lower() if decision.policy_type is not None else ""
    echo(f"yes: the {kind} rule says: {decision.entry}")
