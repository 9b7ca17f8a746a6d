"""Reads the shadow gateway's configuration on behalf of a command."""

from typing import Any


def read_config(file: str | None, sets: tuple[str, ...]) -> Any:
    """Return the ShadowConfig of a file and of ``--set`` options; end the command with the reason if it is invalid."""
    from gateway.shadow.config import load_config
    from toolkit.exit_codes import ConfigurationError
    from toolkit.settings import SettingsError

    try:
        return load_config(file, sets)
    except SettingsError as problem:
        raise ConfigurationError(str(problem)) from problem
