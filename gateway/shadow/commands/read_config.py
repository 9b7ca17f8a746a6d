"""Reads the shadow gateway's configuration on behalf of a command."""

from collections.abc import Callable
from typing import Any

from toolkit.printable import echo


def print_old_name(old_path: str, new_path: str) -> None:
    """Print a warning about the old name of a setting."""
    echo(
        f"Warning: setting {old_path} has been renamed to {new_path}; a later version will refuse the old name",
        err=True,
    )


def read_config(
    file: str | None,
    sets: tuple[str, ...],
    warn_of_old_name: Callable[[str, str], None] = print_old_name,
) -> Any:
    """Return the ShadowConfig of a file and of ``--set`` options; end the command with the reason if it is invalid."""
    from gateway.shadow.config import load_config
    from toolkit.exit_codes import ConfigurationError
    from toolkit.settings import SettingsError

    try:
        return load_config(file, sets, warn_of_old_name)
    except SettingsError as problem:
        raise ConfigurationError(str(problem)) from problem
