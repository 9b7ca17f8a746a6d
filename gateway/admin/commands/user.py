"""The command `rmq-gateway user`: lists, describes, creates, changes and deletes the users of brokers (ACL 2.0)."""

import sys
from typing import Final

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
from toolkit.printable import echo

STANDARD_INPUT: Final = "-"


@click.group(cls=ClusterGroup)
def user() -> None:
    """List, describe, create, change and delete the users of brokers."""


def _password_file_option(function: Function) -> Function:
    option = click.option(
        "--password-file",
        metavar="FILE",
        help="File with the password, or - for standard input. Without it, the command asks.",
    )
    return option(function)


@user.command("list")
@click.argument("pattern", default="*")
@placement_options
@output_options("name")
@cluster_options
def list_command(
    connection: ConnectionFlags, pattern: str, brokers: tuple[str, ...], cluster: str | None, output: str
) -> None:
    """List users whose names match PATTERN; passwords are never shown."""
    from gateway.admin.accounts import list_users
    from gateway.admin.output import TableColumn, print_rows

    with connection.open() as client:
        rows = list_users(client, client.choose_brokers(brokers, cluster), pattern)
    columns = [
        TableColumn("user", "user"),
        TableColumn("type", "type"),
        TableColumn("status", "status"),
        TableColumn("brokers", "brokers"),
    ]
    print_rows(rows, columns, output, empty="No users.")


@user.command()
@click.argument("name", metavar="USER")
@placement_options
@output_options()
@cluster_options
def describe(
    connection: ConnectionFlags, name: str, brokers: tuple[str, ...], cluster: str | None, output: str
) -> None:
    """Show the type, status and rules of a user."""
    from gateway.admin.accounts import describe_user
    from gateway.admin.output import TableColumn, print_json, print_table

    with connection.open() as client:
        description = describe_user(client, client.choose_brokers(brokers, cluster), name)
    if output == "json":
        print_json(description)
        return
    print_table(
        description["brokers"],
        [TableColumn("broker", "broker"), TableColumn("type", "type"), TableColumn("status", "status")],
    )
    echo()
    if not description["rules"]:
        echo(f'No rules: "rmq-gateway acl create {name}" adds one.')
        return
    print_table(
        description["rules"],
        [
            TableColumn("resource", "resource"),
            TableColumn("decision", "decision"),
            TableColumn("actions", "actions"),
            TableColumn("sources", "sources"),
            TableColumn("policy", "policy"),
            TableColumn("brokers", "brokers"),
        ],
    )


@user.command()
@click.argument("name", metavar="USER")
@_password_file_option
@click.option("--super", "is_super", is_flag=True, help="Allow the user everything.")
@click.option("--disabled", is_flag=True, help="Refuse the requests of the user until it is enabled.")
@placement_options
@output_options()
@cluster_options
def create(
    connection: ConnectionFlags,
    name: str,
    password_file: str | None,
    is_super: bool,
    disabled: bool,
    brokers: tuple[str, ...],
    cluster: str | None,
    output: str,
) -> None:
    """Create a user on all brokers, or on those that are chosen.

    Without rules, a user that is not --super may do nothing.
    """
    from gateway.admin.accounts import create_user
    from gateway.admin.output import print_json
    from remoting.bodies.auth import UserInfo

    if not name.strip():
        raise click.UsageError("USER is blank.")
    info = UserInfo(
        username=name,
        password=_read_password(name, password_file),
        user_type="Super" if is_super else "Normal",
        user_status="disable" if disabled else "enable",
    )
    with connection.open() as client:
        chosen = client.choose_brokers(brokers, cluster)
        create_user(client, chosen, name, info)
    if output == "json":
        print_json({"user": name, "brokers": chosen})
    else:
        echo(f"Created {name} on {', '.join(chosen)}.")


@user.command()
@click.argument("name", metavar="USER")
@click.option("--password", "new_password", is_flag=True, help="Set a new password; the command asks for it.")
@_password_file_option
@click.option(
    "--super/--normal", "is_super", default=None, help="Allow the user everything, or only what rules allow."
)
@click.option("--enabled/--disabled", default=None, help="Accept or refuse the requests of the user.")
@placement_options
@output_options()
@cluster_options
def alter(
    connection: ConnectionFlags,
    name: str,
    new_password: bool,
    password_file: str | None,
    is_super: bool | None,
    enabled: bool | None,
    brokers: tuple[str, ...],
    cluster: str | None,
    output: str,
) -> None:
    """Change the password, type or status of a user on each broker that has it, and nothing else."""
    from gateway.admin.accounts import alter_user
    from gateway.admin.output import print_json
    from remoting.bodies.auth import UserInfo

    changes = UserInfo()
    if is_super is not None:
        changes.user_type = "Super" if is_super else "Normal"
    if enabled is not None:
        changes.user_status = "enable" if enabled else "disable"
    if new_password or password_file is not None:
        changes.password = _read_password(name, password_file)
    elif is_super is None and enabled is None:
        raise click.UsageError("Nothing to change: pass --password, --super, --disabled or another setting.")
    with connection.open() as client:
        changed = alter_user(client, client.choose_brokers(brokers, cluster), name, changes)
    if output == "json":
        print_json({"user": name, "brokers": changed})
    else:
        echo(f"Changed {name} on {', '.join(changed)}.")


@user.command()
@click.argument("name", metavar="USER")
@placement_options
@confirm_option
@cluster_options
def delete(
    connection: ConnectionFlags, name: str, brokers: tuple[str, ...], cluster: str | None, yes: bool
) -> None:
    """Delete a user and its rules."""
    from gateway.admin.accounts import brokers_with_user, delete_user

    with connection.open() as client:
        present = list(brokers_with_user(client, client.choose_brokers(brokers, cluster), name))
        confirm(f"Delete user {name} with its rules on {', '.join(present)}?", yes)
        delete_user(client, present, name)
    echo(f"Deleted {name} on {', '.join(present)}.")


def _read_password(name: str, file: str | None) -> str:
    """Return the password in a file or on standard input, or ask for it. Raises UsageError, ConfigurationError.

    It is not an option: other users of the machine could see it in the list of processes.
    """
    from toolkit.exit_codes import ConfigurationError
    from toolkit.secret_file import read_secret_file
    from toolkit.settings import SettingsError

    if file == STANDARD_INPUT:
        password = sys.stdin.readline().rstrip("\r\n")
        if not password.strip():
            raise click.UsageError("--password-file -: standard input has no password.")
        return password
    if file is not None:
        try:
            return read_secret_file(file, "--password-file")
        except SettingsError as error:
            raise ConfigurationError(str(error)) from error
    if not is_terminal():
        raise click.UsageError(
            "There is no terminal to ask for the password on: pass --password-file FILE, or - for standard input."
        )
    answer: str = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    return answer


def is_terminal() -> bool:
    """Return True if somebody can be asked on the terminal."""
    return sys.stdin.isatty()
