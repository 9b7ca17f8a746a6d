"""The command `rmq-gateway completion`: shell completion, shown or installed."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from toolkit.command_group import SuggestingGroup

PROGRAM: Final = "rmq-gateway"
VARIABLE: Final = "_RMQ_GATEWAY_COMPLETE"
"""click's variable for the program's name: with it, a shell asks the program for completions."""
SHELLS: Final = ("bash", "zsh", "fish")
_SHELL_ARGUMENT: Final = click.argument("shell", required=False, type=click.Choice(SHELLS))


@click.group(cls=SuggestingGroup)
def completion() -> None:
    """Show or install the completion of commands and options in your shell."""


@completion.command()
@_SHELL_ARGUMENT
def show(shell: str | None) -> None:
    """Print the script for SHELL: bash, zsh or fish (default: the one of $SHELL)."""
    click.echo(completion_script(shell or detect_shell()))


@completion.command()
@_SHELL_ARGUMENT
def install(shell: str | None) -> None:
    """Write the script to the folder where SHELL looks for it, and print what else to do.

    bash needs the package bash-completion, which nearly all systems have.
    """
    chosen = shell or detect_shell()
    file = script_file(chosen, os.environ)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(completion_script(chosen) + "\n")
    except OSError as error:
        raise click.ClickException(
            f"{file} cannot be written: {error.strerror}. Put the output of "
            f'"{PROGRAM} completion show {chosen}" where your shell reads it.'
        ) from error
    click.echo(f"Wrote {file}.")
    if chosen == "zsh":
        click.echo("Add this to ~/.zshrc, before compinit, unless the folder is in fpath already:")
        click.echo(f"  fpath=({file.parent} $fpath); autoload -Uz compinit; compinit")
    click.echo("New shells have the completion.")


def detect_shell() -> str:
    """Return the user's shell. Raises UsageError for one without completion."""
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f'$SHELL is "{name}": pass one of {", ".join(SHELLS)}.')
    return name


def completion_script(shell: str) -> str:
    """Return the script of click for this program."""
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    complete = completion_class(click.Command(PROGRAM), {}, PROGRAM, VARIABLE)
    script: str = complete.source_template % complete.source_vars()
    return script.strip()


def script_file(shell: str, environment: Mapping[str, str]) -> Path:
    """Return the file in which a shell looks for completions of this program."""
    home = Path(environment.get("HOME") or Path.home())
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    return {
        "bash": data / "bash-completion" / "completions" / PROGRAM,
        "zsh": data / "zsh" / "site-functions" / f"_{PROGRAM}",
        "fish": config / "fish" / "completions" / f"{PROGRAM}.fish",
    }[shell]
