"""The command `rmq-gateway shadow console-user`: prints the settings of a console user, with the hash of a password."""

import sys

import click

from gateway.http_server.password_hash import MIN_PASSWORD_CHARS, PasswordHash
from gateway.http_server.settings import OPERATOR, VIEWER, ConsoleUser
from toolkit.toml_tables import load_table


@click.command("console-user")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice([VIEWER, OPERATOR]),
    default=VIEWER,
    show_default=True,
    help="viewer: look only; operator: change modes, move topics.",
)
def console_user(name: str, role: str) -> None:
    """Print the settings of a console user NAME for shadow.toml.

    The password is asked for, or read from standard input when that is no terminal. Only its hash is printed.
    """
    try:
        hashed = str(PasswordHash.create(_read_password(name)))
        load_table(ConsoleUser, {"name": name, "role": role, "password_hash": hashed}, "console.users")
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f'[[console.users]]\nname = "{name}"\nrole = "{role}"\npassword_hash = "{hashed}"')


def _read_password(name: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    text = f"Password of {name} (at least {MIN_PASSWORD_CHARS} characters)"
    password: str = click.prompt(text, hide_input=True, confirmation_prompt=True, err=True)
    return password
